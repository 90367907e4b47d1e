"""Regions that the user marks as body or invalid (--body, --mask), flips and rotations.

A region is written as

    zeros                     points whose velocity is exactly zero: in all frames for a body, in
                              each frame separately for a mask
    circle:X,Y,R              centre and radius
    polygon:X,Y,X,Y,X,Y,...   corners in order; the last is joined to the first
    corners.csv               the corners of a polygon in a text file, one per line
    mask.png                  the bright pixels of an image; dark:mask.png: its dark pixels

Coordinates are those of the recording. Points on the edge of a shape are inside. The top row of an
image has the largest y, and the image covers the cells of the grid; if its size is not that of the
grid, it must have the aspect ratio of the field.

Flips: rows stored from top to bottom need ``y``; a component that counts downward, with rows in the
right order, needs ``v``; both together mirror the flow, and a vorticity changes its sign. The
origin stays where it is, and the boundaries move with their rows or columns. Statistics, stresses
and ends of intervals (``rms_u``, ``uv``, ``u_low``) change with their components; other channels
whose names depend on the direction (``ax``, ``dudx``) are refused, and all others are scalars.

Rotations by quarter-turns, anticlockwise about the origin of the coordinates, follow the flips:
positions and vectors turn together, and no value is interpolated.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.data.readers.recordings import NO_FAMILY, Recordings, SourceError
from pibert.data.readers.shared.files import read_columns
from pibert.data.resample import Resizer
from pibert.data.units import VELOCITY
from pibert.data.views import (
    MappedFrames,
    Mask,
    frame_blocks,
    map_mask,
    mask_shape,
    pick,
)
from pibert.fields import MASKS, Grid, Sides, Trajectory, read_mask
from pibert.physics.families import FAMILIES

ZEROS = "zeros"
FORMS = (
    "zeros, circle:X,Y,R, polygon:X,Y,X,Y,X,Y, a .csv file of corners, an image whose white pixels "
    "are meant, or dark:IMAGE"
)
_CORNERS = (".csv", ".txt", ".dat")
_IMAGES = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "PPM")
"""Image formats to accept; for others Pillow may start a program (Ghostscript for EPS)."""
_MOST_PIXELS = 64_000_000
"""A limit, because a few kilobytes can unpack to gigabytes."""
_ROUNDING = 1e-6
"""In cells: how far outside a shape a point on its edge may lie."""
_ASPECT = 0.05
"""Largest relative difference of the aspect ratios of an image and the field."""
_GREY = 0.1
"""Largest share of pixels of a mask that are neither bright nor dark."""


@dataclass(frozen=True, eq=False)
class Region:
    """A region in the user's words, for messages, and the points of a trajectory in it."""

    text: str
    covers: Callable[[Trajectory], Bool[Tensor, "y x"]]

    def points(self, flow: Trajectory) -> Bool[Tensor, "y x"]:
        """Return the covered points; SourceError if there are none."""
        covered = self.covers(flow)
        if not bool(covered.any()):
            if self.text.endswith(ZEROS):
                raise SourceError(
                    f"{self.text} covers no point of {flow.name!r}: no velocity is always zero"
                )
            grid, unit = flow.spec.grid, f" {flow.length_unit}" if flow.length_unit else ""
            (ny, nx), (x, y) = grid.shape, grid.origin
            raise SourceError(
                f"{self.text} covers no point of trajectory {flow.name!r}: its x goes from {x:g} "
                f"to {x + (nx - 1) * grid.dx:g}, its y from {y:g} to {y + (ny - 1) * grid.dy:g}"
                f"{unit}; give coordinates of this recording"
            )
        return covered


def read_region(option: str, text: str) -> Region:
    """Return the region that a text describes; files are read at once."""
    kind, _, rest = text.partition(":")
    name = f"{option} {text}"
    if text == ZEROS:
        return Region(name, partial(_cached_zeros, {}))
    if kind == "circle":
        x, y, radius = _numbers(name, rest, 3)
        if not radius > 0:
            raise ValueError(f"{name}: expected a positive radius, found {radius:g}")
        return Region(name, partial(_in_circle, x, y, radius))
    if kind == "polygon":
        return Region(name, partial(_in_polygon, np.reshape(_numbers(name, rest, None), (-1, 2))))
    path = Path(rest if kind == "dark" else text)
    if not path.is_file():
        what = "no such file" if path.suffix else "no such region"
        raise ValueError(f"{name}: {what}; expected {FORMS}")
    if path.suffix.lower() in _CORNERS:
        return Region(name, partial(_in_polygon, _read_corners(option, path)))
    bright = _read_image(option, path)
    return Region(name, partial(_in_image, name, ~bright if kind == "dark" else bright))


