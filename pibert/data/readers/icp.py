"""Inductively coupled plasmas: images with emission spectra, or fields by name.

The pairs (Daly, Fieldsend, Hassall, Tabor 2023, doi 10.1088/2632-2153/aced7f; data
10.5281/zenodo.7704879) are optical measurements of an etch tool. A folder per sample,
``{train,val,test}_paired*``, holds ``image.npy``, float32 (96, 128, 3), and ``spectra.npy``,
float32 (3072) or (3072, 1), both between 0 and 1. There is no velocity, no pressure field and no
sequence in time. What can honestly be learnt is settings -> image, settings -> spectrum and the
hidden part of an image; a sample is a trajectory of one frame, so that no pair of frames can be
drawn.

Several samples share a set-point: a split must keep those together (``split_pairs``), or test
samples are near copies of training samples. Where the archive keeps the settings is not documented,
so their file and keys are arguments.

Fields by name: operating conditions, ne, Te, potential, species densities and T. This is the form
in which the PIBERT paper's authors used an inductively coupled plasma: all fields are of the same
time, and T is mapped from the others. Their data are not public; ``AUTHORS`` has the keys of their
published converter, which expects one HDF5 file per run with fields (1, t, n) at scattered nodes.
Other ``.npz``, HDF5 and MATLAB files are read with other keys.

With a key for the time a file is one trajectory; without one it is a table, and every row a
trajectory of one frame. Fields are (t, n) at positions (n, 2) and are brought to a uniform grid, or
(t, y, x) without positions; leading axes of length 1 are dropped.
"""

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pibert.data.hdf5 import DAMAGED, is_hdf5, open_hdf5
from pibert.data.readers.arrays import open_archive, open_array, require_keys
from pibert.data.readers.matlab import call_scipy
from pibert.data.readers.recordings import Hints, Recordings, SourceError, check_channels
from pibert.data.readers.shared.grids import on_uniform_grid
from pibert.data.readers.shared.stores import reading
from pibert.data.splits import Shares, Split, split_trajectories
from pibert.data.views import MappedFrames, finite_points
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory

TITLE = "ICP plasma (images and spectra, or fields by name)"
HINTS = ("channels", "shape")

IMAGE = (96, 128, 3)
COLOURS = ("red", "green", "blue")
SPECTRUM = 3072
SETTINGS = ("coil_power", "table_power", "Ar", "O2", "CF4", "SF6", "pressure")
"""The seven settings, in the order that a third party reports; not confirmed by the publishers."""

SUFFIXES = (".h5", ".hdf5", ".npz", ".mat")
_PARTS = ("train_paired", "val_paired", "test_paired")


@dataclass(frozen=True, kw_only=True)
class FieldKeys:
    """Where a file keeps what; groups and names are joined by ``/``."""

    channels: Mapping[str, str]
    """Channel to key."""
    species: str | None = None
    """A group, all members of which are channels ``n_<name>``: number densities."""
    conditions: str | None = None
    """Numbers per run (k) or per entry of a table (entries, k)."""
    condition_names: tuple[str, ...] = ()
    """Of the k conditions; numbered if they are not named."""
    positions: str | None = None
    time: str | None = None

    @property
    def single(self) -> tuple[str, ...]:
        """All keys but the members of the group."""
        others = (self.conditions, self.positions, self.time)
        return (*self.channels.values(), *(key for key in others if key is not None))


AUTHORS = FieldKeys(
    channels={"ne": "state/ne", "Te": "state/te", "V": "state/v", "T": "state/T"},
    species="state/num_of_density",
    conditions="conditions",
    positions="node/node_pos",
    time="state/t",
)


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """Where the settings are: ``.npz``, HDF5 or MATLAB, one row of numbers per sample."""

    path: Path
    key: str
    names_key: str | None = None
    """The sample folder of each row; without it rows follow the folders in alphabetical order."""
    columns: tuple[str, ...] = SETTINGS


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs:
    """A table of images and spectra, read one by one, with the settings where they are known."""

    folder: Path
    names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    settings: Float[Tensor, "n k"] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def image(self, index: int) -> Float[Tensor, "96 128 3"]:
        """As it is stored: rows from the top."""
        return _finite(self.folder / self.names[index] / "image.npy", (IMAGE,))

    def spectrum(self, index: int) -> Float[Tensor, " 3072"]:
        path = self.folder / self.names[index] / "spectra.npy"
        return _finite(path, ((SPECTRUM,), (SPECTRUM, 1))).reshape(SPECTRUM)


