"""The native file format: HDF5, one group per trajectory (docs/data-format.md specifies it)."""

from pibert.data.format.reading import (
    FORMAT,
    SPACING_TOLERANCE,
    VERSION,
    FormatError,
    Reader,
    check,
)
from pibert.data.format.writing import Writer, write

__all__ = [
    "FORMAT",
    "SPACING_TOLERANCE",
    "VERSION",
    "FormatError",
    "Reader",
    "Writer",
    "check",
    "write",
]
