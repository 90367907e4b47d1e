"""Figures from results; the only place that imports matplotlib."""
