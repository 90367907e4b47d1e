"""PIV programs: OpenPIV, PIVlab, TSI Insight, DaVis, Tecplot text."""

from pibert.data.sources.piv.reader import TITLE, open_recordings, recognise

__all__ = ["TITLE", "open_recordings", "recognise"]
