"""CFDBench: its case folders, read and written."""

from pibert.data.sources.cfdbench.reader import TITLE, open_recordings, recognise

__all__ = ["TITLE", "open_recordings", "recognise"]
