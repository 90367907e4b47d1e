"""A measurement model: what particle image velocimetry would make of a clean flow.

A vector is the mean velocity over a square interrogation window (a top hat, w points of the grid
wide), taken over the fluid in it. It damps a wave of wave number k along an axis of spacing h to
sin(w k h / 2) / (w sin(k h / 2)) for odd w, which is the sinc of a continuous window for long
waves; the outer points of an even window count half. Then come

- noise: Gaussian, each component with a standard deviation given as a share of a velocity scale.
  Windows that overlap see some of the same particles, so it is the mean of w x w independent
  values: the correlation of two vectors is the share of the window that they have in common;
- outliers: vectors replaced by ones drawn uniformly from a square range. They are not marked, as
  nobody marks them in a recording;
- missing vectors: NaN and not valid, more often, if so asked, where the window touches a body.

What happens to a frame depends on the model's seed, the trajectory's name and the frame's number
alone. On such errors: Raffel et al., Particle Image Velocimetry, 3rd edition (2018).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.data.resample import channel_indices
from pibert.fields import Grid, Trajectory, read_mask
from pibert.physics import find_family

MEASURED = ("u", "v")
"""The channels that a camera sees."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """How a flow is measured."""

    window: int = 3
    """Width of the interrogation window in grid points; 1 leaves the field as it is."""
    noise: float = 0.02
    """Standard deviation of each component, as a share of the velocity scale."""
    outliers: float = 0.01
    """Share of the vectors that are spurious."""
    outlier_range: float = 2.0
    """Spurious components lie between plus and minus so many velocity scales."""
    missing: float = 0.01
    """Share of the vectors that are missing."""
    missing_near_body: float | None = None
    """The same where the window, or a neighbour, lies in a body; as elsewhere if not given."""
    velocity: float | None = None
    """The velocity scale; the spec's reference velocity if not given."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.window < 1 or self.seed < 0:
            raise ValueError(
                f"window must be 1 or more and seed 0 or more, found {self.window} and {self.seed}"
            )
        for name in ("outliers", "missing", "missing_near_body"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, found {share}")
        if not self.noise >= 0 or not self.outlier_range > 0:
            raise ValueError(
                "noise must be zero or positive and outlier_range positive, "
                f"found {self.noise} and {self.outlier_range}"
            )
        if self.velocity is not None and not self.velocity > 0:
            raise ValueError(f"velocity must be positive, found {self.velocity}")


def measure(trajectory: Trajectory, model: Measurement) -> Trajectory:
    """The trajectory as it would be measured; frames are made when they are read.

    Only u and v are left. Body, parameters, series and source facts stay; the local representation
    tells the model.
    """
    if "measurement" in trajectory.local:
        raise ValueError(f"trajectory {trajectory.name!r}: it has been measured already")
    spec = trajectory.spec
    picked = channel_indices(spec.channels, MEASURED)
    if spec.family is not None and not set(find_family(spec.family).channels) <= set(MEASURED):
        spec = replace(spec, family=None)
    model = replace(model, velocity=_velocity_scale(trajectory, model))
    local = {"channels": list(MEASURED), "measurement": asdict(model)}
    return replace(
        trajectory,
        states=_MeasuredFields(trajectory, model),
        spec=replace(spec, channels=MEASURED, units=tuple(spec.units[i] for i in picked)),
        valid=_MeasuredValid(trajectory, model) if _misses(model) else trajectory.valid,
        local={**trajectory.local, **local},
    )


def spurious(
    trajectory: Trajectory, model: Measurement, frames: slice = slice(None)
) -> Bool[Tensor, "t y x"]:
    """Where ``measure`` puts outliers into some frames, which the measured trajectory hides."""
    seen = trajectory.known(frames) & ~_missing(trajectory, model, frames)
    lots = _draw(trajectory, model, frames, "outliers", *trajectory.spec.grid.shape)
    return seen & (lots < model.outliers).to(seen.device)


class _MeasuredFields:
    """The states of a measured trajectory."""

    def __init__(self, base: Trajectory, model: Measurement) -> None:
        self.base, self.model = base, model
        self.channels = channel_indices(base.spec.channels, MEASURED)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.base.num_frames, len(MEASURED), *self.base.spec.grid.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        chosen = list(range(len(MEASURED)) if channels is None else channels)
        base, model = self.base, self.model
        fields = base.read(frames, [self.channels[i] for i in chosen])
        known = base.known(frames)
        average = _window_average(fields, known, base.spec.grid, model.window)
        scale = model.velocity or 0.0
        noisy = average + scale * model.noise * self._noise(frames)[:, chosen].to(average)
        wrong = spurious(base, model, frames)[:, None]
        noisy = torch.where(wrong, scale * self._wild(frames)[:, chosen].to(average), noisy)
        noisy = torch.where(_missing(base, model, frames)[:, None], torch.nan, noisy)
        # Unknown points stay what they are.
        return torch.where(known[:, None], noisy, fields)

    def _noise(self, frames: slice) -> Tensor:
        """Of unit variance, correlated as windows overlap."""
        w, (ny, nx) = self.model.window, self.base.spec.grid.shape
        white = _draw(self.base, self.model, frames, "noise", 2, ny + w - 1, nx + w - 1)
        return w * torch.nn.functional.avg_pool2d(white, w, stride=1)

    def _wild(self, frames: slice) -> Tensor:
        """Spurious vectors everywhere, in velocity scales."""
        share = _draw(self.base, self.model, frames, "values", 2, *self.base.spec.grid.shape)
        return self.model.outlier_range * (2 * share - 1)


class _MeasuredValid:
    """The valid mask of a measured trajectory."""

    def __init__(self, base: Trajectory, model: Measurement) -> None:
        self.base, self.model = base, model

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.base.num_frames, *self.base.spec.grid.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        there = ~_missing(self.base, self.model, frames)
        valid = self.base.valid
        return there if valid is None else there & read_mask(valid, frames).to(there.device)


def _window_average(fields: Tensor, known: Tensor, grid: Grid, window: int) -> Tensor:
    """Mean over the known points of the window around each point; NaN where there are none.

    Sums of shifted fields, so that a frame gives the same bits whatever it is read with.
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
            there = torch.arange(n, device=values.device) + offset
            share = ((there >= 0) & (there < n) | periodic).to(values)
            if 2 * abs(offset) == window:
                share = share / 2
            share = share if axis == -1 else share[:, None]
            total += share * values.index_select(axis, there % n)
        values = total
    return values


def _missing(trajectory: Trajectory, model: Measurement, frames: slice) -> Tensor:
    lots = _draw(trajectory, model, frames, "missing", *trajectory.spec.grid.shape)
    known = trajectory.known(frames)
    share = torch.full_like(lots, model.missing)
    if model.missing_near_body is not None and trajectory.body is not None:
        body = read_mask(trajectory.body, frames).to(lots).expand(lots.shape)
        reach = max(model.window // 2, 1)
        near = _window_sum(body, trajectory.spec.grid, 2 * reach + 1) > 0
        share = torch.where(near, model.missing_near_body, share)
    return (lots < share).to(known.device) & known


def _misses(model: Measurement) -> bool:
    return model.missing > 0 or (model.missing_near_body or 0) > 0


def _draw(
    trajectory: Trajectory, model: Measurement, frames: slice, purpose: str, *shape: int
) -> Tensor:
    """Independent numbers (t, *shape): normal ones for noise, else uniform from 0 to 1."""
    label = hashlib.sha256(f"{purpose} {trajectory.name}".encode()).digest()[:8]
    chosen = range(*frames.indices(trajectory.num_frames))
    numbers = np.empty((len(chosen), *shape))
    for place, frame in enumerate(chosen):
        rng = np.random.default_rng([model.seed, int.from_bytes(label), frame])
        numbers[place] = rng.standard_normal(shape) if purpose == "noise" else rng.random(shape)
    return torch.from_numpy(numbers)


def _velocity_scale(trajectory: Trajectory, model: Measurement) -> float | None:
    scale = model.velocity or trajectory.spec.reference_velocity
    if scale is None and (model.noise or model.outliers):
        raise ValueError(
            f"trajectory {trajectory.name!r}: it has no reference velocity; give the measurement a "
            "velocity that noise and outliers are shares of"
        )
    return scale