def open_pairs(folder: Path, settings: SettingsFile | None = None) -> Pairs:
    """The samples of a folder, or one sample, by name; nothing is read yet but the settings."""
    folder = Path(folder).absolute()
    names = tuple(sorted(_sample_names(folder)))
    if not names:
        raise SourceError(
            f"{folder}: expected sample folders such as train_paired000000 with image.npy and "
            "spectra.npy, found none"
        )
    if names == (".",):
        folder, names = folder.parent, (folder.name,)
    if settings is None:
        return Pairs(folder=folder, names=names)
    values = _read_settings(settings, names)
    return Pairs(folder=folder, names=names, columns=settings.columns, settings=values)


def split_pairs(pairs: Pairs, shares: Shares, *, seed: int) -> Split:
    """Samples drawn at random by set-point: those with the same settings go to the same part."""
    if pairs.settings is None:
        raise ValueError(
            f"{pairs.folder}: a split must keep samples of one set-point together, but the "
            "settings are not known; give their file to open_pairs"
        )
    return split_trajectories([tuple(row) for row in pairs.settings.tolist()], shares, seed=seed)


def recognise(path: Path) -> bool:
    try:
        if next(_sample_names(path), None) is not None:
            return True
        places = (path, path / "train", path / "val")
        files = [path, *(next(place.glob("*.h5"), path) for place in places)]
        for file in (file for file in files if file.is_file() and is_hdf5(file)):
            with contextlib.suppress(*DAMAGED), open_hdf5(file) as h5:
                if all(key in h5 for key in AUTHORS.single):
                    return True
    except OSError:
        pass
    return False


def open_recordings(
    path: Path,
    hints: Hints = Hints(),
    *,
    settings: SettingsFile | None = None,
    keys: FieldKeys = AUTHORS,
) -> Recordings:
    """Images as trajectories of one frame, or plasma fields (``open_fields``).

    ``settings`` gives the parameters of image and spectrum pairs, ``keys`` where a file has fields.
    """
    if next(_sample_names(Path(path)), None) is None:
        return open_fields(path, keys, hints)
    check_channels(Path(path), hints, {name: name for name in COLOURS})
    pairs = open_pairs(path, settings)
    return Recordings(
        kind="icp",
        path=Path(path),
        names=pairs.names,
        load=partial(_load_image, pairs=pairs),
        remarks=(
            "images of a plasma, no flow and no sequence in time; their spectra: icp.open_pairs",
            "image rows are taken to start at the top and were flipped",
        ),
    )


def _checked(path: Path, shapes: Sequence[tuple[int, ...]] = (IMAGE,)) -> np.ndarray:
    """The mapped array, checked by its header."""
    array = open_array(path)
    if array.shape not in shapes or array.dtype != np.float32:
        raise SourceError(
            f"{path}: expected float32 of shape {' or '.join(map(str, shapes))}, found "
            f"{array.dtype} of shape {array.shape}"
        )
    return array


def _finite(path: Path, shapes: Sequence[tuple[int, ...]]) -> Tensor:
    values = torch.from_numpy(_checked(path, shapes).copy())
    if not bool(values.isfinite().all()):
        raise SourceError(f"{path}: it holds values that are not finite; leave the sample out")
    return values


def _sample_names(folder: Path) -> Iterator[str]:
    """The folders of samples; ``.`` for a folder that is one."""
    if (folder / "image.npy").is_file() and (folder / "spectra.npy").is_file():
        yield "."
    elif folder.is_dir():
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(_PARTS) and entry.is_dir():
                    yield entry.name


def _read_settings(settings: SettingsFile, names: Sequence[str]) -> Tensor:
    """One row per sample, in the order of the samples."""
    path, texts = settings.path, () if settings.names_key is None else (settings.names_key,)
    stored = read_named(path, [settings.key], texts=texts)
    values = stored[settings.key]
    if values.ndim != 2 or values.shape[1] != len(settings.columns) or not len(values):
        raise SourceError(
            f"{path}: expected rows of {len(settings.columns)} numbers "
            f"({', '.join(settings.columns)}) at {settings.key!r}, found shape {values.shape}"
        )
    if not np.isfinite(values).all():
        raise SourceError(f"{path}: {settings.key!r} holds values that are not finite")
    owners = names if not texts else [name.strip() for name in stored[texts[0]].ravel().tolist()]
    if len(values) != len(owners):
        raise SourceError(
            f"{path}: expected one row for each of {len(owners)} samples at {settings.key!r}, "
            f"found {len(values)}" + ("" if texts else "; name the rows with names_key")
        )
    rows = {name: row for row, name in enumerate(owners)}
    absent = [name for name in names if name not in rows]
    if absent:
        raise SourceError(
            f"{path}: no row for {len(absent)} of {len(names)} samples, the first is "
            f"{absent[0]!r}; {settings.names_key!r} must hold the names of their folders"
        )
    return torch.from_numpy(values[[rows[name] for name in names]].astype(np.float32))


