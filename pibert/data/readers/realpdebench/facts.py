"""What is known about RealPDEBench's flows beside their fields, and a trajectory made of both.

The files state neither units nor geometry nor parameters. The publishers' code and pages give the
frame interval, the body in pixels and, for the cylinder, its diameter; the trajectories' names hold
the parameters. ``Trajectory.local`` records what was taken from where.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pibert.data.readers.realpdebench.rows import Row
from pibert.data.readers.recordings import Hints, SourceError, describe_parameter
from pibert.data.readers.shared.stores import ArraySource, Piece, smooth_time, uniform_step
from pibert.data.views import finite_points
from pibert.fields import FieldSpec, Grid, Trajectory

STORED_AS = {"u": "u", "v": "v", "p": "p", "omega": "vo"}
"""Our channels and the names of the stored fields."""

UNKNOWN_UNIT = "unknown"

_SOURCE = {
    "title": "RealPDEBench",
    "url": "https://huggingface.co/datasets/AI4Science-WestlakeU/RealPDEBench",
    "licence": "CC BY-NC 4.0",
}


class Disc(NamedTuple):
    """A round body in the pixels of the measured view, its centre at (column, row)."""

    shape: tuple[int, int]
    centre: tuple[float, float]
    diameter: float
    moves: bool = False
    """The centre is then the position at rest."""
    metres: float | None = None
    """The diameter in metres, where it is published."""


class Scenario(NamedTuple):
    """What is published about a scenario beside its files."""

    dt: float | None = None
    """Seconds between frames."""
    body: Disc | None = None
    name: str = ""
    """Pattern of the names, with a group per parameter."""
    family: str | None = "incompressible"


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
}


def describe(
    name: str,
    row: Row,
    *,
    scenario: str | None,
    kind: str | None,
    channels: tuple[str, ...] | None,
    hints: Hints,
    source: Mapping[str, Any],
) -> tuple[Trajectory, tuple[str, ...]]:
    """The trajectory of a row and notes on what was assumed; no field is read."""
    facts = SCENARIOS[scenario] if scenario else Scenario(family=None)
    names = _channels(row, channels)
    time = _Time(row, facts)
    place = _Place(row, facts, hints)
    body, body_note = _body(row.shape[1:], facts.body)
    found = re.fullmatch(facts.name, name) if facts.name else None
    stated = {key: float(text) for key, text in found.groupdict().items()} if found else {}
    repeat = stated.pop("repeat", None)
    fields = ArraySource(
        row,
        [Piece(STORED_AS[n], "tyx") for n in names],
        row.shape,
        flip_y=place.flip_y,
        flip_x=place.flip_x,
    )
    spec = FieldSpec(
        channels=names,
        units=(UNKNOWN_UNIT,) * len(names),
        parameters=tuple(map(describe_parameter, stated)),
        dt=time.dt,
        grid=Grid(row.shape[1:], place.dx, place.dy, origin=place.origin),
        family=facts.family,
    )
    trajectory = Trajectory(
        name=name,
        states=fields,
        time=torch.from_numpy(time.values),
        spec=spec,
        parameters=stated,
        body=None if body is None else body.flip(fields.flips),
        valid=finite_points(fields) if kind == "real" else None,
        source=_SOURCE
        | dict(source)
        | {
            "scenario": scenario,
            "kind": {"real": "measured", "numerical": "simulated"}.get(kind or ""),
            "file": f"{name}.h5",
            "repeat": None if repeat is None else int(repeat),
            "frames": row.shape[0],
            "frame_interval": facts.dt,
            "grid": list(row.shape[1:]),
            "body_metres": facts.body.metres if facts.body else None,
        },
        local={
            "stride": 1,
            "channels": list(names),
            "time": time.note,
            "coordinates": place.note,
            "body": body_note,
            **({"family": "none: a gas that burns"} if scenario == "combustion" else {}),
        },
        length_unit=place.unit,
        time_unit=time.unit,
    )
    remarks = [time.note, place.note, body_note]
    remarks += ["the data do not state the unit of the velocity (its size fits m/s)"]
    if "omega" not in names and row.has("vo"):
        remarks.append("the stored vorticity is left out; ask for channel 'omega' to have it")
    return trajectory, tuple(note for note in remarks if note)


def _channels(row: Row, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    names = wanted or ("u", "v", *(("p",) if row.has("p") else ()))
    for name in names:
        if not row.has(STORED_AS[name]):
            raise SourceError(
                f"{row.where}: there is no field {STORED_AS[name]!r} for channel {name!r}, or it "
                "is null; ask for other channels"
            )
    return names


class _Time:
    """When the frames were taken: as the row states, or as published."""

    def __init__(self, row: Row, facts: Scenario) -> None:
        count, stored = row.shape[0], row.axis("t")
        self.unit: str | None = None
        self.note = ""
        usable = stored is not None and stored.shape == (count,) and np.isfinite(stored).all()
        if stored is not None and usable and (np.diff(stored) > 0).all():
            self.values, self.dt = smooth_time(stored)
            if facts.dt is not None and self.dt is not None:
                if abs(self.dt / facts.dt - 1) < 0.01:
                    self.unit = "s"
                else:
                    self.note = (
                        f"t grows by {self.dt:g} per frame, but the published interval is "
                        f"{facts.dt:g} s: its unit is not known"
                    )
            return
        if facts.dt is not None:
            self.dt, self.unit = facts.dt, "s"
            missing = "no t" if stored is None else "t is of no use (wrong length or not growing)"
            self.note = f"{missing}: the published interval of {facts.dt:g} s was taken"
        else:
            self.dt = None
            self.note = "neither t nor a published interval: time counts frames"
        self.values = np.arange(count) * (self.dt or 1.0)


class _Place:
    """Where the points are: from x and y, from the size of the body, or counted in pixels."""

    def __init__(self, row: Row, facts: Scenario, hints: Hints) -> None:
        self.origin = (0.0, 0.0)
        self.unit: str | None = None
        self.flip_x = self.flip_y = False
        axes = _axes(row.axis("x"), row.axis("y"), row.shape[1:])
        if isinstance(axes, str):
            self.dx = self.dy = 1.0
            self.note = f"{axes}: the grid counts pixels"
            scale = _scale(row.shape[1:], facts.body)
            if facts.body and facts.body.metres and scale:
                self.dx = self.dy = facts.body.metres / (facts.body.diameter * scale)
                self.unit = "m"
                self.note = f"{axes}: the spacing is that of a body of {facts.body.metres:g} m"
            elif hints.dx is None:
                self.unit = "px"
        else:
            (x, dx), (y, dy) = axes
            self.flip_x, self.flip_y = dx < 0, dy < 0
            self.dx, self.dy = abs(dx), abs(dy)
            self.origin = (float(x.min()), float(y.min()))
            turned = [what for what, step in (("rows", dy), ("columns", dx)) if step < 0]
            self.note = "".join(
                f"the {what} were reversed, because their coordinate descends; " for what in turned
            ) + _unit_note(self.dx, row.shape[1:], facts.body)


def _axes(
    x: np.ndarray | None, y: np.ndarray | None, shape: tuple[int, int]
) -> tuple[tuple[np.ndarray, float], tuple[np.ndarray, float]] | str:
    """The axes of columns and rows with their steps, or why there are none."""
    if x is None or y is None:
        return "no x and y"
    if x.ndim == 2 and y.ndim == 2:
        if x.shape != shape or y.shape != shape:
            return f"x and y have shapes {x.shape} and {y.shape}, not that of the fields"
        spread = max(np.ptp(x, axis=0).max(), np.ptp(y, axis=1).max())
        if np.ptp(x, axis=0).max() > np.ptp(x, axis=1).max():
            return "x varies from row to row and not from column to column (swapped axes?)"
        x, y = x[0], y[:, 0]
    else:
        spread = 0.0
    if x.shape != shape[1:] or y.shape != shape[:1]:
        return f"x and y have lengths {len(x)} and {len(y)}, not those of columns and rows"
    dx, dy = uniform_step(x), uniform_step(y)
    if dx is None or dy is None or not spread <= 1e-2 * min(abs(dx), abs(dy)):
        return "x and y are not uniform"
    return (x, dx), (y, dy)


def _scale(shape: tuple[int, ...], body: Disc | None) -> float | None:
    """Points per pixel of the measured view; None where the view is another."""
    if body is None or shape[0] * body.shape[1] != shape[1] * body.shape[0]:
        return None
    return shape[1] / body.shape[1]


def _unit_note(dx: float, shape: tuple[int, ...], body: Disc | None) -> str:
    scale = _scale(shape, body)
    if body is None or body.metres is None or scale is None:
        return f"x grows by {dx:g} in a unit that is not stated"
    pixel = body.metres / (body.diameter * scale)
    fits = [unit for unit, size in (("m", 1.0), ("mm", 1e3)) if abs(dx / (pixel * size) - 1) < 0.1]
    guess = f"that fits {fits[0] if fits else 'neither m nor mm'}: the body is {body.metres:g} m"
    return f"x grows by {dx:g} in a unit that is not stated ({guess})"


def _body(shape: tuple[int, ...], body: Disc | None) -> tuple[Tensor | None, str]:
    if body is None:
        return None, ""
    scale = _scale(shape, body)
    if scale is None:
        return None, (
            f"no body: its published place is for views of {body.shape[0]} x {body.shape[1]} and "
            f"the like, found {shape[0]} x {shape[1]}"
        )
    x, y = (scale * c for c in body.centre)
    radius = scale * body.diameter / 2
    rows, columns = torch.meshgrid(torch.arange(shape[0]), torch.arange(shape[1]), indexing="ij")
    disc = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
    note = (
        f"body: the published disc, {2 * radius:g} points wide at column {x:g}, row {y:g} as stored"
    )
    if body.moves:
        note += "; that is its position at rest: it moves, and its motion is not published"
    return disc, note
