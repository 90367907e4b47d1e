"""The Well: many trajectories of one simulated set per HDF5 file.

The layout (https://polymathic-ai.org/the_well/data_format): attributes name the set and its
parameters; the group ``dimensions`` has time, x and y; ``t0_fields``, ``t1_fields`` and
``t2_fields`` hold scalars, vectors and tensors as (trajectory, time, x, y, components), where an
axis along which a field does not vary is missing or has one entry; ``scalars`` has numbers without
a position; ``boundary_conditions`` states what bounds the domain. Arrays are x-first there and
y-first here; reading transposes them.

Channels are named after the fields: velocity becomes u and v, pressure p, density rho; other
vectors and tensors get the letters of their components. Only two-dimensional sets on uniform
Cartesian grids are read.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data.format.reading import as_text
from pibert.data.hdf5 import is_hdf5, open_hdf5
from pibert.data.readers.recordings import (
    Hints,
    Recordings,
    SourceError,
    reading,
    rename_channels,
)
from pibert.data.readers.shared.stores import Hdf5Store, smooth_time, uniform_step
from pibert.data.views import MappedFrames, pick
from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides, Trajectory

TITLE = "The Well (HDF5)"

_NAMES = {"velocity_x": "u", "velocity_y": "v", "pressure": "p", "density": "rho"}
_LOGARITHMIC = ("Re", "Reynolds", "Ra", "Rayleigh", "Prandtl", "Schmidt")
_BOUNDARIES = {"periodic": Boundary.PERIODIC, "wall": Boundary.WALL, "open": Boundary.OPEN}
_SIDES = {"x": ("left", "right"), "y": ("bottom", "top")}


def recognise(path: Path) -> bool:
    files = _files(path)
    if not files or not is_hdf5(files[0]):
        return False
    with reading(files[0]), open_hdf5(files[0]) as h5:
        return "dimensions" in h5 and "t0_fields" in h5 and "n_spatial_dims" in h5.attrs


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    """Open the trajectories of a file, or of all files of a folder, as ``FILE-NUMBER``."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    sets = []
    for file in _files(path):
        with reading(file, "the layout of The Well"):
            sets.append(_describe(Hdf5Store(file), hints))
    trajectories = {
        f"{data.store.path.stem}-{number}": (data, number)
        for data in sets
        for number in range(data.count)
    }
    if not trajectories:
        raise SourceError(f"{path}: it holds no trajectory of The Well")
    return Recordings(
        kind="well",
        path=path,
        names=tuple(trajectories),
        load=lambda name: _load(name, *trajectories[name]),
        notes=tuple(dict.fromkeys(note for data in sets for note in data.notes)),
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in (".h5", ".hdf5"))


