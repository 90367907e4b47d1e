"""A model of particle image velocimetry (PIV) that measures a clean flow.

A vector is the mean velocity of the fluid in a square interrogation window (a top hat, w grid
points wide). It damps a wave of wave number k along an axis of spacing h to sin(w k h / 2) / (w
sin(k h / 2)) for odd w, the sinc of a continuous window for long waves; the outer points of an even
window count half. Then the model adds

- noise: Gaussian, each component with a standard deviation given as a share of a velocity scale.
  Overlapping windows share particles, so it is the mean of w x w independent values: the
  correlation of two vectors is the share of the window that they have in common;
- outliers: unmarked vectors with uniform random components;
- missing vectors: NaN and not valid, more often near a body if so configured.

The errors of a frame depend on the model's seed, the trajectory's name and the frame number alone.
Reference: Raffel et al., Particle Image Velocimetry, 3rd edition (2018).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.config import Bounds, Count, NonNegative, NonNegativeInt, Positive, check
from pibert.data.resample import channel_indices
from pibert.data.views import MappedFrames, mask_shape, pick
from pibert.fields import Grid, Trajectory, read_mask
from pibert.physics import find_family

Share = Annotated[float, Bounds(least=0, most=1)]
MEASURED = ("u", "v")
"""The measured channels."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Settings of the measurement."""

    window: Count = 3
    """Width of the interrogation window in grid points; 1 leaves the field as it is."""
    noise: NonNegative = 0.02
    """Standard deviation of each component, as a share of the velocity scale."""
    outliers: Share = 0.01
    """Share of the vectors that are spurious."""
    outlier_range: Positive = 2.0
    """Limit of spurious components, in velocity scales."""
    missing: Share = 0.01
    """Share of the vectors that are missing."""
    missing_near_body: Share | None = None
    """The share where the window or a neighbour lies in a body; None: as elsewhere."""
    velocity: Positive | None = None
    """The velocity scale; None: the spec's reference velocity."""
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        check(self)


def measure(trajectory: Trajectory, model: Measurement) -> Trajectory:
    """Return a lazy view of the trajectory as measured; ``local`` records the settings.

    Only u and v remain. Body, parameters, series and source facts stay.
    """
    if "measurement" in trajectory.local:
        raise ValueError(f"trajectory {trajectory.name!r}: it is a measurement already")
    spec = trajectory.spec
    picked = channel_indices(spec.channels, MEASURED)
    if spec.family is not None and not set(find_family(spec.family).channels) <= set(MEASURED):
        spec = replace(spec, family=None)
    scale = model.velocity or spec.reference_velocity
    if scale is None and (model.noise or model.outliers):
        raise ValueError(
            f"trajectory {trajectory.name!r}: it has no reference velocity; give the measurement "
            "the velocity scale of noise and outliers"
        )
    model = replace(model, velocity=scale)
    local = {"channels": list(MEASURED), "measurement": asdict(model)}
    shape, valid = (trajectory.num_frames, len(MEASURED), *spec.grid.shape), trajectory.valid
    if model.missing > 0 or (model.missing_near_body or 0) > 0:
        valid = MappedFrames(mask_shape(trajectory), partial(_read_valid, trajectory, model))
    return replace(
        trajectory,
        states=MappedFrames(shape, partial(_read_measured, trajectory, model)),
        spec=replace(spec, channels=MEASURED, units=tuple(spec.units[i] for i in picked)),
        valid=valid,
        local={**trajectory.local, **local},
    )


def spurious(
    trajectory: Trajectory, model: Measurement, frames: slice = slice(None)
) -> Bool[Tensor, "t y x"]:
    """Return the outliers that ``measure`` adds to frames; the measured trajectory hides them."""
    seen = trajectory.known(frames) & ~_missing(trajectory, model, frames)
    numbers = _random(trajectory, model, frames, "outliers", *trajectory.spec.grid.shape)
    return seen & (numbers < model.outliers).to(seen.device)


