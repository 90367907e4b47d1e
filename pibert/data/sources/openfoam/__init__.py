"""OpenFOAM: sampled output, and simple cases."""

from pibert.data.sources.openfoam.reader import TITLE, open_recordings, recognise

__all__ = ["TITLE", "open_recordings", "recognise"]
