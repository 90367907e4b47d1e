"""Augmentation that respects the physics: reflections and quarter turns of whole samples.

A symmetry moves the points of the grid and rotates the vectors on them:

    reflect_x   columns reversed   u -> -u           if left and right sides are of one kind
    reflect_y   rows reversed      v -> -v           if bottom and top sides are of one kind
    rotate      0 to 3 turns       (u, v) -> (-v, u) on a square periodic box with dx = dy

Vorticity (``omega``) changes its sign under a reflection; every other channel is a scalar, also a
velocity out of the plane (``w``), and u and v if they are not a velocity (``FieldSpec.velocity``).
The rule holds in physical units. With mean m and std s of channel c, and its new value e times
channel d, the standardised value is

    z'_c = (e (s_d z_d + m_d) - m_c) / s_c

A flow that obeys its equations still does after such a change, unless something else selects a
direction. A symmetry that the sides of the grid or its fixed body rule out is refused; bodies that
differ between samples are masks, which move along. The grid does not state what drives the flow: a
moving lid, a force, gravity, an asymmetric inflow, a parameter that names a direction. So "auto"
leaves out open sides, sides with inflow or outflow, closed boxes of walls, and flows without a PDE
family; True includes them.

Random numbers are per sample (``pibert.sample_rng``): each reflection applies to half of the
samples, every number of quarter turns to a quarter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pibert import sample_rng
from pibert.config import check
from pibert.fields import Batch, Boundary, FieldSpec, Normalizer
from pibert.training.objectives import Objective, in_turns, period_of

Choice = Literal[False, True, "auto"]
Symmetry = Literal["reflect_x", "reflect_y", "rotate"]
SYMMETRIES: tuple[Symmetry, ...] = ("reflect_x", "reflect_y", "rotate")
PSEUDOSCALARS = ("omega", "vorticity")
_CLEAR_SIDES = (Boundary.PERIODIC, Boundary.WALL, Boundary.SLIP)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Symmetries to apply at random; "auto" uses one if the data certainly have it."""

    reflect_x: Choice = False
    """Reverse the columns of half of the samples."""
    reflect_y: Choice = False
    """Reverse the rows of half of the samples."""
    rotate: Choice = False
    """Rotate samples by 0 to 3 right angles."""

    def __post_init__(self) -> None:
        check(self)

    def chosen(self, spec: FieldSpec) -> tuple[Symmetry, ...]:
        """The symmetries for data of this spec; an error for one that is True and ruled out."""
        for name in SYMMETRIES:
            reason = obstacle(name, spec)
            if getattr(self, name) is True and reason:
                raise ValueError(f"augmentation {name} does not fit this data: {reason}")
        certain = allowed(spec)
        return tuple(
            name
            for name in SYMMETRIES
            if getattr(self, name) is True or (getattr(self, name) and name in certain)
        )


def allowed(spec: FieldSpec) -> tuple[Symmetry, ...]:
    """The symmetries that data of a spec certainly have, used by "auto"."""
    sides = spec.grid.sides
    # Without a family a force may act; a wall of a closed box may move or be heated.
    if spec.family is None or all(kind is Boundary.WALL for kind in sides):
        return ()
    of_symmetry: dict[Symmetry, tuple[Boundary, ...]] = {
        "reflect_x": (sides.left, sides.right),
        "reflect_y": (sides.bottom, sides.top),
        "rotate": tuple(sides),
    }
    return tuple(
        name
        for name, kinds in of_symmetry.items()
        if set(kinds) <= set(_CLEAR_SIDES) and obstacle(name, spec) is None
    )


def obstacle(symmetry: Symmetry, spec: FieldSpec) -> str | None:
    """The reason why data of this spec cannot have a symmetry; None if there is none."""
    grid, (rows, columns) = spec.grid, spec.grid.shape
    if spec.state:
        return f"it is not known how the state {list(spec.state)} of a structure is reflected"
    # With the missing component added, u or v alone may be a velocity.
    complete = (*spec.channels, *{"u", "v"} - set(spec.channels))
    is_lone = len(complete) == len(spec.channels) + 1
    if is_lone and replace(spec, channels=complete, units=()).velocity is not None:
        return f"expected both components of the velocity or none, found channels {spec.channels}"
    if symmetry == "rotate":
        if not (grid.periodic_x and grid.periodic_y):
            return f"a quarter turn needs a doubly periodic box, found sides {tuple(grid.sides)}"
        if rows != columns or not math.isclose(grid.dx, grid.dy, rel_tol=1e-6):
            return (
                f"a quarter turn needs a square box with dx = dy, found {rows} x {columns} points "
                f"with dx = {grid.dx:g} and dy = {grid.dy:g}"
            )
        return None if grid.body is None else "a quarter turn needs a box without a body"
    a, b = ("left", "right") if symmetry == "reflect_x" else ("bottom", "top")
    first, second = getattr(grid.sides, a), getattr(grid.sides, b)
    if first != second:
        return f"expected {a} and {b} sides of one kind, found {first} and {second}"
    if grid.body is not None and not torch.equal(grid.body, _POINTS[symmetry](grid.body)):
        return f"the body is not the same after {symmetry}"
    return None


