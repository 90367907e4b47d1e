"""Studies.

``python -m studies`` measures what pretraining is worth and writes docs/pretraining.md;
``python -m studies.trust`` measures prediction intervals and warnings for docs/uncertainty.md;
``python -m studies.cfdbench`` writes solver output in the layout of CFDBench.
"""
