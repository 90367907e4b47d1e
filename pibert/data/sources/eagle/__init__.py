"""EAGLE: flows on moving meshes, and their frames on a grid."""

from pibert.data.sources.eagle.reader import TITLE, open_recordings, recognise

__all__ = ["TITLE", "open_recordings", "recognise"]
