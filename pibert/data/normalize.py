"""Statistics of the training split, over measured points.

Means and variances are streamed: every block of frames gives its count, mean and sum of squared
deviations, and two such triples merge exactly (Chan, Golub, LeVeque 1983), in float64.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pibert.data.dataset import common_spec
from pibert.data.splits import Segment
from pibert.data.views import frame_blocks
from pibert.fields import Normalizer, Parameter, Trajectory


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
