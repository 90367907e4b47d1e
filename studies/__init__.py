"""Studies of what pretraining is worth; ``python -m studies`` writes docs/pretraining.md."""
