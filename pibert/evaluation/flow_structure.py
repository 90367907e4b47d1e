"""Errors of what a flow is made of: vorticity, divergence, boundaries, the surroundings of a body.

Vorticity and divergence come from central differences of second order, one-sided at sides that are
not periodic. A derivative counts at known points of which no neighbour in the stencil is unknown.

- vorticity: rmse, and nmse over the truth's squared vorticity;
- divergence: the rmse of prediction against truth. Data on a grid, measured above all, are not
  free of divergence, and a model that only smooths would seem the better one if its own divergence
  counted. The mean squares of both stand beside it, that of the truth as the floor of the data;
- boundary: mean square over the known boundary points (``geometry.boundary_points``: the border of
  the view and the points next to a body), divided by the number of frames, points and channels.
  The published figure was divided by the points of one mask alone and grew with the test set;
- near body: the known points within half a diameter of the body, from point to point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.evaluation.components import (
    SquaredErrors,
    gradient_unit,
    known_values,
    ratio,
    require_velocity,
    squared_unit,
    velocity_unit,
)
from pibert.evaluation.geometry import body_of, boundary_points, distance, locate
from pibert.evaluation.measure import Entry, Frames
from pibert.fields import FieldSpec, Normalizer
from pibert.physics import derivatives

NEAR = 0.5
"""Diameters that the surroundings of a body reach from its surface."""
Operator = Callable[..., Tensor]
"""(u, v, grid) -> a derivative, such as ``derivatives.vorticity``."""


def differentiate(
    operator: Operator, frames: Frames, velocity: tuple[int, int]
) -> tuple[Float[Tensor, "t y x"], Float[Tensor, "t y x"], Bool[Tensor, "t y x"]]:
    """A derivative of prediction and truth, and where it is defined; zero elsewhere.

    Where it is defined follows from the mask alone: a prediction that is not finite does not get
    out of the way.
    """
    grid, known = frames.spec.grid, frames.known
    nothing = torch.zeros(known.shape, dtype=torch.float64, device=known.device)
    _, defined = derivatives.where_defined(
        lambda u, v: operator(u, v, grid), nothing, nothing, known=known, linear=True
    )
    defined = defined & known  # a central difference does not touch the point itself
    found = []
    for fields in (frames.prediction, frames.truth):
        u, v = (known_values(fields, known)[:, place] for place in velocity)
        found.append(torch.where(defined, operator(u, v, grid), 0.0))
    return found[0], found[1], defined


@dataclass(frozen=True, kw_only=True)
class VelocityGradients:
    """Errors of vorticity and divergence."""

    spec: FieldSpec
    length_unit: str | None = None
    """Of the grid's spacing; see ``components.gradient_unit``."""
    name: ClassVar[str] = "velocity_gradients"
    of_sequences: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_velocity(self.spec, "vorticity and divergence")

    @property
    def entries(self) -> tuple[Entry, ...]:
        unit = gradient_unit(velocity_unit(self.spec), self.length_unit)
        square = squared_unit(unit)
        kept = "divergence_mean_square"
        return (
            Entry(metric="vorticity_rmse", component="vorticity", unit=unit),
            Entry(metric="vorticity_nmse", component="vorticity"),
            Entry(metric="divergence_rmse", component="divergence", unit=unit),
            Entry(metric=kept, component="prediction", unit=square, better="none"),
            Entry(metric=kept, component="truth", unit=square, better="none"),
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        places = self.spec.velocity
        assert places is not None
        spun, spin, defined = differentiate(derivatives.vorticity, frames, places)
        spread, source, _ = differentiate(derivatives.divergence, frames, places)
        squares = (spun - spin, spin, spread - source, spread, source)
        count = defined.sum((1, 2)).double()
        return torch.stack([count, *(f.square().sum((1, 2)) for f in squares)], dim=1)

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        count, *squares = sums.unbind(-1)
        vorticity, spin, divergence, spread, source = (ratio(part, count) for part in squares)
        found = (vorticity.sqrt(), ratio(vorticity, spin), divergence.sqrt(), spread, source)
        return torch.stack(found, dim=-1)


@dataclass(frozen=True, kw_only=True)
class _PlaceError:
    """What errors over some points of every frame share."""

    spec: FieldSpec
    normalizer: Normalizer
    of_sequences: ClassVar[bool] = False

    @property
    def _errors(self) -> SquaredErrors:
        return SquaredErrors(spec=self.spec, normalizer=self.normalizer)


@dataclass(frozen=True, kw_only=True)
class BoundaryError(_PlaceError):
    """Mean square and normalised errors over the boundary points."""

    name: ClassVar[str] = "boundary"

    @property
    def entries(self) -> tuple[Entry, ...]:
        errors = self._errors
        named = zip(errors.components, errors.units, strict=True)
        return (
            *(Entry(metric="boundary_mse", component=c, unit=squared_unit(u)) for c, u in named),
            *(Entry(metric="boundary_nmse", component=c) for c in errors.components),
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        where = boundary_points(body_of(frames), frames.spec.grid) & frames.known
        return self._errors.terms(frames.prediction, frames.truth, where)

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        count, error, energy = self._errors.totals(sums)
        return torch.cat((ratio(error, count), ratio(error, energy)), dim=-1)


@dataclass(frozen=True, kw_only=True)
class NearBodyError(_PlaceError):
    """Errors within half a diameter of the body."""

    name: ClassVar[str] = "near_body"

    @property
    def entries(self) -> tuple[Entry, ...]:
        errors = self._errors
        named = zip(errors.components, errors.units, strict=True)
        return (
            *(Entry(metric="near_body_rmse", component=c, unit=u) for c, u in named),
            *(Entry(metric="near_body_nmse", component=c) for c in errors.components),
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        body, grid = body_of(frames), frames.spec.grid
        reach = NEAR * locate(body, grid).diameter[:, None, None]
        # Distances are whole numbers of cells: one at the very edge must not hang on rounding.
        near = distance(body, grid) <= reach * (1 + 1e-9)
        return self._errors.terms(frames.prediction, frames.truth, near & ~body & frames.known)

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        count, error, energy = self._errors.totals(sums)
        return torch.cat((ratio(error, count).sqrt(), ratio(error, energy)), dim=-1)
