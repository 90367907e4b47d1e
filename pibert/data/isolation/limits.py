"""How much memory and time a reading process gets: in proportion to the data that it reads."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_STATEMENTS = Path("/proc/self/statm")
_LISTS = (".pvd", ".series", ".vtm", ".foam", ".openfoam")
"""Files that name others beside them, or stand for their folder."""
_MOST_FILES = 200_000


class Limits(NamedTuple):
    """Of one request to a reading process."""

    memory: int
    """Bytes that it may allocate."""
    seconds: float


def limits_for(path: Path) -> Limits:
    """Enough for any honest file: 50 times its size, at 100 kB/s, and something for small ones."""
    size = _size(path)
    return Limits(memory=(3 << 29) + 50 * size, seconds=120 + size / 1e5)


def limit_memory(more: int) -> None:
    """Let this process allocate so many bytes more than it has, where the system can tell."""
    if _STATEMENTS.exists():
        import resource  # which Windows does not have

        used = int(_STATEMENTS.read_text().split()[5]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + more, most))


def _size(path: Path) -> int:
    if path.suffix.lower() in _LISTS:
        path = path.absolute().parent
    if path.is_dir():
        files: Iterator[Path] = (
            Path(folder, name) for folder, _, names in os.walk(path) for name in names
        )
    else:
        files = iter([path] if path.exists() else path.parent.glob(path.name))
    total = 0
    for file in islice(files, _MOST_FILES):
        try:
            total += file.stat().st_size
        except OSError:
            continue
    return total
