"""Small files in the layout of The Well.

Every value identifies its position: trajectory * 1000 + frame * 100 + column + row / 100, plus a
tenth of the component's number; columns count x.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

TRAJECTORIES, FRAMES, NX, NY = 2, 6, 7, 4


def values(components: int = 1, frames: int = FRAMES) -> np.ndarray:
    """(trajectory, frame, x, y, component)."""
    number, frame, x, y, component = np.indices((TRAJECTORIES, frames, NX, NY, components))
    return (1000 * number + 100 * frame + x + y / 100 + component / 10).astype(np.float32)


def write_well(path: Path) -> Path:
    """Two trajectories with scalars, a vector, a tensor, and fields that vary along few axes."""
    with h5py.File(path, "w") as h5:
        h5.attrs["dataset_name"] = "shear_flow"
        h5.attrs["grid_type"] = "cartesian"
        h5.attrs["n_spatial_dims"] = 2
        h5.attrs["n_trajectories"] = TRAJECTORIES
        h5.attrs["simulation_parameters"] = ["Reynolds", "Schmidt"]
        h5.attrs["Reynolds"], h5.attrs["Schmidt"] = 1e4, 0.5
        _dimensions(h5)
        t0 = h5.create_group("t0_fields")
        _field(t0, "tracer", values()[..., 0])
        _field(t0, "pressure", values()[..., 0] + 1e4)
        _field(t0, "depth", values()[0, 0, :, :, 0], sample=False, time=False)
        _field(t0, "stripe", values()[:, :, :, :1, 0], dims=(True, False))
        _field(h5.create_group("t1_fields"), "velocity", values(2))
        t2 = values(4).reshape(TRAJECTORIES, FRAMES, NX, NY, 2, 2)
        _field(h5.create_group("t2_fields"), "stress", t2)
        scalars = h5.create_group("scalars")
        _scalar(scalars, "forcing", np.array([0.25, 0.5]), sample=True)
        _scalar(scalars, "energy", np.arange(12.0).reshape(2, 6), sample=True, time=True)
        t0.attrs["field_names"] = ["tracer", "pressure", "depth", "stripe"]
        h5["t1_fields"].attrs["field_names"] = ["velocity"]
        h5["t2_fields"].attrs["field_names"] = ["stress"]
        scalars.attrs["field_names"] = ["forcing", "energy"]
        boundaries = h5.create_group("boundary_conditions")
        _boundary(boundaries, "x", "PERIODIC", np.ones(NX, bool))
        _boundary(boundaries, "y", "WALL", np.arange(NY) == NY - 1)
    return path


def _dimensions(h5: h5py.File) -> None:
    group = h5.create_group("dimensions")
    group.attrs["spatial_dims"] = ["x", "y"]
    axes = {
        "time": 0.1 * np.arange(FRAMES),
        "x": 0.5 * np.arange(NX),
        "y": 2 + 0.25 * np.arange(NY),
    }
    for name, axis in axes.items():
        group[name] = axis.astype(np.float32)
        group[name].attrs["sample_varying"] = False
        if name != "time":
            group[name].attrs["time_varying"] = False


def _field(
    group: h5py.Group,
    name: str,
    data: np.ndarray,
    *,
    sample: bool = True,
    time: bool = True,
    dims: tuple[bool, bool] = (True, True),
) -> None:
    group[name] = data
    group[name].attrs.update(_flags(sample, time) | {"dim_varying": list(dims)})


def _scalar(
    group: h5py.Group, name: str, data: np.ndarray, *, sample: bool = False, time: bool = False
) -> None:
    group[name] = data
    group[name].attrs.update(_flags(sample, time))


def _boundary(group: h5py.Group, dim: str, kind: str, mask: np.ndarray) -> None:
    boundary = group.create_group(f"{dim}_{kind.lower()}")
    boundary.attrs["bc_type"] = kind
    boundary.attrs["associated_dims"] = [dim]
    boundary.attrs["associated_fields"] = h5py.Empty("S1")
    boundary.attrs.update(_flags(False, False))
    boundary["mask"] = mask


def _flags(sample: bool, time: bool) -> dict[str, Any]:
    return {"sample_varying": sample, "time_varying": time}
