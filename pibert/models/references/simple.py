"""Reference predictors, which a model must beat; none is trained by gradient steps.

    persistence           x_{t+s} = x_t
    training mean         x_{t+s} = m
    linear extrapolation  x_{t+s} = x_t + s (x_t - x_{t-1})
    mean advection        x'_{t+1}(r) = x'_t(r - U(r) dt),  x' = x - m
    DMD                   ``models/references/dmd.py``

m is the mean of the training targets at every point, over the frames where the point is known; a
point that is never known has the mean of its channel, zero in standardised units.

Mean advection carries fluctuations along by the velocity U of m: Taylor's hypothesis of frozen
turbulence with a mean flow that varies in space. U dt is computed in physical units and converted
to cells of the grid. The fluctuation at the departure point r - U(r) dt is interpolated by the
cubic polynomials through 4 x 4 points. Periodic sides wrap; departure points beyond other sides
move to the side. Unknown points have no fluctuation; points that are never known have no velocity.

A reference has buffers and no trained weights; ``fit`` computes the buffers from the training
batches. It has no skip connection: ``residual`` is always False.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Normalizer, with_uniform_state
from pibert.models.layers import Answer, Fields, Mask, Vector
from pibert.models.stepper import Stepper, StepperConfig, checked_mask

_OFFSETS = (-1, 0, 1, 2)
"""Points of a cubic interpolation, relative to the last one before the position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceConfig(StepperConfig):
    """Options of every reference predictor."""

    residual: bool = False
    """Always False."""

    def __post_init__(self) -> None:
        StepperConfig.__post_init__(self)
        if self.residual:
            raise ValueError(
                "expected residual=False, found True: a reference predictor has no skip connection"
            )


