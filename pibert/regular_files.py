"""Paths that are opened must be regular files: a FIFO or a device would block or never end."""

import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_regular(path: Path | str) -> None:
    """Raise ``ValueError`` for a named pipe, a socket or a device; a folder or no file passes."""
    try:
        kind = _KINDS.get(stat.S_IFMT(Path(path).stat().st_mode))
    except OSError:
        return  # opening it reports the problem
    if kind is not None:
        raise ValueError(f"{path}: expected a file, found {kind}; copy the data to a file first")
