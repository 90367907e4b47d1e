"""Moving bodies, and structural state that travels with the fields.

The state of a structure (displacement, velocity, forces of its bodies) is a set of channels that
are constant in space: the last channels of a ``FieldSpec``, named by its ``state``. So batches,
normalizers, losses, rollouts and prediction intervals treat it as they treat fields. The spec's
``bodies`` state which channel moves which body, and on what spring.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.physics.grid import Grid

REDUCED_VELOCITY, MASS_RATIO = "reduced_velocity", "mass_ratio"
"""Parameters of a flow with a body on a spring: U / (f D) with the natural frequency f in vacuum;
mass of the body over that of the fluid it displaces."""


@dataclass(frozen=True, kw_only=True)
class Spring:
    """The mounting of a body, whose mass and stiffness are ``MASS_RATIO`` and ``REDUCED_VELOCITY``.

    Displacement, velocity and force are series or channels in units of D, U and rho U^2 D / 2.
    """

    damping_ratio: float = 0.0
    """Share of critical damping, in vacuum."""
    velocity: str = "velocity"
    force: str = "lift"
    """Of the fluid on the body, along the axis of its motion."""

    def __post_init__(self) -> None:
        if not (isinstance(self.velocity, str) and isinstance(self.force, str)):
            raise ValueError(
                "a spring needs the names of the body's velocity and of the force on it, found "
                f"{self.velocity!r} and {self.force!r}"
            )
        if not 0 <= self.damping_ratio < 1:
            raise ValueError(
                "the damping ratio of a spring must be at least 0 and below 1, found "
                f"{self.damping_ratio}"
            )


@dataclass(frozen=True, kw_only=True)
class MovingBody:
    """A circular cylinder that moves along one axis."""

    radius: float
    """In the length unit of the grid."""
    centre: tuple[float, float] = (0.0, 0.0)
    """(x, y) at rest."""
    displacement: str = "displacement"
    """The series or channel with its displacement."""
    axis: Literal["x", "y"] = "y"
    unit: float = 1.0
    """Length of a displacement of 1, in the length unit of the grid."""
    spring: Spring | None = None
    """None: the motion is not known to follow from the force."""

    def __post_init__(self) -> None:
        if not isinstance(self.displacement, str) or self.axis not in ("x", "y"):
            raise ValueError(
                "a moving body needs the name of its displacement and the axis 'x' or 'y', found "
                f"{self.displacement!r} and {self.axis!r}"
            )
        numbers = (self.radius, self.unit, *self.centre)
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"a moving body needs finite lengths, found {numbers}")
        if not (self.radius > 0 and self.unit > 0):
            raise ValueError(
                f"radius and unit of a moving body must be positive, found {self.radius} and "
                f"{self.unit}"
            )
        if self.spring is not None and not math.isclose(self.unit, 2 * self.radius, rel_tol=1e-6):
            raise ValueError(
                "the displacement of a body on a spring is in diameters, so its unit must be "
                f"{2 * self.radius}, found {self.unit}"
            )

    def distance(
        self, grid: Grid, displacement: Float[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch y x"]:
        """Return the distance of the points from the surface, negative inside."""
        x, y = grid.coordinates(displacement.dtype, displacement.device)
        moved = self.unit * displacement[..., None, None]
        across, along = x - self.centre[0], y - self.centre[1]
        if self.axis == "x":
            across = across - moved
        else:
            along = along - moved
        # Not hypot, which does not export to ONNX, and has no gradient at the centre.
        squared = across.square() + along.square()
        return squared.clamp(min=1e-12 * self.radius**2).sqrt() - self.radius

    def inside(
        self, grid: Grid, displacement: Float[Tensor, "*batch"]
    ) -> Bool[Tensor, "*batch y x"]:
        """Return the points inside the body for each displacement."""
        return self.distance(grid, displacement) < 0

    def is_outside(
        self, grid: Grid, displacement: Float[Tensor, "*batch"]
    ) -> Bool[Tensor, "*batch"]:
        """Return whether part of the body lies outside the domain of the grid."""
        along = 1 if self.axis == "y" else 0
        step, count = ((grid.dx, grid.shape[1]), (grid.dy, grid.shape[0]))[along]
        low = grid.origin[along] - step / 2
        position = self.centre[along] + self.unit * displacement
        beyond = torch.minimum(position - low, low + count * step - position) < self.radius
        # NaN is nowhere.
        return beyond | ~torch.isfinite(displacement)

    def to_dict(self) -> dict[str, Any]:
        data = {**asdict(self), "centre": list(self.centre)}
        if self.spring is None:
            del data["spring"]  # as in older files
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        x, y = data["centre"]
        spring = Spring(**data["spring"]) if "spring" in data else None
        return cls(**{**data, "centre": (float(x), float(y)), "spring": spring})


def with_uniform_state(
    frames: Float[Tensor, "... c y x"], count: int, known: Bool[Tensor, "... y x"] | None
) -> Float[Tensor, "... c y x"]:
    """Return frames whose last ``count`` channels are their mean over the known points, everywhere.

    Of a field that is read this restores state that was hidden at unknown points, even as NaN; of
    a prediction it is an integral over the domain.
    """
    if not count:
        return frames
    fields, state = frames[..., :-count, :, :], frames[..., -count:, :, :]
    if known is None:
        mean = state.mean((-2, -1), keepdim=True)
    else:
        here = known.unsqueeze(-3)
        total = torch.where(here, state, 0.0).sum((-2, -1), keepdim=True)
        mean = total / here.sum((-2, -1), keepdim=True).clamp(min=1)
    return torch.cat((fields, mean.expand_as(state)), dim=-3)