class _Channel(NamedTuple):
    """A component of a dataset."""

    key: str
    component: int
    sample_varying: bool
    time_varying: bool
    layout: tuple[int, int, int]
    """Entries along the two axes, 1 where it does not vary, and components."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Set:
    """The trajectories of a file."""

    store: Hdf5Store
    count: int
    x_first: bool
    time: np.ndarray
    """(t), or (trajectory, t)."""
    channels: Mapping[str, _Channel]
    scalars: Mapping[str, np.ndarray]
    """(trajectory, 1) or (trajectory, t)."""
    grid: Grid
    source: Mapping[str, Any]
    notes: tuple[str, ...]


def _load(name: str, data: _Set, number: int) -> Trajectory:
    time, dt = smooth_time(data.time if data.time.ndim == 1 else data.time[number])
    rows = {key: row[number] for key, row in data.scalars.items()}
    parameters = {key: float(row[0]) for key, row in rows.items() if len(row) == 1}
    channels = tuple(data.channels)
    return Trajectory(
        name=name,
        states=MappedFrames(
            (len(time), len(channels), *data.grid.shape), partial(_read_fields, data, number)
        ),
        time=torch.from_numpy(time),
        spec=FieldSpec(
            channels=channels,
            units=("1",) * len(channels),
            parameters=tuple(
                Parameter(name=key, scaling="log" if key in _LOGARITHMIC and v > 0 else "linear")
                for key, v in parameters.items()
            ),
            dt=dt,
            grid=data.grid,
        ),
        parameters=parameters,
        series={
            key: torch.from_numpy(row.astype(np.float64))
            for key, row in rows.items()
            if key not in parameters
        },
        source={**data.source, "trajectory": number},
        local={"stride": 1, "channels": list(channels), "notes": list(data.notes)},
    )


def _read_fields(data: _Set, number: int, frames: slice, channels: Sequence[int] | None) -> Tensor:
    """Read the fields of one trajectory as (t, c, y, x)."""
    chosen = pick(list(data.channels.values()), channels)
    arrays: dict[str, np.ndarray] = {}
    for channel in chosen:
        if channel.key not in arrays:
            where = (number,) * channel.sample_varying + (frames,) * channel.time_varying
            # All components in one last axis.
            arrays[channel.key] = data.store.read(channel.key, where).reshape(-1, *channel.layout)
    count = len(range(data.time.shape[-1])[frames])
    block = np.empty((count, len(chosen), *data.grid.shape), np.float32)
    for index, channel in enumerate(chosen):
        field = arrays[channel.key][..., channel.component]
        block[:, index] = field.swapaxes(-1, -2) if data.x_first else field
    return torch.from_numpy(block)


def _describe(store: Hdf5Store, hints: Hints) -> _Set:
    path, h5 = store.path, store.open()
    if "n_spatial_dims" not in h5.attrs or "dimensions" not in h5:
        raise SourceError(
            f"{path}: files of The Well have the attribute n_spatial_dims and the group "
            f"dimensions, found {sorted(h5.attrs)} and {sorted(h5)}"
        )
    dims = _texts(h5["dimensions"].attrs["spatial_dims"])
    grid_type = as_text(h5.attrs.get("grid_type", "cartesian"))
    is_plane = int(h5.attrs["n_spatial_dims"]) == 2 and sorted(dims) == ["x", "y"]
    if not is_plane or grid_type != "cartesian":
        raise SourceError(
            f"{path}: only plane Cartesian sets are read, found a {grid_type} one in {dims}"
        )
    axes = {name: np.asarray(h5["dimensions"][name][...]) for name in dims}
    steps = {name: uniform_step(axis) or 0.0 for name, axis in axes.items()}
    if min(steps.values()) <= 0:
        raise SourceError(
            f"{path}: the points of x and y are not uniform and growing (steps: {steps}, 0: not "
            "uniform); resample the set to a uniform grid"
        )
    x, y = axes["x"].tolist(), axes["y"].tolist()
    sides, notes = _sides(h5)
    count, time = int(h5.attrs["n_trajectories"]), np.asarray(h5["dimensions"]["time"][...])
    channels = _channels(path, h5, count, time.shape[-1], {n: len(a) for n, a in axes.items()})
    channels = rename_channels(path, hints, channels)
    return _Set(
        store=store,
        count=count,
        x_first=dims[0] == "x",
        time=time,
        channels=channels,
        scalars=_scalars(h5, count),
        grid=Grid((len(y), len(x)), steps["x"], steps["y"], sides, origin=(x[0], y[0])),
        source={
            "title": f"The Well: {as_text(h5.attrs['dataset_name'])}",
            "url": "https://polymathic-ai.org/the_well",
            "kind": "simulated",
            "file": path.name,
            "frames": time.shape[-1],
            "grid": [len(y), len(x)],
        },
        notes=notes,
    )


def _channels(
    path: Path, h5: h5py.File, count: int, frames: int, sizes: Mapping[str, int]
) -> dict[str, _Channel]:
    """The channels in the file's order: scalars, vectors, tensors; ``sizes`` are those of axes."""
    channels: dict[str, _Channel] = {}
    for order in range(3):
        group = h5.get(f"t{order}_fields")
        for field in [] if group is None else _texts(group.attrs.get("field_names", list(group))):
            dataset = group[field]
            varies = [bool(dataset.attrs.get(f"{w}_varying", True)) for w in ("sample", "time")]
            lead = tuple(n for n, v in zip((count, frames), varies, strict=True) if v)
            along = dataset.attrs.get("dim_varying", (True, True))
            full = (*sizes.values(), 2**order)
            thin = (*(n if v else 1 for n, v in zip(full[:2], along, strict=True)), 2**order)
            rest = int(np.prod(dataset.shape[len(lead) :]))
            layout = next((a for a in (thin, full) if int(np.prod(a)) == rest), None)
            if dataset.shape[: len(lead)] != lead or layout is None:
                raise SourceError(
                    f"{path}: {dataset.name}: expected {lead} trajectories and frames (those along "
                    f"which it varies) of {full} points and components, found {dataset.shape}"
                )
            for number, letters in enumerate(itertools.product(sizes, repeat=order)):
                name = f"{field}_{''.join(letters)}" if order else field
                channel = _Channel(dataset.name, number, varies[0], varies[1], layout)
                channels[_NAMES.get(name, name)] = channel
    if not channels:
        raise SourceError(f"{path}: there is no field in it, found {sorted(h5)}")
    return channels


def _scalars(h5: h5py.File, count: int) -> dict[str, np.ndarray]:
    """Numbers of every trajectory: (trajectory, 1), or (trajectory, t) where they change."""
    found: dict[str, np.ndarray] = {}
    for name in _texts(h5.attrs.get("simulation_parameters", [])):
        value = h5.attrs.get(name)
        if isinstance(value, int | float | np.number):
            found[name] = np.full((count, 1), float(value))
    for name, dataset in h5.get("scalars", {}).items():
        rows = np.asarray(dataset[...], np.float64)
        rows = rows.reshape(count if dataset.attrs.get("sample_varying", False) else 1, -1)
        if not dataset.attrs.get("time_varying", False):
            rows = rows[:, :1]
        found[name] = np.broadcast_to(rows, (count, rows.shape[1]))
    return found


def _sides(h5: h5py.File) -> tuple[Sides, tuple[str, ...]]:
    """The boundary of each side, and notes; a side that no boundary condition covers is open."""
    sides: dict[str, Boundary] = {}
    notes = []
    for name, group in h5.get("boundary_conditions", {}).items():
        kind = _BOUNDARIES.get(as_text(group.attrs["bc_type"]).lower())
        if kind is None:
            notes.append(f"boundary {name!r} of kind {group.attrs['bc_type']!r} is left open")
            continue
        dims = _texts(group.attrs["associated_dims"])
        mask = np.asarray(group["mask"][...], bool) if "mask" in group else np.ones(1, bool)
        while mask.ndim > len(dims):
            mask = mask[0]  # one that varies by trajectory or time
        for axis, dim in enumerate(dims):
            for side, end in zip(_SIDES.get(dim, ()), (0, -1), strict=False):
                covers = mask.ndim < len(dims) or bool(mask.take(end, axis=axis).all())
                if covers or kind is Boundary.PERIODIC:
                    sides[side] = kind
    return Sides(**sides), tuple(notes)


def _texts(values: Any) -> list[str]:
    return [] if isinstance(values, h5py.Empty) else [as_text(v) for v in np.atleast_1d(values)]
