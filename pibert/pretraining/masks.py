"""Masked physics prediction: choose the points of a sample that are hidden.

A sample draws one of the chosen kinds:

- ``pixels``: independent points;
- ``blocks``: squares of ``block`` points. They tile the plane like bricks, each row with a random
  shift, so that blocks are not aligned with the tokens of a model;
- ``structured``: such blocks, sampled without replacement in proportion to their mean |vorticity|
  or PDE residual plus ``FLOOR`` of the sample's mean;
- ``sensors``: whole rows or whole columns, as when a line of sensors fails;
- ``regions``: one connected region, a disc, a rectangle or a strip along a side, as shadows and
  reflections leave in particle images.

Only known points are hidden, and of these the share ``ratio`` on average. All kinds but ``pixels``
also keep close to the share in each sample. The treatment (removed, replaced by noise, kept) is
drawn per hidden point for ``pixels`` and per block, line or region for the others. Random numbers
come from ``pibert.sample_rng``. Nothing here waits for the device or loops over samples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from pibert import sample_rng
from pibert.config import Bounds, Count, NonNegative, check
from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.fields.equations import has_equations, window_residuals
from pibert.physics import derivatives, magnitude

Kind = Literal["pixels", "blocks", "structured", "sensors", "regions"]
KINDS: tuple[str, ...] = get_args(Kind)
Guide = Literal["vorticity", "residual"]
Share = Annotated[float, Bounds(least=0, most=1)]

FLOOR = 0.1
"""Share of the mean guide added everywhere, so that quiet blocks are sometimes hidden too."""
_ASPECT = 2.0
"""Sides of a rectangular region differ by at most this factor."""


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Which points masked physics prediction hides, and what the model sees there."""

    ratio: Annotated[float, Bounds(above=0, below=1)] = 0.15
    """Share of the known points that is hidden."""
    kinds: tuple[Kind, ...] = ("blocks", "pixels")
    """Every sample draws one of these; one that is named twice is drawn twice as often."""
    block: Count = 8
    """Side of a block in points."""
    guide: Guide = "vorticity"
    """The quantity that ``structured`` blocks follow."""
    removed: Share = 0.8
    """Share of the hidden points that the model sees as unknown."""
    noised: Share = 0.1
    """Share that holds noise and looks known; the rest is kept unchanged."""
    divergence: NonNegative = 0.0
    """Weight lambda of the mean squared divergence of the reconstruction."""

    def __post_init__(self) -> None:
        check(self)
        if not self.kinds:
            raise ValueError(f"expected one or more kinds of mask; choose from: {', '.join(KINDS)}")
        if self.removed + self.noised > 1 + 1e-9:
            raise ValueError(
                f"expected shares of removed and noised points that add up to at most 1, "
                f"found {self.removed} and {self.noised}"
            )


class Hidden(NamedTuple):
    """The hidden points, and random numbers that decide what the model sees there."""

    points: Bool[Tensor, "b y x"]
    lots: Float[Tensor, "b y x"]
    """0 <= lot < 1, the same for all points of a block, line or region."""


def choose(batch: Batch, masking: Masking, spec: FieldSpec, normalizer: Normalizer) -> Hidden:
    """Draw the hidden points of every sample from its seed; unknown points are never hidden."""
    kinds = tuple(dict.fromkeys(masking.kinds))
    if {"blocks", "structured"} & set(kinds) and masking.block > min(batch.x.shape[-2:]):
        raise ValueError(
            f"expected blocks that fit a field of {batch.x.shape[-2]} x {batch.x.shape[-1]} "
            f"points, found block = {masking.block}"
        )
    makers: dict[str, Callable[[], Hidden]] = {
        "pixels": lambda: _pixels(batch, masking),
        "blocks": lambda: _blocks(batch, masking, None),
        "structured": lambda: _blocks(
            batch, masking, GUIDES[masking.guide](batch, spec, normalizer)
        ),
        "sensors": lambda: _sensors(batch, masking),
        "regions": lambda: _regions(batch, masking, spec),
    }
    drawn = [makers[kind]() for kind in kinds]
    points, lots = drawn[0]
    if len(drawn) > 1:
        which = sample_rng.integer(batch.seeds, "mask kind", len(masking.kinds))
        for kind, one in zip(kinds[1:], drawn[1:], strict=True):
            numbers = [number for number, name in enumerate(masking.kinds) if name == kind]
            mine = torch.stack([which == number for number in numbers]).any(0)[:, None, None]
            points, lots = torch.where(mine, one.points, points), torch.where(mine, one.lots, lots)
    return Hidden(points & batch.mask, lots)


