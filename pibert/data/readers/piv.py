"""PIV vectors as text (OpenPIV, PIVlab, TSI Insight, DaVis, Tecplot), and PIVlab's .mat files.

A text file is a frame. A folder, or a pattern such as ``run/B*.txt``, of numbered files is a
trajectory in the order of the numbers (9 before 10). Files are parsed when their frames are read;
all files of a trajectory have the points of the first.

| program | header | flag | valid | interpolated, still valid | invalid |
| --- | --- | --- | --- | --- | --- |
| OpenPIV | ``# x y u v flags mask`` | flags | 0 | 2 | 1; or mask not 0 |
| PIVlab | ``PIVlab ...``, two more lines | Vector type | 1, 3 (second peak) | 2 | 0 (masked) |
| TSI Insight | ``TITLE= VARIABLES= ... "CHC"`` | CHC | above 0 | 2 | 0 and below |
| DaVis | ``#DaVis ... 2D-vector`` | none | | | both components 0 |
| Tecplot | ``TITLE VARIABLES ZONE`` | isValid, if present | not 0 | | 0 |

A vector that is not finite is always invalid. OpenPIV's oldest files have five columns, the last of
which, ``mask``, marks outliers. A Tecplot file whose title is the name of a DaVis buffer
(``B00001``) and that has no flag marks missing vectors as DaVis does.

The times in these headers are those between the two images of a pair, not between vector fields:
they belong to the calibration (``shared.calibration``) and set no time step; without a hint frames
are counted. TSI states them, and the size of a pixel if there is a calibration, whatever the units
of its columns. PIVlab has already applied its conversion factors. Other columns are left out, with
a note, unless the user names them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers import pivlab
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.assembly import join
from pibert.data.readers.shared.calibration import DELAY, SCALE
from pibert.data.readers.shared.files import (
    GAPS,
    Table,
    count_frames,
    find_files,
    group_by_number,
    read_columns,
    read_head,
)
from pibert.data.readers.shared.grids import Layout, find_layout
from pibert.data.readers.shared.interpolation import percent
from pibert.data.readers.shared.naming import (
    FLAGS,
    check_axis_units,
    left_out,
    marks_valid,
    name_columns,
    split_unit,
    standard_unit,
)
from pibert.data.readers.shared.series import Plane, Series, open_series
from pibert.data.units import VELOCITY, has_velocity_unit

HINTS = ("channels", "shape")
MEASURED = True

UPLOADS = _SUFFIXES = (".txt", ".vec", ".dat", ".csv")
_COORDINATES = ("x", "y", "z", "t")
_CHANNELS: tuple[str, ...] = (*VELOCITY, "p")
_NUMBER = r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)"

Columns = dict[str, tuple[np.ndarray, str | None]]
"""Values and unit of a column, by our name."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Marks:
    """What a program states about its vectors."""

    valid: np.ndarray | None = None
    interpolated: np.ndarray | None = None
    """Valid, but filled in by the program."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Source facts in the header; None where it lacks one."""
    notes: Sequence[str] = ()


def _openpiv(path: Path, table: Table, columns: Columns) -> Marks:
    flags = columns["flags"][0] if "flags" in columns else np.zeros(len(table.values))
    mask = columns["mask"][0] if "mask" in columns else np.zeros(len(table.values))
    return Marks(valid=(flags != 1) & (mask == 0), interpolated=flags == 2)


def _pivlab(path: Path, table: Table, columns: Columns) -> Marks:
    header = " ".join(table.comments)
    xy, uv = (
        _number_after(header, rf"conversion factor {kind} \([^)]*\):\s*") for kind in ("xy", "uv")
    )
    kinds = columns["vector type"][0] if "vector type" in columns else np.ones(len(table.values))
    scaled = xy is not None and uv is not None and (xy, uv) != (1.0, 1.0)
    return Marks(
        valid=kinds != 0,
        interpolated=kinds == 2,
        facts={SCALE: xy, DELAY: xy / uv if xy and uv else None} if scaled else {},
        notes=[f"{pivlab.MAY_RUN_DOWN}: {pivlab.UPRIGHT}"],
    )


