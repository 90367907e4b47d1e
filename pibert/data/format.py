"""The native file format: HDF5, one group per trajectory (docs/data-format.md specifies it).

A file appears whole or not at all: it is written under a temporary name in the same folder and
renamed when it is complete and on the disk. Reading takes only the frames and channels asked for. A
``Reader`` can be handed to worker processes: each opens the file for itself. Every dataset and
header carries a checksum, so damaged bytes are found when they are read.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data.partial import PartialFile, interrupts_held, partial_path, remove_leftovers
from pibert.data.splits import GAP, find_gaps
from pibert.fields import (
    FieldSpec,
    FrameSource,
    Grid,
    Parameter,
    Sides,
    Trajectory,
    read_mask,
)
from pibert.physics import find_family

FORMAT = "pibert-trajectories"
VERSION = 1

SPACING_TOLERANCE = 1e-3
"""Largest deviation from a uniform step, as a share of the step."""

_CHUNK_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
# Object headers of this version have checksums; HDF5 1.10 and later read it.
_LIBVER = ("v110", "v110")
_NUMBERS = ("dt", "reference_velocity", "reference_length", "viscosity")
_DAMAGED = "the file is damaged: get a new copy or write it again"
_GAPS = f"a step of {GAP:g} dt or more is a gap, but not all of them can be"
_REWRITE = "write it again as docs/data-format.md says"


class FormatError(ValueError):
    """A file that does not hold what the format promises; the message says what to do."""


def check(path: Path | str) -> None:
    """Read a whole file and raise a ``FormatError`` that names the first broken thing."""
    with Reader(path) as reader:
        for trajectory in reader:
            for mask in (trajectory.body, trajectory.valid):
                for frames in _blocks(trajectory):
                    if mask is not None:
                        read_mask(mask, frames)
            for frames in _blocks(trajectory):
                block = trajectory.read(frames)
                problem = _find_not_finite(trajectory, frames, block)
                if problem:
                    raise FormatError(
                        f"{path}: trajectory {trajectory.name!r}: {problem}; mark the point in "
                        f"'valid' or 'body', or leave the trajectory out"
                    )


def write(path: Path | str, trajectories: Sequence[Trajectory]) -> None:
    """Write a file of trajectories; all of them or nothing."""
    with Writer(path) as writer:
        for trajectory in trajectories:
            writer.add(trajectory)


class Writer:
    """Writes a file trajectory by trajectory.

    The target appears when the ``with`` block ends well, and replaces an older one only then. A
    trajectory that is refused leaves no trace: the caller may go on with the next.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: h5py.File | None = None
        self._sink: PartialFile | None = None
        self._partial = partial_path(self.path)

    def __enter__(self) -> Self:
        folder = self.path.parent
        if not folder.is_dir():
            raise FileNotFoundError(f"{self.path}: there is no folder {folder}; make it first")
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder; name a file in it")
        if self.path.exists() and not self.path.stat().st_mode & 0o222:
            raise PermissionError(
                f"{self.path} is read-only; make it writable or choose another name"
            )
        remove_leftovers(self.path)
        try:
            with interrupts_held():
                self._begin()
        except BaseException as error:
            if self._file is not None:
                self.__exit__(type(error), error, None)
            raise
        return self

    def _begin(self) -> None:
        try:
            self._sink = PartialFile(self._partial)
        except OSError as error:
            raise self._explain(error) from error
        self._file = h5py.File(self._sink, "w", libver=_LIBVER, track_order=True)
        self._file.attrs["format"] = _fixed(FORMAT)
        self._file.attrs["version"] = VERSION
        self._file.create_group("trajectories", track_order=True)

    def add(self, trajectory: Trajectory) -> None:
        """Append a trajectory; its states are read and written in blocks of frames."""
        if self._file is None or self._sink is None:
            raise ValueError(f"{self.path}: the writer is closed; use it in a with block")
        group, name = self._file["trajectories"], _checked_name(trajectory.name)
        if name in group:
            raise ValueError(f"{self.path}: there is a trajectory {name!r} already; names differ")
        attributes = _describe(trajectory)
        with interrupts_held() as let_through:
            try:
                self._write(group.create_group(name), trajectory, attributes, let_through)
                self._stop_at_error()
            except BaseException:
                del group[name]
                raise

    def _write(
        self,
        group: h5py.Group,
        trajectory: Trajectory,
        attributes: Mapping[str, Any],
        let_through: Callable[[], None],
    ) -> None:
        for key, value in attributes.items():
            group.attrs[key] = _fixed(value) if isinstance(value, str) else value
        grid, states = trajectory.spec.grid, trajectory.states
        axes = {
            "time": (trajectory.time.cpu().numpy(), trajectory.time_unit),
            "x": (grid.origin[0] + grid.dx * np.arange(grid.shape[1]), trajectory.length_unit),
            "y": (grid.origin[1] + grid.dy * np.arange(grid.shape[0]), trajectory.length_unit),
        }
        for key, (values, unit) in axes.items():
            axis = group.create_dataset(
                key, data=values.astype("<f8"), chunks=values.shape, fletcher32=True
            )
            if unit is not None:
                axis.attrs["units"] = _fixed(unit)
        if trajectory.series:
            series = group.create_group("series", track_order=True)
            for key, numbers in trajectory.series.items():
                data = numbers.cpu().numpy().astype("<f8")
                series.create_dataset(
                    _checked_name(key), data=data, chunks=data.shape, fletcher32=True
                )
        for key, mask in (("body", trajectory.body), ("valid", trajectory.valid)):
            if mask is not None:
                _write_mask(group, key, mask, trajectory)
        t, c, ny, nx = states.shape
        fields = group.create_dataset(
            "fields",
            (t, c, ny, nx),
            "<f4",
            chunks=(_frames_within(_CHUNK_BYTES, 4 * ny * nx, t), 1, ny, nx),
            fletcher32=True,
        )
        for frames in _blocks(trajectory):
            block = trajectory.read(frames)
            if block.dtype != torch.float32:
                raise ValueError(
                    f"trajectory {trajectory.name!r}: expected states in float32, found "
                    f"{block.dtype}; convert them first"
                )
            problem = _find_not_finite(trajectory, frames, block)
            if problem:
                raise ValueError(
                    f"trajectory {trajectory.name!r}: {problem}; mark the point as not valid or as "
                    "body, or leave the trajectory out"
                )
            fields[frames] = block.cpu().numpy()
            self._stop_at_error()
            let_through()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with interrupts_held():
            file, sink = self._file, self._sink
            assert file is not None and sink is not None
            self._file = None
            try:
                complete = kind is None and len(file["trajectories"])
                file.close()
                if complete:
                    self._stop_at_error()
                    self._publish(sink)
                elif kind is None:
                    raise ValueError(f"{self.path}: no trajectory was added, so nothing is written")
            finally:
                sink.close()
                self._partial.unlink(missing_ok=True)

    def _publish(self, sink: PartialFile) -> None:
        try:
            os.fsync(sink.fileno())
            os.replace(self._partial, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._explain(error) from error

    def _stop_at_error(self) -> None:
        assert self._sink is not None
        if self._sink.error is not None:
            raise self._explain(self._sink.error) from self._sink.error

    def _explain(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"{self.path}: cannot write: {os.strerror(error.errno or 0)}; nothing was changed; "
            "check the space and the rights of the folder",
        )


class Reader:
    """The trajectories of a file, by position or name; fields are read when asked for.

    It may be pickled and used after a fork: every process opens the file once, for itself.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._pid = -1
        self._file: h5py.File | None = None
        self._datasets: dict[tuple[str, str], h5py.Dataset] = {}
        self._stamp = _stamp(self.path)
        with self._blamed("its header"):
            self.names: tuple[str, ...] = tuple(self._open()["trajectories"])
        if not self.names:
            raise FormatError(f"{self.path}: it holds no trajectory; {_REWRITE}")

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[name] for name in self.names)

    def __getitem__(self, key: int | str) -> Trajectory:
        name = self.names[key] if isinstance(key, int) else key
        if name not in self.names:
            some = ", ".join(self.names[:8]) + (", ..." if len(self) > 8 else "")
            raise KeyError(f"{self.path}: no trajectory {name!r}; there are: {some}")
        with self._blamed(f"trajectory {name!r}"):
            group = self._open()["trajectories"][name]
            if not isinstance(group, h5py.Group):
                raise FormatError(f"{self.path}: trajectory {name!r} is not a group; {_REWRITE}")
            return _Parser(self, name, group).trajectory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_file": None, "_datasets": {}}

    def close(self) -> None:
        """Close the file in this process; the next read opens it again."""
        self._datasets.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> h5py.File:
        if self._file is not None and self._pid == os.getpid():
            return self._file
        # A handle that came through a fork shares its descriptor with the parent. Closing it here
        # leaves the parent's open; HDF5 would otherwise hand out the shared one again.
        self.close()
        if _stamp(self.path) != self._stamp:
            raise FormatError(f"{self.path}: it was replaced after it was opened; open it again")
        self._file, self._pid = _open_checked(self.path), os.getpid()
        return self._file

    def _read(self, name: str, key: str, frames: slice, channels: Any = None) -> np.ndarray:
        file = self._open()
        with self._blamed(f"trajectory {name!r}: {key!r}"):
            if (name, key) not in self._datasets:
                self._datasets[name, key] = file["trajectories"][name][key]
            dataset = self._datasets[name, key]
            array = dataset[frames] if channels is None else dataset[frames, channels]
        assert isinstance(array, np.ndarray)
        return array

    @contextlib.contextmanager
    def _blamed(self, where: str) -> Iterator[None]:
        """What HDF5 says about damaged bytes, with the file and the place."""
        try:
            yield
        except FormatError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise FormatError(
                f"{self.path}: {where} cannot be read ({error}); {_DAMAGED}"
            ) from error


class _StoredFields:
    """The dataset ``fields`` of a trajectory."""

    def __init__(self, reader: Reader, name: str, shape: tuple[int, ...]) -> None:
        self.reader, self.name, self._shape = reader, name, shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        if channels is None:
            return torch.from_numpy(self.reader._read(self.name, "fields", frames))
        # HDF5 wants indices that grow; any order and repetition is made from those.
        wanted = sorted({range(self._shape[1])[channel] for channel in channels})
        places = [wanted.index(range(self._shape[1])[channel]) for channel in channels]
        fields = torch.from_numpy(self.reader._read(self.name, "fields", frames, wanted))
        return fields if places == list(range(len(wanted))) else fields[:, places]


class _StoredMask:
    """A mask dataset with one frame per time."""

    def __init__(self, reader: Reader, name: str, key: str, shape: tuple[int, ...]) -> None:
        self.reader, self.name, self.key, self._shape = reader, name, key, shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        return _to_mask(self.reader._read(self.name, self.key, frames), self._fail)

    def _fail(self, problem: str) -> FormatError:
        return FormatError(
            f"{self.reader.path}: trajectory {self.name!r}: {self.key!r} {problem}; {_REWRITE}"
        )


class _Parser:
    """Makes a trajectory of a group, and names the first thing in it that is wrong."""

    def __init__(self, reader: Reader, name: str, group: h5py.Group) -> None:
        self.reader, self.name, self.group = reader, name, group

    def trajectory(self) -> Trajectory:
        channels = tuple(self.json("channels", list))
        states = self.dataset("fields", 4, np.float32)
        t, c, ny, nx = states.shape
        if c != len(channels):
            raise self.fail(f"'fields' has {c} channels, but 'channels' names {channels}")
        time, x, y = (self.axis(key, count) for key, count in (("time", t), ("x", nx), ("y", ny)))
        dx, dy = self.uniform_step("dx", "x", x), self.uniform_step("dy", "y", y)
        numbers = {key: self.number(key) for key in _NUMBERS}
        if (np.diff(time) <= 0).any():
            frame = int(np.argmax(np.diff(time) <= 0)) + 1
            raise self.fail(f"'time' must grow, but does not at frame {frame}")
        if numbers["dt"] is not None and not _keeps_step(time, numbers["dt"]):
            raise self.fail(
                f"the frames of 'time' are not dt = {numbers['dt']:g} apart ({_GAPS}; without the "
                "attribute dt any increasing time is right)"
            )
        body, valid = self.mask("body", states.shape), self.mask("valid", states.shape)
        parameters = self.json("parameters", dict)
        series = {key: torch.from_numpy(self.axis(f"series/{key}", t)) for key in self.series()}
        with self.stated():
            family = self.text("family") if "family" in self.group.attrs else None
            if family is not None:
                find_family(family)
            sides = Sides(**self.json("sides", dict))
            spec = FieldSpec(
                channels=channels,
                units=tuple(self.json("units", list)),
                parameters=tuple(
                    Parameter(name=key, scaling=entry["scaling"])
                    for key, entry in parameters.items()
                ),
                grid=Grid((ny, nx), dx, dy, sides, origin=(float(x[0]), float(y[0]))),
                family=family,
                **numbers,
            )
            return Trajectory(
                name=self.name,
                states=_StoredFields(self.reader, self.name, states.shape),
                time=torch.from_numpy(time),
                spec=spec,
                parameters={
                    key: float(entry["value"])
                    for key, entry in parameters.items()
                    if entry["value"] is not None
                },
                body=body,
                valid=valid,
                series=series,
                source=self.json("source", dict),
                local=self.json("local", dict),
                length_unit=self.unit("x"),
                time_unit=self.unit("time"),
            )

    def fail(self, problem: str, remedy: str = _REWRITE) -> FormatError:
        return FormatError(f"{self.reader.path}: trajectory {self.name!r}: {problem}; {remedy}")

    @contextlib.contextmanager
    def stated(self) -> Iterator[None]:
        """A refusal of what the file states is blamed on the file."""
        try:
            yield
        except FormatError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise self.fail(str(error)) from error

    def dataset(self, key: str, ndim: int, dtype: type) -> h5py.Dataset:
        # A link without a readable object is damage, which HDF5 reports.
        if self.group.get(key, getlink=True) is None:
            raise self.fail(f"dataset {key!r} is missing")
        dataset = self.group[key]
        if not isinstance(dataset, h5py.Dataset):
            raise self.fail(f"{key!r} must be a dataset, found a group")
        if dataset.ndim != ndim:
            raise self.fail(f"{key!r} must have {ndim} axes, found shape {dataset.shape}")
        if dataset.dtype != dtype:
            raise self.fail(f"{key!r} must be {np.dtype(dtype).name}, found {dataset.dtype.name}")
        return dataset

    def axis(self, key: str, count: int) -> np.ndarray:
        values: np.ndarray = self.dataset(key, 1, np.float64)[...]
        if len(values) != count:
            raise self.fail(f"{key!r} has {len(values)} entries, but 'fields' needs {count}")
        if not np.isfinite(values).all():
            raise self.fail(f"{key!r} holds values that are not finite")
        return values

    def series(self) -> list[str]:
        if self.group.get("series", getlink=True) is None:
            return []
        if not isinstance(self.group["series"], h5py.Group):
            raise self.fail("'series' must be a group of datasets")
        return list(self.group["series"])

    def uniform_step(self, name: str, key: str, axis: np.ndarray) -> float:
        step = self.number(name)
        if step is None:
            raise self.fail(f"attribute {name!r} is missing")
        if not step > 0 or _deviation(axis, step) > SPACING_TOLERANCE:
            raise self.fail(
                f"the points of {key!r} are not uniformly {name} = {step:g} apart",
                "resample the data to a uniform grid",
            )
        return step

    def mask(self, key: str, shape: tuple[int, ...]) -> Tensor | FrameSource | None:
        if self.group.get(key, getlink=True) is None:
            return None
        ndim = getattr(self.group[key], "ndim", 0)
        dataset = self.dataset(key, 2 if ndim == 2 else 3, np.uint8)
        if dataset.shape not in (shape[2:], (shape[0], *shape[2:])):
            raise self.fail(
                f"{key!r} must have shape {shape[2:]} or {(shape[0], *shape[2:])}, "
                f"found {dataset.shape}"
            )
        if ndim == 2:
            return _to_mask(dataset[...], lambda problem: self.fail(f"{key!r} {problem}"))
        return _StoredMask(self.reader, self.name, key, dataset.shape)

    def unit(self, key: str) -> str | None:
        attributes = self.group[key].attrs
        return _text(attributes["units"]) if "units" in attributes else None

    def number(self, key: str) -> float | None:
        return float(self.group.attrs[key]) if key in self.group.attrs else None

    def text(self, key: str) -> str:
        if key not in self.group.attrs:
            raise self.fail(f"attribute {key!r} is missing")
        return _text(self.group.attrs[key])

    def json(self, key: str, kind: type) -> Any:
        try:
            value = json.loads(self.text(key))
        except json.JSONDecodeError as error:
            raise self.fail(f"attribute {key!r} is not JSON ({error})") from error
        if not isinstance(value, kind):
            raise self.fail(f"attribute {key!r} must be a JSON {kind.__name__}, found {value!r}")
        return value


def _open_checked(path: Path) -> h5py.File:
    """Open a file whose header says that it is ours and that we can read it."""
    if not h5py.is_hdf5(path):
        raise FormatError(
            f"{path}: this is not an HDF5 file, or its head is damaged; the format is described in "
            "docs/data-format.md"
        )
    try:
        # Files are never changed in place, so readers need no lock (and read-only disks have none).
        file = h5py.File(path, "r", locking=False)
    except (OSError, RuntimeError) as error:
        problem = "truncated" if "truncated" in str(error) else f"not readable ({error})"
        raise FormatError(f"{path}: the file is {problem}: get a new copy of it") from error
    try:
        name, version = file.attrs.get("format"), file.attrs.get("version")
        if name is None or _text(name) != FORMAT or version is None:
            raise FormatError(f"{path}: an HDF5 file, but not of the format {FORMAT!r}; {_REWRITE}")
        if int(version) > VERSION:
            raise FormatError(
                f"{path}: format version {version}, but this PIBERT reads up to {VERSION}; "
                "install a newer PIBERT"
            )
        if file.get("trajectories", getlink=True) is None:
            raise FormatError(f"{path}: the group 'trajectories' is missing; {_REWRITE}")
    except FormatError:
        file.close()
        raise
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        file.close()
        raise FormatError(f"{path}: its header cannot be read ({error}); {_DAMAGED}") from error
    return file


def _stamp(path: Path) -> tuple[int, int]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _describe(trajectory: Trajectory) -> dict[str, Any]:
    """The attributes of a trajectory's group; what is unknown is left out."""
    spec = trajectory.spec
    if spec.family is not None:
        find_family(spec.family)
    steps = trajectory.time.cpu().numpy()
    if spec.dt is not None and not _keeps_step(steps, spec.dt):
        raise ValueError(
            f"trajectory {trajectory.name!r}: its frames are not dt = {spec.dt:g} apart ({_GAPS}); "
            "correct the time, or set dt to None"
        )
    plain = {
        "channels": list(spec.channels),
        "units": list(spec.units),
        "sides": {side: str(kind) for side, kind in spec.grid.sides._asdict().items()},
        "parameters": {
            p.name: {"value": trajectory.parameters.get(p.name), "scaling": p.scaling}
            for p in spec.parameters
        },
        "source": dict(trajectory.source),
        "local": dict(trajectory.local),
    }
    attributes: dict[str, Any] = {}
    for key, value in plain.items():
        try:
            attributes[key] = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"trajectory {trajectory.name!r}: {key} must be plain JSON values ({error})"
            ) from error
    numbers = {key: getattr(spec, key) for key in _NUMBERS}
    numbers |= {"dx": spec.grid.dx, "dy": spec.grid.dy, "family": spec.family}
    return attributes | {key: value for key, value in numbers.items() if value is not None}