def _read_image(path: Path, frames: slice, channels: Sequence[int] | None) -> Tensor:
    """An image as one frame (1, c, y, x) with row 0 at the bottom."""
    image = torch.from_numpy(_checked(path)[::-1].copy()).movedim(-1, 0)[None][frames]
    return image if channels is None else image[:, list(channels)]


def _load_image(name: str, *, pairs: Pairs) -> Trajectory:
    folder = pairs.folder / name
    _checked(folder / "image.npy")  # the header is checked now
    states = MappedFrames((1, IMAGE[2], *IMAGE[:2]), partial(_read_image, folder / "image.npy"))
    values: dict[str, float] = {}
    if pairs.settings is not None:
        row = pairs.settings[bisect_left(pairs.names, name)].tolist()
        values = dict(zip(pairs.columns, row, strict=True))
    return Trajectory(
        name=name,
        states=states,
        time=torch.zeros(1, dtype=torch.float64),
        spec=FieldSpec(
            channels=COLOURS,
            parameters=tuple(Parameter(name=key) for key in pairs.columns),
            grid=Grid(IMAGE[:2]),
        ),
        parameters=values,
        valid=finite_points(states),
        source={
            "title": "Optical images and emission spectra of inductively coupled plasmas",
            "doi": "10.5281/zenodo.7704879",
            "kind": "measured",
            "file": str(folder),
            "split": name.partition("_")[0],
        },
        local={"rows": "flipped: row 0 is the bottom"},
        length_unit="px",
    )