class Reference(Stepper, ABC):
    """A predictor that is fitted in closed form, or not at all."""

    needs_fit: ClassVar[bool] = False
    """Whether it can predict only after ``fit``."""
    fitted: Tensor

    def __init__(self, config: ReferenceConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.register_buffer("fitted", torch.tensor(False))
        # A copy on the host, as reading the buffer would wait for the device.
        self._is_fitted = False
        self.register_load_state_dict_post_hook(_recall_fit)

    def fit(
        self, batches: Iterable[Batch], normalizer: Normalizer, valid: Iterable[Batch] | None = None
    ) -> None:
        """Compute the buffers from the training batches, in at most two passes.

        Args:
            batches: Standardised; iterated again for every pass, such as a loader or a list.
            normalizer: The normaliser of the batches.
            valid: Validation batches, for predictors that have something to choose.
        """
        self._mark_fitted()

    @abstractmethod
    def ahead(
        self, x: Float[Tensor, "b c y x"], known: Bool[Tensor, "*b y x"] | None
    ) -> Float[Tensor, "b k y x"]:
        """Return the next frames.

        Args:
            x: Checked, zero at unknown points.
            known: (y, x) or (b, 1, y, x); None: all points.
        """

    def forward(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Answer:
        """Return the next frames, standardised like the input; arguments as for ``Stepper``."""
        if self.needs_fit and not self._is_fitted:
            raise ValueError(
                f"{type(self).__name__} is not fitted; call fit with the training batches or load "
                "the state of a fitted one"
            )
        x = self.prepared(x, parameters, mask)
        known = None if mask is None else checked_mask(mask, x)
        # Full precision under autocast: nothing is gained from less.
        with torch.autocast(x.device.type, enabled=False):
            return self.uniform_state(self.ahead(x, known))

    def _mark_fitted(self) -> None:
        self.fitted.fill_(True)
        self._is_fitted = True


def _recall_fit(reference: Reference, _: Any) -> None:
    reference._is_fitted = bool(reference.fitted)


class Persistence(Reference):
    """The newest frame again."""

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        return self.last_frame(x)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearExtrapolationConfig(ReferenceConfig):
    """Options of ``LinearExtrapolation``."""

    history: int = 2
    """Input frames; the newest two are used."""

    def __post_init__(self) -> None:
        ReferenceConfig.__post_init__(self)
        if self.history < 2:
            raise ValueError(
                f"linear extrapolation needs a history of 2 or more frames, found {self.history}"
            )


class LinearExtrapolation(Reference):
    """The straight line through the newest two frames."""

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        before, last = x.unflatten(1, (self.config.history, -1))[:, -2:].unbind(1)
        step = last - before
        return torch.cat([last + s * step for s in range(1, self.config.horizon + 1)], dim=1)


class AboutTheMean(Reference):
    """A reference that uses the mean of the training targets."""

    needs_fit = True
    mean: Float[Tensor, "c y x"]

    def __init__(self, config: ReferenceConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.register_buffer("mean", torch.zeros(len(spec.channels), *spec.grid.shape))

    def check_size(self, shape: tuple[int, int]) -> None:
        """Require the grid of the training data."""
        if shape != self.spec.grid.shape:
            raise ValueError(
                f"expected fields on the grid of the training data, {self.spec.grid.shape}, "
                f"found {shape}"
            )

    def _fit_mean(self, batches: Iterable[Batch]) -> Bool[Tensor, "y x"]:
        """Compute the mean; returns the points that are known at least once."""
        total = torch.zeros_like(self.mean, dtype=torch.float64)
        count = torch.zeros_like(total)
        states = len(self.spec.state)
        for batch in self._checked(batches):
            y = with_uniform_state(batch.y, states, batch.target_mask)
            seen = batch.target_mask[:, :, None].repeat(1, 1, len(count), 1, 1)
            seen[:, :, len(count) - states :] = True  # the state is known everywhere
            total += torch.where(seen, y, 0.0).sum((0, 1), dtype=torch.float64)
            count += seen.sum((0, 1))
        known = count[0] > 0
        if not bool(known.any()):
            raise ValueError("expected training batches with known targets, found none")
        self.mean.copy_(total / count.clamp(min=1))
        return known

    def _checked(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches on the device of the buffers, after a check of their shapes."""
        frame = tuple(self.mean.shape)
        for batch in batches:
            if tuple(batch.y.shape[2:]) != frame or batch.x.shape[1] != self.in_channels:
                raise ValueError(
                    f"expected batches of {self.config.history} frames in and frames of shape "
                    f"{frame} out, found inputs {tuple(batch.x.shape)} and targets "
                    f"{tuple(batch.y.shape)}"
                )
            yield batch.to(self.mean.device)

    def _fluctuation(self, x: Tensor, known: Tensor | None) -> Tensor:
        """Return x - m of frames folded into channels, zero at unknown points.

        The state of a structure is known everywhere.
        """
        frames = x.shape[1] // len(self.mean)
        deviation = x - self.mean.repeat(frames, 1, 1)
        if known is None:
            return deviation
        known = known.expand(x.shape[0], 1, *x.shape[-2:])
        return self.uniform_state(torch.where(known, deviation, 0.0), known[:, 0])


class TrainingMean(AboutTheMean):
    """The mean of the training targets, whatever the input."""

    def fit(
        self, batches: Iterable[Batch], normalizer: Normalizer, valid: Iterable[Batch] | None = None
    ) -> None:
        self._fit_mean(batches)
        self._mark_fitted()

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        return self.mean.to(x.dtype).repeat(x.shape[0], self.config.horizon, 1, 1)


class MeanAdvection(AboutTheMean):
    """Advects fluctuations with the mean flow, frame by frame."""

    departure: Float[Tensor, "2 y x"]
    """Column and row, in cells, from which the fluid at each point came within a frame."""

    def __init__(self, config: ReferenceConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        if spec.velocity is None:
            raise ValueError(
                "mean advection expected the velocity channels u and v of a flow, found channels "
                f"{list(spec.channels)} of family {spec.family!r}"
            )
        if spec.dt is None:
            raise ValueError(
                "mean advection expected a spec with the time step dt between frames, found None; "
                "state it, or omit this reference where time steps differ"
            )
        self.velocity, self.dt = spec.velocity, spec.dt
        self.register_buffer("departure", torch.zeros(2, *spec.grid.shape))

    def fit(
        self, batches: Iterable[Batch], normalizer: Normalizer, valid: Iterable[Batch] | None = None
    ) -> None:
        ever_known = self._fit_mean(batches)
        grid = self.spec.grid
        flow = normalizer.invert(self.mean.double())[list(self.velocity)]
        flow = torch.where(ever_known, flow, 0.0)
        rows, columns = (torch.arange(n, device=flow.device) for n in grid.shape)
        departure = torch.stack(
            (
                columns - flow[0] * (self.dt / grid.dx),
                rows[:, None] - flow[1] * (self.dt / grid.dy),
            )
        )
        self.departure.copy_(departure)
        self._mark_fitted()

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        fluctuation = self._fluctuation(x[:, -len(self.mean) :], known)
        frames = []
        for _ in range(self.config.horizon):
            fluctuation = self._advected(fluctuation)
            frames.append(self.mean + fluctuation)
        return torch.cat(frames, dim=1)

    def _advected(self, fluctuation: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        (ny, nx), grid = fluctuation.shape[-2:], self.spec.grid
        columns = _neighbours(self.departure[0], nx, periodic=grid.periodic_x)
        rows = _neighbours(self.departure[1], ny, periodic=grid.periodic_y)
        points = fluctuation.flatten(2)
        advected = torch.zeros_like(fluctuation)
        for row, row_weight in rows:
            for column, column_weight in columns:
                values = points.index_select(2, (row * nx + column).flatten())
                advected = advected + values.view_as(advected) * (row_weight * column_weight)
        return advected


def _neighbours(
    position: Float[Tensor, "y x"], size: int, *, periodic: bool
) -> list[tuple[Int[Tensor, "y x"], Float[Tensor, "y x"]]]:
    """Return the grid points next to positions on an axis, and their Lagrange weights."""
    if periodic:
        first = position.floor()
    else:
        position = position.clamp(0, size - 1)
        # Moved inward next to a side.
        first = position.floor().clamp(-_OFFSETS[0], max(size - 1 - _OFFSETS[-1], -_OFFSETS[0]))
    pairs = []
    for offset in _OFFSETS:
        weight = torch.ones_like(position)
        for other in _OFFSETS:
            if other != offset:
                weight = weight * ((position - first - other) / (offset - other))
        index = (first + offset).long()
        index = index.remainder(size) if periodic else index.clamp(0, size - 1)
        pairs.append((index, weight))
    return pairs


PRESETS: dict[str, dict[str, ReferenceConfig]] = {
    "persistence": {"base": ReferenceConfig()},
    "training-mean": {"base": ReferenceConfig()},
    "linear-extrapolation": {"base": LinearExtrapolationConfig()},
    "mean-advection": {"base": ReferenceConfig()},
}
"""Named configurations of each reference in this file."""