def _davis(path: Path, table: Table, columns: Columns) -> Marks:
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
    return _nonzero(columns)


def _tecplot(path: Path, table: Table, columns: Columns) -> Marks:
    header = " ".join(table.comments)
    if re.search(r"\b(?:DATAPACKING|F)\s*=\s*BLOCK", header, re.IGNORECASE):
        raise SourceError(f"{path}: Tecplot data packed in blocks; export it packed by points")
    if re.search(r"\b(?:ZONETYPE|F)\s*=\s*\"?FE", header, re.IGNORECASE):
        raise SourceError(
            f"{path}: a Tecplot zone of finite elements; export an ordered zone (I, J), or VTK"
        )
    size = [re.search(rf"\b{letter}\s*=\s*(\d+)", header) for letter in "IJ"]
    if size[0] and size[1]:
        _check_size(path, int(size[0][1]) * int(size[1][1]), len(table.values))
    title = re.search(r'TITLE\s*=\s*"([^"]*)"', header, re.IGNORECASE)
    flag = next((columns[name][0] for name in ("isvalid", "valid") if name in columns), None)
    facts = {"title": title[1] if title else None, **_tsi_calibration(header)}
    if "chc" in columns:
        chc = columns["chc"][0]
        return Marks(valid=chc > 0, interpolated=chc == 2, facts=facts)
    if flag is None and title and re.match(r"B\d{3,}", Path(title[1]).name):
        zeros = _nonzero(columns)
        return Marks(valid=zeros.valid, facts=facts, notes=zeros.notes)
    return Marks(valid=None if flag is None else flag != 0, facts=facts)


def _tsi_calibration(header: str) -> dict[str, Any]:
    delay = _number_after(header, r'MicrosecondsPerDeltaT="')
    x, y = (_number_after(header, rf'MicrometersPerPixel{axis}="') for axis in "XY")
    facts: dict[str, Any] = {DELAY: 1e-6 * delay if delay else None}
    # Exactly 1 um may be the default of a setup without calibration.
    if x and {x, y} - {None} != {1.0}:
        facts[SCALE] = 1e-6 * x if y in (None, x) else [1e-6 * x, 1e-6 * (y or x)]
    return facts


def _nonzero(columns: Columns) -> Marks:
    valid = (columns["u"][0] != 0) | (columns["v"][0] != 0)
    note = "vectors that are exactly zero count as invalid: DaVis exports missing vectors like this"
    return Marks(valid=valid, notes=[] if valid.all() else [note])


def _number_after(header: str, before: str) -> float | None:
    found = re.search(before + _NUMBER, header)
    return float(found[1]) if found else None


def _check_size(path: Path, promised: int, found: int) -> None:
    if promised != found:
        raise SourceError(
            f"{path}: its header promises {promised} vectors, found {found}; get a whole copy"
        )


@dataclass(frozen=True)
class Program:
    """How to interpret the text of a PIV program."""

    read: Callable[[Path, Table, Columns], Marks]
    flags: tuple[str, ...]
    """Names of its flag columns, in lower case."""
    marks_interpolated: bool = False


PROGRAMS = {
    "OpenPIV": Program(_openpiv, ("flags", "mask"), marks_interpolated=True),
    "PIVlab": Program(_pivlab, ("vector type",), marks_interpolated=True),
    "TSI Insight": Program(_tecplot, ("chc",), marks_interpolated=True),
    "DaVis": Program(_davis, ()),
    "Tecplot": Program(_tecplot, ("isvalid", "valid")),
}
TITLE = f"PIV vectors ({', '.join(PROGRAMS)})"


def find_program(path: Path) -> str | None:
    """Return the program that wrote a file, a key of ``PROGRAMS``, by its first lines."""
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
    is_openpiv = names[:4] == ["x", "y", "u", "v"] or {"x", "y", "u", "v", "flags"} <= set(names)
    return "OpenPIV" if first.startswith("#") and is_openpiv else None


