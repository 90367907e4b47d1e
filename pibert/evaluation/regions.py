"""Errors along lines that matter in a wake.

Slices are columns of the grid, in every frame by itself: relative L2 error over the known rows of a
column, then the mean over frames. Three are tied to the body, at its centre plus 0.75, 2 and 4
diameters downstream, rounded to the nearest column and clipped to the view; three are the paper's
columns 11, 32 and 52 of 64, scaled to the width, wherever the body is.

The wake line is the row through the body's centre, downstream of the body: relative L2 error of u
and of the vorticity in each frame, then the mean over frames.

A frame without a body, without known points on a line, or with nothing there but zeros, does not
count.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.evaluation.components import (
    known_values,
    names_with_speed,
    ratio,
    require_velocity,
    with_speed,
)
from pibert.evaluation.flow_structure import differentiate
from pibert.evaluation.geometry import Place, body_of, locate, nearest_cell
from pibert.evaluation.measure import Entry, Frames
from pibert.fields import FieldSpec, Grid
from pibert.physics import derivatives

DOWNSTREAM = {"near_body": 0.75, "wake_core": 2.0, "far_wake": 4.0}
"""Diameters from the body's centre to the column."""
PAPER_COLUMNS = (11, 32, 52)
PAPER_WIDTH = 64


def column_downstream(place: Place, region: str, grid: Grid) -> Int[Tensor, " t"]:
    """The column of a region in each frame."""
    ahead = DOWNSTREAM[region] * place.diameter / grid.dx
    return nearest_cell(place.centre_x + ahead, grid.shape[1])


def paper_column(number: int, width: int) -> int:
    """One of the paper's columns on a grid of another width."""
    return number * width // PAPER_WIDTH


def take_column(
    fields: Float[Tensor, "t *c y x"] | Bool[Tensor, "t *c y x"], column: Int[Tensor, " #t"]
) -> Float[Tensor, "t *c y"] | Bool[Tensor, "t *c y"]:
    """One column of each frame."""
    places = column.view(-1, *[1] * (fields.ndim - 1)).expand(*fields.shape[:-1], 1)
    return fields.gather(-1, places)[..., 0]


def _mean_terms(
    error: Float[Tensor, "*m n"], truth: Float[Tensor, "*m n"], counts: Bool[Tensor, "*m"]
) -> tuple[Tensor, Tensor]:
    """Relative L2 errors over the last axis, zero where they do not count; and where they do."""
    energy = truth.square().sum(-1)
    counted = counts & (energy > 0)
    relative = ratio(error.square().sum(-1), energy).sqrt()
    return torch.where(counted, relative, 0.0), counted.double()


def _mean_values(sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
    total, count = sums.unflatten(-1, (-1, 2)).unbind(-1)
    return ratio(total, count)


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Relative errors of every channel and of the speed along columns."""

    spec: FieldSpec
    has_body: bool
    """Whether frames have a body that columns can be tied to."""
    name: ClassVar[str] = "slices"
    of_sequences: ClassVar[bool] = False

    @property
    def entries(self) -> tuple[Entry, ...]:
        places = [f"slice_{region}" for region in DOWNSTREAM if self.has_body]
        places += [f"slice_column_{number}" for number in PAPER_COLUMNS]
        return tuple(
            Entry(metric=f"{place}_rel_l2", component=component)
            for place in places
            for component in names_with_speed(self.spec)
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        truth, answer = (
            with_speed(known_values(f, frames.known), self.spec)
            for f in (frames.truth, frames.prediction)
        )
        found: list[Tensor] = []
        for column, present in self._columns(frames):
            there = take_column(truth, column)  # (t, component, y)
            error = take_column(answer, column) - there
            counts = present[:, None].expand(there.shape[:2])
            found.extend(_mean_terms(error, there, counts))
        return torch.stack(found, dim=-1).flatten(1)

    def _columns(self, frames: Frames) -> list[tuple[Tensor, Tensor]]:
        """The columns, and in which frames there is such a one."""
        grid = frames.spec.grid
        found = []
        if self.has_body:
            place = locate(body_of(frames), grid)
            found = [(column_downstream(place, name, grid), place.present) for name in DOWNSTREAM]
        anywhere = torch.ones(1, dtype=torch.bool, device=frames.known.device)
        for number in PAPER_COLUMNS:
            column = torch.full_like(
                anywhere, paper_column(number, grid.shape[1]), dtype=torch.long
            )
            found.append((column, anywhere))
        return found

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        # (component, slice and whether: total, count, total, count, ...)
        pairs = sums.unflatten(-1, (len(names_with_speed(self.spec)), -1, 2))
        return _mean_values(pairs.transpose(-3, -2).flatten(-3))


@dataclass(frozen=True, kw_only=True)
class WakeLine:
    """Relative errors of u and of the vorticity along the wake's centre."""

    spec: FieldSpec
    name: ClassVar[str] = "wake_line"
    of_sequences: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_velocity(self.spec, "the wake line")

    @property
    def entries(self) -> tuple[Entry, ...]:
        components = ("u", "vorticity")
        return tuple(Entry(metric="wake_line_rel_l2", component=name) for name in components)

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        assert self.spec.velocity is not None
        grid, known = frames.spec.grid, frames.known
        place = locate(body_of(frames), grid)
        row = nearest_cell(place.centre_y, grid.shape[0])
        columns = torch.arange(grid.shape[1], device=known.device)
        behind = (columns > place.last_column[:, None]) & place.present[:, None]
        spun, spin, _ = differentiate(derivatives.vorticity, frames, self.spec.velocity)
        u = self.spec.velocity[0]
        answer, truth = (known_values(f, known)[:, u] for f in (frames.prediction, frames.truth))
        found: list[Tensor] = []
        for mine, other in ((answer, truth), (spun, spin)):
            # A row is a column of the field on its side.
            line = [take_column(f.transpose(1, 2), row) for f in (mine, other)]
            mine, other = (torch.where(behind, f, 0.0) for f in line)
            counts = place.present.expand(len(known))
            found.extend(_mean_terms(mine - other, other, counts))
        return torch.stack(found, dim=-1)

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        return _mean_values(sums)
