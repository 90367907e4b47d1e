"""Small folders laid out like RealPDEBench: Arrow shards with their JSON files, and raw HDF5.

Every value identifies its position: field number * 1000 + frame + row / 10 + column / 100, plus
5000 times the number of the trajectory. ``python -m tests.lookalikes.realpdebench FOLDER`` writes
a whole download whose measured flows have the published grids and look like wakes.
"""

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

CYLINDERS = ("1800", "5000", "8000", "12000")
TANDEMS = ("3272_18.2_0.8_1", "3545_18.2_0.8_1", "4091_20.8_0.8_1", "4091_20.8_0.8_2")
_FIELDS = ("u", "v", "p", "vo")
_INTERVALS = {"cylinder": 2.5e-3, "fsi": 2.0e-3}
_MEASURED = {"cylinder": ((64, 128), (32.0, 32.0), 18.0), "fsi": ((128, 128), (66.0, 64.0), 24.0)}
"""Published grid, and centre (column, row) and diameter of the body on it."""


def values(name: str, number: int, shape: tuple[int, int, int]) -> np.ndarray:
    """What the field ``name`` of trajectory ``number`` holds."""
    t, row, column = np.indices(shape)
    base = 5000 * number + 1000 * _FIELDS.index(name)
    return (base + t + row / 10 + column / 100).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One trajectory to be written."""

    name: str
    shape: tuple[int, int, int]
    number: int = 0
    dt: float = 2.5e-3
    dx: float = 1.0
    dy: float = 1.0
    fields: tuple[str, ...] = ("u", "v", "vo")
    axes: tuple[str, ...] = ("x", "y", "t")
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Columns to be replaced, such as a field by too few bytes."""

    def axis(self, name: str) -> np.ndarray:
        t, ny, nx = self.shape
        x, y = np.meshgrid(self.dx * np.arange(nx), self.dy * np.arange(ny))
        return {"t": self.dt * np.arange(t), "x": x, "y": y}[name]

    def row(self) -> dict[str, Any]:
        """The cells of an Arrow row."""
        t, ny, nx = self.shape
        row: dict[str, Any] = {"sim_id": f"{self.name}.h5"}
        row |= {"shape_t": t, "shape_h": ny, "shape_w": nx}
        for name in self.fields:
            row[name] = values(name, self.number, self.shape).tobytes()
        for name in self.axes:
            axis = self.axis(name)
            row[name] = axis.tobytes()
            if name == "t":
                row["t_shape"] = len(axis)
            else:
                row[f"{name}_shape_h"], row[f"{name}_shape_w"] = axis.shape
        return row | dict(self.changes)


def as_wake(flow: Flow, scenario: str) -> Flow:
    """The flow on the published grid, as vortices that drift away from the body at 0.1 m/s.

    The higher the number of the trajectory, the closer together the vortices.
    """
    grid, (column, row), diameter = _MEASURED[scenario]
    shape = flow.shape[0], *grid
    t, y, x = np.indices(shape).astype(np.float32)
    x, y = (x - column) / diameter, (y - row) / diameter
    across, k = np.exp(-(y**2)) / (1 + np.exp(1 - 3 * x)), 1.4 + 0.1 * flow.number
    phase = k * (x - 0.04 * t)
    u = 1 - 0.5 * across - 0.6 * y * across * np.sin(phase)
    v = -0.3 * k * across * np.cos(phase)
    in_body = np.hypot(x, y) < 0.5
    named = zip("uv", (u, v), strict=True)
    fields = {name: np.where(in_body, 0.0, 0.1 * f).astype(np.float32) for name, f in named}
    return replace(flow, shape=shape, changes={name: f.tobytes() for name, f in fields.items()})


def flows(
    names: Sequence[str], shape: tuple[int, int, int], scenario: str = "cylinder", **changes: Any
) -> list[Flow]:
    dt = _INTERVALS[scenario]
    return [Flow(name=n, shape=shape, number=i, dt=dt, **changes) for i, n in enumerate(names)]


