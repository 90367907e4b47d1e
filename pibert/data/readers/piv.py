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
| Tecplot | ``TITLE VARIABLES ZONE`` | isValid, if there | not 0 | | 0 |

A vector that is not finite is invalid everywhere. OpenPIV's oldest files have five columns, the
last of which, ``mask``, marks outliers. A Tecplot file whose title is the name of a DaVis buffer
(``B00001``) and that has no flag marks missing vectors as DaVis does.

The times in these headers are those between the two images of a pair, not between vector fields:
they belong to the calibration (``shared.calibration``) and set no time step; without a hint frames
are counted. TSI states them, and the size of a pixel where there is a calibration, whatever the
units of its columns. PIVlab has already applied its conversion factors. Other columns are left out,
with a note, unless the user names them.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pibert.data.readers import pivlab
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.calibration import DELAY, SCALE
from pibert.data.readers.shared.files import (
    Table,
    find_files,
    group_by_number,
    read_columns,
    read_head,
)
from pibert.data.readers.shared.grids import Layout, describe, describe_error, find_layout, percent
from pibert.data.readers.shared.naming import (
    FLAGS,
    check_axis_units,
    left_out,
    marks_valid,
    name_columns,
    split_unit,
    standard_unit,
)
from pibert.data.units import VELOCITY
from pibert.data.views import MappedFrames, mask_shape
from pibert.fields import Trajectory

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
    notes: tuple[str, ...] = ()
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

    ``program`` is a key of ``PROGRAMS``. ``channels`` maps our names to the file's; those that are
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
    valid: np.ndarray | None,
    interpolated: np.ndarray | None = None,
    facts: Mapping[str, Any] = {},
    notes: Sequence[str] = (),
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
        notes=tuple(notes),
    )


def _openpiv(path: Path, table: Table, columns: Any) -> VectorField:
    flags = columns["flags"][0] if "flags" in columns else np.zeros(len(table.values))
    mask = columns["mask"][0] if "mask" in columns else np.zeros(len(table.values))
    return _vectors(columns, (flags != 1) & (mask == 0), flags == 2)


def _pivlab(path: Path, table: Table, columns: Any) -> VectorField:
    header = " ".join(table.comments)
    xy, uv = (
        _number_after(header, rf"conversion factor {kind} \([^)]*\):\s*") for kind in ("xy", "uv")
    )
    kinds = columns["vector type"][0] if "vector type" in columns else np.ones(len(table.values))
    scaled = xy is not None and uv is not None and (xy, uv) != (1.0, 1.0)
    facts = {SCALE: xy, DELAY: xy / uv if xy and uv else None} if scaled else {}
    notes = ["PIVlab's y runs down the image unless it was set up otherwise; v is along it"]
    return _vectors(columns, kinds != 0, kinds == 2, facts, notes)


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
    valid, notes = _not_zero(columns)
    return _vectors(columns, valid, notes=notes)


def _tecplot(path: Path, table: Table, columns: Any) -> VectorField:
    header = " ".join(table.comments)
    if re.search(r"\b(?:DATAPACKING|F)\s*=\s*BLOCK", header, re.IGNORECASE):
        raise SourceError(f"{path}: Tecplot data packed in blocks; export it packed by points")
    size = [re.search(rf"\b{letter}\s*=\s*(\d+)", header) for letter in "IJ"]
    if all(size):
        _check_size(path, int(size[0][1]) * int(size[1][1]), len(table.values))  # type: ignore
    title = re.search(r'TITLE\s*=\s*"([^"]*)"', header, re.IGNORECASE)
    flag = next((columns[name][0] for name in ("isvalid", "valid") if name in columns), None)
    notes: list[str] = []
    if "chc" in columns:
        flag = columns["chc"][0] > 0
    elif flag is not None:
        flag = flag != 0
    elif title and re.match(r"B\d{3,}", Path(title[1]).name):
        flag, notes = _not_zero(columns)
    filled = columns["chc"][0] == 2 if "chc" in columns else None
    facts = {"title": title[1] if title else None, **_tsi_calibration(header)}
    return _vectors(columns, flag, filled, facts, notes)


def _tsi_calibration(header: str) -> dict[str, Any]:
    delay = _number_after(header, r'MicrosecondsPerDeltaT="')
    x, y = (_number_after(header, rf'MicrometersPerPixel{axis}="') for axis in "XY")
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


def _number_after(header: str, before: str) -> float | None:
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


TITLE = "PIV vectors (OpenPIV, PIVlab, TSI Insight, DaVis, Tecplot)"
HINTS = ("channels", "shape")
MEASURED = True

_SUFFIXES = (".txt", ".vec", ".dat", ".csv")
_KEPT_FRAMES = 16
_FLAGGING = ("OpenPIV", "PIVlab", "TSI Insight")
"""Programs that flag the vectors they interpolated."""


def recognise(path: Path) -> bool:
    if path.suffix.lower() == ".mat":
        return pivlab.recognise(path)
    try:
        return any(find_program(file) is not None for file in find_files(path, _SUFFIXES)[:8])
    except (OSError, ValueError):  # no such folder, or a name that is no pattern
        return False


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.suffix.lower() == ".mat":
        return pivlab.open_recordings(path, hints)
    groups = {
        name: members
        for name, members in group_by_number(find_files(path, _SUFFIXES)).items()
        if find_program(next(iter(members.values()))) is not None
    }
    if not groups:
        raise SourceError(
            f"{path}: no files of vectors ({', '.join(_SUFFIXES)}) that OpenPIV, PIVlab, TSI "
            "Insight, DaVis or Tecplot wrote"
        )
    if len(groups) == 1 and path.is_dir():
        groups = {path.name: next(iter(groups.values()))}
    flows, notes = {}, []
    for name, members in groups.items():
        flows[name], notices = _trajectory(name, members, hints)
        notes += [notice for notice in notices if notice not in notes]
    load = flows.__getitem__
    return Recordings(kind="piv", path=path, names=tuple(flows), load=load, notes=tuple(notes))


