"""Coordinate axes in foreign files."""

import numpy as np

from pibert.data.format import SPACING_TOLERANCE


def uniform_step(axis: np.ndarray) -> float | None:
    """The step of a uniform axis, negative where it descends; None for any other."""
    if axis.ndim != 1 or len(axis) < 2 or not np.isfinite(axis).all():
        return None
    # Coordinates keep a step only to their own rounding.
    share = float(np.finfo(axis.dtype).eps) if axis.dtype.kind == "f" else 0.0
    axis = axis.astype(np.float64)
    step = float((axis[-1] - axis[0]) / (len(axis) - 1))
    rounding = min(4 * share * np.abs(axis).max(), 0.1 * abs(step))
    limit = max(SPACING_TOLERANCE * abs(step), rounding)
    return None if step == 0 or np.abs(np.diff(axis) - step).max() > limit else step


def smooth_time(time: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Times in float64, without the rounding of a uniform step, and that step."""
    step = uniform_step(time)
    exact = time.astype(np.float64)
    return (exact, None) if step is None else (exact[0] + step * np.arange(len(time)), step)
