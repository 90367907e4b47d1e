"""Studies: what pretraining is worth (``python -m studies`` writes docs/pretraining.md), and solver
output in the layout of CFDBench (``python -m studies.cfdbench``)."""