def _trajectory(
    name: str, members: Mapping[int, Path], hints: Hints
) -> tuple[Trajectory, tuple[str, ...]]:
    files = tuple(members.values())
    program = find_program(files[0])
    assert program is not None
    first = read_vectors(files[0], program, hints.channels)
    layout = find_layout(str(files[0]), first.x, first.y, first.x.shape, hints)
    record, notes = dict(layout.record), [*layout.notes, *_noticed(first, len(files))]
    if layout.check is not None:
        fields = {key: values[None] for key, values in first.fields.items()}
        record["error"] = layout.estimate_error(fields, first.valid[None])
        notes.append(describe_error(record["error"]))
    frames = VectorFiles(files, program, layout, first, hints.channels)
    numbers = np.array(list(members), dtype=np.float64)
    time = None
    if len(set(np.diff(numbers))) > 1:
        time = numbers - numbers[0]  # frames are missing: the numbers give how many
        notes.append("frames are missing between the numbers of the files")
    shape = mask_shape(frames)
    trajectory = describe(
        name,
        frames,
        layout,
        channels=tuple(first.fields),
        time=time,
        valid=MappedFrames(shape, partial(frames.stack, "valid")),
        filled=MappedFrames(shape, partial(frames.stack, "filled"))
        if program in _FLAGGING
        else None,
        units=first.units,
        length_unit=first.length_unit,
        source={"program": program, "files": [files[0].name, files[-1].name], **first.facts},
        local={"gridding": record},
    )
    return trajectory, tuple(notes)


def _noticed(first: VectorField, count: int) -> list[str]:
    where = "" if count == 1 else " of the first frame"
    notes = list(first.notes)
    if not first.valid.all():
        notes.append(f"{percent(float((~first.valid).mean()))} of the vectors{where} are invalid")
    if first.interpolated.any():
        share = percent(float(first.interpolated.mean()))
        notes.append(f"{share} of the vectors{where} were interpolated by the program")
    if first.others:
        notes.append(left_out(first.others))
    return notes


def _stated(vectors: VectorField) -> dict[str, Any]:
    """Units and calibration of a file."""
    facts = {fact: vectors.facts[fact] for fact in (SCALE, DELAY) if fact in vectors.facts}
    return {"length": vectors.length_unit, **vectors.units, **facts}


class _Frame(NamedTuple):
    """One file on the grid."""

    states: Tensor
    """(c, y, x)."""
    valid: Tensor
    """(y, x)."""
    filled: Tensor
    """(y, x), True where the program interpolated."""


class VectorFiles:
    """Frames of a trajectory, each in a file of its own that is parsed on demand."""

    def __init__(
        self,
        files: tuple[Path, ...],
        program: str,
        layout: Layout,
        first: VectorField,
        names: Mapping[str, str],
    ) -> None:
        self.files, self.names = tuple(file.absolute() for file in files), dict(names)
        self.program, self.layout, self.points = program, layout, (first.x, first.y)
        self.channels, self.stated = tuple(first.fields), _stated(first)
        self.shape: tuple[int, ...] = (len(files), len(self.channels), *layout.shape)
        self._kept: OrderedDict[int, _Frame] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": OrderedDict()}

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        states = self.stack("states", frames)
        return states if channels is None else states[:, list(channels)]

    def stack(self, kind: Literal["states", "valid", "filled"], frames: slice) -> Tensor:
        """Fields (t, c, y, x) or a mask (t, y, x) of some frames."""
        numbers = range(*frames.indices(len(self.files)))
        found = [getattr(self.frame(number), kind) for number in numbers]
        return torch.stack(found) if found else getattr(self.frame(0), kind)[None][:0]

    def frame(self, number: int) -> _Frame:
        """One frame; the last few are kept."""
        if number not in self._kept:
            self._kept[number] = self._parse(self.files[number])
            if len(self._kept) > _KEPT_FRAMES:
                self._kept.popitem(last=False)
        return self._kept[number]

    def _parse(self, file: Path) -> _Frame:
        vectors = read_vectors(file, self.program, self.names)
        points = zip(self.points, (vectors.x, vectors.y), strict=True)
        if not all(np.array_equal(ours, theirs) for ours, theirs in points):
            raise SourceError(
                f"{file}: its {len(vectors.x)} points are not those of {self.files[0].name}; "
                "frames of one trajectory need the same points: keep other files elsewhere"
            )
        if _stated(vectors) != self.stated:
            raise SourceError(
                f"{file}: its header states {_stated(vectors)}, that of {self.files[0].name} "
                f"{self.stated}; frames of one trajectory need one calibration: keep other files "
                "elsewhere"
            )
        missing = [name for name in self.channels if name not in vectors.fields]
        if missing:
            raise SourceError(f"{file}: no column {missing[0]}, which {self.files[0].name} has")
        fields = {name: vectors.fields[name][None] for name in self.channels}
        states, valid = self.layout.place(fields, vectors.valid[None])
        filled = self.layout.place_mask(vectors.interpolated[None])
        return _Frame(*(torch.from_numpy(part[0]) for part in (states, valid, filled)))