def write_arrow(
    folder: Path,
    data: Sequence[Flow],
    *,
    rows_per_shard: int = 1,
    rows_per_batch: int = 1,
    empty_shard: bool = False,
) -> list[Path]:
    """A folder as ``save_to_disk`` makes it; columns that no row has are left out."""
    import pyarrow as pa

    folder.mkdir(parents=True, exist_ok=True)
    rows = [flow.row() for flow in data]
    order = [c for c in _COLUMNS if any(c in row for row in rows)]
    features = {c: {"dtype": _COLUMNS[c], "_type": "Value"} for c in order}
    schema = pa.schema(
        [pa.field(c, getattr(pa, _COLUMNS[c])()) for c in order],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    groups = [rows[i : i + rows_per_shard] for i in range(0, len(rows), rows_per_shard)]
    if empty_shard:
        groups.insert(1, [])
    paths = [folder / f"data-{i:05d}-of-{len(groups):05d}.arrow" for i in range(len(groups))]
    for path, group in zip(paths, groups, strict=True):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
            for start in range(0, len(group), rows_per_batch):
                batch = group[start : start + rows_per_batch]
                stream.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
    state = {"_data_files": [{"filename": path.name} for path in paths], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return paths


# In the order of the published files.
_ORDER = (
    "sim_id u v shape_t shape_h shape_w vo x x_shape_h x_shape_w y y_shape_h y_shape_w t t_shape p"
)
_COLUMNS = {
    name: "string" if name == "sim_id" else "int32" if "shape" in name else "binary"
    for name in _ORDER.split()
}


def write_raw(folder: Path, data: Sequence[Flow]) -> list[Path]:
    """HDF5 files as the publishers' server has them; x and y repeat for every frame."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for flow in data:
        paths.append(folder / f"{flow.name}.h5")
        with h5py.File(paths[-1], "w") as h5:
            for name in flow.fields:
                key = name if name == "vo" else f"measured_data/{name}"
                h5[key] = flow.changes.get(name, values(name, flow.number, flow.shape))
            for name in flow.axes:
                axis = flow.axis(name)
                h5[name] = axis if name == "t" else np.broadcast_to(axis, flow.shape)
    return paths


Index = dict[str, list[tuple[str, int]]]


def make_index(names: Sequence[str], frames: int) -> Index:
    """Windows of 40 frames: some cases train, those of the others are for validation or testing."""
    windows = [[(name, t) for t in range(0, frames - 39, 10)] for name in names]
    rest = windows[0] + windows[-1]
    random.Random(0).shuffle(rest)
    return {"train": sum(windows[1:-1], []), "val": rest[::2], "test": rest[1::2]}


def write_index(folder: Path, index: Index, kind: str = "real") -> None:
    """Into a scenario's folder; a split without entries has no file."""
    (folder / "hf_dataset").mkdir(parents=True, exist_ok=True)
    for split, entries in index.items():
        if entries:
            listed = [{"sim_id": f"{name}.h5", "time_id": time} for name, time in entries]
            path = folder / "hf_dataset" / f"{split}_index_{kind}.json"
            path.write_text(json.dumps(listed))


def write_parameters(
    folder: Path,
    *,
    remain: Sequence[str],
    in_dist: Sequence[str] = (),
    out_dist: Sequence[str] = (),
    kind: str = "real",
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    groups = {"remain": remain, "in_dist_test": in_dist, "out_dist_test": out_dist}
    for group, names in groups.items():
        listed = {f"{n}.h5": [float(value) for value in n.split("_")[:2]] for n in sorted(names)}
        (folder / f"{group}_params_{kind}.json").write_text(json.dumps(listed))


def write_root(root: Path, *, frames: int = 120, wakes: bool = False) -> Path:
    """A whole download with both scenarios, measured and simulated.

    With ``wakes`` the measured flows have the published grids, and wakes as their fields.
    """
    root.mkdir(parents=True, exist_ok=True)
    version = {"data_version": "2.1", "min_code_version": "0.2.0", "repo_url": ""}
    (root / "version.json").write_text(json.dumps(version))
    shapes = {
        ("cylinder", "real"): (frames, 16, 32),
        ("cylinder", "numerical"): (frames, 32, 64),
        ("fsi", "real"): (frames, 32, 32),
        ("fsi", "numerical"): (frames, 32, 32),
    }
    for (scenario, kind), shape in shapes.items():
        folder, names = root / scenario, CYLINDERS if scenario == "cylinder" else TANDEMS
        stored = ("u", "v", "vo") if kind == "real" else ("u", "v", "p")
        data = flows(names, shape, scenario, fields=stored)
        if wakes and kind == "real":
            data = [as_wake(flow, scenario) for flow in data]
        write_arrow(folder / "hf_dataset" / kind, data)
        index = make_index(names, frames)
        write_index(folder, index, kind)
        write_parameters(folder, remain=names[1:], out_dist=names[:1], kind=kind)
    return root


def write_competition(folder: Path, names: Sequence[str], *, frames: int = 45) -> None:
    """Measured files of the RealPDE competition: waves on 64 x 128 points, a blank corner."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = np.meshgrid(0.01 * np.arange(128), 0.01 * np.arange(64))
    t = 0.02 * np.arange(frames)
    for number, name in enumerate(names):
        angle = 8 * x - (2 + number) * t[:, None, None] + number
        u, v = 0.1 + 0.02 * np.sin(angle), 0.01 * np.cos(angle) * np.ones_like(y)
        u[:, :4, :6] = v[:, :4, :6] = 0.0
        with h5py.File(folder / f"{name}.h5", "w") as h5:
            h5["u"], h5["v"], h5["x"], h5["y"] = u, v, x, y
            h5["t"] = (0.08 + t).astype(np.float32)
            h5["re"], h5["aoa"] = (np.int32(value) for value in name.split("_"))


if __name__ == "__main__":
    write_root(Path(sys.argv[1]), wakes=True)
