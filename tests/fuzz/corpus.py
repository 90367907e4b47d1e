"""A small valid recording of every kind that the package reads, to be damaged."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
import xarray

from pibert.data.format import write
from tests.data.helpers import make_trajectory
from tests.lookalikes import cfdbench, eagle, icp, openfoam, piv, realpdebench, vtk, well
from tests.lookalikes.flow import T, X, Y, fields

AXES = (X, Y, np.zeros(1))


def named() -> dict[str, Any]:
    """The flow as arguments of NumPy, whose own options have other types."""
    return {**fields(), "x": X, "y": Y, "t": T}


def velocity() -> np.ndarray:
    """One frame as (z, y, x, 3)."""
    own = fields()
    return np.stack([own["u"][0], own["v"][0], 0 * own["u"][0]], -1)[None].astype(np.float64)


def write_native(path: Path) -> None:
    write(path, [make_trajectory("a", 3), make_trajectory("b", 2, seed=1)])


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, values in named().items():
            file[name] = values
        file.attrs["dt"] = 0.05
        file["u"].attrs["units"] = "m/s"


def write_groups(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for run in ("run1", "run2"):
            for name, values in fields().items():
                file.create_dataset(f"{run}/{name}", data=values, compression="gzip")


def write_matlab(path: Path) -> None:
    scipy.io.savemat(path, {**named(), "info": {"name": "a flow"}}, do_compression=False)


def write_packed_matlab(path: Path) -> None:
    scipy.io.savemat(path, named(), do_compression=True)


def write_matlab_73(path: Path) -> None:
    """HDF5 after 512 bytes of text, every array with its axes in reverse."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in named().items():
            array = np.atleast_2d(values)
            file[name] = array.T
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
    head = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan  1 00:00:00 2024"
    with path.open("r+b") as stream:
        stream.write(head.ljust(124) + b"\x00\x02IM")


def write_pivlab(path: Path, *, v73: bool = False) -> None:
    kinds = [np.ones((4, 6)), np.full((4, 6), 2.0)]
    piv.write_pivlab_mat(path, [piv.sample(), piv.sample()], kinds, filtered=True, v73=v73)


def write_pivlab_73(path: Path) -> None:
    write_pivlab(path, v73=True)


def write_netcdf(path: Path) -> None:
    _dataset().to_netcdf(path, engine="h5netcdf")


def write_classic_netcdf(path: Path) -> None:
    _dataset().to_netcdf(path, engine="scipy")


def _dataset() -> xarray.Dataset:
    data = {name: (("t", "y", "x"), v, {"units": "m/s"}) for name, v in fields().items()}
    axes = {"x": ("x", X, {"units": "m"}), "y": ("y", Y, {"units": "m"}), "t": T}
    return xarray.Dataset(data, coords=axes)


def write_realpdebench(path: Path) -> None:
    (made,) = realpdebench.write_raw(path.parent, realpdebench.flows(["10030"], (3, 4, 6)))
    made.rename(path)


def write_arrow(path: Path) -> None:
    realpdebench.write_arrow(path, realpdebench.flows(["10030"], (3, 4, 6)))


def write_npy(path: Path) -> None:
    np.save(path, np.stack(list(fields().values()), 1))


def write_npz(path: Path) -> None:
    np.savez(path, **named())


def write_packed_npz(path: Path) -> None:
    np.savez_compressed(path, **named())


def write_csv(path: Path) -> None:
    x, y = np.meshgrid(X, Y)
    own = fields()
    rows = [
        np.stack([np.full(x.size, t), *(v.ravel() for v in (x, y, own["u"][n], own["v"][n]))], -1)
        for n, t in enumerate(T[:2])
    ]
    np.savetxt(path, np.concatenate(rows), "%.6g", delimiter=",", header="t,x,y,u,v", comments="")


def write_scattered(path: Path) -> None:
    points = np.random.default_rng(0).random((40, 2))
    rows = np.concatenate([points, points**2], 1)
    np.savetxt(path, rows, "%.6g", delimiter=" ", header="x y u v", comments="% ")


