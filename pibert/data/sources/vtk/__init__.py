"""VTK: legacy and XML files, and series of them."""

from pibert.data.sources.vtk.reader import TITLE, open_recordings, recognise

__all__ = ["TITLE", "open_recordings", "recognise"]
