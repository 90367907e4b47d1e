"""RealPDEBench: Arrow folders as the hub holds them, and raw HDF5."""

from pibert.data.sources.realpdebench.reader import TITLE, open_recordings, recognise

__all__ = ["TITLE", "open_recordings", "recognise"]
