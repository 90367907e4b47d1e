"""Errors of flow structure: vorticity, divergence, boundaries, near a body, slices, the wake line.

Vorticity and divergence come from central differences of second order, one-sided at sides that are
not periodic. A derivative counts at known points with no unknown neighbour in the stencil.

- vorticity: rmse, and nmse over the squared vorticity of the truth;
- divergence: rmse of prediction against truth. Data on a grid are not free of divergence, and a
  model that only smooths would seem better if its own divergence counted. The mean squares of both
  are kept beside it;
- boundary: mean square over the known boundary points (``geometry.boundary_points``: the border of
  the view and the points next to a body), divided by the number of frames, points and channels. The
  published number was divided by the points of one mask alone and grew with the test set;
- near body: the known points within half a diameter of the body;
- slices: columns of the grid, relative L2 error over the known rows of a column in each frame, then
  the mean over frames. Three are 0.75, 2 and 4 diameters downstream of the body's centre, rounded
  to the nearest column and clipped to the view; three are the paper's columns 11, 32 and 52 of 64,
  scaled to the width;
- wake line: the row through the body's centre, downstream of it; relative L2 error of u and of the
  vorticity in each frame, then the mean over frames.

A frame without a body, without known points on a line, or with only zeros there, does not count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.evaluation.geometry import (
    BodyBox,
    body_of,
    boundary_points,
    distance,
    locate,
    nearest_cell,
)
from pibert.evaluation.measure import (
    Entry,
    Frames,
    Measure,
    SquaredErrors,
    gradient_unit,
    known_values,
    names_with_speed,
    ratio,
    squared_unit,
    velocity_unit,
    with_speed,
)
from pibert.fields import Grid
from pibert.physics import derivatives

NEAR = 0.5
"""Diameters that the surroundings of a body reach from its surface."""
Operator = Callable[..., Tensor]
"""(u, v, grid) -> a derivative, such as ``derivatives.vorticity``."""
DOWNSTREAM = {"near_body": 0.75, "wake_core": 2.0, "far_wake": 4.0}
"""Diameters from the body's centre to the column."""
PAPER_COLUMNS = (11, 32, 52)
PAPER_WIDTH = 64
SLICES = (*DOWNSTREAM, *(f"column_{number}" for number in PAPER_COLUMNS))
"""Names of all slices; those downstream of a body need one."""


def differentiate(
    operator: Operator, frames: Frames
) -> tuple[Float[Tensor, "t y x"], Float[Tensor, "t y x"], Bool[Tensor, "t y x"]]:
    """A derivative of prediction and truth, and where it is defined; zero elsewhere.

    Where it is defined follows from the mask alone: a prediction that is not finite still counts.
    """
    grid, known = frames.spec.grid, frames.known
    assert frames.spec.velocity is not None
    zeros = torch.zeros(known.shape, dtype=torch.float64, device=known.device)
    _, defined = derivatives.where_defined(
        lambda u, v: operator(u, v, grid), zeros, zeros, known=known, linear=True
    )
    defined = defined & known  # a central difference does not touch the point itself
    both = []
    for fields in (frames.prediction, frames.truth):
        u, v = (known_values(fields, known)[:, channel] for channel in frames.spec.velocity)
        both.append(torch.where(defined, operator(u, v, grid), 0.0))
    return both[0], both[1], defined


@dataclass(frozen=True, kw_only=True)
class VelocityGradients(Measure):
    """Errors of vorticity and divergence."""

    length_unit: str | None = None
    """Of the grid's spacing; see ``measure.gradient_unit``."""
    name: ClassVar[str] = "velocity_gradients"

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
        curl, true_curl, defined = differentiate(derivatives.vorticity, frames)
        div, true_div, _ = differentiate(derivatives.divergence, frames)
        squares = (curl - true_curl, true_curl, div - true_div, div, true_div)
        count = defined.sum((1, 2)).double()
        return torch.stack([count, *(f.square().sum((1, 2)) for f in squares)], dim=1)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        count, *squares = sums.unbind(-1)
        curl_error, true_curl, div_error, div, true_div = (ratio(part, count) for part in squares)
        values = (curl_error.sqrt(), ratio(curl_error, true_curl), div_error.sqrt(), div, true_div)
        return torch.stack(values, dim=-1)


