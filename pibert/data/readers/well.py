"""The Well: many trajectories of one simulated set per HDF5 file.

The layout (https://polymathic-ai.org/the_well/data_format): attributes say what the file is and
its parameters; the group ``dimensions`` has time, x and y; ``t0_fields``, ``t1_fields`` and
``t2_fields`` hold scalars, vectors and tensors as (trajectory, time, x, y, components), where an
axis along which a field does not vary is missing or has one entry; ``scalars`` has numbers without
a place; ``boundary_conditions`` states what bounds the domain. Arrays are x-first there and y-first
here; they are turned when they are read.

Channels are named after the fields: velocity becomes u and v, pressure p, density rho; other
vectors and tensors get the letters of their components. A field that does not change in time is a
channel like any other. Two-dimensional sets on uniform Cartesian grids only.
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
from pibert.data.hdf5 import DAMAGED, open_hdf5
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.stores import Hdf5Store, reading, smooth_time, uniform_step
from pibert.data.views import MappedFrames, pick
from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides, Trajectory

TITLE = "The Well (HDF5)"

_NAMES = {"velocity_x": "u", "velocity_y": "v", "pressure": "p", "density": "rho"}
_LOGARITHMIC = ("Re", "Reynolds", "Ra", "Rayleigh", "Prandtl", "Schmidt")
_BOUNDARIES = {"periodic": Boundary.PERIODIC, "wall": Boundary.WALL, "open": Boundary.OPEN}
_SIDES = {"x": ("left", "right"), "y": ("bottom", "top")}


def recognise(path: Path) -> bool:
    try:
        with open_hdf5(_files(path)[0]) as h5:
            return "dimensions" in h5 and "t0_fields" in h5 and "n_spatial_dims" in h5.attrs
    except DAMAGED:
        return False


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    """The trajectories of a file, or of all files of a folder, as ``FILE-NUMBER``."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    sets = [_describe(Hdf5Store(file), hints) for file in _files(path)]
    places = {
        f"{data.store.path.stem}-{number}": (data, number)
        for data in sets
        for number in range(data.count)
    }
    if not places:
        raise SourceError(f"{path}: it holds no trajectory of The Well")
    remarks = dict.fromkeys(remark for data in sets for remark in data.remarks)
    load, names = partial(_load, places=places), tuple(places)
    return Recordings(kind="well", path=path, names=names, load=load, notes=tuple(remarks))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in (".h5", ".hdf5"))


