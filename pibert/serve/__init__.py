"""Serve models over HTTP with a web viewer (docs/serving.md has the interface)."""
