"""Statistics of the training split, over measured points, and a test for spurious vectors.

Means and variances are streamed: every block of frames gives its count, mean and sum of squared
deviations, and two such triples merge exactly (Chan, Golub, LeVeque 1983), in float64.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.dataset import common_spec
from pibert.data.splits import Segment
from pibert.data.views import frame_blocks
from pibert.fields import Normalizer, Parameter, Trajectory

_MIN_NEIGHBOURS = 3
OUTLIER_THRESHOLD = 4.0
"""Threshold of the median test: twice the usual one, so that resolved shear layers pass."""


def fit_normalizer(
    trajectories: Sequence[Trajectory], segments: Sequence[Segment] | None = None
) -> Normalizer:
    """Return mean and population std of every channel over the measured points of segments.

    The trajectories have one common spec; the default segments are whole trajectories.
    """
    spec = common_spec(trajectories)
    if segments is None:
        segments = [Segment(index) for index in range(len(trajectories))]
    c = len(spec.channels)
    count = torch.zeros((), dtype=torch.float64)
    mean, squares = torch.zeros(2, c, dtype=torch.float64)
    for index, first, stop in segments:
        trajectory = trajectories[index]
        for frames in frame_blocks(trajectory, first, stop):
            fields, known = trajectory.read(frames), trajectory.measured(frames)
            values = fields.movedim(1, 0)[:, known].to("cpu", torch.float64)  # (c, points)
            if not values.shape[1]:
                continue
            if not bool(values.isfinite().all()):
                raise ValueError(
                    f"trajectory {trajectory.name!r}: values that are not finite at known points "
                    f"of frames {frames.start} to {frames.stop - 1}; mark them as not valid"
                )
            block_count, block_mean = values.shape[1], values.mean(1)
            block_squares = (values - block_mean[:, None]).square().sum(1)
            total = count + block_count
            shift = block_mean - mean
            squares += block_squares + shift.square() * count * block_count / total
            mean += shift * block_count / total
            count = total
    if not count:
        raise ValueError(
            "the training split has no measured point: all of its points are missing, filled or "
            "inside a body; check the masks with pibert inspect"
        )
    std = (squares / count).sqrt()
    constant = [name for name, s in zip(spec.channels, std, strict=True) if not s > 0]
    if constant:
        raise ValueError(f"channels {constant} are constant in the training split; leave them out")
    return Normalizer(tuple(mean.tolist()), tuple(std.tolist()))


def fit_parameters(
    trajectories: Sequence[Trajectory], segments: Sequence[Segment] | None = None
) -> tuple[Parameter, ...]:
    """Return the declared parameters with statistics and range over the training trajectories.

    Every trajectory counts once, in the declared scaling (log for a Reynolds number). A parameter
    with a single value, or none, in the training split gets the std 1.
    """
    indices = range(len(trajectories)) if segments is None else sorted({s[0] for s in segments})
    fitted = []
    for parameter in common_spec(trajectories).parameters:
        plain = replace(parameter, mean=0.0, std=1.0, lowest=None, highest=None)
        values = [
            trajectories[index].parameters[parameter.name]
            for index in indices
            if parameter.name in trajectories[index].parameters
        ]
        if not values:
            fitted.append(plain)
            continue
        scaled = plain.standardise(torch.tensor(values, dtype=torch.float64))
        std = 1.0 if len(set(values)) == 1 else scaled.std(correction=0).item()
        lowest, highest = float(min(values)), float(max(values))
        mean = scaled.mean().item()
        fitted.append(replace(plain, mean=mean, std=std, lowest=lowest, highest=highest))
    return tuple(fitted)


def flag_outliers(
    fields: Float[Tensor, "*batch c y x"],
    *,
    noise: float,
    known: Bool[Tensor, "*batch y x"],
) -> Bool[Tensor, "*batch y x"]:
    """Flag vectors that do not fit their neighbours: the normalised median test.

    A component U with the median Um of its (up to eight) known neighbours has the residual
    |U - Um| / (median |Ui - Um| + noise); a vector is flagged if the Euclidean norm of its
    components' residuals exceeds ``OUTLIER_THRESHOLD``. Westerweel, Scarano, Exp. Fluids 39 (2005).

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
    median, count = _median(neighbours)
    spread, _ = _median((neighbours - median).abs())
    residual = torch.linalg.vector_norm((values - median) / (spread + noise), dim=-3)
    return usable & (count >= _MIN_NEIGHBOURS).all(-3) & (residual > OUTLIER_THRESHOLD)


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


def _median(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median over the first axis without NaN, and the number of values."""
    count = values.isfinite().sum(0)
    ordered = values.sort(0).values  # NaN last
    middle = [((count - 1) // 2).clamp(min=0), count // 2]
    middle[1] = middle[1].clamp(max=len(values) - 1)
    low, high = (ordered.gather(0, index[None]).squeeze(0) for index in middle)
    return (low + high) / 2, count