def _numbers(name: str, rest: str, count: int | None) -> list[float]:
    """Return ``count`` finite numbers; without a count, pairs for at least three corners."""
    try:
        found = [float(word) for word in re.split(r"[,;\s]+", rest.strip())]
    except ValueError:
        found = []
    enough = len(found) == count if count else len(found) >= 6 and not len(found) % 2
    if not enough or not np.isfinite(found).all():
        wanted = "X,Y pairs of at least three corners, such as polygon:0,0,0.1,0,0.1,0.05"
        if count:
            wanted = "three numbers X,Y,R, such as circle:0.1,0.05,0.01"
        raise ValueError(f"{name}: expected {wanted}")
    return found


def _read_corners(option: str, path: Path) -> np.ndarray:
    """Read corners (n, 2) from a text file with a line x, y for each."""
    try:
        corners = read_columns(path).values
    except SourceError as error:
        raise ValueError(f"{option} {error}") from error
    if corners.shape[1] != 2 or len(corners) < 3 or not np.isfinite(corners).all():
        rows, columns = corners.shape
        raise ValueError(
            f"{option} {path}: expected at least three lines of two numbers x, y, found {rows} "
            f"lines of {columns}"
        )
    return corners


def _read_image(option: str, path: Path) -> Bool[Tensor, "y x"]:
    """Read the pixels brighter than half of the brightest, row 0 at the bottom."""
    from PIL import Image

    try:
        with Image.open(path, formats=_IMAGES) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(
                    f"{image.width} x {image.height} pixels, more than {_MOST_PIXELS:,}"
                )
            # Converting modes with more than 8 bits would clip the bright values.
            deep = image.mode in ("I", "F") or image.mode.startswith("I;")
            values = np.asarray(image if deep else image.convert("L"), dtype=np.float32)
    except Exception as error:  # Pillow raises many kinds
        raise ValueError(
            f"{option} {path}: not an image that can be read ({error}); expected {FORMS}; images "
            f"are {', '.join(_IMAGES)}"
        ) from None
    share = values / (values.max() or 1.0)
    if float(((share > 0.25) & (share < 0.75)).mean()) > _GREY:
        raise ValueError(f"{option} {path}: it has shades of grey; save it in black and white")
    return torch.from_numpy(np.ascontiguousarray((share > 0.5)[::-1]))


def _in_circle(x: float, y: float, radius: float, flow: Trajectory) -> Tensor:
    grid = flow.spec.grid
    columns, rows = grid.coordinates(torch.float64)
    return torch.hypot(columns - x, rows - y) <= radius + _ROUNDING * grid.cell_length


def _in_polygon(corners: np.ndarray, flow: Trajectory) -> Tensor:
    """Return the points inside, by the even-odd rule, or on an edge."""
    grid = flow.spec.grid
    x, y = (axis.numpy() for axis in grid.coordinates(torch.float64))
    inside, edge = np.zeros(x.shape, bool), np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        length = np.hypot(bx - ax, by - ay)
        if not length:
            continue
        along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length
        nearest = np.clip(along, 0, length) / length
        away = np.hypot(x - ax - nearest * (bx - ax), y - ay - nearest * (by - ay))
        edge |= away <= _ROUNDING * grid.cell_length
        if ay != by:
            crossed = ((ay > y) != (by > y)) & (x < ax + (y - ay) * (bx - ax) / (by - ay))
            inside ^= crossed
    return torch.from_numpy(inside | edge)


def _in_image(name: str, marked: Tensor, flow: Trajectory) -> Tensor:
    grid = flow.spec.grid
    if marked.shape == grid.shape:
        return marked
    (height, width), (ny, nx) = marked.shape, grid.shape
    ours, theirs = (nx * grid.dx) / (ny * grid.dy), width / height
    if abs(theirs / ours - 1) > _ASPECT:
        raise ValueError(
            f"{name}: the image has {width} x {height} pixels (aspect ratio {theirs:.3g}), the "
            f"field {nx} x {ny} points (aspect ratio {ours:.3g}); expected a pixel for each point, "
            "or an image that shows just the field"
        )
    return Resizer(Grid((height, width)), grid.shape).resize_body(marked)


