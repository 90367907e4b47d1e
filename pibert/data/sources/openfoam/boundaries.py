"""What bounds the four sides of a plane case, from its patches and the velocity's conditions."""

import numpy as np

from pibert.data.sources.openfoam.fields import SLIP, FoamField
from pibert.data.sources.openfoam.polymesh import Patch, PolyMesh
from pibert.data.sources.openfoam.topology import first_word
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
"""An edge lies on a side if its ends are within this share of the box's extent from it."""
_WHOLE = 0.99
"""A side has a kind if edges of this kind cover this share of it."""


def find_sides(
    mesh: PolyMesh, velocity: FoamField, cells: np.ndarray, box: np.ndarray
) -> tuple[Sides, str]:
    """The kind of each side, and a note that names the patches.

    Args:
        mesh: The mesh.
        velocity: Its boundary conditions decide what a patch is.
        cells: (n, 3) its cell values.
        box: [[left, bottom], [right, top]].
    """
    (left, bottom), (right, top) = box
    places = {"left": (0, left), "right": (0, right), "bottom": (1, bottom), "top": (1, top)}
    kinds, names = {}, {}
    for side, (axis, place) in places.items():
        across, along = (box[1, a] - box[0, a] for a in (axis, 1 - axis))
        lengths: dict[Boundary, float] = {}
        on_side: dict[str, Boundary] = {}
        for patch in mesh.patches:
            ends = mesh.mesh.points[patch.edges]
            near = (np.abs(ends[..., axis] - place) <= _NEAR * across).all(1)
            if near.any():
                kind = on_side[patch.name] = _kind(patch, mesh, velocity, cells, near)
                length = np.abs(np.diff(ends[near, :, 1 - axis], axis=1)).sum()
                lengths[kind] = lengths.get(kind, 0.0) + float(length)
        whole = [kind for kind, length in lengths.items() if length >= _WHOLE * along]
        kinds[side] = whole[0] if whole else Boundary.OPEN
        names[side] = [n if kind is kinds[side] else f"{n}: {kind}" for n, kind in on_side.items()]
    for one, other in (("left", "right"), ("bottom", "top")):
        if (kinds[one] is Boundary.PERIODIC) != (kinds[other] is Boundary.PERIODIC):
            kinds[one] = kinds[other] = Boundary.OPEN
    listed = (f"{side} {kinds[side]} ({', '.join(names[side]) or 'no patch'})" for side in places)
    return Sides(**kinds), f"sides, from the patches: {'; '.join(listed)}"


def _kind(
    patch: Patch, mesh: PolyMesh, velocity: FoamField, cells: np.ndarray, near: np.ndarray
) -> Boundary:
    """What a patch is, by its type and the velocity's condition on some of its edges."""
    if patch.kind.startswith("cyclic"):
        return Boundary.PERIODIC
    condition = velocity.condition(patch)
    kind = first_word(condition, "type")
    if patch.kind in SLIP or kind in SLIP:
        return Boundary.SLIP
    if patch.kind == "wall" or kind in _WALLS:
        return Boundary.WALL
    if kind in _OUTLETS:
        return Boundary.OUTFLOW
    if kind.startswith("freestream") or "value" not in condition:
        return Boundary.OPEN
    values = velocity.on_patch(patch, mesh, cells)[near][:, list(mesh.axes)]
    through = (values * mesh.outward(patch)[near]).sum(1)
    if not values.any():
        return Boundary.WALL
    if (np.abs(through) <= 1e-9 * np.abs(values).max()).all():
        return Boundary.WALL if kind == "fixedValue" else Boundary.OPEN
    return Boundary.INFLOW if through.mean() < 0 else Boundary.OUTFLOW
