"""Vector fields that PIV programs write as text, and what their flags mean.

| program | header | flag | valid | interpolated, still valid | invalid |
| --- | --- | --- | --- | --- | --- |
| OpenPIV | ``# x y u v flags mask`` | flags | 0 | 2 | 1; or mask not 0 |
| PIVlab | ``PIVlab ...``, two more lines | Vector type | 1, 3 (second peak) | 2 | 0 (masked) |
| TSI Insight | ``TITLE= VARIABLES= ... "CHC"`` | CHC | above 0 | 2 | 0 and below |
| DaVis | ``#DaVis ... 2D-vector`` | none | | | both components 0 |
| Tecplot | ``TITLE VARIABLES ZONE`` | isValid, if there | not 0 | | 0 |

A vector that is not finite is invalid everywhere. OpenPIV's oldest files have five columns, the
last of which, ``mask``, marks outliers. A Tecplot file whose title is the name of a DaVis buffer
(``B00001``) and that has no flag marks missing vectors as DaVis does.

The times in these headers are those between the two images of a pair, not between vector fields:
they are facts of the calibration (``pibert.data.sources.calibration``) and set no time step. TSI
states them, and the size of a pixel where there is a calibration, whatever the units of its
columns. PIVlab's conversion factors have been applied to its columns already.

Columns besides positions, velocities, pressure and flags are left out, with a note, unless the user
names them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.assembly.naming import (
    FLAGS,
    check_axis_units,
    marks_valid,
    name_columns,
    split_unit,
    standard_unit,
)
from pibert.data.sources.calibration import DELAY, SCALE
from pibert.data.sources.columns import Table, read_columns, read_head
from pibert.data.sources.recordings import SourceError
from pibert.data.units import VELOCITY

_COORDINATES = ("x", "y", "z", "t")
_CHANNELS: tuple[str, ...] = (*VELOCITY, "p")
_FLAGS_OF = {
    "OpenPIV": ("flags", "mask"),
    "PIVlab": ("vector type",),
    "TSI Insight": ("chc",),
    "DaVis": (),
    "Tecplot": ("isvalid", "valid"),
}
_NUMBER = r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)"


@dataclass(frozen=True, eq=False, kw_only=True)
class VectorField:
    """One frame as a file has it: a list of vectors."""

    x: np.ndarray
    y: np.ndarray
    fields: Mapping[str, np.ndarray]
    valid: np.ndarray
    interpolated: np.ndarray
    """Valid, but filled in by the program that wrote it."""
    units: Mapping[str, str] = field(default_factory=dict)
    length_unit: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the header states."""
    remarks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Names of the columns that were left out."""


def find_program(path: Path) -> str | None:
    """The program that wrote a file, a key of ``PROGRAMS``, by its first lines."""
    head = read_head(path)
    lines = [line.strip() for line in head or [] if line.strip()][:8]
    if not lines:
        return None
    first, start = lines[0], " ".join(lines)
    if first.startswith("#DaVis"):
        return "DaVis"
    if first.startswith("PIVlab") or "Vector type [-]" in start:
        return "PIVlab"
    if re.search(r"\bVARIABLES\s*=", start, re.IGNORECASE):
        return "TSI Insight" if re.search(r'"CHC"', start) else "Tecplot"
    names = re.split(r"[\s,]+", first.lstrip("# ").lower())
    return "OpenPIV" if first.startswith("#") and names[:4] == ["x", "y", "u", "v"] else None


def read_vectors(path: Path, program: str, channels: Mapping[str, str] = {}) -> VectorField:
    """The vectors of a file; SourceError where it does not hold what its header promises.

    Args:
        path: The file.
        program: That wrote it, a key of ``PROGRAMS``.
        channels: Our name to the file's, for columns with names of their own. Those that are
            neither a coordinate nor a flag become channels.
    """
    table = read_columns(path)
    columns, others = _known_columns(path, table, channels, _FLAGS_OF[program])
    missing = [name for name in "xyuv" if name not in columns]
    if missing:
        raise SourceError(
            f"{path}: {program} files have columns x, y, u, v, but {', '.join(missing)} is missing "
            f"among: {', '.join(table.names)}"
        )
    vectors = PROGRAMS[program](path, table, columns)
    named = [name for name in channels if name not in (*_COORDINATES, *FLAGS)]
    fields = {**vectors.fields, **{name: columns[name][0] for name in named}}
    valid = np.logical_and.reduce([np.isfinite(values) for values in fields.values()])
    for name in set(channels) & set(FLAGS):
        valid &= marks_valid(name, columns[name][0])
    return replace(
        vectors,
        fields=fields,
        valid=vectors.valid & valid,
        interpolated=vectors.interpolated & valid,
        units={
            # A velocity in pixels is the displacement of a pair of images.
            name: "px/frame" if name in VELOCITY and unit == "px" else unit
            for name in fields
            if (unit := columns[name][1]) is not None
        },
        others=others,
    )


Columns = dict[str, tuple[np.ndarray, str | None]]
"""Our name to the values and the unit of a column."""


def _known_columns(
    path: Path, table: Table, channels: Mapping[str, str], flags: tuple[str, ...]
) -> tuple[Columns, tuple[str, ...]]:
    """Columns that are used, flags under their own names in lower case; names of the rest."""
    names = table.names
    if not table.named and any(line.startswith("DaVis") for line in table.comments):
        names = ("x", "y", "u", "v", "w")[: len(names)]
    ours = name_columns(path, names, channels)
    columns: Columns = {}
    others: list[str] = []
    for text, our, values in zip(names, ours, table.values.T, strict=False):
        bare, unit = split_unit(text)
        if our is not None and our in (*_COORDINATES, *_CHANNELS, *channels):
            columns.setdefault(our, (values, unit))
        elif bare.lower() in flags:
            columns[bare.lower()] = (values, unit)
        else:
            others.append(text)
    check_axis_units(path, *(columns[name][1] for name in "xy" if name in columns))
    if "z" in columns and np.ptp(columns["z"][0]) > 0:
        raise SourceError(f"{path}: vectors in a volume; write out one plane of constant z")
    return columns, tuple(others)


def _vectors(
    columns: Columns,
    *,
    valid: np.ndarray | None = None,
    interpolated: np.ndarray | None = None,
    facts: Mapping[str, Any],
    remarks: Sequence[str] = (),
) -> VectorField:
    x, y = columns["x"][0], columns["y"][0]
    return VectorField(
        x=x,
        y=y,
        fields={name: columns[name][0] for name in _CHANNELS if name in columns},
        valid=np.ones(x.shape, bool) if valid is None else valid,
        interpolated=np.zeros(x.shape, bool) if interpolated is None else interpolated,
        length_unit=columns["x"][1],
        facts={key: value for key, value in facts.items() if value is not None},
        remarks=tuple(remarks),
    )


def _openpiv(path: Path, table: Table, columns: Any) -> VectorField:
    flags = columns["flags"][0] if "flags" in columns else np.zeros(len(table.values))
    mask = columns["mask"][0] if "mask" in columns else np.zeros(len(table.values))
    return _vectors(columns, valid=(flags != 1) & (mask == 0), interpolated=flags == 2, facts={})


def _pivlab(path: Path, table: Table, columns: Any) -> VectorField:
    header = " ".join(table.comments)
    xy, uv = (_stated(header, rf"conversion factor {kind} \([^)]*\):\s*") for kind in ("xy", "uv"))
    kinds = columns["vector type"][0] if "vector type" in columns else np.ones(len(table.values))
    scaled = xy is not None and uv is not None and (xy, uv) != (1.0, 1.0)
    return _vectors(
        columns,
        valid=kinds != 0,
        interpolated=kinds == 2,
        facts={
            SCALE: xy if scaled else None,
            DELAY: xy / uv if scaled and xy and uv else None,
        },
        remarks=["PIVlab's y runs down the image unless it was set up otherwise; v is along it"],
    )


def _davis(path: Path, table: Table, columns: Any) -> VectorField:
    header = re.search(r"-vector\s+(\d+)\s+(\d+)\s+(\d+)", table.comments[0])
    if header:
        _check_size(path, int(header[2]) * int(header[3]), len(table.values))
    units = re.findall(r'"([^"]*)"', table.comments[0])[1::2]
    for name, unit in zip(("x", "y", "u"), units, strict=False):
        columns[name] = (columns[name][0], standard_unit(unit))
    check_axis_units(path, columns["x"][1], columns["y"][1])
    for name in ("v", "w"):
        if name in columns:
            columns[name] = (columns[name][0], columns["u"][1])
    valid, remarks = _not_zero(columns)
    return _vectors(columns, valid=valid, facts={}, remarks=remarks)


def _tecplot(path: Path, table: Table, columns: Any) -> VectorField:
    header = " ".join(table.comments)
    if re.search(r"\b(?:DATAPACKING|F)\s*=\s*BLOCK", header, re.IGNORECASE):
        raise SourceError(f"{path}: Tecplot data packed in blocks; export it packed by points")
    size = [re.search(rf"\b{letter}\s*=\s*(\d+)", header) for letter in "IJ"]
    if all(size):
        _check_size(path, int(size[0][1]) * int(size[1][1]), len(table.values))  # type: ignore
    title = re.search(r'TITLE\s*=\s*"([^"]*)"', header, re.IGNORECASE)
    flag = next((columns[name][0] for name in ("isvalid", "valid") if name in columns), None)
    remarks: list[str] = []
    if "chc" in columns:
        flag = columns["chc"][0] > 0
    elif flag is not None:
        flag = flag != 0
    elif title and re.match(r"B\d{3,}", Path(title[1]).name):
        flag, remarks = _not_zero(columns)
    return _vectors(
        columns,
        valid=flag,
        interpolated=columns["chc"][0] == 2 if "chc" in columns else None,
        facts={"title": title[1] if title else None, **_tsi_calibration(header)},
        remarks=remarks,
    )


def _tsi_calibration(header: str) -> dict[str, Any]:
    delay = _stated(header, r'MicrosecondsPerDeltaT="')
    x, y = (_stated(header, rf'MicrometersPerPixel{axis}="') for axis in "XY")
    facts: dict[str, Any] = {DELAY: 1e-6 * delay if delay else None}
    # Of exactly 1 um nobody knows whether it was measured or left as it was.
    if x and {x, y} - {None} != {1.0}:
        facts[SCALE] = 1e-6 * x if y in (None, x) else [1e-6 * x, 1e-6 * (y or x)]
    return facts


def _not_zero(columns: Mapping[str, tuple[np.ndarray, str | None]]) -> tuple[np.ndarray, list[str]]:
    """Vectors other than 0, and a note on the others."""
    valid = (columns["u"][0] != 0) | (columns["v"][0] != 0)
    note = "vectors that are exactly zero count as invalid: DaVis exports missing vectors like this"
    return valid, [] if valid.all() else [note]


def _stated(header: str, before: str) -> float | None:
    found = re.search(before + _NUMBER, header)
    return float(found[1]) if found else None


def _check_size(path: Path, promised: int, found: int) -> None:
    if promised != found:
        raise SourceError(
            f"{path}: its header promises {promised} vectors, found {found}; it was cut short, or "
            "holds more than one frame"
        )


PROGRAMS: Mapping[str, Callable[[Path, Table, Any], VectorField]] = {
    "OpenPIV": _openpiv,
    "PIVlab": _pivlab,
    "TSI Insight": _tecplot,
    "DaVis": _davis,
    "Tecplot": _tecplot,
}
