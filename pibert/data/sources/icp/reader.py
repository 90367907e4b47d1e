"""Inductively coupled plasmas: images with emission spectra, or fields by name (``icp_fields``).

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
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.hdf5 import DAMAGED, is_hdf5, open_hdf5
from pibert.data.sources.arrays import open_array
from pibert.data.sources.icp.fields import AUTHORS, FieldKeys, open_fields
from pibert.data.sources.icp.named_arrays import read_named
from pibert.data.sources.recordings import Hints, Recordings, SourceError, check_channels
from pibert.data.splits import Shares, Split, split_trajectories
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory

TITLE = "ICP plasma (images and spectra, or fields by name)"

IMAGE = (96, 128, 3)
COLOURS = ("red", "green", "blue")
SPECTRUM = 3072
SETTINGS = ("coil_power", "table_power", "Ar", "O2", "CF4", "SF6", "pressure")
"""The seven settings, in the order that a third party reports; not confirmed by the publishers."""

_PARTS = ("train_paired", "val_paired", "test_paired")


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
        return _finite(self.folder / self.names[index] / "image.npy", open_image)

    def spectrum(self, index: int) -> Float[Tensor, " 3072"]:
        return _finite(self.folder / self.names[index] / "spectra.npy", open_spectrum)

    def hide_patches(
        self, index: int, share: float, *, patch: int = 16, seed: int = 0
    ) -> tuple[Float[Tensor, "96 128 3"], Bool[Tensor, "96 128"]]:
        """An image with square patches set to zero, and where: the task is to fill them in."""
        if not 0 < share < 1 or IMAGE[0] % patch or IMAGE[1] % patch:
            raise ValueError(
                f"expected a share between 0 and 1 and a patch that divides {IMAGE[:2]}, found "
                f"{share} and {patch}"
            )
        rows, columns = IMAGE[0] // patch, IMAGE[1] // patch
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(rows * columns, generator=generator)
        coarse = (order < round(share * rows * columns)).reshape(rows, columns)
        hidden = coarse.repeat_interleave(patch, 0).repeat_interleave(patch, 1)
        return self.image(index).masked_fill(hidden[..., None], 0.0), hidden


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
        files = [path, *(next(place.glob("*.h5"), None) for place in places)]
        return any(file is not None and _has_authors_keys(file) for file in files)
    except OSError:
        return False


def open_recordings(
    path: Path,
    hints: Hints = Hints(),
    *,
    settings: SettingsFile | None = None,
    keys: FieldKeys = AUTHORS,
) -> Recordings:
    """Images as trajectories of one frame, or plasma fields (see ``icp_fields.open_fields``).

    Args:
        path: A folder of pairs, or a file or folder of fields.
        hints: For fields.
        settings: For pairs: their parameters.
        keys: For fields: where they are in the files.
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


def open_image(path: Path) -> np.ndarray:
    """The mapped image, checked by its header."""
    return _checked(path, (IMAGE,))


def open_spectrum(path: Path) -> np.ndarray:
    return _checked(path, ((SPECTRUM,), (SPECTRUM, 1))).reshape(SPECTRUM)


def _checked(path: Path, shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    array = open_array(path)
    if array.shape not in shapes or array.dtype != np.float32:
        raise SourceError(
            f"{path}: expected float32 of shape {' or '.join(map(str, shapes))}, found "
            f"{array.dtype} of shape {array.shape}"
        )
    return array


def _finite(path: Path, opener: Callable[[Path], np.ndarray]) -> Tensor:
    values = torch.from_numpy(opener(path).copy())
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


def _has_authors_keys(path: Path) -> bool:
    if not path.is_file() or not is_hdf5(path):
        return False
    try:
        with open_hdf5(path) as file:
            return all(key in file for key in AUTHORS.single)
    except DAMAGED:
        return False


@dataclass(frozen=True)
class _StoredImage:
    """An image as one frame: channel, y, x, with row 0 at the bottom."""

    path: Path

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, IMAGE[2], IMAGE[0], IMAGE[1])

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        image = torch.from_numpy(open_image(self.path)[::-1].copy()).movedim(-1, 0)[None][frames]
        return image if channels is None else image[:, list(channels)]


@dataclass(frozen=True)
class _Finite:
    """Points where all colours are finite."""

    states: _StoredImage

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *IMAGE[:2])

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        return self.states.read(frames).isfinite().all(1)


def _load_image(name: str, *, pairs: Pairs) -> Trajectory:
    folder = pairs.folder / name
    open_image(folder / "image.npy")  # the header is checked now
    states = _StoredImage(folder / "image.npy")
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
        valid=_Finite(states),
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
