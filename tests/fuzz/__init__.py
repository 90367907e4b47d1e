"""Damaged and hostile files for the readers."""
