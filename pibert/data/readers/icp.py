"""Inductively coupled plasmas: images with emission spectra, or runs of plasma fields.

The pairs (Daly, Fieldsend, Hassall, Tabor 2023, doi 10.1088/2632-2153/aced7f; data
10.5281/zenodo.7704879) are optical measurements of an etch tool. A folder per sample,
``{train,val,test}_paired*``, holds ``image.npy``, float32 (96, 128, 3), and ``spectra.npy``,
float32 (3072) or (3072, 1), both between 0 and 1. There is no velocity, no pressure field and no
time series: a sample is a trajectory of one frame.

Several samples share a set-point. A split must keep those together (``split_trajectories`` with the
set-points as groups), or test samples are near copies of training samples. The archive does not
document where it keeps the settings, so the caller passes them.

The runs are HDF5 files in the layout of the converter that the PIBERT paper's authors published:
``state/t``, fields (1, t, n) at scattered nodes ``node/node_pos`` (n, 2), and ``conditions``. The
paper maps T from the other fields of the same time. Its
data are not public.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pibert.data.hdf5 import DAMAGED, is_hdf5, open_hdf5
from pibert.data.readers.arrays import open_array, require_keys
from pibert.data.readers.recordings import (
    Hints,
    Recordings,
    SourceError,
    check_channels,
    reading,
    rename_channels,
)
from pibert.data.readers.shared.grids import on_uniform_grid
from pibert.data.views import MappedFrames, finite_points
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory

TITLE = "ICP plasma (images and spectra, or runs of fields)"
HINTS = ("channels", "shape")

IMAGE = (96, 128, 3)
COLOURS = ("red", "green", "blue")
SPECTRUM = 3072
SETTINGS = ("coil_power", "table_power", "Ar", "O2", "CF4", "SF6", "pressure")
"""The seven settings, in the order that a third party reports; not confirmed by the publishers."""

_SAMPLES = ("train_paired", "val_paired", "test_paired")
_CHANNELS = {"ne": "state/ne", "Te": "state/te", "V": "state/v", "T": "state/T"}
_SPECIES = "state/num_of_density"
"""A group; its members are the number densities ``n_NAME``."""
_TIME, _NODES, _CONDITIONS = "state/t", "node/node_pos", "conditions"
_REQUIRED = (*_CHANNELS.values(), _TIME, _NODES, _CONDITIONS)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Images and spectra, read one by one, with the settings where they are known."""

    folder: Path
    names: tuple[str, ...]
    settings: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The values of ``SETTINGS`` by sample."""

    def __len__(self) -> int:
        return len(self.names)

    def image(self, index: int) -> Float[Tensor, "96 128 3"]:
        """An image as stored: rows from the top."""
        return _finite(self.folder / self.names[index] / "image.npy", IMAGE)

    def spectrum(self, index: int) -> Float[Tensor, " 3072"]:
        path = self.folder / self.names[index] / "spectra.npy"
        return _finite(path, (SPECTRUM,), (SPECTRUM, 1)).reshape(SPECTRUM)


def open_pairs(folder: Path, settings: Mapping[str, Sequence[float]] | None = None) -> Pairs:
    """Find the samples of a folder, or one sample; ``settings`` has seven numbers per sample."""
    folder = Path(folder).absolute()
    names = tuple(sorted(_sample_names(folder)))
    if not names:
        raise SourceError(
            f"{folder}: no folders train_paired* with image.npy and spectra.npy; give theirs"
        )
    if names == (".",):
        folder, names = folder.parent, (folder.name,)
    for name in names if settings else ():
        values = (settings or {}).get(name, ())
        if len(values) != len(SETTINGS) or not np.isfinite(values).all():
            raise SourceError(
                f"{folder}: expected {len(SETTINGS)} finite settings ({', '.join(SETTINGS)}) for "
                f"every sample, found {list(values)} for {name!r}"
            )
    return Pairs(folder, names, settings or {})


def recognise(path: Path) -> bool:
    if next(_sample_names(path), None) is not None:
        return True
    folders = (path, path / "train", path / "val")
    files = [path, *(next(folder.glob("*.h5"), path) for folder in folders)]
    for file in (file for file in files if file.is_file() and is_hdf5(file)):
        with contextlib.suppress(*DAMAGED), open_hdf5(file) as h5:
            if all(key in h5 for key in _REQUIRED):
                return True
    return False


def open_recordings(
    path: Path,
    hints: Hints = Hints(),
    *,
    settings: Mapping[str, Sequence[float]] | None = None,
) -> Recordings:
    """Open images as trajectories of one frame, or the runs of a file or of two folder levels.

    ``settings`` become the parameters of images, as for ``open_pairs``.
    """
    path = Path(path).absolute()
    if next(_sample_names(path), None) is None:
        runs = _find_runs(path)
        return Recordings(
            kind="icp",
            path=path,
            names=tuple(runs),
            load=lambda name: _load_run(name, runs[name], hints),
            notes=("fields of one time: meant for mapping channels to others, not forecasting",),
        )
    check_channels(path, hints, {name: name for name in COLOURS})
    pairs = open_pairs(path, settings)
    return Recordings(
        kind="icp",
        path=path,
        names=pairs.names,
        load=lambda name: _load_image(name, pairs),
        notes=(
            "images of a plasma, no flow and no time series; their spectra: icp.open_pairs",
            "image rows are assumed to start at the top and were flipped",
        ),
    )


def _sample_names(folder: Path) -> Iterator[str]:
    """The names of sample folders; ``.`` if the folder is a sample itself."""
    if (folder / "image.npy").is_file() and (folder / "spectra.npy").is_file():
        yield "."
    elif folder.is_dir():
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(_SAMPLES) and entry.is_dir():
                    yield entry.name


def _mapped(path: Path, *shapes: tuple[int, ...]) -> np.ndarray:
    """The mapped array of one of these shapes, checked by its header."""
    array = open_array(path)
    if array.shape not in shapes or array.dtype != np.float32:
        raise SourceError(
            f"{path}: expected float32 of shape {' or '.join(map(str, shapes))}, found "
            f"{array.dtype} of shape {array.shape}"
        )
    return array


def _finite(path: Path, *shapes: tuple[int, ...]) -> Tensor:
    values = torch.from_numpy(_mapped(path, *shapes).copy())
    if not bool(values.isfinite().all()):
        raise SourceError(f"{path}: it holds values that are not finite; leave the sample out")
    return values


def _read_image(path: Path, frames: slice, channels: Sequence[int] | None) -> Tensor:
    """An image as one frame (1, c, y, x) with row 0 at the bottom."""
    image = torch.from_numpy(_mapped(path, IMAGE)[::-1].copy()).movedim(-1, 0)[None][frames]
    return image if channels is None else image[:, list(channels)]


def _load_image(name: str, pairs: Pairs) -> Trajectory:
    path = pairs.folder / name / "image.npy"
    _mapped(path, IMAGE)
    states = MappedFrames((1, IMAGE[2], *IMAGE[:2]), partial(_read_image, path))
    values = dict(zip(SETTINGS, map(float, pairs.settings.get(name, ())), strict=False))
    return Trajectory(
        name=name,
        states=states,
        time=torch.zeros(1, dtype=torch.float64),
        spec=FieldSpec(
            channels=COLOURS,
            parameters=tuple(Parameter(name=key) for key in values),
            grid=Grid(IMAGE[:2]),
        ),
        parameters=values,
        valid=finite_points(states),
        source={
            "title": "Optical images and emission spectra of inductively coupled plasmas",
            "doi": "10.5281/zenodo.7704879",
            "kind": "measured",
            "file": str(path.parent),
            "split": name.partition("_")[0],
        },
        local={"rows": "flipped: row 0 is the bottom"},
        length_unit="px",
    )


def _find_runs(path: Path) -> dict[str, Path]:
    files = [path]
    if not path.is_file():
        found = [*sorted(path.glob("*")), *sorted(path.glob("*/*"))]
        files = [f for f in found if f.suffix.lower() in (".h5", ".hdf5") and f.is_file()]
    base = path.parent if path.is_file() else path
    runs = {"_".join(file.relative_to(base).with_suffix("").parts): file for file in files}
    if not files or len(runs) < len(files):
        raise SourceError(
            f"{path}: expected plasma runs, .h5 files of different names, found {len(files)} files "
            f"with {len(runs)} names"
        )
    return runs


def _load_run(name: str, path: Path, hints: Hints) -> Trajectory:
    with reading(path, "the run of plasma fields"), open_hdf5(path) as file:
        names: list[str] = []
        file.visit(names.append)
        require_keys(path, _REQUIRED, names)
        species = sorted(file.get(_SPECIES, ()))
        keys = _CHANNELS | {f"n_{key}": f"{_SPECIES}/{key}" for key in species}
        fields = {channel: np.asarray(file[key]) for channel, key in keys.items()}
        time, nodes, conditions = (np.asarray(file[k]) for k in (_TIME, _NODES, _CONDITIONS))
        time, conditions = time.ravel(), conditions.ravel()
    if nodes.ndim != 2 or nodes.shape[1] != 2 or not np.isfinite(conditions).all():
        raise SourceError(
            f"{path}: expected {_NODES} of shape (n, 2) and finite {_CONDITIONS}, found shape "
            f"{nodes.shape} and {conditions}"
        )
    shape = (len(time), len(nodes))
    for channel, array in fields.items():
        is_whole = array.shape[-2:] == shape and array.size == shape[0] * shape[1]
        if not is_whole or array.dtype.kind not in "fiu":
            raise SourceError(
                f"{path}: expected numbers of shape {(1, *shape)} at {keys[channel]!r}, found "
                f"{array.dtype} of shape {array.shape}"
            )
    channels = rename_channels(path, hints, fields)
    # The trajectory's local representation records the gridding and its error.
    trajectory, _ = on_uniform_grid(
        name,
        {channel: array.reshape(shape) for channel, array in channels.items()},
        *nodes.T,
        time=time,
        units=dict.fromkeys(channels, "unknown"),
        parameters={f"condition_{i}": float(v) for i, v in enumerate(conditions, start=1)},
        source={"file": str(path)},
        shape=hints.shape,
    )
    return trajectory