@dataclass(frozen=True, kw_only=True)
class BoundaryError(SquaredErrors):
    """Mean square and normalised errors over the boundary points."""

    name: ClassVar[str] = "boundary"

    @property
    def entries(self) -> tuple[Entry, ...]:
        named = zip(self.components, self.units, strict=True)
        return (
            *(Entry(metric="boundary_mse", component=c, unit=squared_unit(u)) for c, u in named),
            *(Entry(metric="boundary_nmse", component=c) for c in self.components),
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        where = boundary_points(body_of(frames), frames.spec.grid) & frames.known
        return self.error_terms(frames.prediction, frames.truth, where)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        count, error, energy = self.totals(sums)
        return torch.cat((ratio(error, count), ratio(error, energy)), dim=-1)


@dataclass(frozen=True, kw_only=True)
class NearBodyError(SquaredErrors):
    """Errors within half a diameter of the body."""

    name: ClassVar[str] = "near_body"

    @property
    def entries(self) -> tuple[Entry, ...]:
        named = zip(self.components, self.units, strict=True)
        return (
            *(Entry(metric="near_body_rmse", component=c, unit=u) for c, u in named),
            *(Entry(metric="near_body_nmse", component=c) for c in self.components),
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        body, grid = body_of(frames), frames.spec.grid
        reach = NEAR * locate(body, grid).diameter[:, None, None]
        # Distances are whole numbers of cells: rounding must not decide on one at the very edge.
        near = distance(body, grid) <= reach * (1 + 1e-9)
        return self.error_terms(frames.prediction, frames.truth, near & ~body & frames.known)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        count, error, energy = self.totals(sums)
        return torch.cat((ratio(error, count).sqrt(), ratio(error, energy)), dim=-1)


def column_downstream(box: BodyBox, region: str, grid: Grid) -> Int[Tensor, " t"]:
    """The column of a region in each frame."""
    ahead = DOWNSTREAM[region] * box.diameter / grid.dx
    return nearest_cell(box.centre_x + ahead, grid.shape[1])


def paper_column(number: int, width: int) -> int:
    """One of the paper's columns on a grid of another width."""
    return number * width // PAPER_WIDTH


def take_column(
    fields: Float[Tensor, "t *c y x"] | Bool[Tensor, "t *c y x"], column: Int[Tensor, " #t"]
) -> Float[Tensor, "t *c y"] | Bool[Tensor, "t *c y"]:
    """One column of each frame."""
    index = column.view(-1, *[1] * (fields.ndim - 1)).expand(*fields.shape[:-1], 1)
    return fields.gather(-1, index)[..., 0]


def _mean_terms(
    error: Float[Tensor, "*m n"], truth: Float[Tensor, "*m n"], counts: Bool[Tensor, "*m"]
) -> tuple[Tensor, Tensor]:
    """Relative L2 errors over the last axis, zero where they do not count; and where they do."""
    energy = truth.square().sum(-1)
    counted = counts & (energy > 0)
    relative = ratio(error.square().sum(-1), energy).sqrt()
    return torch.where(counted, relative, 0.0), counted.double()


def _mean_values(sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
    total, count = sums.unflatten(-1, (-1, 2)).unbind(-1)
    return ratio(total, count)


def stations(body: Bool[Tensor, "y x"] | None, grid: Grid) -> dict[str, int]:
    """Columns for profiles by name: behind a body, or the paper's without one."""
    if body is None or not bool(body.any()):
        columns = (paper_column(number, grid.shape[1]) for number in PAPER_COLUMNS)
        return {f"column {column}": column for column in columns}
    box = locate(body[None], grid)
    return {name.replace("_", " "): int(column_downstream(box, name, grid)) for name in DOWNSTREAM}


@dataclass(frozen=True, kw_only=True)
class Slices(Measure):
    """Relative errors of every channel and of the speed along columns."""

    has_body: bool
    """Whether frames have a body to which columns can be tied."""
    name: ClassVar[str] = "slices"

    @property
    def entries(self) -> tuple[Entry, ...]:
        names = [f"slice_{region}" for region in DOWNSTREAM if self.has_body]
        names += [f"slice_column_{number}" for number in PAPER_COLUMNS]
        return tuple(
            Entry(metric=f"{name}_rel_l2", component=component)
            for name in names
            for component in names_with_speed(self.spec)
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        truth, prediction = (
            with_speed(known_values(f, frames.known), self.spec)
            for f in (frames.truth, frames.prediction)
        )
        terms: list[Tensor] = []
        for column, present in self._columns(frames):
            line = take_column(truth, column)  # (t, component, y)
            error = take_column(prediction, column) - line
            terms += _mean_terms(error, line, present[:, None].expand(line.shape[:2]))
        return torch.stack(terms, dim=-1).flatten(1)

    def _columns(self, frames: Frames) -> list[tuple[Tensor, Tensor]]:
        """The columns, and in which frames each exists."""
        grid = frames.spec.grid
        columns = []
        if self.has_body:
            box = locate(body_of(frames), grid)
            columns = [(column_downstream(box, name, grid), box.present) for name in DOWNSTREAM]
        always = torch.ones(1, dtype=torch.bool, device=frames.known.device)
        for number in PAPER_COLUMNS:
            column = paper_column(number, grid.shape[1])
            columns.append((torch.full_like(always, column, dtype=torch.long), always))
        return columns

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        # (component, slice and whether: total, count, total, count, ...)
        pairs = sums.unflatten(-1, (len(names_with_speed(self.spec)), -1, 2))
        return _mean_values(pairs.transpose(-3, -2).flatten(-3))


@dataclass(frozen=True, kw_only=True)
class WakeLine(Measure):
    """Relative errors of u and of the vorticity along the wake's centre."""

    name: ClassVar[str] = "wake_line"

    @property
    def entries(self) -> tuple[Entry, ...]:
        components = ("u", "vorticity")
        return tuple(Entry(metric="wake_line_rel_l2", component=name) for name in components)

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        assert self.spec.velocity is not None
        grid, known = frames.spec.grid, frames.known
        box = locate(body_of(frames), grid)
        row = nearest_cell(box.centre_y, grid.shape[0])
        columns = torch.arange(grid.shape[1], device=known.device)
        behind = (columns > box.last_column[:, None]) & box.present[:, None]
        curl, true_curl, _ = differentiate(derivatives.vorticity, frames)
        u, true_u = (
            known_values(f, known)[:, self.spec.velocity[0]]
            for f in (frames.prediction, frames.truth)
        )
        terms: list[Tensor] = []
        for fields in ((u, true_u), (curl, true_curl)):
            # A row is a column of the transposed field.
            lines = [take_column(f.transpose(1, 2), row) for f in fields]
            prediction, truth = (torch.where(behind, f, 0.0) for f in lines)
            terms += _mean_terms(prediction - truth, truth, box.present.expand(len(known)))
        return torch.stack(terms, dim=-1)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        return _mean_values(sums)
