"""PIV recordings: text of OpenPIV, PIVlab, TSI Insight, DaVis and Tecplot; PIVlab's .mat files.

A text holds a frame. A folder, or a pattern such as ``run/B*.txt``, of numbered files is a
trajectory in the order of the numbers (9 before 10). Files are parsed when their frames are asked
for; all files of a trajectory have the points of the first. ``piv_text`` says what the flags mean.

No header states the time between vector fields: without a hint the frames are counted.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pibert.data.sources.assembly.naming import left_out
from pibert.data.sources.calibration import DELAY, SCALE
from pibert.data.sources.gridding.layout import Layout, find_layout, percent
from pibert.data.sources.gridding.uniform import describe, error_in_words
from pibert.data.sources.numbered import find_files, group_by_number
from pibert.data.sources.piv import pivlab
from pibert.data.sources.piv.text import VectorField, find_program, read_vectors
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.fields import Trajectory

TITLE = "PIV vectors (OpenPIV, PIVlab, TSI Insight, DaVis, Tecplot)"

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
    flows, remarks = {}, []
    for name, members in groups.items():
        flows[name], notices = _trajectory(name, members, hints)
        remarks += [notice for notice in notices if notice not in remarks]
    return Recordings(
        kind="piv",
        path=path,
        names=tuple(flows),
        load=flows.__getitem__,
        remarks=tuple(remarks),
    )


def _trajectory(
    name: str, members: Mapping[int, Path], hints: Hints
) -> tuple[Trajectory, tuple[str, ...]]:
    files = tuple(members.values())
    program = find_program(files[0])
    assert program is not None
    first = read_vectors(files[0], program, hints.channels)
    layout = find_layout(str(files[0]), first.x, first.y, first.x.shape, hints)
    notes, remarks = dict(layout.notes), [*layout.remarks, *_noticed(first, len(files))]
    if layout.check is not None:
        fields = {key: values[None] for key, values in first.fields.items()}
        notes["error"] = layout.estimate_error(fields, first.valid[None])
        remarks.append(error_in_words(notes["error"]))
    frames = VectorFiles(files, program, layout, first, hints.channels)
    numbers = np.array(list(members), dtype=np.float64)
    time = None
    if len(set(np.diff(numbers))) > 1:
        time = numbers - numbers[0]  # frames are missing: the numbers tell how many
        remarks.append("frames are missing between the numbers of the files")
    trajectory = describe(
        name,
        frames,
        layout,
        channels=tuple(first.fields),
        time=time,
        valid=VectorMask(frames, "valid"),
        filled=VectorMask(frames, "filled") if program in _FLAGGING else None,
        units=first.units,
        length_unit=first.length_unit,
        source={"program": program, "files": [files[0].name, files[-1].name], **first.facts},
        local={"gridding": notes},
    )
    return trajectory, tuple(remarks)


def _noticed(first: VectorField, count: int) -> list[str]:
    where = "" if count == 1 else " of the first frame"
    remarks = list(first.remarks)
    if not first.valid.all():
        remarks.append(f"{percent(float((~first.valid).mean()))} of the vectors{where} are invalid")
    if first.interpolated.any():
        share = percent(float(first.interpolated.mean()))
        remarks.append(f"{share} of the vectors{where} were interpolated by the program")
    if first.others:
        remarks.append(left_out(first.others))
    return remarks


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
        self._kept: OrderedDict[int, _Frame] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": OrderedDict()}

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.files), len(self.channels), *self.layout.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        numbers = range(*frames.indices(len(self.files)))
        if not numbers:
            return torch.empty(0, len(channels or self.channels), *self.layout.shape)
        states = torch.stack([self.frame(number).states for number in numbers])
        return states if channels is None else states[:, list(channels)]

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


class VectorMask:
    """Which vectors of the same files are valid, or filled."""

    def __init__(self, frames: VectorFiles, kind: Literal["valid", "filled"]) -> None:
        self.frames, self.kind = frames, kind

    @property
    def shape(self) -> tuple[int, ...]:
        t, _, ny, nx = self.frames.shape
        return (t, ny, nx)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        numbers = range(*frames.indices(len(self.frames.files)))
        if not numbers:
            return torch.empty(0, *self.shape[1:], dtype=torch.bool)
        return torch.stack([getattr(self.frames.frame(number), self.kind) for number in numbers])