def mark_recordings(recordings: Recordings, body: Sequence[str], mask: Sequence[str]) -> Recordings:
    """Mark the points of some regions as body and those of others as invalid.

    Regions are checked on the first trajectory at once, on the others when they are loaded.
    """
    if not body and not mask:
        return recordings
    solid = [read_region("--body", text) for text in body]
    masked = [read_region("--mask", text) for text in mask if text != ZEROS]
    notes = [
        f"{int(points.sum()):,} of {points.numel():,} points "
        f"({float(points.double().mean()):.2%}) marked as {what}"
        for what, points in zip(
            ("body", "not valid"), _marked_points(recordings[0], solid, masked), strict=True
        )
        if points is not None
    ]
    if ZEROS in mask:
        notes.append("vectors that are exactly zero are marked as not valid, frame by frame")
    record = {"body": list(body), "mask": list(mask)}
    change = partial(
        _mark,
        solid=solid,
        masked=masked,
        masks_zeros=ZEROS in mask,
        record={name: texts for name, texts in record.items() if texts},
    )
    return recordings.changed(change, notes)


def _mark(
    flow: Trajectory,
    *,
    solid: Sequence[Region],
    masked: Sequence[Region],
    masks_zeros: bool,
    record: Mapping[str, list[str]],
) -> Trajectory:
    inside, hidden = _marked_points(flow, solid, masked)
    valid, body = flow.valid, flow.body
    if hidden is not None:
        valid = ~hidden if valid is None else map_mask(valid, partial(torch.logical_and, ~hidden))
    if inside is not None:
        body = inside if body is None else map_mask(body, partial(torch.logical_or, inside))
    if masks_zeros:
        valid = MappedFrames(mask_shape(flow), partial(_read_moving, flow, valid))
    return replace(
        flow,
        spec=replace(flow.spec, grid=replace(flow.spec.grid, body=None)),
        body=body,
        valid=valid,
        local={**flow.local, "marked": dict(record)},
    )


