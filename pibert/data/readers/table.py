"""Text in columns: x, y and fields, as COMSOL and many scripts write it.

A header names the columns (``x``, ``y``, ``u (m/s)``, ``Vx [m/s]``, ``velocity_x`` ...); columns
without names are read as x, y, u, v if the points form a grid. Points may be scattered. Frames are
distinguished by a column of time, by columns ``u @ t=0.1`` as in COMSOL, or by the numbers of
files in a folder or pattern. Other conditions after ``@`` (``Re=100``) are parameters; columns that
differ in them are separate flows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.recordings import Hints, Recordings, SourceError, naming
from pibert.data.readers.shared.files import (
    GAPS,
    Table,
    count_frames,
    find_files,
    find_series,
    has_rows,
    read_columns,
    read_head,
)
from pibert.data.readers.shared.grids import on_uniform_grid
from pibert.data.readers.shared.interpolation import find_lattice
from pibert.data.readers.shared.naming import (
    check_axis_units,
    left_out,
    name_columns,
    split_unit,
    standard_unit,
    take_flags,
)
from pibert.data.readers.shared.stores import describe_fill_codes, find_fill_codes
from pibert.fields import Trajectory

TITLE = "text in columns (CSV, COMSOL)"
HINTS = ("channels", "shape")
ISOLATED = False
MEASURED = True

UPLOADS = _SUFFIXES = (".dat", ".txt", ".csv", ".tsv", ".vec")
_ASSIGNED = re.compile(r"([A-Za-z]\w*)\s*=\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)")
_STATED = re.compile(r"^([A-Z][\w ]*):\s{2,}(\S.*)$")
_TIME_UNIT = re.compile(r"\bt\s*=\s*[-+.\deE]+\s+([^\s,@]+)")
_FRAME_NUMBER = "t (frame)"
_FILLED = "filled"
"""Column of our tables (``writers/csv.py``): 1 where a value was filled, not measured."""
_COMSOL = re.compile(r"% Version:\s+COMSOL")
_SECTION = re.compile(r"% (?:Grid|Coordinates|Data)\b[^:]*$")


@dataclass(frozen=True, eq=False)
class _Column:
    name: str
    unit: str | None
    conditions: Mapping[str, float]
    values: np.ndarray
    time_unit: str | None
    """Of the condition t."""


def recognise(path: Path) -> bool:
    if path.is_file() and path.suffix.lower() not in _SUFFIXES:
        return False
    files = find_files(path, _SUFFIXES)
    head = read_head(files[0]) if files else None
    return head is not None and (has_rows(head) or _is_sectioned(head))


def _is_sectioned(head: Sequence[str]) -> bool:
    """Return whether COMSOL wrote coordinates and each field one after the other."""
    return any(map(_COMSOL.match, head)) and any(map(_SECTION.match, head))


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    groups = find_series(path, _SUFFIXES)
    notes: dict[str, None] = {}
    flows: dict[str, Trajectory] = {}
    for title, members in groups.items():
        file = next(iter(members.values()))
        table, numbered = _read_series(members, hints)
        columns, noticed = _columns(file, table, numbered, hints)
        for name, parameters in _flows(title, columns).items():
            with naming(file):
                flow, more = _trajectory(name, file, columns, parameters, table, numbered, hints)
            flows[name] = flow
            noticed += more
        notes |= dict.fromkeys(noticed)
    load = flows.__getitem__
    return Recordings(kind="table", path=path, names=tuple(flows), load=load, notes=tuple(notes))


def _read_series(members: Mapping[int, Path], hints: Hints) -> tuple[Table, bool]:
    """Read the files of a flow as one table, and return whether they are numbered frames.

    Files without a time get a last column of frame numbers.
    """
    for file in members.values():
        if _is_sectioned(read_head(file) or ()):
            raise SourceError(
                f"{file}: COMSOL wrote sections or a grid; export it with the data format "
                "'Spreadsheet', all times in one file"
            )
    tables = {number: read_columns(file) for number, file in members.items()}
    first = next(iter(tables.values()))
    if len(tables) == 1:
        return first, False
    for number, table in tables.items():
        if [*map(split_unit, table.names)] != [*map(split_unit, first.names)]:
            raise SourceError(
                f"{members[number]}: expected the columns {', '.join(first.names)}, found "
                f"{', '.join(table.names)}; keep the files of one flow in a folder"
            )
    values = np.concatenate([table.values for table in tables.values()])
    file = next(iter(members.values()))
    if "t" in name_columns(file, first.names, hints.channels):
        return replace(first, values=values), False
    for number, table in tables.items():
        if len(table.values) != len(first.values):
            raise SourceError(
                f"the files of {file.parent} have different points, so they are not frames of one "
                f"flow: {file.name} has {len(first.values):,}, {members[number].name} "
                f"{len(table.values):,}; read each file on its own"
            )
    frames = count_frames(list(tables)) or range(len(tables))
    column = np.repeat(frames, [len(table.values) for table in tables.values()])
    names, values = (*first.names, _FRAME_NUMBER), np.column_stack([values, column])
    return replace(first, names=names, values=values), True


def _columns(
    path: Path, table: Table, numbered: bool, hints: Hints
) -> tuple[list[_Column], list[str]]:
    """Return the columns with a known name, and notes on the others."""
    names = name_columns(path, table.names, hints.channels)
    if _FILLED not in hints.channels.values():
        plain = [name.strip().lower() for name in table.names]
        names = [_FILLED if own == _FILLED else our for our, own in zip(names, plain, strict=True)]
    columns: list[_Column] = []
    others, notes = [], []
    if not table.named and any("@" in line for line in table.comments[-1:]):
        raise SourceError(
            f"{path}: expected a name for each of the {len(names)} columns, found the header "
            f"{table.comments[-1][:120]!r}; separate the names by two blanks or tabs"
        )
    if not table.named and len(names) - numbered >= 4 and not set("xyuv") & set(hints.channels):
        names[:4] = "xyuv"
        notes.append("the columns have no names; the first four were read as x, y, u, v")
    for text, name, values in zip(table.names, names, table.values.T, strict=True):
        stated = text.partition("@")[2]
        conditions = {key: float(value) for key, value in _ASSIGNED.findall(stated)}
        # The first of several columns with one meaning counts.
        if name is None or (name, conditions) in [(c.name, c.conditions) for c in columns]:
            others.append(text)
            continue
        time_unit = _TIME_UNIT.search(stated)
        columns.append(
            _Column(
                name,
                split_unit(text)[1],
                conditions,
                values,
                None if time_unit is None else standard_unit(time_unit[1]),
            )
        )
    _check_field(path, table, columns)
    if others:
        notes.append(left_out(others))
    return columns, notes


def _check_field(path: Path, table: Table, columns: list[_Column]) -> None:
    """Refuse tables of curves, and points in space."""
    by_name = {column.name: column.values for column in columns}
    plane = "x" in by_name and "y" in by_name and any(name not in "xyzt" for name in by_name)
    if plane and not table.named:
        # Four columns of curves look like scattered points, but never like a grid.
        time = by_name.get("t", np.zeros(len(table.values)))
        x, y = (by_name[axis][time == time[0]] for axis in "xy")
        try:
            plane = find_lattice(path.name, x, y) is not None
        except SourceError:
            plane = False
    if not plane:
        rows, width = table.values.shape
        found = ", ".join(table.names) if table.named else f"{width} without names"
        raise SourceError(
            f"{path}: a table of curves, no field: columns {found}; {rows} rows. A field needs "
            "columns x and y and a channel; name them (--channels)"
        )
    for axis in {*"xyt"} & {*by_name}:
        if not (known := np.isfinite(by_name[axis])).all():
            raise SourceError(
                f"{path}: {axis} has no number in row {int(known.argmin()) + 1} of the table; give "
                "the position and time of every row, and leave out only values"
            )
    check_axis_units(path, _unit(columns, "x"), _unit(columns, "y"))
    if "z" in by_name and np.ptp(by_name["z"]) > 0:
        raise SourceError(f"{path}: points in three dimensions; write out a plane of constant z")


def _flows(title: str, columns: list[_Column]) -> dict[str, dict[str, float]]:
    """Return the parameters of each flow: one flow for each set of conditions other than t."""
    flows: dict[str, dict[str, float]] = {}
    for column in columns:
        parameters = _parameters(column)
        if column.name not in "xyzt" and parameters not in flows.values():
            label = " ".join(f"{key}={value:g}" for key, value in parameters.items())
            flows[f"{title} {label}".strip()] = parameters
    return flows if len(flows) > 1 else {title: next(iter(flows.values()))}


def _parameters(column: _Column) -> dict[str, float]:
    return {key: value for key, value in column.conditions.items() if key != "t"}


def _trajectory(
    name: str,
    path: Path,
    columns: list[_Column],
    parameters: Mapping[str, float],
    table: Table,
    numbered: bool,
    hints: Hints,
) -> tuple[Trajectory, tuple[str, ...]]:
    axes = {column.name: column.values for column in columns}
    x, y, time = axes["x"], axes["y"], axes.get("t")
    series: dict[str, dict[float, np.ndarray]] = {}
    units: dict[str, str] = {}
    for column in columns:
        if column.name not in "xyzt" and _parameters(column) == parameters:
            series.setdefault(column.name, {})[column.conditions.get("t", 0.0)] = column.values
            if column.unit is not None:
                units.setdefault(column.name, column.unit)
    moments = sorted({moment for frames in series.values() for moment in frames})
    if any(sorted(frames) != moments for frames in series.values()):
        raise SourceError(f"not every channel has a column for each time of {moments}")
    fields = {key: np.stack([frames[t] for t in moments]) for key, frames in series.items()}
    times = np.array(moments) if len(moments) > 1 else None
    notes: tuple[str, ...] = ()
    if time is not None and times is None:
        x, y, fields, times = _by_time(x, y, time, fields)
    if numbered and times is not None:
        if (np.diff(times) == 1).all():
            times = None  # frame numbers are no times
        else:
            notes = (GAPS,)
    valid = take_flags(fields, hints.channels)
    filled = fields.pop(_FILLED, None)
    values = np.stack(list(fields.values()), axis=1)
    notes += tuple(describe_fill_codes(list(fields), values))
    values = np.where(find_fill_codes(values), np.nan, values)
    fields = dict(zip(fields, np.moveaxis(values, 1, 0), strict=True))
    stated = {match[1]: match[2] for match in map(_STATED.match, table.comments) if match}
    clock = None if numbered else _unit(columns, "t") or _time_unit(columns)
    if times is not None and not numbered and clock is None and hints.time_unit:
        clock = standard_unit(hints.time_unit)
    length = _unit(columns, "x") or stated.pop("Length unit", "null")
    trajectory, more = on_uniform_grid(
        name,
        fields,
        x,
        y,
        time=times,
        counted=numbered,
        valid=valid,
        filled=None if filled is None else filled > 0,
        units=units,
        length_unit=None if length == "null" else length,
        time_unit=clock,
        parameters=parameters,
        source={"file": path.name} | {key.lower(): value for key, value in stated.items()},
        shape=hints.shape,
    )
    return trajectory, (*notes, *more)


def _by_time(
    x: np.ndarray, y: np.ndarray, time: np.ndarray, fields: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Sort rows into frames by their time; return x, y, the fields (t, n) and the times."""
    moments, frame = np.unique(time, return_inverse=True)
    order = np.lexsort((x, y, frame))
    shape = len(moments), len(x) // len(moments)
    counts = np.bincount(frame)
    if (counts != counts[0]).any():
        other = int((counts != counts[0]).argmax())
        raise SourceError(
            f"every time needs the same points, found {counts[0]:,} at time {moments[0]:g} and "
            f"{counts[other]:,} at time {moments[other]:g}; export all times on the same points"
        )
    x, y = x[order].reshape(shape), y[order].reshape(shape)
    if (x != x[0]).any() or (y != y[0]).any():
        moved = int(((x != x[0]) | (y != y[0])).any(1).argmax())
        raise SourceError(
            f"the points of frame {moved} (time or number {moments[moved]:g}) differ from those of "
            "frame 0; if these are files of different flows, read each on its own"
        )
    return x[0], y[0], {k: v[0][order].reshape(shape) for k, v in fields.items()}, moments


def _time_unit(columns: list[_Column]) -> str | None:
    """Return the unit of the times after ``@``; refuse several."""
    stated = {column.time_unit for column in columns if "t" in column.conditions}
    if len(stated) > 1:
        raise SourceError(f"the times of the columns are in {stated}; export them in one unit")
    return next(iter(stated), None)


def _unit(columns: list[_Column], name: str) -> Any:
    return next((column.unit for column in columns if column.name == name), None)