def _write_mask(
    group: h5py.Group, key: str, mask: Tensor | FrameSource, trajectory: Trajectory
) -> None:
    shape = tuple(mask.shape)
    frames = _frames_within(_CHUNK_BYTES, shape[-2] * shape[-1], shape[0])
    dataset = group.create_dataset(
        key,
        shape,
        "u1",
        chunks=shape if len(shape) == 2 else (frames, *shape[1:]),
        compression="gzip",
        compression_opts=1,
        fletcher32=True,
    )
    if len(shape) == 2:
        dataset[...] = read_mask(mask, slice(None)).cpu().numpy()
        return
    for block in _blocks(trajectory):
        dataset[block] = read_mask(mask, block).cpu().numpy()


def _to_mask(values: np.ndarray, fail: Callable[[str], FormatError]) -> Tensor:
    if values.max(initial=0) > 1:
        raise fail(f"must hold 0 and 1 alone, found {values.max()}")
    return torch.from_numpy(values).to(torch.bool)


def _find_not_finite(trajectory: Trajectory, frames: slice, block: Tensor) -> str | None:
    """Where a known point is not finite, in words."""
    wrong = ~block.isfinite()
    if not bool(wrong.any()):
        return None
    wrong &= trajectory.known(frames)[:, None].to(wrong.device)
    if not bool(wrong.any()):
        return None
    t, c, row, column = (int(i) for i in wrong.nonzero()[0])
    return (
        f"the field {trajectory.spec.channels[c]!r} is {block[t, c, row, column].item()} at a "
        f"known point (frame {frames.start + t}, row {row}, column {column})"
    )


