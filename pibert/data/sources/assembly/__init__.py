"""From named arrays to trajectories: which array is what, and reading it when asked for."""
