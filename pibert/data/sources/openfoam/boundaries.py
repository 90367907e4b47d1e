"""What bounds the four sides of the box around a plane case, from its patches."""

import numpy as np

from pibert.data.sources.openfoam.fields import SLIDING, FoamField
from pibert.data.sources.openfoam.polymesh import Patch, PolyMesh, first_word
from pibert.fields import Boundary, Sides

_WALLS = ("noSlip", "movingWallVelocity", "rotatingWallVelocity", "translatingWallVelocity")
_OUTLETS = (
    "zeroGradient",
    "inletOutlet",
    "advective",
    "waveTransmissive",
    "pressureInletOutletVelocity",
    "fluxCorrectedVelocity",
)
_NEAR = 1e-4
"""An edge lies on a side where its ends are within this share of the box of it."""
_WHOLE = 0.99
"""A side is of one kind where edges of this kind make up this share of its length."""


def find_sides(
    mesh: PolyMesh, velocity: FoamField, cells: np.ndarray, box: np.ndarray
) -> tuple[Sides, tuple[str, ...]]:
    """The kind of each side, and in words those that could not be told.

    Args:
        mesh: The mesh.
        velocity: Its conditions decide what a patch is.
        cells: (n, 3) its values of the cells.
        box: [[left, bottom], [right, top]].
    """
    (left, bottom), (right, top) = box
    width = np.array([right - left, top - bottom])
    kinds: dict[str, Boundary] = {}
    remarks = []
    places = {"left": (0, left), "right": (0, right), "bottom": (1, bottom), "top": (1, top)}
    for side, (axis, place) in places.items():
        lengths: dict[Boundary, float] = {}
        names: list[str] = []
        for patch in mesh.patches:
            ends = mesh.mesh.points[patch.edges]
            on_side = (np.abs(ends[..., axis] - place) <= _NEAR * width[axis]).all(1)
            if not on_side.any():
                continue
            kind = _kind(patch, mesh, velocity, cells, on_side)
            length = np.abs(np.diff(ends[on_side, :, 1 - axis], axis=1)).sum()
            lengths[kind] = lengths.get(kind, 0.0) + float(length)
            names.append(f"{patch.name} ({kind})")
        whole = [k for k, length in lengths.items() if length >= _WHOLE * width[1 - axis]]
        kinds[side] = whole[0] if whole else Boundary.OPEN
        if names and kinds[side] is Boundary.OPEN:
            remarks.append(f"the {side} side is taken as open: {', '.join(dict.fromkeys(names))}")
    for one, other in (("left", "right"), ("bottom", "top")):
        if (kinds[one] is Boundary.PERIODIC) != (kinds[other] is Boundary.PERIODIC):
            kinds[one] = kinds[other] = Boundary.OPEN
            remarks.append(f"only one of {one} and {other} is periodic: both are taken as open")
    return Sides(**kinds), tuple(remarks)


def _kind(
    patch: Patch, mesh: PolyMesh, velocity: FoamField, cells: np.ndarray, on_side: np.ndarray
) -> Boundary:
    """What a patch is on some of its edges: by its own type and the velocity's condition."""
    if patch.kind.startswith("cyclic"):
        return Boundary.PERIODIC
    condition = first_word(velocity.condition(patch), "type")
    if patch.kind in SLIDING or condition in SLIDING:
        return Boundary.SLIP
    if patch.kind == "wall" or condition in _WALLS:
        return Boundary.WALL
    if condition in _OUTLETS:
        return Boundary.OUTFLOW
    if condition.startswith("freestream") or "value" not in velocity.condition(patch):
        return Boundary.OPEN
    values = velocity.on_patch(patch, mesh, cells)[on_side][:, list(mesh.axes)]
    through = (values * mesh.outward(patch)[on_side]).sum(1)
    if not values.any():
        return Boundary.WALL
    if (np.abs(through) <= 1e-9 * np.abs(values).max()).all():
        return Boundary.WALL if condition == "fixedValue" else Boundary.OPEN
    return Boundary.INFLOW if through.mean() < 0 else Boundary.OUTFLOW
