"""The size of the grid that points or a mesh are resampled to, with limits."""

import numpy as np

from pibert.data.sources.recordings import SourceError

_MOST_PER_POINT = 64
_ALWAYS = 200_000
"""Grid points that any data may be resampled to."""
_MOST_ASKED = 100_000_000


def even_size(name: str, extent: np.ndarray, step: float, count: int) -> tuple[int, int]:
    """Rows and columns of a grid with square cells that is as fine as the data.

    It would be huge if the data lie in small regions far apart.

    Args:
        name: Of what is resampled, for messages.
        extent: Width and height.
        step: The spacing of the data.
        count: The number of points or cells of the data.
    """
    with np.errstate(all="ignore"):
        columns, rows = np.maximum(np.asarray(extent, float) / step, 1.0)
    if not rows * columns <= _ALWAYS + _MOST_PER_POINT * count:
        raise SourceError(
            f"{name}: a uniform grid as fine as the data would have {rows:.4g} x {columns:.4g} "
            f"points for {count} given ones: they are dense in places that lie far apart. Give "
            "the size of the grid (--shape ROWSxCOLUMNS), or keep the points of one region"
        )
    return max(2, round(rows) + 1), max(2, round(columns) + 1)


def check_asked(name: str, shape: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns that the user asks for, if they make a grid that fits the memory."""
    rows, columns = shape
    if min(shape) < 2:
        raise SourceError(f"{name}: a grid needs two rows and two columns, found {shape}")
    if rows * columns > _MOST_ASKED:
        raise SourceError(
            f"{name}: a grid of {rows} x {columns} points was asked for; ask for at most "
            f"{_MOST_ASKED:,} points (--shape ROWSxCOLUMNS)"
        )
    return shape