def _marked_points(
    flow: Trajectory, solid: Sequence[Region], masked: Sequence[Region]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the points of a body and those masked in all frames; None without such regions."""
    inside, hidden = (
        torch.stack([region.points(flow) for region in regions]).any(0) if regions else None
        for regions in (solid, masked)
    )
    marked = [points for points in (inside, hidden) if points is not None]
    if marked and bool(torch.stack(marked).any(0).all()):
        raise SourceError(
            f"--body and --mask cover all points of trajectory {flow.name!r}; check them "
            "(dark:IMAGE takes the dark pixels of an image)"
        )
    return inside, hidden


def _cached_zeros(found: dict[str, Tensor], flow: Trajectory) -> Tensor:
    """Return the zeros of a trajectory; finding them reads all frames, so once."""
    if flow.name not in found:
        found[flow.name] = zero_in_all_frames(flow)
    return found[flow.name]


def zero_in_all_frames(trajectory: Trajectory) -> Bool[Tensor, "y x"]:
    """Return the points where every velocity component is 0 in all frames, apart from NaN."""
    channels = velocity_channels(trajectory.spec.channels)
    zero = torch.ones(trajectory.spec.grid.shape, dtype=torch.bool)
    seen = torch.zeros_like(zero)
    for frames in frame_blocks(trajectory):
        fields = trajectory.read(frames, channels).cpu()
        missing, still = fields.isnan().any(1), (fields == 0).all(1)
        zero &= (missing | still).all(0)
        seen |= still.any(0)
        if not bool(zero.any()):
            break
    return zero & seen


def velocity_channels(channels: Sequence[str]) -> list[int]:
    """Return the indices of the velocity components; of all channels if u or v is missing."""
    wanted = VELOCITY if {"u", "v"} <= set(channels) else channels
    return [index for index, name in enumerate(channels) if name in wanted]


def _read_moving(base: Trajectory, valid: Mask, frames: slice) -> Tensor:
    """Return where vectors are not exactly zero and were valid before."""
    moving = (base.read(frames, velocity_channels(base.spec.channels)) != 0).any(1)
    return moving if valid is None else moving & read_mask(valid, frames)


FLIPS = ("x", "y", "u", "v")
_AXES = {"x": -1, "y": -2}
_VORTICITY = ("omega", "vorticity")
_TURNED = str.maketrans("uvxyUVXY", "vuyxVUYX")
_OPPOSITE = {"low": "high", "high": "low"}
"""Ends of prediction intervals, ``u_low`` and ``u_high``: those of ``-u`` are exchanged."""
_MAGNITUDES = ("rms", "std", "uncertainty", "error")
_COMPONENT = re.compile(
    r"(?:(mean|rms|std|uncertainty|error)_)?([uv]|[uvw]{2}|omega|vorticity)(?:_(low|high|imag))?"
)
"""Names of velocities, stresses (``uv``) and vorticities, and of their statistics."""
_DIRECTED = re.compile(r"(.*_)?([uv]|[uvw]{2}|[xy]{1,2})(_.*)?")
"""Other names of channels that depend on the direction."""


def flip_recordings(recordings: Recordings, flip: Sequence[str]) -> Recordings:
    """Reverse axes and signs of components."""
    if not set(flip) <= set(FLIPS) or len(set(flip)) != len(flip):
        raise ValueError(
            f"--flip takes some of {', '.join(FLIPS)}, each once, found {', '.join(flip)}"
        )
    if not flip:
        return recordings
    change = partial(flip_trajectory, flip=tuple(flip))
    notes = [f"reversed as requested: {', '.join(flip)}"]
    if {"u", "v"} & {*flip}:
        notes += _unchanged(recordings[0], "reversed")
    return recordings.changed(change, notes)


def flip_trajectory(trajectory: Trajectory, flip: tuple[str, ...]) -> Trajectory:
    """Return a lazy view with reversed rows, columns or components."""
    spec = trajectory.spec
    words = [match[2] for match in map(_COMPONENT.fullmatch, spec.channels) if match]
    found = {*_AXES, *("uv" if {*words} & {*_VORTICITY} else "".join(words))}
    if missing := [name for name in flip if name not in found]:
        raise ValueError(
            f"trajectory {trajectory.name!r} has no channel {missing[0]!r} to flip; it has "
            f"{', '.join(spec.channels)}"
        )
    mirrored = ({"x", "u"} <= {*flip}) != ({"y", "v"} <= {*flip})
    signs = dict.fromkeys({"u", "v"} & {*flip}, -1.0)
    order, factors = _sources(trajectory, signs | dict.fromkeys(_VORTICITY * mirrored, -1.0))
    left, right, bottom, top = spec.grid.sides
    if "x" in flip:
        left, right = right, left
    if "y" in flip:
        bottom, top = top, bottom
    return _turned(
        trajectory,
        partial(torch.flip, dims=tuple(_AXES[name] for name in flip if name in _AXES)),
        replace(spec.grid, body=None, sides=Sides(left, right, bottom, top)),
        {**trajectory.local, "flip": list(flip)},
        order=order,
        signs=factors,
    )


def _sources(
    flow: Trajectory, signs: Mapping[str, float], *, turns: bool = False
) -> tuple[list[int], list[float]]:
    """Return for each channel the one that it is computed from, and a factor.

    ``signs`` are those of u, v and the vorticity; with ``turns``, u and v are exchanged.
    """
    names = flow.spec.channels
    order, factors = list(range(len(names))), [1.0] * len(names)
    if not signs:
        return order, factors
    unclear: list[str] = []
    for index, name in enumerate(names):
        match = _COMPONENT.fullmatch(name)
        if match is None:
            if _DIRECTED.fullmatch(name) or {name} < {name, name.translate(_TURNED)} <= {*names}:
                unclear.append(name)
            continue
        kind, word, end = match.groups()
        letters = [word] if word in _VORTICITY else [*word]
        if kind not in _MAGNITUDES:
            factors[index] = math.prod(signs.get(letter, 1.0) for letter in letters)
        elif kind == "error" and "statistics" not in flow.local:
            unclear.append(name)  # a standard error in our statistics, else perhaps a difference
        if factors[index] < 0:
            end = _OPPOSITE.get(end, end)
        if turns and word not in _VORTICITY:
            word = word.translate(_TURNED)
        known = ("_".join(filter(None, (kind, each, end))) for each in (word, word[::-1]))
        source = next((names.index(each) for each in known if each in names), None)
        if source is None:
            unclear.append(name)
        else:
            order[index] = source
    if unclear:
        raise ValueError(
            f"trajectory {flow.name!r}: how {', '.join(dict.fromkeys(unclear))} change with the "
            "direction is not known, or their other component is missing; read only channels that "
            "are known (--channels u=u,v=v), or give a scalar another name (--channels c=NAME); "
            "for PIBERT's own files: pibert convert FILE NAME.h5 --keep u,v"
        )
    return order, factors


def _unchanged(flow: Trajectory, change: str) -> list[str]:
    """Return notes on channels and series that a change of direction leaves as they are."""
    scalars = [name for name in flow.spec.channels if _COMPONENT.fullmatch(name) is None]
    notes = [f"taken as scalars, not {change}: {', '.join(scalars)}"] if scalars else []
    if flow.series:
        notes.append(f"not {change} (values per frame): {', '.join(flow.series)}")
    return notes


def rotate_recordings(
    recordings: Recordings, degrees: int, family: str | None = None
) -> Recordings:
    """Turn flows anticlockwise by a multiple of 90 degrees.

    ``family`` is the one that the user states; it names the channels of the velocity.
    """
    turns, rest = divmod(degrees, 90)
    if rest:
        raise ValueError(
            f"--rotate takes a multiple of 90 degrees, found {degrees}: other angles need "
            "interpolation; align the axes in the calibration of the PIV program"
        )
    if not turns % 4:
        return recordings
    notes = [f"rotated anticlockwise by {degrees} degrees about (0, 0)"]
    notes += _unchanged(recordings[0], "rotated")
    change = partial(rotate_trajectory, turns=turns % 4, family=family)
    return recordings.changed(change, notes)


def rotate_trajectory(flow: Trajectory, turns: int, family: str | None = None) -> Trajectory:
    """Return a lazy view that is rotated by quarter-turns: (x, y) becomes (-y, x) in each."""
    spec, grid = flow.spec, flow.spec.grid
    stated = spec if family in (None, NO_FAMILY) else replace(spec, family=family)
    of_family = FAMILIES.get(stated.family or "")
    is_vector = stated.family is None or (of_family is not None and of_family.velocity is not None)
    quarter = _sources(flow, {"u": -1.0, "v": 1.0} if is_vector else {}, turns=True)
    (ny, nx), (x, y), (dx, dy), sides = grid.shape, grid.origin, (grid.dx, grid.dy), grid.sides
    before = flow.local.get("rotate", {"degrees": 0, "origin": [x, y]})
    order, signs = list(range(len(spec.channels))), [1.0] * len(spec.channels)
    for _ in range(turns):
        x, y = -(y + (ny - 1) * dy), x
        (ny, nx), (dx, dy) = (nx, ny), (dy, dx)
        sides = Sides(left=sides.top, right=sides.bottom, bottom=sides.left, top=sides.right)
        signs = [sign * signs[source] for source, sign in zip(*quarter, strict=True)]
        order = [order[source] for source in quarter[0]]
    degrees = (before["degrees"] + 90 * turns) % 360
    local = {**flow.local, "rotate": {**before, "degrees": degrees}}
    if not degrees:  # the origin without rounding errors
        x, y = before["origin"]
        del local["rotate"]
    turn = partial(torch.rot90, k=-turns, dims=(-2, -1))
    grid = Grid((ny, nx), dx, dy, sides, origin=(x, y))
    return _turned(flow, turn, grid, local, order=order, signs=signs)


def _turned(
    flow: Trajectory,
    turn: Callable[[Tensor], Tensor],
    grid: Grid,
    local: Mapping[str, Any],
    *,
    order: Sequence[int],
    signs: Sequence[float],
) -> Trajectory:
    """Return a lazy view: channels in another order, times their signs, turned in the plane."""
    masks: dict[str, Any] = {n: map_mask(getattr(flow, n), turn, grid.shape) for n in MASKS}
    shape = (*flow.states.shape[:2], *grid.shape)
    read = partial(_read_turned, flow, turn, tuple(order), tuple(signs))
    spec = replace(flow.spec, grid=grid)
    return replace(flow, states=MappedFrames(shape, read), spec=spec, local=local, **masks)


def _read_turned(
    base: Trajectory,
    turn: Callable[[Tensor], Tensor],
    order: tuple[int, ...],
    signs: tuple[float, ...],
    frames: slice,
    channels: Sequence[int] | None,
) -> Tensor:
    fields = turn(base.read(frames, pick(order, channels)))
    return fields * fields.new_tensor(pick(signs, channels))[:, None, None]
