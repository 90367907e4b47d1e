"""Spurious vectors: the normalised median test of Westerweel and Scarano, Exp. Fluids 39 (2005).

A component U with the median Um of its eight neighbours has the residual

    |U - Um| / (median |Ui - Um| + noise)

and a vector is an outlier if the norm of its components' residuals exceeds ``THRESHOLD``. Beside a
border, a body or a gap neighbours are missing, and the median of those on one side would be off by
the shear of a good flow. So missing neighbours are extrapolated linearly from the others, and the
rest, as in a corner, through the vector itself. A vector is tested if most of its neighbours do not
depend on it.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.views import spread
from pibert.fields import Trajectory

THRESHOLD = 4.0
"""Twice the authors' one, so that resolved shear layers pass."""
_NOISE = 0.1
"""Accepted fluctuation as a share of the velocity's standard deviation."""
_FRAMES = 16
_LEAST_KNOWN = 3
# Neighbours are counted row by row: 0 1 2 above, 3 4 beside, 5 6 7 below.
_ALONG_SIDES = {0: ((3, 5), (1, 2)), 2: ((4, 7), (1, 0)), 5: ((3, 0), (6, 7)), 7: ((4, 2), (6, 5))}
"""For a corner: the two next neighbours along each side that ends there."""
_BETWEEN = {1: (0, 2), 3: (0, 5), 4: (2, 7), 6: (5, 7)}
"""For the middle of a side: its corners."""


def usual_noise(trajectory: Trajectory, velocity: Sequence[int]) -> float | None:
    """A tenth of the standard deviation of these channels in some frames, without outliers.

    None if it is zero.
    """
    frames = [slice(n, n + 1) for n in spread(trajectory.num_frames, _FRAMES)]
    fields = torch.cat([trajectory.read(f, velocity).to("cpu", torch.float64) for f in frames])
    known = torch.cat([trajectory.known(f).cpu() for f in frames]) & fields.isfinite().all(1)
    sound, noise = known, None
    for _ in range(3):  # outliers that the first estimate misses raise it
        values = fields.movedim(1, 0)[:, sound]
        variance = values.var(1, correction=0).mean().item() if values.shape[1] else 0.0
        if not variance > 0:
            return noise
        noise = _NOISE * math.sqrt(variance)
        sound = known & ~flag_outliers(fields, noise=noise, known=known)
    return noise


def flag_outliers(
    fields: Float[Tensor, "*batch c y x"], *, noise: float, known: Bool[Tensor, "*batch y x"]
) -> Bool[Tensor, "*batch y x"]:
    """Flag vectors that do not fit their neighbours.

    ``fields`` are the components in physical units, ``noise`` is the accepted fluctuation of the
    measurement in the same units (the authors use a displacement of 0.1 pixel). Only ``known``
    finite points are tested and used as neighbours; a point with fewer than three known neighbours
    is never flagged.
    """
    if not noise > 0:
        raise ValueError(f"noise must be positive, found {noise}")
    usable = fields.isfinite().all(-3) & known
    values = torch.where(usable[..., None, :, :], fields, torch.nan)
    neighbours = _neighbours(values)  # (8, *batch, c, y, x)
    enough = neighbours.isfinite().sum(0) >= _LEAST_KNOWN
    _extrapolate(neighbours)
    independent = neighbours.isfinite().sum(0)
    neighbours = torch.where(neighbours.isnan(), 2 * values - neighbours.flip(0), neighbours)
    median, count = _median(neighbours)
    spreads, _ = _median((neighbours - median).abs())
    residual = torch.linalg.vector_norm((values - median) / (spreads + noise), dim=-3)
    tested = (enough & (2 * independent > count)).all(-3)
    return usable & tested & (residual > THRESHOLD)


def _neighbours(values: Tensor) -> Tensor:
    """The eight neighbours of every point; NaN outside the grid."""
    ny, nx = values.shape[-2:]
    wide = torch.nn.functional.pad(values, (1, 1, 1, 1), value=torch.nan)
    return torch.stack(
        [
            wide[..., row : row + ny, column : column + nx]
            for row in range(3)
            for column in range(3)
            if (row, column) != (1, 1)
        ]
    )


def _extrapolate(neighbours: Tensor) -> None:
    """Replace missing neighbours by linear extrapolation from the others, where these suffice."""
    corners = {
        corner: torch.stack([2 * neighbours[a] - neighbours[b] for a, b in pairs]).nanmean(0)
        for corner, pairs in _ALONG_SIDES.items()
    }
    for corner, values in corners.items():
        neighbours[corner] = neighbours[corner].where(~neighbours[corner].isnan(), values)
    for middle, (a, b) in _BETWEEN.items():
        between = (neighbours[a] + neighbours[b]) / 2
        neighbours[middle] = neighbours[middle].where(~neighbours[middle].isnan(), between)


def _median(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median over the first axis without NaN, and the number of values."""
    count = values.isfinite().sum(0)
    ordered = values.sort(0).values  # NaN last
    middle = [((count - 1) // 2).clamp(min=0), (count // 2).clamp(max=len(values) - 1)]
    low, high = (ordered.gather(0, index[None]).squeeze(0) for index in middle)
    return (low + high) / 2, count
