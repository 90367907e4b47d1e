"""Column text: x, y and fields in a table, as COMSOL and many scripts write it.

A header names the columns (``x``, ``y``, ``u (m/s)``, ``Vx [m/s]``, ``velocity_x`` ...). Points may
be scattered. Frames are distinguished by a column of time, or as COMSOL does it, by columns
``u @ t=0.1``; what else stands after ``@`` (``Re=100``) is a parameter, and columns that differ in
it are flows of their own. Numbered files of a folder or a pattern, with the same points, are frames
of a flow. A file without names of columns is read as x, y, u, v where its points form a grid. A
table without points in a plane holds curves, not a field, and is refused as such.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.files import (
    Table,
    find_files,
    group_by_number,
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
    take_flags,
)
from pibert.fields import Trajectory

TITLE = "text in columns (CSV, COMSOL)"
HINTS = ("channels", "shape")
ISOLATED = False
MEASURED = True

_SUFFIXES = (".dat", ".txt", ".csv", ".tsv", ".vec")
_ASSIGNED = re.compile(r"([A-Za-z]\w*)\s*=\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)")
_STATED = re.compile(r"^([A-Z][\w ]*):\s{2,}(\S.*)$")


@dataclass(frozen=True, eq=False)
class _Column:
    name: str
    unit: str | None
    conditions: Mapping[str, float]
    values: np.ndarray


def recognise(path: Path) -> bool:
    if path.is_file() and path.suffix.lower() not in _SUFFIXES:
        return False
    try:
        files = find_files(path, _SUFFIXES)
    except (OSError, ValueError):  # no such folder, or a name that is no pattern
        return False
    head = read_head(files[0]) if files else None
    return head is not None and has_rows(head)


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    groups = group_by_number(find_files(path, _SUFFIXES))
    if not groups:
        raise SourceError(f"{path}: no files of columns ({', '.join(_SUFFIXES)})")
    if len(groups) == 1 and path.is_dir():
        groups = {path.name: next(iter(groups.values()))}
    notes: list[str] = []
    flows: dict[str, Trajectory] = {}
    for title, members in groups.items():
        file = next(iter(members.values()))
        table = read_columns(file)
        columns, notices = _columns(file, table, hints)
        numbered = False
        if len(members) > 1:
            columns, numbered = _joined(members, columns, hints, notices)
        for name, parameters in _flows(title, columns).items():
            try:
                flows[name], more = _trajectory(
                    name, file, columns, parameters, table, hints, numbered=numbered
                )
            except SourceError as error:
                raise SourceError(f"{file}: {error}") from error
            notices += more
        notes += [notice for notice in notices if notice not in notes]
    load = flows.__getitem__
    return Recordings(kind="table", path=path, names=tuple(flows), load=load, notes=tuple(notes))


def _columns(path: Path, table: Table, hints: Hints) -> tuple[list[_Column], list[str]]:
    """The columns that we have a name for, and notes on the others."""
    names = name_columns(path, table.names, hints.channels)
    columns, others, notes = [], [], []
    if not table.named and len(names) >= 4 and not set("xyuv") & set(hints.channels):
        names[:4] = "xyuv"
        notes.append("the columns have no names; the first four were taken as x, y, u, v")
    for text, name, values in zip(table.names, names, table.values.T, strict=True):
        unit = split_unit(text)[1]
        if name is None:
            others.append(text)
            continue
        conditions = {key: float(value) for key, value in _ASSIGNED.findall(text.partition("@")[2])}
        columns.append(_Column(name, unit, conditions, values))
    _check_field(path, table, columns)
    if others:
        notes.append(left_out(others))
    return columns, notes


def _joined(
    members: Mapping[int, Path], first: list[_Column], hints: Hints, notices: list[str]
) -> tuple[list[_Column], bool]:
    """The columns of all files of a flow, each with its time or else its number, and which."""
    numbered = not any(column.name == "t" for column in first)
    axes = [column for column in first if column.name in "xyz"]
    columns = list(axes)
    numbers = list(members)
    steps = {later - number for number, later in pairwise(numbers)}
    # Frame numbers from 0 on; those of evenly numbered files are counted.
    step = min(steps) if len(steps) == 1 else 1
    places = [(number - numbers[0]) // step for number in numbers]
    if numbered and places[-1] != len(places) - 1:
        notices.append("frames are missing between the numbers of the files")
    for number, file in zip(places, members.values(), strict=True):
        own, _ = _columns(file, read_columns(file), hints)
        for axis in axes:
            theirs = next((column.values for column in own if column.name == axis.name), None)
            if theirs is None or not np.array_equal(theirs, axis.values):
                raise SourceError(
                    f"{file}: expected the points of {next(iter(members.values())).name}, found "
                    f"others in its column {axis.name}; name a file alone, or keep the files of "
                    "one flow in a folder"
                )
        stated = next((column.values for column in own if column.name == "t"), None)
        if (stated is None) != numbered:
            raise SourceError(
                f"{file}: expected a column of time in all files of a series or in none, but only "
                f"one of this file and {next(iter(members.values())).name} has it"
            )
        if stated is not None and np.ptp(stated) > 0:
            raise SourceError(f"{file}: several times in a file of a series; name it alone")
        time = float(number if stated is None else stated[0])
        columns += [
            replace(column, conditions={**column.conditions, "t": time})
            for column in own
            if column.name not in "xyzt"
        ]
    return columns, numbered


def _check_field(path: Path, table: Table, columns: list[_Column]) -> None:
    by_name = {column.name: column.values for column in columns}
    channels = [name for name in by_name if name not in "xyzt"]
    plane = "x" in by_name and "y" in by_name and bool(channels)
    if plane and not table.named:
        # Any four columns of curves might be scattered points; those of a grid are no accident.
        try:
            plane = find_lattice(path.name, by_name["x"], by_name["y"]) is not None
        except SourceError:
            plane = False
    if not plane:
        rows, width = table.values.shape
        columns_found = ", ".join(table.names) if table.named else f"{width} without names"
        raise SourceError(
            f"{path}: a table of curves, no field: columns {columns_found}; {rows} rows. A field "
            "needs columns x and y and a channel; say which they are (--channels)"
        )
    check_axis_units(path, _unit(columns, "x"), _unit(columns, "y"))
    if "z" in by_name and np.ptp(by_name["z"]) > 0:
        raise SourceError(f"{path}: points in three dimensions; write out a plane of constant z")


def _flows(title: str, columns: list[_Column]) -> dict[str, dict[str, float]]:
    """The flows of a file by name, with their parameters: one for each set of conditions but t."""
    flows: dict[str, dict[str, float]] = {}
    for column in columns:
        parameters = {key: value for key, value in column.conditions.items() if key != "t"}
        if column.name not in "xyzt" and parameters not in flows.values():
            label = " ".join(f"{key}={value:g}" for key, value in parameters.items())
            flows[f"{title} {label}".strip()] = parameters
    return flows if len(flows) > 1 else {title: next(iter(flows.values()))}


def _trajectory(
    name: str,
    path: Path,
    columns: list[_Column],
    parameters: Mapping[str, float],
    table: Table,
    hints: Hints,
    *,
    numbered: bool,
) -> tuple[Trajectory, tuple[str, ...]]:
    # The first of each name; there are x and y.
    axes = {column.name: column.values for column in reversed(columns)}
    x, y, time = axes["x"], axes["y"], axes.get("t")
    series: dict[str, dict[float, np.ndarray]] = {}
    units: dict[str, str | None] = {}
    for column in columns:
        own = {key: value for key, value in column.conditions.items() if key != "t"}
        if column.name not in "xyzt" and own == parameters:
            series.setdefault(column.name, {})[column.conditions.get("t", 0.0)] = column.values
            units.setdefault(column.name, column.unit)
    moments = sorted({moment for frames in series.values() for moment in frames})
    if any(sorted(frames) != moments for frames in series.values()):
        raise SourceError(f"not every channel has a column for each time of {moments}")
    fields = {key: np.stack([frames[t] for t in moments]) for key, frames in series.items()}
    times = np.array(moments) if len(moments) > 1 else None
    if numbered and times is not None and (np.diff(times) == 1).all():
        times = None  # a count of frames states no time step
    if time is not None and times is None:
        x, y, fields, times = _by_time(x, y, time, fields)
    valid = take_flags(fields, hints.channels)
    stated = {match[1]: match[2] for match in map(_STATED.match, table.comments) if match}
    length = _unit(columns, "x") or stated.pop("Length unit", "null")
    return on_uniform_grid(
        name,
        fields,
        x,
        y,
        time=times,
        valid=valid,
        units={key: unit for key, unit in units.items() if unit is not None},
        length_unit=None if length == "null" else length,
        time_unit=_unit(columns, "t"),
        parameters=parameters,
        source={"file": path.name} | {key.lower(): value for key, value in stated.items()},
        hints=replace(hints, channels={}),  # those have their names already
    )


def _by_time(
    x: np.ndarray, y: np.ndarray, time: np.ndarray, fields: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Frames out of rows that each state their time."""
    moments, frame = np.unique(time, return_inverse=True)
    order = np.lexsort((x, y, frame))
    points = len(x) // len(moments)
    shape = len(moments), points
    if len(x) != len(moments) * points or (np.bincount(frame) != points).any():
        raise SourceError("the times in the file do not all have the same number of points")
    x, y = x[order].reshape(shape), y[order].reshape(shape)
    if (x != x[0]).any() or (y != y[0]).any():
        raise SourceError("the points move from one time to the next; write one set of points")
    return x[0], y[0], {k: v[0][order].reshape(shape) for k, v in fields.items()}, moments


def _unit(columns: list[_Column], name: str) -> Any:
    return next((column.unit for column in columns if column.name == name), None)