class VectorField:
    """One frame as a file has it, a list of vectors; SourceError where the header is wrong.

    ``program`` is a key of ``PROGRAMS``. ``channels`` maps our names to the file's; those that are
    neither a coordinate nor a flag become channels.
    """

    def __init__(self, path: Path, program: str, channels: Mapping[str, str]) -> None:
        table = read_columns(path)
        columns, self.others = _known_columns(path, table, channels, PROGRAMS[program].flags)
        if missing := [name for name in "xyuv" if name not in columns]:
            raise SourceError(
                f"{path}: {program} files have columns x, y, u, v, but {', '.join(missing)} is "
                f"missing among: {', '.join(table.names)}"
            )
        marks = PROGRAMS[program].read(path, table, columns)
        self.x, self.y, self.length_unit = columns["x"][0], columns["y"][0], columns["x"][1]
        named = [name for name in channels if name not in (*_COORDINATES, *FLAGS)]
        names = dict.fromkeys([*(name for name in _CHANNELS if name in columns), *named])
        self.fields = {name: columns[name][0] for name in names}
        valid = np.logical_and.reduce([np.isfinite(values) for values in self.fields.values()])
        for name in set(PROGRAMS[program].flags) & set(columns):
            valid &= np.isfinite(columns[name][0])  # a missing flag says nothing
        for name in set(channels) & set(FLAGS):
            valid &= marks_valid(name, columns[name][0])
        nowhere = np.zeros(valid.shape, bool)
        self.interpolated = nowhere if marks.interpolated is None else marks.interpolated & valid
        self.valid = valid if marks.valid is None else marks.valid & valid
        # One order of points, whatever that of the file: frames of one program may differ.
        order = np.lexsort((self.x, self.y))
        self.x, self.y = self.x[order], self.y[order]
        self.valid, self.interpolated = self.valid[order], self.interpolated[order]
        self.fields = {name: values[order] for name, values in self.fields.items()}
        # A velocity in pixels is the displacement of a pair of images.
        self.units = {
            name: "px/frame" if has_velocity_unit(name) and unit == "px" else unit
            for name in self.fields
            if (unit := columns[name][1]) is not None
        }
        self.facts = {key: value for key, value in marks.facts.items() if value is not None}
        self.program_notes = marks.notes

    @property
    def calibration(self) -> dict[str, Any]:
        """Units, scale and pulse delay, which all frames of a trajectory share."""
        facts = {fact: self.facts[fact] for fact in (SCALE, DELAY) if fact in self.facts}
        return {"length": self.length_unit, **self.units, **facts}

    def notes(self, where: str) -> list[str]:
        notes = list(self.program_notes)
        if not self.valid.all():
            notes.append(
                f"{percent(float((~self.valid).mean()))} of the vectors{where} are invalid"
            )
        if self.interpolated.any():
            share = percent(float(self.interpolated.mean()))
            notes.append(f"{share} of the vectors{where} were interpolated by the program")
        return notes + ([left_out(self.others)] if self.others else [])


def _known_columns(
    path: Path, table: Table, channels: Mapping[str, str], flags: tuple[str, ...]
) -> tuple[Columns, list[str]]:
    """Return the columns to use, flags under their name in lower case, and names of the rest."""
    names = table.names
    if not table.named and any(line.startswith("DaVis") for line in table.comments):
        names = ("x", "y", "u", "v", "w")[: len(names)]
    columns: Columns = {}
    others: list[str] = []
    ours = name_columns(path, names, channels)
    for text, our, values in zip(names, ours, table.values.T, strict=False):
        bare, unit = split_unit(text)
        if our is not None and our not in columns and our in (*_COORDINATES, *_CHANNELS, *channels):
            columns[our] = (values, unit)
        elif bare.lower() in flags:
            columns[bare.lower()] = (values, unit)
        else:
            others.append(text)
    check_axis_units(path, *(columns[name][1] for name in "xy" if name in columns))
    if "z" in columns and np.ptp(columns["z"][0]) > 0:
        raise SourceError(f"{path}: vectors in a volume; write out one plane of constant z")
    return columns, others