def _pixels(batch: Batch, masking: Masking) -> Hidden:
    ny, nx = batch.mask.shape[1:]
    chances, lots = sample_rng.uniform(batch.seeds, "masked pixels", 2, ny, nx).unbind(1)
    return Hidden(chances < masking.ratio, lots)


def _blocks(batch: Batch, masking: Masking, guide: Tensor | None) -> Hidden:
    """Bricks of a wall with random shifts; without a guide all are equally likely."""
    (ny, nx), side = batch.mask.shape[1:], masking.block
    courses, bricks = -(-ny // side) + 1, -(-nx // side) + 1
    count = courses * bricks
    lift, last, shift, keys, lots = _draw(batch, "masked blocks", 1, 1, courses, count, count)
    lift, shift = (lift * side).long(), (shift * side).long()
    # Lower left corners, (b, courses, bricks).
    device = batch.mask.device
    bottom = side * torch.arange(courses, device=device)[:, None] - lift[..., None]
    left = side * torch.arange(bricks, device=device) - shift[..., None]
    sizes = _box_sums(batch.mask.float(), side, bottom, left)
    if guide is not None:
        # The order of exponential clocks samples in proportion to their rates.
        total = _box_sums(torch.where(batch.mask, guide, 0.0), side, bottom, left)
        mean = total.sum((1, 2), keepdim=True) / sizes.sum((1, 2), keepdim=True).clamp(min=1)
        rates = total / sizes.clamp(min=1) + FLOOR * mean
        keys = -torch.log1p(-keys) / torch.where(mean > 0, rates, 1.0).flatten(1)
    taken = _take(keys, sizes.flatten(1).round().long(), masking.ratio, last)
    # The brick of every point.
    row = (torch.arange(ny, device=device) + lift) // side  # (b, y)
    column = (torch.arange(nx, device=device) + shift.gather(1, row)[..., None]) // side
    brick = (row[..., None] * bricks + column).flatten(1)
    shape = batch.mask.shape
    return Hidden(taken.gather(1, brick).view(shape), lots.gather(1, brick).view(shape))


def _box_sums(values: Tensor, side: int, bottom: Tensor, left: Tensor) -> Tensor:
    """Sums over squares, by their lower left corners; the field is zero outside."""
    ny, nx = values.shape[1:]
    wide = F.pad(values, (side, side, side, side))[:, None]
    every = F.avg_pool2d(wide, side, stride=1, divisor_override=1)[:, 0]
    row, column = (bottom + side).clamp(max=ny + side), (left + side).clamp(max=nx + side)
    index = row * every.shape[-1] + column
    return every.flatten(1).gather(1, index.flatten(1)).view(index.shape)


def _sensors(batch: Batch, masking: Masking) -> Hidden:
    """Lines along one axis, chosen per sample."""
    longest = max(batch.mask.shape[1:])
    axis, last, keys, lots = _draw(batch, "masked lines", 1, 1, longest, longest)
    by_row = (axis < 0.5)[..., None]
    lines = []
    for along, count in ((2, batch.mask.shape[1]), (1, batch.mask.shape[2])):
        taken = _take(keys[:, :count], batch.mask.sum(along), masking.ratio, last)
        lines.append((taken.unsqueeze(along), lots[:, :count].unsqueeze(along)))
    (rows, of_rows), (columns, of_columns) = lines
    return Hidden(torch.where(by_row, rows, columns), torch.where(by_row, of_rows, of_columns))


def _take(keys: Tensor, sizes: Tensor, ratio: float, last: Tensor) -> Tensor:
    """Take groups of points in the order of their keys (b, n) up to a share of all points.

    ``last`` (b, 1), uniform from 0 to 1, decides on the group that would exceed the share, so that
    the share is right on average.
    """
    order = keys.argsort(1)
    ordered = sizes.gather(1, order)
    before = ordered.cumsum(1) - ordered
    taken = before + last * ordered < ratio * sizes.sum(1, keepdim=True)
    return torch.zeros_like(taken).scatter(1, order, taken)


def _regions(batch: Batch, masking: Masking, spec: FieldSpec) -> Hidden:
    """The given share of the points, those nearest to a centre or to a side."""
    chances = sample_rng.uniform(batch.seeds, "masked region", 7)[..., None, None]
    rim_lot, lot, *geometry = chances.unbind(1)
    away = _distance(batch, spec, *geometry).masked_fill(~batch.mask, math.inf)
    target = masking.ratio * batch.mask.sum((1, 2))[:, None]
    rank = target.ceil().long().clamp(min=1) - 1
    edge = away.flatten(1).sort(1).values.gather(1, rank)[..., None]
    # Points of one row or column may be equally far: all or none of them are taken.
    inside, rim = away < edge, (away == edge) & batch.mask
    missing = target[..., None] - inside.sum((1, 2), keepdim=True)
    chance = missing / rim.sum((1, 2), keepdim=True).clamp(min=1)
    return Hidden(inside | (rim & (rim_lot < chance)), lot.expand(away.shape))


def _distance(
    batch: Batch,
    spec: FieldSpec,
    right: Tensor,
    up: Tensor,
    form: Tensor,
    kind: Tensor,
    side: Tensor,
) -> Tensor:
    """Distance (b, y, x) from the centre or side; the other arguments are chances (b, 1, 1)."""
    ny, nx = batch.mask.shape[1:]
    x = torch.arange(nx, device=batch.mask.device, dtype=torch.float32)
    y = torch.arange(ny, device=batch.mask.device, dtype=torch.float32)[:, None]
    aspect = _ASPECT ** (2 * form - 1)
    across = (x - (nx * right - 0.5)).abs() * (spec.grid.dx / spec.grid.cell_length)
    along = (y - (ny * up - 0.5)).abs() * (spec.grid.dy / spec.grid.cell_length)
    disc = torch.hypot(across, along)
    rectangle = torch.maximum(across * aspect, along / aspect)
    strip = torch.where(
        side < 0.5,
        torch.where(side < 0.25, x, nx - 1 - x),
        torch.where(side < 0.75, y, ny - 1 - y),
    )
    return torch.where(kind < 1 / 3, disc, torch.where(kind < 2 / 3, rectangle, strip))


def _draw(batch: Batch, purpose: str, *counts: int) -> tuple[Tensor, ...]:
    """Uniform numbers (b, count) for several uses, from one kernel."""
    return sample_rng.uniform(batch.seeds, purpose, sum(counts)).split(counts, dim=1)


@torch.no_grad()
def vorticity_guide(
    batch: Batch, spec: FieldSpec, normalizer: Normalizer
) -> Float[Tensor, "b y x"]:
    """|dv/dx - du/dy| of the newest frame."""
    if spec.velocity is None:
        raise ValueError(
            f"masks guided by the vorticity need a velocity (u, v), found channels "
            f"{list(spec.channels)} of family {spec.family!r}; set guide to 'residual'"
        )
    newest = batch.x[:, -len(spec.channels) :]
    u, v = (newest[:, index] * normalizer.std[index] for index in spec.velocity)
    grid = spec.grid
    value, _ = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, grid), u, v, known=batch.mask
    )
    return value.abs()


@torch.no_grad()
def residual_guide(batch: Batch, spec: FieldSpec, normalizer: Normalizer) -> Float[Tensor, "b y x"]:
    """The residuals of the PDE family, each divided by its mean over the sample, added up."""
    names = spec.channels
    if spec.family is None or not has_equations(spec):
        raise ValueError(
            "masks guided by the residual need a PDE family and all its channels, found channels "
            f"{list(names)} of family {spec.family!r}; set guide to 'vorticity'"
        )
    frames = normalizer.invert(batch.x.unflatten(1, (-1, len(names))))
    grid = replace(spec.grid, body=None)  # the batch's mask has it
    values, _ = window_residuals(frames, spec, batch.parameters, batch.mask, grid=grid)
    total = torch.zeros_like(frames[:, 0, 0])
    for value in values.values():
        size = magnitude(value)
        mean = size.mean((1, 2), keepdim=True)
        total = total + torch.where(mean > 0, size / mean, 0.0)
    return total


GUIDES: dict[str, Callable[[Batch, FieldSpec, Normalizer], Tensor]] = {
    "vorticity": vorticity_guide,
    "residual": residual_guide,
}
"""Fields that structured blocks follow: not negative, zero where a stencil touches an unknown
point."""
