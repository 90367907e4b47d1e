"""Studies.

``python -m studies`` measures what pretraining is worth and writes docs/pretraining.md;
``python -m studies.uncertainty`` measures prediction intervals and the out-of-distribution warning
for docs/uncertainty.md;
``python -m studies.openfoam`` compares solver and model with OpenFOAM and writes docs/openfoam.md;
``python -m studies.cfdbench`` writes solver output in the layout of CFDBench.
"""
