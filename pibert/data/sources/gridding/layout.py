"""Where the points of foreign data lie, and the uniform grid that they come onto.

Everything is seen as points (x, y) with values: the axes of a grid, two-dimensional meshes in
either order, and scattered points alike. Points of a lattice are placed exactly when both axes are
uniform and bilinearly otherwise (``lattice``); all others are interpolated in triangles
(``triangulation``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pibert.data.sources.gridding.interpolation import Interpolation
from pibert.data.sources.gridding.lattice import (
    Lattice,
    find_lattice,
    fit_axis,
    without_every_second_line,
)
from pibert.data.sources.gridding.size import check_asked
from pibert.data.sources.gridding.triangulation import Triangulation
from pibert.data.sources.recordings import Hints, SourceError


@dataclass(frozen=True, eq=False, kw_only=True)
class Layout:
    """The uniform grid that was chosen for some points, and the way there."""

    shape: tuple[int, int]
    origin: tuple[float, float]
    dx: float
    dy: float
    interpolation: Interpolation
    check: tuple[Interpolation, np.ndarray] | None
    """Where the grid needed interpolating: one from part of the points to the numbers of those that
    it left out."""
    remarks: tuple[str, ...]
    notes: Mapping[str, Any]
    """For the local representation."""

    def place(
        self, fields: Mapping[str, np.ndarray], known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """States (t, c, y, x) in float32 and the valid points (t, y, x).

        Args:
            fields: Channel to values (t, ...) in the source's order.
            known: (t, n), in the same order.
        """
        t, (ny, nx) = len(known), self.shape
        states = np.empty((t, len(fields), ny, nx), np.float32)
        for channel, values in enumerate(fields.values()):
            placed, valid = self.interpolation.apply(values.reshape(t, -1), known)
            states[:, channel] = placed.reshape(t, ny, nx)
        return states, valid.reshape(t, ny, nx)

    def place_mask(self, mask: np.ndarray) -> np.ndarray:
        """A mask (t, y, x) of one that is (t, n): true where half of the support is."""
        return self.interpolation.covers(mask).reshape(-1, *self.shape)

    def estimate_error(
        self, fields: Mapping[str, np.ndarray], known: np.ndarray
    ) -> dict[str, float]:
        """The rms error at the points left out, in the middle frame, over the fluctuation there."""
        assert self.check is not None
        interpolation, points = self.check
        frame, errors = len(known) // 2, {}
        there = known[frame : frame + 1]
        for channel, values in fields.items():
            flat = values[frame].reshape(1, -1)
            found, enough = interpolation.apply(flat, there)
            usable = (enough & there[:, points])[0]
            truth = flat[0, points][usable].astype(np.float64)
            if len(truth) and np.ptp(truth) > 0:
                rms = np.sqrt(np.mean((found[0, usable] - truth) ** 2))
                errors[channel] = float(rms / truth.std())
        return errors


def find_layout(
    name: str, x: np.ndarray, y: np.ndarray, shape: tuple[int, ...], hints: Hints = Hints()
) -> Layout:
    """How points come onto a uniform grid.

    Args:
        name: Of what is laid out, for messages.
        x: Axis of the columns, mesh of the fields' shape, or coordinate of the points.
        y: Likewise.
        shape: Of one frame of the fields: (y, x), (x, y) or (n,).
        hints: The size to resample to, where the user says so.
    """
    if hints.shape is not None:
        check_asked(name, hints.shape)
    x, y, remarks, notes = _as_points(name, np.asarray(x), np.asarray(y), shape)
    lattice = find_lattice(name, x, y)
    if lattice is None:
        return _scattered(name, np.stack([x, y], -1).astype(float), remarks, notes, hints)
    return _on_lattice(lattice, remarks, notes, hints)


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _as_points(
    name: str, x: np.ndarray, y: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, list[str], dict[str, Any]]:
    """One x and y per value, in the order of the values, and how a grid was turned."""
    found, transposed = (x.shape, y.shape), False
    if x.ndim == y.ndim == 1 and len(shape) == 2:
        transposed = shape == (len(x), len(y)) and len(x) != len(y)
        x, y = np.meshgrid(x, y, indexing="ij" if transposed else "xy")
    elif x.ndim == 2 and x.shape == y.shape == shape:
        transposed = bool(np.ptp(x[:, 0]) > np.ptp(x[0]) and np.ptp(y[0]) > np.ptp(y[:, 0]))
    if x.shape != shape or y.shape != shape:
        raise SourceError(
            f"{name}: the coordinates do not fit fields of shape {shape}: expected their two axes "
            f"or an x and a y per value, found x {found[0]} and y {found[1]}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise SourceError(f"{name}: every point needs finite coordinates; some x or y are not")
    remarks, notes = _turned(x, y, transposed) if len(shape) == 2 else ([], {})
    return x.ravel(), y.ravel(), remarks, notes


def _turned(x: np.ndarray, y: np.ndarray, transposed: bool) -> tuple[list[str], dict[str, Any]]:
    remarks: list[str] = []
    notes: dict[str, Any] = {}
    if transposed:
        remarks.append("the fields were stored x first; they were transposed")
        notes["transposed"], x, y = True, x.T, y.T
    flipped = []
    if x[0, -1] < x[0, 0]:
        remarks.append("x ran leftward; columns were flipped")
        flipped.append("x")
    if y[-1, 0] < y[0, 0]:
        remarks.append("y ran downward; rows were flipped")
        flipped.append("y")
    return remarks, notes | ({"flipped": flipped} if flipped else {})


def _on_lattice(
    lattice: Lattice, remarks: list[str], notes: dict[str, Any], hints: Hints
) -> Layout:
    rows, columns = hints.shape or lattice.nodes.shape
    x, y = fit_axis(lattice.columns, columns), fit_axis(lattice.rows, rows)
    shape, check = (len(y.low), len(x.low)), None
    notes["method"] = "none"
    if not (x.exact and y.exact):
        uneven = " and ".join(n for n, axis in (("x", x), ("y", y)) if not axis.exact)
        remarks.append(
            f"the spacing of {uneven} is not uniform; resampled bilinearly from "
            f"{lattice.nodes.shape[0]} x {lattice.nodes.shape[1]} to {shape[0]} x {shape[1]}"
        )
        notes |= {"method": "bilinear", "from": list(lattice.nodes.shape), "to": list(shape)}
        check = without_every_second_line(lattice, x, y)
    elif hints.shape is not None:
        remarks.append("the grid is uniform and was kept, whatever size was asked for")
    absent = 1 - int((lattice.nodes >= 0).sum()) / (shape[0] * shape[1])
    if check is None and absent > 0:
        remarks.append(f"{percent(absent)} of the grid's points are not there: marked invalid")
    return Layout(
        shape=shape,
        origin=(x.first, y.first),
        dx=x.step,
        dy=y.step,
        interpolation=lattice.interpolation(x, y),
        check=check,
        remarks=tuple(remarks),
        notes=notes,
    )


def _scattered(
    name: str, points: np.ndarray, remarks: list[str], notes: dict[str, Any], hints: Hints
) -> Layout:
    mesh = Triangulation(name, points)
    rows, columns = shape = hints.shape or mesh.even_size(name)
    (left, bottom), (right, top) = mesh.low, mesh.high
    x, y = np.linspace(left, right, columns), np.linspace(bottom, top, rows)
    interpolation = mesh.interpolation(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2))
    remarks.append(
        f"{len(points)} scattered points; resampled linearly in Delaunay triangles to "
        f"{rows} x {columns}"
    )
    outside = float((interpolation.weight.sum(-1) == 0).mean())
    if outside > 0:
        remarks.append(f"{percent(outside)} of the grid lies outside or in holes: marked invalid")
    order = np.random.default_rng(0).permutation(len(points))
    kept, left_out = order[::2], order[1::2]
    index, weight = Triangulation(name, points[kept]).interpolation(points[left_out])
    return Layout(
        shape=shape,
        origin=(float(left), float(bottom)),
        dx=float(right - left) / (columns - 1),
        dy=float(top - bottom) / (rows - 1),
        interpolation=interpolation,
        check=(Interpolation(kept[index], weight), left_out),
        remarks=tuple(remarks),
        notes=notes | {"method": "linear in triangles", "from": len(points), "to": list(shape)},
    )
