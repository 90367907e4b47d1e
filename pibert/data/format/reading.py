"""Reading the native format: only the requested frames and channels are read.

Everything is checked; an error names the first problem. Every dataset and header has a checksum, so
damaged bytes are found when they are read. Every process opens the file itself.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data import hdf5
from pibert.data.splits import GAP, find_gaps
from pibert.data.views import ByName, MappedFrames
from pibert.fields import (
    MASKS,
    FieldSpec,
    FrameSource,
    Grid,
    MovingBody,
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
NUMBERS = ("dt", "reference_velocity", "reference_length", "viscosity")
"""Attributes that are numbers; unknown ones are left out."""
_CHUNK_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
GAPS = f"a step of {GAP:g} dt or more is a gap, but not all of them can be"
REWRITE = "write it again as docs/data-format.md specifies"
_DAMAGED = "the file is damaged: get a new copy or write it again"


class FormatError(ValueError):
    """A file that violates the format; the message gives the remedy."""


def find_not_finite(trajectory: Trajectory, frames: slice, block: Tensor) -> str | None:
    """Describe the first known point that is not finite; None if all are."""
    wrong = ~block.isfinite()
    if bool(wrong.any()):  # only then read the masks
        wrong &= trajectory.known(frames)[:, None].to(wrong.device)
    if not bool(wrong.any()):
        return None
    t, c, row, column = (int(i) for i in wrong.nonzero()[0])
    return (
        f"the field {trajectory.spec.channels[c]!r} is {block[t, c, row, column].item()} at a "
        f"known point (frame {frames.start + t}, row {row}, column {column})"
    )


def blocks(trajectory: Trajectory) -> Iterator[slice]:
    """Yield slices of frames that fit in memory, aligned with chunks."""
    t, c, ny, nx = trajectory.states.shape
    chunk = frames_in_chunk(4 * ny * nx, t)
    step = max(chunk, frames_in_chunk(4 * c * ny * nx, t, _BLOCK_BYTES) // chunk * chunk)
    return (slice(start, min(start + step, t)) for start in range(0, t, step))


def frames_in_chunk(frame_bytes: int, count: int | None = None, most: int | None = None) -> int:
    """Return the frames in ``most`` bytes (default: a chunk), at least 1, at most ``count``."""
    within = (most or _CHUNK_BYTES) // frame_bytes
    return max(1, within if count is None else min(count, within))


def keeps_step(time: np.ndarray, dt: float) -> bool:
    """Return whether neighbouring frames are dt apart; a dt that no two frames keep is wrong."""
    gaps = find_gaps(torch.from_numpy(time), dt).numpy()
    if len(gaps) and gaps.all():
        return False
    off = np.abs(np.diff(time)[~gaps] / dt - 1)
    return bool((off <= SPACING_TOLERANCE).all())


def fixed_text(text: str) -> Any:
    """Return a fixed-length string: HDF5's checksums do not cover variable-length ones."""
    data = text.encode()
    return np.array(data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class Storage(hdf5.PerProcess):
    """The datasets of a file by trajectory."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._datasets: dict[tuple[str, str], h5py.Dataset] = {}
        self._stamp = _stamp(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_datasets": {}}

    def close(self) -> None:
        self._datasets.clear()
        super().close()

    def _open(self) -> h5py.File:
        if _stamp(self.path) != self._stamp:
            raise FormatError(f"{self.path}: it was replaced after it was opened; open it again")
        return _open_checked(self.path)

    def group(self, name: str) -> h5py.Group:
        """Return the group of a trajectory; all of its content must be in this file."""
        parent = self.open()["trajectories"]
        if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
            raise FormatError(f"{self.path}: trajectory {name!r} is a link; {REWRITE}")
        group = parent[name]
        if not isinstance(group, h5py.Group):
            raise FormatError(f"{self.path}: trajectory {name!r} is not a group; {REWRITE}")
        hdf5.check_group(self.path, group)
        return group

    def read(self, name: str, key: str, frames: slice, channels: Any = None) -> np.ndarray:
        """Read frames of a dataset of a trajectory; ``channels`` None reads all."""
        self.open()  # forgets the datasets of another process
        with self.naming(f"trajectory {name!r}: {key!r}"):
            if (name, key) not in self._datasets:
                self._datasets[name, key] = self.group(name)[key]
            dataset = self._datasets[name, key]
            array = dataset[frames] if channels is None else dataset[frames, channels]
        assert isinstance(array, np.ndarray)
        return array

    @contextlib.contextmanager
    def naming(self, where: str) -> Iterator[None]:
        """Raise errors of HDF5 about damaged bytes with the file and the object."""
        try:
            yield
        except FormatError:
            raise
        except hdf5.HDF5Error as error:
            raise FormatError(str(error)) from error
        except hdf5.DAMAGED as error:
            raise FormatError(
                f"{self.path}: {where} cannot be read ({error}); {_DAMAGED}"
            ) from error


def _open_checked(path: Path) -> h5py.File:
    """Open a file whose header has the name and a known version of this format."""
    if not hdf5.is_hdf5(path):
        raise FormatError(
            f"{path}: this is not an HDF5 file, or its header is damaged; convert data of other "
            f"kinds with: pibert convert {path.name} OUT.h5 (docs/data-format.md)"
        )
    try:
        file = hdf5.open_hdf5(path, deep=False)
    except hdf5.HDF5Error as error:
        raise FormatError(str(error)) from error
    except (OSError, RuntimeError) as error:
        problem = "truncated" if "truncated" in str(error) else f"not readable ({error})"
        raise FormatError(f"{path}: the file is {problem}: get a new copy of it") from error
    try:
        name, version = file.attrs.get("format"), file.attrs.get("version")
        if name is None or as_text(name) != FORMAT or version is None:
            raise FormatError(f"{path}: an HDF5 file, but not of the format {FORMAT!r}; {REWRITE}")
        if int(version) > VERSION:
            raise FormatError(
                f"{path}: format version {version}, but this PIBERT reads up to {VERSION}; "
                "install a newer PIBERT"
            )
        # The values of a dataset, which may be stored in another file, would pass for names.
        if file.get("trajectories", getclass=True) is not h5py.Group:
            raise FormatError(f"{path}: the group 'trajectories' is missing; {REWRITE}")
    except FormatError:
        file.close()
        raise
    except (*hdf5.DAMAGED, OverflowError) as error:  # OverflowError: an infinite version
        file.close()
        raise FormatError(f"{path}: its header cannot be read ({error}); {_DAMAGED}") from error
    return file


def _stamp(path: Path) -> tuple[int, int]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    status = path.stat()
    return status.st_size, status.st_mtime_ns


class Parser:
    """Builds a trajectory from a group; errors name the first problem."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage, self.name, self.group = storage, name, storage.group(name)

    def trajectory(self) -> Trajectory:
        """Grid, spec and trajectory check that their sizes agree."""
        states = self.dataset("fields", np.float32)
        if states.ndim != 4:
            raise self.fail(f"'fields' must have 4 axes (t, c, y, x), found {states.shape}")
        time, x, y = (self.axis(key) for key in ("time", "x", "y"))
        dx, dy = self.uniform_step("dx", "x", x), self.uniform_step("dy", "y", y)
        numbers = {key: self.number(key) for key in NUMBERS}
        masks: dict[str, Any] = {key: self.mask(key) for key in MASKS}
        parameters = self.json("parameters", dict)
        series = self.group.get("series", {})
        state, bodies = (
            self.json(key, list) if key in self.group.attrs else [] for key in ("state", "bodies")
        )
        read = partial(_read_fields, self.storage, self.name, states.shape[1])
        with self.naming():
            family = self.text("family") if "family" in self.group.attrs else None
            if family is not None:
                find_family(family)
            sides, origin = Sides(**self.json("sides", dict)), (float(x[0]), float(y[0]))
            spec = FieldSpec(
                channels=tuple(self.json("channels", list)),
                units=tuple(self.json("units", list)),
                parameters=tuple(
                    Parameter(name=key, scaling=entry["scaling"])
                    for key, entry in parameters.items()
                ),
                grid=Grid((len(y), len(x)), dx, dy, sides, origin=origin),
                family=family,
                state=tuple(state),
                bodies=tuple(MovingBody.from_dict(body) for body in bodies),
                **numbers,
            )
            trajectory = Trajectory(
                name=self.name,
                states=MappedFrames(states.shape, read),
                time=torch.from_numpy(time),
                spec=spec,
                parameters={
                    key: float(entry["value"])
                    for key, entry in parameters.items()
                    if entry["value"] is not None
                },
                series={key: torch.from_numpy(self.axis(f"series/{key}")) for key in series},
                source=self.json("source", dict),
                local=self.json("local", dict),
                length_unit=self.unit("x"),
                time_unit=self.unit("time"),
                **masks,
            )
        if spec.dt is not None and not keeps_step(time, spec.dt):
            raise self.fail(
                f"the frames of 'time' are not dt = {spec.dt:g} apart ({GAPS}; without the "
                "attribute dt any increasing time is right)"
            )
        return trajectory

    def fail(self, problem: str, remedy: str = REWRITE) -> FormatError:
        return FormatError(f"{self.storage.path}: trajectory {self.name!r}: {problem}; {remedy}")

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Raise errors about the content of the file with its name."""
        try:
            yield
        except FormatError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise self.fail(str(error)) from error

    def dataset(self, key: str, dtype: type) -> h5py.Dataset:
        # HDF5 reports a link without a readable object as damage.
        if self.group.get(key, getlink=True) is None:
            raise self.fail(f"dataset {key!r} is missing")
        dataset = self.group[key]
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype != dtype:
            found = getattr(dataset, "dtype", "a group")
            raise self.fail(f"{key!r} must be a dataset of {np.dtype(dtype).name}, found {found}")
        return dataset

    def axis(self, key: str) -> np.ndarray:
        values: np.ndarray = self.dataset(key, np.float64)[...]
        if values.ndim != 1 or not values.size or not np.isfinite(values).all():
            found = f"shape {values.shape}" if values.size else "none"
            raise self.fail(f"{key!r} must be a list of one or more finite values, found {found}")
        return values

    def uniform_step(self, name: str, key: str, axis: np.ndarray) -> float:
        step = self.number(name)
        if step is None:
            raise self.fail(f"attribute {name!r} is missing")
        off = np.abs(np.diff(axis) / step - 1).max(initial=0.0) if step > 0 else np.inf
        if off > SPACING_TOLERANCE:
            raise self.fail(
                f"the points of {key!r} are not uniformly {name} = {step:g} apart",
                "resample the data to a uniform grid",
            )
        return step

    def mask(self, key: str) -> Tensor | FrameSource | None:
        if self.group.get(key, getlink=True) is None:
            return None
        dataset = self.dataset(key, np.uint8)
        if dataset.ndim == 2:
            return _to_mask(dataset[...], self.storage, self.name, key)
        return MappedFrames(dataset.shape, partial(_read_mask, self.storage, self.name, key))

    def unit(self, key: str) -> str | None:
        attributes = self.group[key].attrs
        return as_text(attributes["units"]) if "units" in attributes else None

    def number(self, key: str) -> float | None:
        return float(self.group.attrs[key]) if key in self.group.attrs else None

    def text(self, key: str) -> str:
        if key not in self.group.attrs:
            raise self.fail(f"attribute {key!r} is missing")
        return as_text(self.group.attrs[key])

    def json(self, key: str, kind: type) -> Any:
        try:
            value = json.loads(self.text(key))
        except json.JSONDecodeError as error:
            raise self.fail(f"attribute {key!r} is not JSON ({error})") from error
        if not isinstance(value, kind):
            raise self.fail(f"attribute {key!r} must be a JSON {kind.__name__}, found {value!r}")
        return value


def _read_fields(
    storage: Storage, name: str, count: int, frames: slice, channels: Sequence[int] | None
) -> Tensor:
    if channels is None:
        return torch.from_numpy(storage.read(name, "fields", frames))
    # HDF5 needs increasing indices without repetition.
    wanted = sorted({range(count)[channel] for channel in channels})
    order = [wanted.index(range(count)[channel]) for channel in channels]
    fields = torch.from_numpy(storage.read(name, "fields", frames, wanted))
    return fields if order == list(range(len(wanted))) else fields[:, order]


def _read_mask(storage: Storage, name: str, key: str, frames: slice) -> Tensor:
    return _to_mask(storage.read(name, key, frames), storage, name, key)


def _to_mask(values: np.ndarray, storage: Storage, name: str, key: str) -> Tensor:
    if values.max(initial=0) > 1:
        raise FormatError(
            f"{storage.path}: trajectory {name!r}: {key!r} may contain only 0 and 1, found "
            f"{values.max()}; {REWRITE}"
        )
    return torch.from_numpy(values).to(torch.bool)


def check(path: Path | str) -> None:
    """Read a whole file; raise a ``FormatError`` that names the first problem."""
    with Reader(path) as reader:
        for trajectory in reader:
            for key in MASKS:
                mask = getattr(trajectory, key)
                for frames in blocks(trajectory) if mask is not None else ():
                    read_mask(mask, frames)
            for frames in blocks(trajectory):
                block = trajectory.read(frames)
                problem = find_not_finite(trajectory, frames, block)
                if problem:
                    raise FormatError(
                        f"{path}: trajectory {trajectory.name!r}: {problem}; mark the point in "
                        f"'valid' or 'body', or leave the trajectory out"
                    )


class Reader(ByName):
    """The trajectories of a file; fields are read on request.

    It can be pickled and used after a fork: every process opens the file itself.
    """

    def __init__(self, path: Path | str) -> None:
        self._storage = Storage(path)
        self.path = self._storage.path
        with self._storage.naming("its header"):
            self.names = tuple(self._storage.open()["trajectories"])
        if not self.names:
            raise FormatError(f"{self.path}: it has no trajectory; {REWRITE}")

    def load(self, name: str) -> Trajectory:
        with self._storage.naming(f"trajectory {name!r}"):
            return Parser(self._storage, name).trajectory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file in this process; the next read opens it again."""
        self._storage.close()
