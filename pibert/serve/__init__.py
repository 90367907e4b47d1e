"""Predictions over HTTP, and the page that shows them (docs/serving.md has the interface)."""
