"""Augmentation that respects the physics: reflections and quarter turns of whole samples.

A symmetry moves the points of the grid and turns the vectors on them:

    reflect_x   columns reversed   u -> -u           if left and right sides are of one kind
    reflect_y   rows reversed      v -> -v           if bottom and top sides are of one kind
    rotate      0 to 3 turns       (u, v) -> (-v, u) on a square periodic box with dx = dy

Vorticity (``omega``) changes its sign under a reflection; every other channel is a scalar, also a
velocity out of the plane (``w``), and u and v if they are not a velocity (``FieldSpec.velocity``).
The rule holds in physical units. With mean m and std s of channel c, and its new value e times
channel d, the standardised value is

    z'_c = (e (s_d z_d + m_d) - m_c) / s_c

A flow that obeys its equations still does after such a change, if nothing else singles out a
direction. A symmetry that the sides of the grid or its fixed body rule out is refused; bodies that
differ between samples are masks, which move along. The grid does not state what drives the flow: a
moving lid, a force, gravity, an inflow that is not symmetric, a parameter that names a direction.
So "auto" leaves out open sides, sides with inflow or outflow, closed boxes of walls, and flows
without a PDE family; True includes them.

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
from pibert.fields import Batch, Boundary, FieldSpec, Grid, Normalizer
from pibert.training.objectives import Objective, in_turns, period_of

Choice = Literal[False, True, "auto"]
Symmetry = Literal["reflect_x", "reflect_y", "rotate"]
SYMMETRIES: tuple[Symmetry, ...] = ("reflect_x", "reflect_y", "rotate")
PSEUDOSCALARS = ("omega", "vorticity")
_CLEAR_SIDES = (Boundary.PERIODIC, Boundary.WALL, Boundary.SLIP)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Symmetries to apply at random; "auto" uses one if the data surely have it."""

    reflect_x: Choice = False
    """Reverse the columns of half of the samples."""
    reflect_y: Choice = False
    """Reverse the rows of half of the samples."""
    rotate: Choice = False
    """Rotate samples by 0 to 3 right angles."""

    def __post_init__(self) -> None:
        check(self)

    def chosen(self, spec: FieldSpec) -> tuple[Symmetry, ...]:
        """The symmetries for data of this spec; an error for one that is True and not there."""
        for name in SYMMETRIES:
            reason = obstacle(name, spec)
            if getattr(self, name) is True and reason:
                raise ValueError(f"augmentation {name} does not fit this data: {reason}")
        certain = allowed(spec)
        wanted = {name: getattr(self, name) for name in SYMMETRIES}
        return tuple(n for n, own in wanted.items() if own is True or (own and n in certain))


def allowed(spec: FieldSpec) -> tuple[Symmetry, ...]:
    """The symmetries that a spec surely has; what "auto" takes."""
    return tuple(n for n in SYMMETRIES if obstacle(n, spec) is None and doubt(n, spec) is None)


def obstacle(symmetry: Symmetry, spec: FieldSpec) -> str | None:
    """Why data of this spec cannot have a symmetry; None if nothing is against it."""
    grid = spec.grid
    if _lacks_a_component(spec):
        return f"expected both components of the velocity or none, found channels {spec.channels}"
    if symmetry == "rotate":
        return _obstacle_to_turns(grid)
    sides = grid.sides
    a, b = ("left", "right") if symmetry == "reflect_x" else ("bottom", "top")
    if getattr(sides, a) != getattr(sides, b):
        return (
            f"expected {a} and {b} sides of one kind, found {getattr(sides, a)} and "
            f"{getattr(sides, b)}"
        )
    if grid.body is not None and not torch.equal(grid.body, grid.body.flip(_AXIS[symmetry])):
        return f"the body is not the same after {symmetry}"
    return None


def doubt(symmetry: Symmetry, spec: FieldSpec) -> str | None:
    """Why a spec leaves open whether the data have a symmetry."""
    sides = spec.grid.sides
    if spec.family is None:
        return "no PDE family is stated, so a force may act"
    if all(kind is Boundary.WALL for kind in sides):
        return "a closed box of walls: one of them may move or be heated"
    along_x, along_y = (sides.left, sides.right), (sides.bottom, sides.top)
    for kind in {"reflect_x": along_x, "reflect_y": along_y, "rotate": sides}[symmetry]:
        if kind not in _CLEAR_SIDES:
            return f"what comes in through a side of kind {kind} is not known"
    return None


