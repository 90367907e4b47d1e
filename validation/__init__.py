"""The solver held against theory and published figures: ``python -m validation``."""