def augmented(
    objective: Objective, augmentation: Augmentation, spec: FieldSpec, normalizer: Normalizer
) -> Objective:
    """The objective on augmented batches in training, on unchanged batches in evaluation."""
    change = augmenter(augmentation, spec, normalizer)

    def changed(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return objective(model, change(batch) if model.training else batch)

    return in_turns(changed, period_of(objective))


def augmenter(
    augmentation: Augmentation, spec: FieldSpec, normalizer: Normalizer
) -> Callable[[Batch], Batch]:
    """Return the function that ``augmented`` applies to a batch."""
    moves = {
        move: _Mixing.of(move, spec, normalizer)
        for symmetry in augmentation.chosen(spec)
        for move in (("quarter turn", "half turn") if symmetry == "rotate" else (symmetry,))
    }

    def change(batch: Batch) -> Batch:
        turns = sample_rng.integer(batch.seeds, "rotate", 4)
        selected = {
            "reflect_x": sample_rng.integer(batch.seeds, "reflect_x", 2) == 1,
            "reflect_y": sample_rng.integer(batch.seeds, "reflect_y", 2) == 1,
            "quarter turn": turns % 2 == 1,
            "half turn": turns >= 2,
        }
        for move, mixing in moves.items():
            batch = _moved(batch, move, selected[move], mixing)
        return batch

    return change


_POINTS: dict[str, Callable[[Tensor], Tensor]] = {
    "reflect_x": lambda field: field.flip(-1),
    "reflect_y": lambda field: field.flip(-2),
    # (x, y) moves to (-y, x): row i, column j gets the value of row n - 1 - j, column i.
    "quarter turn": lambda field: field.mT.flip(-1),
    "half turn": lambda field: field.flip(-2, -1),
}
_VECTORS: dict[str, tuple[tuple[str, int], tuple[str, int]]] = {
    # New u and new v, each as the old component and a sign.
    "reflect_x": (("u", -1), ("v", 1)),
    "reflect_y": (("u", 1), ("v", -1)),
    "quarter turn": (("v", -1), ("u", 1)),
    "half turn": (("u", -1), ("v", -1)),
}


class _Mixing(NamedTuple):
    """New standardised channels from old ones: factor * old[source] + offset."""

    source: tuple[int, ...]
    factor: tuple[float, ...]
    offset: tuple[float, ...]

    @classmethod
    def of(cls, move: str, spec: FieldSpec, normalizer: Normalizer) -> "_Mixing":
        rules: dict[str, tuple[str, int]] = {}
        if spec.velocity is not None:
            rules = dict(zip(("u", "v"), _VECTORS[move], strict=True))
        if move.startswith("reflect"):
            rules |= {name: (name, -1) for name in PSEUDOSCALARS}
        mean, std = normalizer.mean, normalizer.std
        table = []
        for c, name in enumerate(spec.channels):
            old, sign = rules.get(name, (name, 1))
            d = spec.channels.index(old)
            table.append((d, sign * std[d] / std[c], (sign * mean[d] - mean[c]) / std[c]))
        return cls(*zip(*table, strict=True))

    def apply(self, z: Tensor) -> Tensor:
        """Mix the channels of (..., c, y, x)."""
        channels = z.unbind(-3)
        return torch.stack(
            [channels[d] * factor + offset for d, factor, offset in zip(*self, strict=True)], -3
        )


def _moved(batch: Batch, move: str, selected: Tensor, mixing: _Mixing) -> Batch:
    """The batch with a move applied to the selected samples."""
    points = _POINTS[move]

    def choose(moved: Tensor, kept: Tensor) -> Tensor:
        return torch.where(selected.view(-1, *[1] * (kept.ndim - 1)), moved, kept)

    def fields(kept: Tensor, known: Tensor) -> Tensor:
        """Move (b, t, c, y, x), known at (b, t, y, x)."""
        return choose(points(torch.where(known.unsqueeze(2), mixing.apply(kept), 0.0)), kept)

    x = batch.x.unflatten(1, (-1, len(mixing.source)))
    return replace(
        batch,
        x=fields(x, batch.mask.unsqueeze(1)).flatten(1, 2),
        y=fields(batch.y, batch.target_mask),
        mask=choose(points(batch.mask), batch.mask),
        target_mask=choose(points(batch.target_mask), batch.target_mask),
        filled=None if batch.filled is None else choose(points(batch.filled), batch.filled),
    )
