"""Reference predictors: what any model must beat."""