def read_named(
    path: Path, keys: Sequence[str], *, group: str | None = None, texts: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Arrays of numbers by key, with all members of a group, and arrays of texts."""
    with _opened(path) as (names, read):
        members = [] if group is None else [n for n in names if n.startswith(f"{group}/")]
        wanted = [*keys, *texts, *([] if group is None or members else [f"{group}/*"])]
        require_keys(path, wanted, names)
        arrays = {key: read(key) for key in (*keys, *texts, *members)}
    for key, array in arrays.items():
        kinds, what = ("U", "texts") if key in texts else ("fiub", "numbers")
        if array.dtype.kind not in kinds:
            raise SourceError(f"{path}: expected {what} at {key!r}, found {array.dtype}")
    return arrays


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Callable[[str], np.ndarray]]]:
    """The names in a file and a way to read one."""
    if path.suffix.lower() == ".npz":
        with open_archive(path) as archive:
            yield archive.files, archive.__getitem__
    elif path.suffix.lower() == ".mat" and not is_hdf5(path):
        arrays = call_scipy(path, "loadmat")
        yield [name for name in arrays if not name.startswith("__")], arrays.__getitem__
    else:
        with reading(path, "an HDF5 file"), open_hdf5(path) as file:
            names: list[str] = []
            file.visititems(
                lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
            )

            def read(name: str) -> np.ndarray:
                dataset = file[name]
                if h5py.check_string_dtype(dataset.dtype) is not None:
                    return np.asarray(dataset.asstr()[()], dtype=str)
                array = np.asarray(dataset[()])
                # MATLAB writes the axes in reverse.
                return array.T if path.suffix.lower() == ".mat" else array

            yield names, read


def open_fields(path: Path, keys: FieldKeys = AUTHORS, hints: Hints = Hints()) -> Recordings:
    """The runs or table entries of a file, or of all files in a folder and the folders in it."""
    path = Path(path).absolute()
    table = _Table(path, keys, hints)
    return Recordings(
        kind="icp",
        path=path,
        names=tuple(table.entries),
        load=table.load,
        remarks=("fields of one time: meant for mapping channels to others, not for forecasting",),
    )


@dataclass(frozen=True)
class _Entry:
    file: Path
    index: int | None
    """Row of a table; None for a whole run."""


@dataclass
class _Table:
    """Makes trajectories of entries; the arrays of the last file stay in memory."""

    path: Path
    keys: FieldKeys
    hints: Hints
    entries: dict[str, _Entry] = field(default_factory=dict)
    _last: tuple[Path, dict[str, np.ndarray]] | None = None

    def __post_init__(self) -> None:
        files = [self.path]
        if not self.path.is_file():
            found = sorted(self.path.glob("*")) + sorted(self.path.glob("*/*"))
            files = [f for f in found if f.suffix.lower() in SUFFIXES and f.is_file()]
        if not files:
            raise SourceError(f"{self.path}: expected files {', '.join(SUFFIXES)}, found none")
        for file in files:
            place = file.relative_to(self.path) if file != self.path else Path(file.name)
            name = "_".join(place.with_suffix("").parts)
            if name in self.entries or f"{name}_{0:06d}" in self.entries:
                raise SourceError(
                    f"{self.path}: two files are called {name!r}; open them one by one"
                )
            if self.keys.time is not None:
                self.entries[name] = _Entry(file, None)
                continue
            count = len(next(iter(self._fields(file, self._read(file)).values())))
            self.entries |= {f"{name}_{i:06d}": _Entry(file, i) for i in range(count)}

    def load(self, name: str) -> Trajectory:
        entry, keys = self.entries[name], self.keys
        stored = self._read(entry.file)
        rows = slice(None) if entry.index is None else slice(entry.index, entry.index + 1)
        fields = {key: array[rows] for key, array in self._fields(entry.file, stored).items()}
        if keys.positions is None:
            ny, nx = next(iter(fields.values())).shape[1:]
            x, y = np.arange(float(nx)), np.arange(float(ny))
        else:
            x, y = stored[keys.positions].T
        # What was done is in the local representation, with the interpolation error.
        trajectory, _ = on_uniform_grid(
            name,
            fields,
            x,
            y,
            time=None if keys.time is None else stored[keys.time].ravel(),
            units=dict.fromkeys(fields, "unknown"),
            parameters=self._conditions(entry, stored),
            source={"file": str(entry.file), "entry": entry.index},
            hints=self.hints,
        )
        return trajectory

    def _read(self, file: Path) -> dict[str, np.ndarray]:
        if self._last is None or self._last[0] != file:
            self._last = file, read_named(file, self.keys.single, group=self.keys.species)
        return self._last[1]

    def _fields(self, file: Path, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Channels as (t, n) or (t, y, x), all of one shape."""
        keys = dict(self.keys.channels)
        if self.keys.species is not None:
            prefix = f"{self.keys.species}/"
            members = sorted(key for key in stored if key.startswith(prefix))
            keys |= {f"n_{key.removeprefix(prefix)}": key for key in members}
        axes = 3 if self.keys.positions is None else 2
        fields = {}
        for channel, key in keys.items():
            array = stored[key]
            while array.ndim > axes and array.shape[0] == 1:
                array = array[0]
            fields[channel] = array[None] if array.ndim == axes - 1 else array
        shape = next(iter(fields.values())).shape
        if self.keys.positions is not None:
            points = stored[self.keys.positions].shape
            if len(points) != 2 or points[1] != 2 or points[0] != shape[-1]:
                raise SourceError(
                    f"{file}: expected {shape[-1]} positions (n, 2) at {self.keys.positions!r}, as "
                    f"there are values, found shape {points}"
                )
        for channel, array in fields.items():
            if array.ndim != axes or array.shape != shape or not array.size:
                raise SourceError(
                    f"{file}: expected all fields as {'(t, n)' if axes == 2 else '(t, y, x)'} of "
                    f"one shape, found {stored[keys[channel]].shape} at {keys[channel]!r} beside "
                    f"{shape}; name other keys"
                )
        return fields

    def _conditions(self, entry: _Entry, stored: Mapping[str, np.ndarray]) -> dict[str, float]:
        if self.keys.conditions is None:
            return {}
        array = np.atleast_1d(stored[self.keys.conditions])
        if array.ndim == 2 and len(array) == 1:
            array = array[0]
        elif array.ndim == 2 and entry.index is not None and entry.index < len(array):
            array = array[entry.index]
        names = self.keys.condition_names
        names = names or tuple(f"condition_{i + 1}" for i in range(array.shape[-1]))
        if array.shape != (len(names),) or not np.isfinite(array).all():
            raise SourceError(
                f"{entry.file}: expected {len(names)} finite numbers at {self.keys.conditions!r}, "
                f"per run or per entry, found {array if array.ndim == 1 else array.shape}"
            )
        return dict(zip(names, array.tolist(), strict=True))