def augmented(
    objective: Objective,
    augmentation: Augmentation,
    spec: FieldSpec,
    normalizer: Normalizer,
    *,
    inputs: tuple[str, ...] = (),
    targets: tuple[str, ...] = (),
) -> Objective:
    """The objective on augmented batches in training, on unchanged batches in evaluation.

    Args:
        objective: What is trained.
        augmentation: Symmetries to apply.
        spec: Of the data, all its channels.
        normalizer: Statistics of these channels.
        inputs: Input channels of the model; empty stands for all.
        targets: Channels that it predicts; empty stands for all.
    """
    change = augmenter(augmentation, spec, normalizer, inputs=inputs, targets=targets)

    def changed(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return objective(model, change(batch) if model.training else batch)

    return in_turns(changed, period_of(objective))


def augmenter(
    augmentation: Augmentation,
    spec: FieldSpec,
    normalizer: Normalizer,
    *,
    inputs: tuple[str, ...] = (),
    targets: tuple[str, ...] = (),
) -> Callable[[Batch], Batch]:
    """What ``augmented`` does to a batch; it has the same arguments."""
    moves = {
        move: (
            _Mixing.of(move, inputs or spec.channels, spec, normalizer),
            _Mixing.of(move, targets or spec.channels, spec, normalizer),
        )
        for symmetry in augmentation.chosen(spec)
        for move in _MOVES[symmetry]
    }

    def change(batch: Batch) -> Batch:
        turns = sample_rng.integer(batch.seeds, "rotate", 4)
        selected = {
            "reflect_x": sample_rng.integer(batch.seeds, "reflect_x", 2) == 1,
            "reflect_y": sample_rng.integer(batch.seeds, "reflect_y", 2) == 1,
            "quarter turn": turns % 2 == 1,
            "half turn": turns >= 2,
        }
        for move, (of_inputs, of_targets) in moves.items():
            batch = _moved(batch, move, selected[move], of_inputs, of_targets)
        return batch

    return change


_AXIS = {"reflect_x": -1, "reflect_y": -2}
_MOVES = {
    "reflect_x": ("reflect_x",),
    "reflect_y": ("reflect_y",),
    "rotate": ("quarter turn", "half turn"),
}
_POINTS: dict[str, Callable[[Tensor], Tensor]] = {
    "reflect_x": lambda field: field.flip(-1),
    "reflect_y": lambda field: field.flip(-2),
    # The point (x, y) goes to (-y, x): row i, column j takes the value of row n - 1 - j, column i.
    "quarter turn": lambda field: field.mT.flip(-1),
    "half turn": lambda field: field.flip(-2, -1),
}
_VECTORS: dict[str, tuple[tuple[str, int], tuple[str, int]]] = {
    # New u and new v, each as a sign and the component it was.
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
    def of(
        cls, move: str, channels: tuple[str, ...], spec: FieldSpec, normalizer: Normalizer
    ) -> "_Mixing":
        rules: dict[str, tuple[str, int]] = {}
        if spec.velocity is not None:
            rules = dict(zip(("u", "v"), _VECTORS[move], strict=True))
        if move.startswith("reflect"):
            rules |= {name: (name, -1) for name in PSEUDOSCALARS}
        table = []
        for name in channels:
            old, sign = rules.get(name, (name, 1))
            if old not in channels:
                raise ValueError(
                    f"expected both components of the velocity to turn them, found {channels}"
                )
            c, d = spec.channels.index(name), spec.channels.index(old)
            mean, std = normalizer.mean, normalizer.std
            offset = (sign * mean[d] - mean[c]) / std[c]
            table.append((channels.index(old), sign * std[d] / std[c], offset))
        return cls(*zip(*table, strict=True))

    def apply(self, z: Tensor) -> Tensor:
        """To (..., c, y, x)."""
        channels = z.unbind(-3)
        return torch.stack(
            [channels[d] * factor + offset for d, factor, offset in zip(*self, strict=True)], -3
        )


def _moved(
    batch: Batch, move: str, selected: Tensor, of_inputs: _Mixing, of_targets: _Mixing
) -> Batch:
    """The batch with a move applied to the selected samples."""
    points = _POINTS[move]

    def choose(moved: Tensor, kept: Tensor) -> Tensor:
        return torch.where(selected.view(-1, *[1] * (kept.ndim - 1)), moved, kept)

    def fields(kept: Tensor, mixing: _Mixing, known: Tensor) -> Tensor:
        """Of (b, t, c, y, x) with known (b, t, y, x)."""
        return choose(points(torch.where(known.unsqueeze(2), mixing.apply(kept), 0.0)), kept)

    x = batch.x.unflatten(1, (-1, len(of_inputs.source)))
    return replace(
        batch,
        x=fields(x, of_inputs, batch.mask.unsqueeze(1)).flatten(1, 2),
        y=fields(batch.y, of_targets, batch.target_mask),
        mask=choose(points(batch.mask), batch.mask),
        target_mask=choose(points(batch.target_mask), batch.target_mask),
        filled=None if batch.filled is None else choose(points(batch.filled), batch.filled),
    )


def _obstacle_to_turns(grid: Grid) -> str | None:
    rows, columns = grid.shape
    if not (grid.periodic_x and grid.periodic_y):
        return f"a quarter turn needs a doubly periodic box, found sides {tuple(grid.sides)}"
    if rows != columns or not math.isclose(grid.dx, grid.dy, rel_tol=1e-6):
        return (
            f"a quarter turn needs a square box with dx = dy, found {rows} x {columns} points with "
            f"dx = {grid.dx:g} and dy = {grid.dy:g}"
        )
    if grid.body is not None:
        return "a quarter turn needs a box without a body"
    return None


def _lacks_a_component(spec: FieldSpec) -> bool:
    """Whether one of u and v is missing, and the other may be a velocity."""
    alone = len({"u", "v"} & set(spec.channels)) == 1
    complete = (*spec.channels, *{"u", "v"} - set(spec.channels))
    return alone and replace(spec, channels=complete, units=()).velocity is not None