def _read_measured(
    base: Trajectory, model: Measurement, frames: slice, channels: Sequence[int] | None
) -> Tensor:
    """Return the measured velocity of frames."""
    chosen = pick(range(len(MEASURED)), channels)
    stored = channel_indices(base.spec.channels, MEASURED)
    fields, known = base.read(frames, pick(stored, chosen)), base.known(frames)
    average = _window_average(fields, known, base.spec.grid, model.window)
    scale, w, (ny, nx) = model.velocity or 0.0, model.window, base.spec.grid.shape
    # Noise of unit variance, correlated as windows overlap.
    white = _random(base, model, frames, "noise", 2, ny + w - 1, nx + w - 1)
    noise = w * torch.nn.functional.avg_pool2d(white, w, stride=1)
    share = _random(base, model, frames, "values", 2, ny, nx)
    wild = model.outlier_range * (2 * share - 1)
    noisy = average + scale * model.noise * noise[:, chosen].to(average)
    wrong = spurious(base, model, frames)[:, None]
    noisy = torch.where(wrong, scale * wild[:, chosen].to(average), noisy)
    noisy = torch.where(_missing(base, model, frames)[:, None], torch.nan, noisy)
    # Unknown points keep their values.
    return torch.where(known[:, None], noisy, fields)


def _read_valid(base: Trajectory, model: Measurement, frames: slice) -> Tensor:
    valid = ~_missing(base, model, frames)
    return valid if base.valid is None else valid & read_mask(base.valid, frames).to(valid.device)


def _window_average(fields: Tensor, known: Tensor, grid: Grid, window: int) -> Tensor:
    """Mean over the known points of the window around each point; NaN without any.

    Sums of shifted fields, so that the bits of a frame do not depend on the frames read with it.
    """
    if window == 1:
        return fields
    known = known[:, None]
    total = _window_sum(torch.where(known, fields, 0.0).double(), grid, window)
    return (total / _window_sum(known.double(), grid, window)).to(fields.dtype)


def _window_sum(values: Tensor, grid: Grid, window: int) -> Tensor:
    half = window // 2
    for axis, periodic in ((-2, grid.periodic_y), (-1, grid.periodic_x)):
        n, total = values.shape[axis], torch.zeros_like(values)
        for offset in range(-half, half + 1):
            index = torch.arange(n, device=values.device) + offset
            share = ((index >= 0) & (index < n) | periodic).to(values)
            if 2 * abs(offset) == window:
                share = share / 2
            share = share if axis == -1 else share[:, None]
            total += share * values.index_select(axis, index % n)
        values = total
    return values


def _missing(trajectory: Trajectory, model: Measurement, frames: slice) -> Tensor:
    numbers = _random(trajectory, model, frames, "missing", *trajectory.spec.grid.shape)
    known = trajectory.known(frames)
    share = torch.full_like(numbers, model.missing)
    if model.missing_near_body is not None and trajectory.body is not None:
        body = read_mask(trajectory.body, frames).to(numbers).expand(numbers.shape)
        reach = max(model.window // 2, 1)
        near = _window_sum(body, trajectory.spec.grid, 2 * reach + 1) > 0
        share = torch.where(near, model.missing_near_body, share)
    return (numbers < share).to(known.device) & known


def _random(
    trajectory: Trajectory, model: Measurement, frames: slice, purpose: str, *shape: int
) -> Tensor:
    """Independent random numbers (t, *shape): normal for noise, else uniform from 0 to 1."""
    label = hashlib.sha256(f"{purpose} {trajectory.name}".encode()).digest()[:8]
    chosen = range(*frames.indices(trajectory.num_frames))
    numbers = np.empty((len(chosen), *shape))
    for i, frame in enumerate(chosen):
        rng = np.random.default_rng([model.seed, int.from_bytes(label), frame])
        numbers[i] = rng.standard_normal(shape) if purpose == "noise" else rng.random(shape)
    return torch.from_numpy(numbers)