def write_legacy(path: Path, *, binary: bool = False) -> None:
    vtk.write_legacy(path, "STRUCTURED_POINTS", AXES, {"U": velocity()}, binary=binary)


def write_binary_legacy(path: Path) -> None:
    write_legacy(path, binary=True)


def write_unstructured(path: Path) -> None:
    vtk.write_legacy(path, "UNSTRUCTURED_GRID", AXES, {"U": velocity()}, binary=True)


def write_vti(path: Path) -> None:
    vtk.write_xml(path, AXES, {"U": velocity()}, form="raw", compressed=True)


def write_vtu(path: Path) -> None:
    vtk.write_xml(path, AXES, {"U": velocity()}, form="binary")


def write_vtr(path: Path) -> None:
    vtk.write_xml(path, AXES, {"U": velocity()}, form="base64")


def write_vts(path: Path) -> None:
    vtk.write_xml(path, AXES, {"U": velocity()})


def write_collection(path: Path) -> None:
    path.mkdir()
    for number in range(2):
        write_vti(path / f"f{number}.vti")
    vtk.write_collection(path / "flow.pvd", {0.0: "f0.vti", 0.1: "f1.vti"})


def write_foam(path: Path, *, binary: bool = False) -> None:
    frames = {time: velocity().reshape(-1, 3) for time in ("0", "0.5")}
    openfoam.write_case(path, X, Y, frames, binary=binary)


def write_binary_foam(path: Path) -> None:
    write_foam(path, binary=True)


def write_cfdbench(path: Path) -> None:
    problem = next(iter(cfdbench.CASES))
    cfdbench.write_case(path / problem / "bc" / "case0000", cfdbench.CASES[problem], 2)


def write_eagle(path: Path) -> None:
    eagle.write_simulation(path / "Spl" / "3" / "1", frames=2, columns=5, rows=4)


CORPUS: Mapping[str, Callable[[Path], Any]] = {
    "native.h5": write_native,
    "named.h5": write_hdf5,
    "groups.h5": write_groups,
    "well.hdf5": well.write_well,
    "10030.h5": write_realpdebench,
    "run.h5": icp.write_run,
    "new.mat": write_matlab_73,
    "pivlab73.mat": write_pivlab_73,
    "flow.nc": write_netcdf,
    "old.mat": write_matlab,
    "packed.mat": write_packed_matlab,
    "pivlab.mat": write_pivlab,
    "classic.nc": write_classic_netcdf,
    "arrow": write_arrow,
    "flow.npy": write_npy,
    "flow.npz": write_npz,
    "packed.npz": write_packed_npz,
    "flow.csv": write_csv,
    "scattered.txt": write_scattered,
    "openpiv.txt": lambda path: piv.write_openpiv(path, piv.sample()),
    "insight.vec": lambda path: piv.write_tsi(path, piv.sample(), np.ones((4, 6))),
    "pivlab.txt": lambda path: piv.write_pivlab(path, piv.sample(), scale=(1e-3, 1e-2)),
    "davis.txt": lambda path: piv.write_davis(path, piv.sample(), decimal_comma=True),
    "tecplot.dat": lambda path: piv.write_tecplot(path, piv.sample()),
    "legacy.vtk": write_legacy,
    "binary.vtk": write_binary_legacy,
    "cells.vtk": write_unstructured,
    "flow.vti": write_vti,
    "flow.vtu": write_vtu,
    "flow.vtr": write_vtr,
    "flow.vts": write_vts,
    "series": write_collection,
    "case": write_foam,
    "binary-case": write_binary_foam,
    "cfdbench": write_cfdbench,
    "eagle": write_eagle,
}
"""By the name of the file or folder."""

HDF5 = (
    *("native.h5", "named.h5", "groups.h5", "well.hdf5", "10030.h5", "run.h5", "new.mat"),
    *("pivlab73.mat", "flow.nc"),
)
"""Those that are HDF5 files."""
FRAGILE = (
    *("named.h5", "groups.h5", "well.hdf5", "run.h5", "new.mat", "pivlab73.mat", "flow.nc"),
    *("old.mat", "packed.mat", "pivlab.mat"),
)
"""Those on which HDF5 may hang and scipy may crash: they are read in a child alone."""