def recognise(path: Path) -> bool:
    if path.suffix.lower() == ".mat":
        return pivlab.recognise(path)
    return any(find_program(file) is not None for file in find_files(path, _SUFFIXES)[:8])


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.suffix.lower() == ".mat":
        return pivlab.open_recordings(path, hints)
    groups = group_by_number(find_files(path, _SUFFIXES))
    programs = {
        name: find_program(next(iter(members.values()))) for name, members in groups.items()
    }
    known = {name: program for name, program in programs.items() if program is not None}
    if not known:
        raise SourceError(
            f"{path}: no files of vectors ({', '.join(_SUFFIXES)}) of {', '.join(PROGRAMS)}"
        )
    flows = []
    for name, program in known.items():
        title = path.name if len(known) == 1 and path.is_dir() else name
        flows.append(_open(path, title, groups[name], program, hints))
    return join("piv", path, flows)


def _open(
    path: Path, name: str, members: Mapping[int, Path], program: str, hints: Hints
) -> Recordings:
    files = list(members.values())
    first = VectorField(files[0], program, hints.channels)
    layout = find_layout(str(files[0]), first.x, first.y, first.x.shape, hints.shape)
    fields = {key: values[None] for key, values in first.fields.items()}
    record, noticed = layout.measured_record(fields, first.valid[None])
    where = "" if len(files) == 1 else " of the first frame"
    notes = [*layout.notes, *first.notes(where), *noticed]
    times = count_frames(list(members))
    if times is not None:
        notes.append(GAPS)
    series = Series(
        files=files,
        read=VectorReader(program, layout, first, hints.channels),
        times=times,
        source={"program": program, "files": [files[0].name, files[-1].name], **first.facts},
        facts={"local": {"gridding": record}, "counted": times is not None},
        notes=tuple(notes),
    )
    hints = replace(hints, channels={channel: channel for channel in first.fields}, shape=None)
    return open_series("piv", path, series, hints, name=name)


class VectorReader:
    """Reads the vectors of a file, at the points of the first file, on the grid of a layout."""

    def __init__(
        self, program: str, layout: Layout, first: VectorField, channels: Mapping[str, str]
    ) -> None:
        self.program, self.layout, self.channels = program, layout, dict(channels)
        self.points, self.names = (first.x, first.y), tuple(first.fields)
        self.calibration = first.calibration

    def __call__(self, file: Path) -> Plane:
        vectors = VectorField(file, self.program, self.channels)
        problem = None
        if not all(map(np.array_equal, self.points, (vectors.x, vectors.y))):
            problem = f"its {len(vectors.x)} points are not those of the first file"
        elif vectors.calibration != self.calibration:
            problem = f"its header states {vectors.calibration}, the first {self.calibration}"
        elif missing := [name for name in self.names if name not in vectors.fields]:
            problem = f"it lacks the column {missing[0]}"
        if problem:
            raise SourceError(f"{file}: {problem}; keep files of other recordings elsewhere")
        layout, fields = self.layout, {name: vectors.fields[name][None] for name in self.names}
        states, valid = layout.place(fields, vectors.valid[None])
        masks = {"valid": valid[0]}
        if PROGRAMS[self.program].marks_interpolated:
            masks["filled"] = layout.place_mask(vectors.interpolated[None])[0]
        (x, y), (ny, nx) = layout.origin, layout.shape
        units = {**vectors.units, "@x": vectors.length_unit, "@y": vectors.length_unit}
        return Plane(
            x=x + layout.dx * np.arange(nx),
            y=y + layout.dy * np.arange(ny),
            fields=dict(zip(self.names, states[0], strict=True)) | masks,
            units={name: unit for name, unit in units.items() if unit is not None},
        )
