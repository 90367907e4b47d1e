"""The size of a structured grid, compared with its data before anything of that size is made."""

import math
from collections.abc import Mapping

import numpy as np

Dims = tuple[int, int, int]


def check_dims(
    dims: Dims, point_data: Mapping[str, np.ndarray], cell_data: Mapping[str, np.ndarray]
) -> None:
    """Raise ValueError unless every array has one value per point, or per cell, of the grid."""
    size = " x ".join(str(count) for count in dims)
    if min(dims) < 1:
        raise ValueError(f"its grid of {size} points is empty")
    cells = [max(1, count - 1) for count in dims]
    for data, what, count in (
        (point_data, "points", math.prod(dims)),
        (cell_data, "cells", math.prod(cells)),
    ):
        for name, values in data.items():
            if len(values) != count:
                raise ValueError(
                    f"{name!r} has {len(values)} values, but its grid of {size} points has "
                    f"{count} {what}"
                )
