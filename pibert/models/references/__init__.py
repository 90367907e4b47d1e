"""Reference predictors, which any model must beat."""