def _blocks(trajectory: Trajectory) -> Iterator[slice]:
    """Slices of frames small enough to hold in memory, on the borders of chunks."""
    t, c, ny, nx = trajectory.states.shape
    chunk = _frames_within(_CHUNK_BYTES, 4 * ny * nx, t)
    step = max(chunk, _frames_within(_BLOCK_BYTES, 4 * c * ny * nx, t) // chunk * chunk)
    return (slice(start, min(start + step, t)) for start in range(0, t, step))


def _frames_within(limit: int, frame_bytes: int, count: int) -> int:
    return max(1, min(count, limit // frame_bytes))


def _keeps_step(time: np.ndarray, dt: float) -> bool:
    """Whether neighbouring frames are dt apart. A dt that no two frames keep is wrong."""
    gaps = find_gaps(torch.from_numpy(time), dt).numpy()
    if len(gaps) and gaps.all():
        return False
    off = np.abs(np.diff(time)[~gaps] / dt - 1)
    return bool((off <= SPACING_TOLERANCE).all())


def _deviation(axis: np.ndarray, step: float) -> float:
    """Largest deviation of the steps of an axis from the given one, as a share of it."""
    return float(np.abs(np.diff(axis) / step - 1).max(initial=0.0))


def _checked_name(name: str) -> str:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"a name must be a word without '/', found {name!r}")
    return name


def _fixed(text: str) -> Any:
    """A string of fixed length: those of variable length lie outside HDF5's checksums."""
    data = text.encode()
    return np.array(data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
