"""ICP plasma: image and spectrum pairs, and tables of named fields."""

from pibert.data.sources.icp.reader import TITLE, open_recordings, recognise

__all__ = ["TITLE", "open_recordings", "recognise"]
