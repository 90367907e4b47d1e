"""Published facts about RealPDEBench's flows, and trajectories made of rows and these facts.

The files state neither units nor geometry nor parameters. The publishers' code and pages give the
frame interval, the body in pixels and, for the cylinder, its diameter; the trajectories' names hold
the parameters. ``Trajectory.local`` records the origin of each.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pibert.data.readers.realpdebench.rows import Row
from pibert.data.readers.recordings import Hints, SourceError, describe_parameter
from pibert.data.readers.shared.stores import ArraySource, Piece, smooth_time, uniform_step
from pibert.data.views import MappedFrames, finite_points, mask_shape
from pibert.fields import FieldSpec, Grid, Trajectory

STORED_AS = {"u": "u", "v": "v", "p": "p", "omega": "vo"}
"""Our channels and the names of the stored fields."""
DUPLICATE = "7575_0"
"""A measured file of the competition that repeats another."""
_SOURCE = {
    "title": "RealPDEBench",
    "url": "https://huggingface.co/datasets/AI4Science-WestlakeU/RealPDEBench",
    "licence": "CC BY-NC 4.0",
}


class Disc(NamedTuple):
    """A round body in the pixels of the measured view, its centre at (column, row)."""

    shape: tuple[int, int]
    centre: tuple[float, float]
    """Of a moving body: the position at rest."""
    diameter: float
    moves: bool = False
    metres: float | None = None
    """The diameter in metres, where it is published."""

    def scale(self, shape: tuple[int, ...]) -> float | None:
        """Grid points per pixel of the measured view; None for another view."""
        same = shape[0] * self.shape[1] == shape[1] * self.shape[0]
        return shape[1] / self.shape[1] if same else None


class Scenario(NamedTuple):
    """Published facts about a scenario."""

    dt: float | None = None
    """Seconds between frames."""
    body: Disc | None = None
    name: str = ""
    """Pattern of the names, with a group per parameter."""
    family: str | None = "incompressible"
    blank_is_zero: bool = False
    """Whether measured vectors that are exactly zero are missing: shadow of the laser, body."""


SCENARIOS: Mapping[str, Scenario] = {
    "cylinder": Scenario(2.5e-3, Disc((64, 128), (32.0, 32.0), 18.0, metres=0.03), r"(?P<Re>\d+)"),
    "fsi": Scenario(
        2.0e-3,
        Disc((128, 128), (66.0, 64.0), 24.0, moves=True),
        r"(?P<Re>\d+)_(?P<mass_ratio>\d+\.?\d*)_(?P<damping>\d+\.?\d*)_(?P<repeat>\d+)",
    ),
    "controlled_cylinder": Scenario(),
    "foil": Scenario(),
    "combustion": Scenario(family=None),
    # The competition's NACA 4418; the Reynolds numbers of the names are nominal.
    "airfoil": Scenario(2.0e-2, None, r"(?P<Re>\d+)_(?P<angle>\d+)", blank_is_zero=True),
}


def describe(
    name: str,
    row: Row,
    *,
    scenario: str | None,
    kind: str | None,
    hints: Hints,
    source: Mapping[str, Any],
) -> tuple[Trajectory, tuple[str, ...]]:
    """Return the trajectory of a row, and notes on assumptions; no field is read."""
    facts = SCENARIOS[scenario] if scenario else Scenario(family=None)
    channels = ("u", "v", *(["p"] if row.has("p") else []), *set(hints.channels) & {"omega"})
    for channel in channels:
        if not row.has(STORED_AS[channel]):
            raise SourceError(f"{row.where}: the field {STORED_AS[channel]!r} is missing or null")
    time, dt, clock, time_note = _find_time(row, facts.dt)
    space = _find_space(row, facts.body, hints)
    body, body_note = _find_body(row.shape[1:], facts.body)
    match = re.fullmatch(facts.name, name) if facts.name else None
    parameters = {key: float(text) for key, text in match.groupdict().items()} if match else {}
    repeat = parameters.pop("repeat", None)
    pieces = [Piece(STORED_AS[channel], "tyx") for channel in channels]
    fields = ArraySource(row, pieces, row.shape, flip_y=space.flip_y, flip_x=space.flip_x)
    valid = None
    if kind == "real":
        valid = finite_points(fields)
        if facts.blank_is_zero:
            valid = MappedFrames(mask_shape(fields), partial(_not_blank, fields))
    trajectory = Trajectory(
        name=name,
        states=fields,
        time=torch.from_numpy(time),
        spec=FieldSpec(
            channels=channels,
            units=("unknown",) * len(channels),
            parameters=tuple(map(describe_parameter, parameters)),
            dt=dt,
            grid=Grid(row.shape[1:], space.dx, space.dy, origin=space.origin),
            family=facts.family,
        ),
        parameters=parameters,
        body=None if body is None else body.flip(fields.flips),
        valid=valid,
        source=_SOURCE
        | dict(source)
        | {
            "scenario": scenario,
            "kind": {"real": "measured", "numerical": "simulated"}.get(kind or ""),
            "file": f"{name}.h5",
            "repeat": None if repeat is None else int(repeat),
            "frames": row.shape[0],
            "frame_interval": facts.dt,
            "grid": list(row.stored_shape[1:]),
            "body_metres": facts.body.metres if facts.body else None,
        },
        local={
            "stride": 1,
            "channels": list(channels),
            "time": time_note,
            "coordinates": space.note,
            "body": body_note,
            **({"family": "none: a gas that burns"} if scenario == "combustion" else {}),
        },
        length_unit=space.unit,
        time_unit=clock,
    )
    notes = [time_note, space.note, body_note]
    notes.append("the data do not state the unit of the velocity (its size fits m/s)")
    if "omega" not in channels and row.has("vo"):
        notes.append("the stored vorticity is left out; read it with --channels omega=vo")
    return trajectory, tuple(filter(None, notes))


def _not_blank(fields: ArraySource, frames: slice) -> Tensor:
    values = fields.read(frames)
    return values.isfinite().all(1) & (values != 0).any(1)


def _find_time(
    row: Row, published: float | None
) -> tuple[np.ndarray, float | None, str | None, str]:
    """The times, their step, unit and a note: stored, by the published interval, or counted."""
    count, stored = row.shape[0], row.axis("t")
    usable = stored is not None and stored.shape == (count,) and np.isfinite(stored).all()
    if stored is not None and usable and (np.diff(stored) > 0).all():
        values, dt = smooth_time(stored)
        if published is None or dt is None:
            return values, dt, None, ""
        if abs(dt / published - 1) < 0.01:
            return values, dt, "s", ""
        note = f"t grows by {dt:g} per frame, but the published interval is {published:g} s"
        return values, dt, None, f"{note}: its unit is not known"
    if published is None:
        return np.arange(count, dtype=np.float64), None, None, "no t: time counts frames"
    note = f"no t that grows from frame to frame: the published interval, {published:g} s, is used"
    return np.arange(count) * published, published, "s", note


class _Space(NamedTuple):
    dx: float
    dy: float
    unit: str | None
    note: str
    origin: tuple[float, float] = (0.0, 0.0)
    flip_x: bool = False
    flip_y: bool = False


def _find_space(row: Row, body: Disc | None, hints: Hints) -> _Space:
    """The coordinates: from x and y, from the size of the body, or counted in pixels."""
    shape = row.shape[1:]
    scale = None if body is None else body.scale(shape)
    pixel = None
    if body is not None and body.metres and scale:
        pixel = body.metres / (body.diameter * scale)
    axes = _axes(row.axis("x"), row.axis("y"), shape)
    if isinstance(axes, str):
        if pixel is not None:
            note = f"{axes}: the spacing follows from the diameter of the body"
            return _Space(pixel, pixel, "m", note)
        unit = "px" if hints.dx is None else None
        return _Space(1.0, 1.0, unit, f"{axes}: the grid counts pixels")
    (x, dx), (y, dy) = axes
    flipped = [what for what, step in (("rows", dy), ("columns", dx)) if step < 0]
    note = "".join(f"the {what} were reversed: their coordinate descends; " for what in flipped)
    note += f"x grows by {abs(dx):g} in a unit that is not stated"
    if pixel is not None:
        note += f"; with the diameter of the body it is {pixel:g} m"
    origin = (float(x.min()), float(y.min()))
    return _Space(abs(dx), abs(dy), None, note, origin, dx < 0, dy < 0)


def _axes(
    x: np.ndarray | None, y: np.ndarray | None, shape: tuple[int, int]
) -> tuple[tuple[np.ndarray, float], tuple[np.ndarray, float]] | str:
    """The axes of columns and rows with their steps, or the reason why there are none."""
    if x is None or y is None:
        return "no x and y"
    spread = 0.0
    if x.shape == y.shape == shape:
        spread = max(np.ptp(x, axis=0).max(), np.ptp(y, axis=1).max())
        x, y = x[0], y[:, 0]
    if x.shape != shape[1:] or y.shape != shape[:1]:
        return f"x and y have shapes {x.shape} and {y.shape}, unlike the fields"
    dx, dy = uniform_step(x), uniform_step(y)
    if dx is None or dy is None or not spread <= 1e-2 * min(abs(dx), abs(dy)):
        return "x and y are not uniform along columns and rows"
    return (x, dx), (y, dy)


def _find_body(shape: tuple[int, ...], body: Disc | None) -> tuple[Tensor | None, str]:
    if body is None:
        return None, ""
    scale = body.scale(shape)
    if scale is None:
        return None, f"no body: its position is published for the view {body.shape}, not {shape}"
    x, y = (scale * c for c in body.centre)
    radius = scale * body.diameter / 2
    rows, columns = torch.meshgrid(torch.arange(shape[0]), torch.arange(shape[1]), indexing="ij")
    disc = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
    note = f"body: the published disc, {2 * radius:g} points wide at column {x:g}, row {y:g}"
    if body.moves:
        note += "; that is its position at rest: it moves, and its motion is not published"
    return disc, note
