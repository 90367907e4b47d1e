"""Regions of the plane that a user states: for a solid body, or where nothing was measured.

A region is written as

    zeros                     points whose velocity is exactly zero: in all frames for a body, in
                              each frame by itself for a mask
    circle:X,Y,R              centre and radius
    polygon:X,Y,X,Y,X,Y,...   corners in order; the last is joined to the first
    corners.csv               the same from a text file, a corner a line
    mask.png                  the bright pixels of an image, or with dark:mask.png its dark ones

Coordinates are those of the recording as it is read. A point on the edge of a shape lies inside. An
image shows the field as a picture does: its top row has the largest y, and it covers the cells of
the grid; one of another size than the grid must have the aspect ratio of the field.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.data.resample import Resizer
from pibert.fields import Grid
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
        return Region(text, lambda grid: _in_circle(grid, x, y, radius))
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
        wanted = "three numbers X,Y,R" if count else "X,Y pairs of at least three corners"
        raise ValueError(f"{option} {text}: expected {wanted}, such as {_EXAMPLES[bool(count)]}")
    return found


_EXAMPLES = {True: "circle:0.1,0.05,0.01", False: "polygon:0,0,0.1,0,0.1,0.05"}


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


def _in_circle(grid: Grid, x: float, y: float, radius: float) -> Tensor:
    columns, rows = grid.coordinates(torch.float64)
    return torch.hypot(columns - x, rows - y) <= radius + _ROUNDING * grid.cell_length


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
