"""The interface of a PDE family: everything in the package that depends on the governing equation.

A residual needs its spatial terms and its time derivative at the same instant. From two frames
that instant is their midpoint: the average of both frames and their difference over dt are each
second-order accurate there. With fewer frames than the equation needs, or without dt, the instant
is the last frame and the time derivative is left out (the steady proxy). The order in space is
that of the stencils.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.physics.derivatives import Order, gradient
from pibert.physics.grid import Grid
from pibert.physics.stepping import StepPlan

Frames = Mapping[str, Float[Tensor, "*batch t y x"]]
Coefficient = float | Tensor
"""One number, or a tensor (*batch,) with one per sample."""
Coefficients = Mapping[str, Coefficient]
Residuals = dict[str, Float[Tensor, "*batch component y x"]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Omission:
    """Windows of which each sample loses one term of its equation."""

    fields: Mapping[str, Float[Tensor, "b t y x"]]
    """The family's channels in physical units, the newest frame last."""
    known: Bool[Tensor, "b y x"]
    coefficients: Mapping[str, Any]
    keep: Mapping[str, Float[Tensor, " b"]]
    """For each term, 0 in the samples that omit it and 1 in the others."""
    grid: Grid
    plan: StepPlan | None
    """How to step to the newest frame; None for a single frame or an unknown time step."""


class Family(ABC):
    """One governing equation. A subclass sets the attributes without a default."""

    name: str
    channels: tuple[str, ...]
    """Required fields."""
    optional_channels: tuple[str, ...] = ()
    """Fields that are used if the data has them."""
    velocity: tuple[str, str] | None = None
    """The channels that are the velocity along x and y; None if the equation is not of a flow."""
    is_solenoidal: bool = False
    """Whether the velocity is free of divergence."""
    frames: int = 2
    """Frames that the full residual takes."""
    coefficients: Mapping[str, float]
    """Names of the coefficients, with the value of an unknown one; 0 leaves out its term.

    Diffusivities start with ``viscosity`` or ``diffusivity``: they limit explicit steps.
    """
    terms: tuple[str, ...]
    """Names of the residuals."""
    equation: str = "unknown"
    """The equation in the words of ``pibert.models.baselines.pitt.VOCABULARY``."""
    symbols: Mapping[str, str] = {}
    """The words of every coefficient in the equation, in the order of the text."""
    diagnostic_names: tuple[str, ...] = ()
    """Names of the ``diagnostics``."""

    def required_frames(self, channels: Sequence[str]) -> int:
        """Return the number of frames a window needs before it can violate the equation."""
        return self.frames

    def is_reversible(self, channels: Sequence[str]) -> bool:
        """Return whether frames of these channels also obey the equation in reverse order."""
        return False

    def residuals(
        self,
        fields: Frames,
        grid: Grid,
        *,
        dt: float | None = None,
        order: Order = 2,
        **coefficients: Coefficient,
    ) -> Residuals:
        """Return signed residuals (*batch, component, y, x) of fields (*batch, t, y, x).

        The last frame is the newest. Coefficients are numbers or tensors (*batch,).
        """
        missing = [name for name in self.channels if name not in fields]
        if missing:
            raise ValueError(f"family {self.name!r} needs channels {missing}, found {list(fields)}")
        unknown = [name for name in coefficients if name not in self.coefficients]
        if unknown:
            raise ValueError(
                f"family {self.name!r} has coefficients {list(self.coefficients)}, found {unknown}"
            )
        if dt is not None and not dt > 0:
            raise ValueError(f"dt must be positive or None, found {dt}")
        return self._residuals(fields, grid, dt, order, coefficients)

    @abstractmethod
    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        """Return the residuals of checked inputs, in the order of ``terms``."""

    def diagnostics(
        self, fields: Frames, grid: Grid, *, dt: float | None, **coefficients: Coefficient
    ) -> dict[str, Float[Tensor, "*batch"]]:
        """Return how far a sequence of frames is from what every solution satisfies.

        Zero is best. What the grid, dt or the coefficients do not allow to measure is left out.
        """
        return {}

    def omissible_terms(self, known: Collection[str], has_steps: bool) -> tuple[str, ...]:
        """Return the terms of the equation that a window can be computed without.

        Args:
            known: Names of the coefficients that are known.
            has_steps: Whether a window has two frames or more at a known time step.
        """
        return ()

    def change_without(self, omission: Omission) -> dict[str, Float[Tensor, "b y x"]]:
        """Return what to add to the newest frame of each channel to remove the omitted terms."""
        raise NotImplementedError


def midpoint(frames: Tensor, dt: float | None) -> tuple[Tensor, Tensor | None]:
    """Value and rate of change midway between the last two frames; else last frame and None."""
    now = frames[..., -1, :, :]
    if dt is None or frames.shape[-3] < 2:
        return now, None
    before = frames[..., -2, :, :]
    return (now + before) / 2, (now - before) / dt


def spread(coefficient: Coefficient, axes: int = 2) -> Coefficient:
    """Return a coefficient that multiplies fields with this many axes after the batch."""
    if isinstance(coefficient, Tensor):
        return coefficient.reshape(*coefficient.shape, *[1] * axes)
    return coefficient


def stacked(
    fields: Mapping[str, Float[Tensor, "b t y x"]], names: Sequence[str], frame: int
) -> Float[Tensor, "b c y x"]:
    """Stack channels of one frame. Indexing by a list would synchronise with the device."""
    return torch.stack([fields[name][:, frame] for name in names], dim=1)


def advection(velocity: Float[Tensor, "*batch 2 y x"], grid: Grid, order: Order) -> Tensor:
    """-(u . grad) u."""
    along_x, along_y = gradient(velocity, grid, order)
    return -(velocity[..., :1, :, :] * along_x + velocity[..., 1:, :, :] * along_y)


def material_derivative(
    fields: Frames, grid: Grid, dt: float | None, order: Order
) -> tuple[Tensor, Tensor]:
    """Velocity (*batch, 2, y, x) and its u_t + (u . grad) u, at the midpoint of two frames."""
    velocity, rate = midpoint(torch.stack((fields["u"], fields["v"]), dim=-4), dt)
    change = -advection(velocity, grid, order)
    return velocity, change if rate is None else change + rate