class _Piece(NamedTuple):
    """One channel: a component of a dataset."""

    key: str
    component: int
    sample_varying: bool
    time_varying: bool
    layout: tuple[int, int, int]
    """Entries along the two axes, 1 where it does not vary, and components."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Set:
    """What a file states about its trajectories."""

    store: Hdf5Store
    count: int
    x_first: bool
    time: np.ndarray
    """(t), or (trajectory, t)."""
    pieces: Mapping[str, _Piece]
    scalars: Mapping[str, np.ndarray]
    """(trajectory, 1) or (trajectory, t)."""
    grid: Grid
    facts: Mapping[str, Any]
    remarks: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.time.shape[-1], *self.grid.shape)


def _load(name: str, *, places: Mapping[str, tuple[_Set, int]]) -> Trajectory:
    data, number = places[name]
    time, dt = smooth_time(data.time if data.time.ndim == 1 else data.time[number])
    constant = {key: row for key, row in data.scalars.items() if row.shape[1] == 1}
    parameters = {key: float(row[number, 0]) for key, row in constant.items()}
    channels = tuple(data.pieces)
    spec = FieldSpec(
        channels=channels,
        units=("1",) * len(channels),
        parameters=tuple(
            Parameter(name=key, scaling="log" if key in _LOGARITHMIC and v > 0 else "linear")
            for key, v in parameters.items()
        ),
        dt=dt,
        grid=data.grid,
    )
    t, ny, nx = data.shape
    return Trajectory(
        name=name,
        states=MappedFrames((t, len(channels), ny, nx), partial(_read_fields, data, number)),
        time=torch.from_numpy(time),
        spec=spec,
        parameters=parameters,
        series={
            key: torch.from_numpy(row[number].astype(np.float64))
            for key, row in data.scalars.items()
            if key not in constant
        },
        source={**data.facts, "trajectory": number},
        local={"stride": 1, "channels": list(channels), "remarks": list(data.remarks)},
    )


def _read_fields(data: _Set, number: int, frames: slice, channels: Sequence[int] | None) -> Tensor:
    """The fields of one trajectory as (t, c, y, x)."""
    chosen = pick(list(data.pieces.values()), channels)
    arrays: dict[str, np.ndarray] = {}
    for piece in chosen:
        if piece.key not in arrays:
            where = (number,) * piece.sample_varying + (frames,) * piece.time_varying
            # All components in one last axis.
            arrays[piece.key] = data.store.read(piece.key, where).reshape(-1, *piece.layout)
    count, (ny, nx) = len(range(data.shape[0])[frames]), data.grid.shape
    block = np.empty((count, len(chosen), ny, nx), np.float32)
    for channel, piece in enumerate(chosen):
        field = arrays[piece.key][..., piece.component]
        block[:, channel] = field.swapaxes(-1, -2) if data.x_first else field
    return torch.from_numpy(block)


def _describe(store: Hdf5Store, hints: Hints) -> _Set:
    with reading(store.path, "the layout of The Well"):
        return _parse(store, store.open(), hints)


def _parse(store: Hdf5Store, h5: h5py.File, hints: Hints) -> _Set:
    path = store.path
    if "n_spatial_dims" not in h5.attrs or "dimensions" not in h5:
        raise SourceError(
            f"{path}: files of The Well have the attribute n_spatial_dims and the group "
            f"dimensions, found {sorted(h5.attrs)} and {sorted(h5)}"
        )
    dims = _texts(h5["dimensions"].attrs["spatial_dims"])
    grid_type = as_text(h5.attrs.get("grid_type", "cartesian"))
    if int(h5.attrs["n_spatial_dims"]) != 2 or sorted(dims) != ["x", "y"]:
        raise SourceError(f"{path}: only two-dimensional sets in x and y are read, found {dims}")
    if grid_type != "cartesian":
        raise SourceError(f"{path}: only Cartesian grids are read, found {grid_type!r}")
    axes = {name: np.asarray(h5["dimensions"][name][...]) for name in dims}
    sides, remarks = _sides(h5)
    count, time = int(h5.attrs["n_trajectories"]), np.asarray(h5["dimensions"]["time"][...])
    pieces = _pieces(path, h5, dims, count, time.shape[-1], {n: len(a) for n, a in axes.items()})
    for ours, theirs in hints.channels.items():
        if theirs not in pieces or ours in pieces:
            problem = f"no {theirs!r}" if theirs not in pieces else f"{ours!r} already"
            raise SourceError(f"{path}: there is {problem}; the channels are: {list(pieces)}")
        pieces = {ours if name == theirs else name: piece for name, piece in pieces.items()}
    return _Set(
        store=store,
        count=count,
        x_first=dims[0] == "x",
        time=time,
        pieces=pieces,
        scalars=_scalars(h5, count),
        grid=_grid(path, axes, sides),
        facts={
            "title": f"The Well: {as_text(h5.attrs['dataset_name'])}",
            "url": "https://polymathic-ai.org/the_well",
            "kind": "simulated",
            "file": path.name,
            "frames": time.shape[-1],
            "grid": [len(axes["y"]), len(axes["x"])],
        },
        remarks=remarks,
    )


def _grid(path: Path, axes: Mapping[str, np.ndarray], sides: Sides) -> Grid:
    steps = {name: uniform_step(axis) for name, axis in axes.items()}
    for name, step in steps.items():
        if step is None or step < 0:
            raise SourceError(
                f"{path}: the points of {name!r} are not uniform and growing (first: "
                f"{axes[name].ravel()[:3].tolist()}); resample the set to a uniform grid"
            )
    dx, dy, (x, y) = steps["x"] or 0.0, steps["y"] or 0.0, (axes["x"], axes["y"])
    return Grid((len(y), len(x)), dx, dy, sides, origin=(float(x[0]), float(y[0])))


def _pieces(
    path: Path, h5: h5py.File, dims: list[str], count: int, frames: int, sizes: dict[str, int]
) -> dict[str, _Piece]:
    """The channels in the file's order; scalars, then vectors, then tensors."""
    pieces: dict[str, _Piece] = {}
    for order in range(3):
        group = h5.get(f"t{order}_fields")
        for field in [] if group is None else _texts(group.attrs.get("field_names", list(group))):
            dataset = group[field]
            varies = [bool(dataset.attrs.get(f"{w}_varying", True)) for w in ("sample", "time")]
            lead = tuple(n for n, v in zip((count, frames), varies, strict=True) if v)
            along = dataset.attrs.get("dim_varying", (True, True))
            full = (sizes[dims[0]], sizes[dims[1]], 2**order)
            thin = (*(n if v else 1 for n, v in zip(full[:2], along, strict=True)), 2**order)
            rest = int(np.prod(dataset.shape[len(lead) :]))
            layout = next((a for a in (thin, full) if int(np.prod(a)) == rest), None)
            if dataset.shape[: len(lead)] != lead or layout is None:
                raise SourceError(
                    f"{path}: {dataset.name}: expected {lead} trajectories and frames (those along "
                    f"which it varies) of {full} points and components, found {dataset.shape}"
                )
            for number, letters in enumerate(itertools.product(dims, repeat=order)):
                name = f"{field}_{''.join(letters)}" if order else field
                piece = _Piece(dataset.name, number, varies[0], varies[1], layout)
                pieces[_NAMES.get(name, name)] = piece
    if not pieces:
        raise SourceError(f"{path}: there is no field in it, found {sorted(h5)}")
    return pieces


def _scalars(h5: h5py.File, count: int) -> dict[str, np.ndarray]:
    """Numbers of every trajectory, (trajectory, 1), or (trajectory, t) where they change."""
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
    """What bounds each side; a side that no boundary condition covers is open."""
    found: dict[str, Boundary] = {}
    remarks = []
    for name, group in h5.get("boundary_conditions", {}).items():
        kind = _BOUNDARIES.get(as_text(group.attrs["bc_type"]).lower())
        if kind is None:
            remarks.append(f"boundary {name!r} of kind {group.attrs['bc_type']!r} is left open")
            continue
        dims = _texts(group.attrs["associated_dims"])
        mask = np.asarray(group["mask"][...], bool) if "mask" in group else np.ones(1, bool)
        while mask.ndim > len(dims):
            mask = mask[0]  # it varies; the first stands for all
        for place, dim in enumerate(dims):
            ends = [True, True] if mask.ndim < len(dims) else []
            ends = ends or [bool(mask.take(end, axis=place).all()) for end in (0, -1)]
            for side, there in zip(_SIDES.get(dim, ()), ends, strict=False):
                if there or kind is Boundary.PERIODIC:
                    found[side] = kind
    return Sides(**found), tuple(remarks)


def _texts(values: Any) -> list[str]:
    return [] if isinstance(values, h5py.Empty) else [as_text(v) for v in np.atleast_1d(values)]
