"""Changes that the user asks for: regions marked as body or as not valid, and reversed axes.

A region is written as

    zeros                     points whose velocity is exactly zero: in all frames for a body, in
                              each frame by itself for a mask
    circle:X,Y,R              centre and radius
    polygon:X,Y,X,Y,X,Y,...   corners in order; the last is joined to the first
    corners.csv               the same from a text file, a corner a line
    mask.png                  the bright pixels of an image, or with dark:mask.png its dark ones

Coordinates are those of the recording as it is read. A point on the edge of a shape lies inside. An
image shows the field as a picture does: its top row has the largest y, and it covers the cells of
the grid; an image of another size than the grid must have the aspect ratio of the field.

Flips: rows stored from top to bottom need ``y``; a component that counts downward, with rows in the
right order, needs ``v``; both together mirror the flow. Coordinates stay what they are: the first
row of the result lies at the origin, and a side keeps to its row or column.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.data.readers.recordings import Recordings, SourceError
from pibert.data.resample import Resizer
from pibert.data.units import VELOCITY
from pibert.data.views import MappedFrames, Mask, frame_blocks, map_mask, mask_shape, scale_channels
from pibert.fields import MASKS, Grid, Sides, Trajectory, read_mask
from pibert.textfiles import read_text

ZEROS = "zeros"
FORMS = (
    "zeros, circle:X,Y,R, polygon:X,Y,X,Y,X,Y, a .csv file of corners, an image whose white pixels "
    "are meant, or dark:IMAGE"
)
_CORNERS = (".csv", ".txt", ".dat")
_IMAGES = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "PPM")
"""Formats of images that are read; for others Pillow may start a program (Ghostscript for EPS)."""
_MOST_PIXELS = 64_000_000
"""Of an image: a few kilobytes can unpack to gigabytes."""
_ROUNDING = 1e-6
"""In cells: how far outside a shape a point on its edge may lie."""
_ASPECT = 0.05
"""Largest relative difference of the aspect ratios of an image and the field."""
_GREY = 0.1
"""Largest share of pixels of a mask that are neither bright nor dark."""

Shape = Callable[[Grid], Bool[Tensor, "y x"]]


@dataclass(frozen=True, eq=False)
class Region:
    """What the user wrote, and the points of a grid that it covers; None: those that are zero."""

    text: str
    covers: Shape | None


def read_region(option: str, text: str) -> Region:
    """The region that a text describes; files are read at once."""
    kind, _, rest = text.partition(":")
    if text == ZEROS:
        return Region(text, None)
    if kind == "circle":
        x, y, radius = _numbers(option, text, rest, 3)
        if not radius > 0:
            raise ValueError(f"{option} {text}: expected a positive radius, found {radius:g}")

        def in_circle(grid: Grid) -> Tensor:
            columns, rows = grid.coordinates(torch.float64)
            return torch.hypot(columns - x, rows - y) <= radius + _ROUNDING * grid.cell_length

        return Region(text, in_circle)
    if kind == "polygon":
        corners = np.reshape(_numbers(option, text, rest, None), (-1, 2))
        return Region(text, lambda grid: _in_polygon(grid, corners))
    path = Path(rest if kind == "dark" else text)
    if not path.is_file():
        what = "no such file" if path.suffix else "no such region"
        raise ValueError(f"{option} {text}: {what}; expected {FORMS}")
    if path.suffix.lower() in _CORNERS:
        corners = _read_corners(option, path)
        return Region(text, lambda grid: _in_polygon(grid, corners))
    bright = _read_image(option, path)
    marked = ~bright if kind == "dark" else bright
    return Region(text, lambda grid: _in_image(grid, marked, f"{option} {text}"))


def _numbers(option: str, text: str, rest: str, count: int | None) -> list[float]:
    """So many finite numbers; pairs of them for at least three corners if no count is given."""
    try:
        found = [float(word) for word in re.split(r"[,;\s]+", rest.strip())]
    except ValueError:
        found = []
    enough = len(found) == count if count else len(found) >= 6 and not len(found) % 2
    if not enough or not np.isfinite(found).all():
        wanted = "X,Y pairs of at least three corners, such as polygon:0,0,0.1,0,0.1,0.05"
        if count:
            wanted = "three numbers X,Y,R, such as circle:0.1,0.05,0.01"
        raise ValueError(f"{option} {text}: expected {wanted}")
    return found


def _read_corners(option: str, path: Path) -> np.ndarray:
    """(n, 2) from lines of two numbers; lines before the first of them may be a header."""
    rows: list[list[float]] = []
    for line in read_text(path, errors="replace").splitlines():
        words = [word for word in re.split(r"[,;\s]+", line.partition("#")[0].strip()) if word]
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            if not rows:
                continue
            numbers = []
        if words and (len(numbers) != 2 or not np.isfinite(numbers).all()):
            raise ValueError(
                f"{option} {path}: expected two numbers x, y in every line, found {line.strip()!r}"
            )
        if words:
            rows.append(numbers)
    if len(rows) < 3:
        raise ValueError(
            f"{option} {path}: expected at least three corners, a line x, y each, found {len(rows)}"
        )
    return np.array(rows)


def _read_image(option: str, path: Path) -> Bool[Tensor, "y x"]:
    """The pixels brighter than half of the brightest, row 0 at the bottom."""
    from PIL import Image

    try:
        with Image.open(path, formats=_IMAGES) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(
                    f"{image.width} x {image.height} pixels, more than {_MOST_PIXELS:,}"
                )
            # Of modes with more than 8 bits a conversion would cut off the bright values.
            deep = image.mode in ("I", "F") or image.mode.startswith("I;")
            values = np.asarray(image if deep else image.convert("L"), dtype=np.float32)
    except Exception as error:  # of Pillow, which raises many kinds
        raise ValueError(
            f"{option} {path}: not an image that can be read ({error}); expected {FORMS}; images "
            f"are {', '.join(_IMAGES)}"
        ) from None
    share = values / max(values.max(), 1e-300)
    if float(((share > 0.25) & (share < 0.75)).mean()) > _GREY:
        raise ValueError(
            f"{option} {path}: expected an image in black and white, found shades of grey; save "
            "the mask in two colours"
        )
    return torch.from_numpy(np.ascontiguousarray((share > 0.5)[::-1]))


def _in_polygon(grid: Grid, corners: np.ndarray) -> Tensor:
    """By the even-odd rule, and on the edges."""
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


def _in_image(grid: Grid, marked: Tensor, what: str) -> Tensor:
    if marked.shape == grid.shape:
        return marked
    (height, width), (ny, nx) = marked.shape, grid.shape
    ours, theirs = (nx * grid.dx) / (ny * grid.dy), width / height
    if abs(theirs / ours - 1) > _ASPECT:
        raise ValueError(
            f"{what}: the image has {width} x {height} pixels (aspect ratio {theirs:.3g}), the "
            f"field {nx} x {ny} points (aspect ratio {ours:.3g}); expected a pixel for each point, "
            "or an image that shows just the field"
        )
    return Resizer(Grid((height, width)), grid.shape).resize_body(marked)


def mark_recordings(recordings: Recordings, body: Sequence[str], mask: Sequence[str]) -> Recordings:
    """The recordings with further points marked, solid ones as body, masked ones as not valid.

    Regions are checked on the first trajectory at once, on the others when they are loaded.
    """
    if not body and not mask:
        return recordings
    load = _Marked(
        recordings,
        tuple(read_region("--body", text) for text in body),
        tuple(read_region("--mask", text) for text in mask),
    )
    notes = load.notes(recordings.load(recordings.names[0]))
    return replace(recordings, load=load, notes=(*recordings.notes, *notes))


@dataclass(frozen=True, eq=False)
class _Marked:
    """Makes trajectories with the regions marked."""

    recordings: Recordings
    body: tuple[Region, ...]
    mask: tuple[Region, ...]
    zeros: dict[str, Tensor] = field(default_factory=dict)
    """Points that are zero in all frames, by trajectory: all frames are read for them."""

    def __call__(self, name: str) -> Trajectory:
        whole = self.recordings.load(name)
        solid, masked = self._points(whole)
        valid, body = whole.valid, whole.body
        if masked is not None:
            valid = (
                ~masked if valid is None else map_mask(valid, partial(torch.logical_and, ~masked))
            )
        if solid is not None:
            body = solid if body is None else map_mask(body, partial(torch.logical_or, solid))
        if any(region.covers is None for region in self.mask):
            valid = MappedFrames(mask_shape(whole), partial(_read_moving, whole, valid))
        texts = {"body": self.body, "mask": self.mask}
        marked = {key: [r.text for r in regions] for key, regions in texts.items() if regions}
        return replace(
            whole,
            spec=replace(whole.spec, grid=replace(whole.spec.grid, body=None)),
            body=body,
            valid=valid,
            local={**whole.local, "marked": marked},
        )

    def notes(self, whole: Trajectory) -> list[str]:
        """How many points of a trajectory are marked."""
        notes = []
        for what, points in zip(("body", "not valid"), self._points(whole), strict=True):
            if points is not None:
                count = int(points.sum())
                share = f"{count:,} of {points.numel():,} points ({count / points.numel():.2%})"
                notes.append(f"{share} marked as {what}")
        if any(region.covers is None for region in self.mask):
            notes.append("vectors that are exactly zero are marked as not valid, frame by frame")
        return notes

    def _points(self, whole: Trajectory) -> tuple[Tensor | None, Tensor | None]:
        """The points of a body, and those that are masked in all frames; None: none are stated."""
        solid = self._union(whole, self.body, "--body")
        masked = self._union(whole, [r for r in self.mask if r.covers is not None], "--mask")
        marked = [points for points in (solid, masked) if points is not None]
        if marked and bool(torch.stack(marked).any(0).all()):
            raise SourceError(
                f"{self.recordings.path}: --body and --mask cover all points of trajectory "
                f"{whole.name!r}: nothing is left; check what they mark, and of an image whether "
                "its white or its dark pixels are meant (dark:IMAGE)"
            )
        return solid, masked

    def _union(self, whole: Trajectory, regions: Sequence[Region], option: str) -> Tensor | None:
        union = None
        for region in regions:
            if region.covers is None:
                if whole.name not in self.zeros:
                    self.zeros[whole.name] = zero_in_all_frames(whole)
                covered = self.zeros[whole.name]
            else:
                covered = region.covers(whole.spec.grid)
            if not bool(covered.any()):
                raise SourceError(
                    f"{self.recordings.path}: {option} {region.text} covers no point of trajectory "
                    f"{whole.name!r}: {_why_none(whole, region)}"
                )
            union = covered if union is None else union | covered
        return union


def _why_none(whole: Trajectory, region: Region) -> str:
    if region.covers is None:
        return "its velocity is nowhere exactly zero in all frames"
    grid, unit = whole.spec.grid, f" {whole.length_unit}" if whole.length_unit else ""
    (ny, nx), (x, y) = grid.shape, grid.origin
    return (
        f"its x goes from {x:g} to {x + (nx - 1) * grid.dx:g}, its y from {y:g} to "
        f"{y + (ny - 1) * grid.dy:g}{unit}; give coordinates of this recording"
    )


def zero_in_all_frames(trajectory: Trajectory) -> Bool[Tensor, "y x"]:
    """Points where every velocity component (every channel, without any) is 0 in all frames.

    A frame in which a component of the point is NaN does not count.
    """
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
    """Places of the velocity components; of all channels where u and v are not among them."""
    wanted = VELOCITY if {"u", "v"} <= set(channels) else channels
    return [place for place, name in enumerate(channels) if name in wanted]


def _read_moving(base: Trajectory, valid: Mask, frames: slice) -> Tensor:
    """Valid where the vector is not exactly zero, and was valid before."""
    moving = (base.read(frames, velocity_channels(base.spec.channels)) != 0).any(1)
    return moving if valid is None else moving & read_mask(valid, frames)


FLIPS = ("x", "y", "u", "v")
_AXES = {"x": -1, "y": -2}


def flip_recordings(recordings: Recordings, flip: Sequence[str]) -> Recordings:
    """The same recordings, each turned round when it is loaded."""
    if not set(flip) <= set(FLIPS) or len(set(flip)) != len(flip):
        raise ValueError(
            f"--flip takes some of {', '.join(FLIPS)}, each once, found {', '.join(flip)}"
        )
    if not flip:
        return recordings
    return replace(
        recordings,
        load=lambda name: flip_trajectory(recordings.load(name), tuple(flip)),
        notes=(*recordings.notes, f"reversed as requested: {', '.join(flip)}"),
    )


def flip_trajectory(trajectory: Trajectory, flip: tuple[str, ...]) -> Trajectory:
    """A lazy view with the order of rows and columns and the sign of components turned."""
    spec = trajectory.spec
    missing = [name for name in flip if name not in _AXES and name not in spec.channels]
    if missing:
        raise ValueError(
            f"trajectory {trajectory.name!r} has no channel {missing[0]!r} to flip; it has "
            f"{', '.join(spec.channels)}"
        )
    axes = tuple(_AXES[name] for name in flip if name in _AXES)
    signs = tuple(-1.0 if name in flip else 1.0 for name in spec.channels)
    left, right, bottom, top = spec.grid.sides
    if "x" in flip:
        left, right = right, left
    if "y" in flip:
        bottom, top = top, bottom
    grid = replace(spec.grid, body=None, sides=Sides(left, right, bottom, top))
    flipped = partial(torch.flip, dims=axes)
    masks: dict[str, Any] = {n: map_mask(getattr(trajectory, n), flipped) for n in MASKS}
    return replace(
        trajectory,
        states=MappedFrames(
            tuple(trajectory.states.shape), partial(_read_flipped, trajectory, axes, signs)
        ),
        spec=replace(spec, grid=grid),
        local={**trajectory.local, "flip": list(flip)},
        **masks,
    )


def _read_flipped(
    base: Trajectory,
    axes: tuple[int, ...],
    signs: tuple[float, ...],
    frames: slice,
    channels: Sequence[int] | None,
) -> Tensor:
    return scale_channels(base, signs, frames, channels).flip(axes)
