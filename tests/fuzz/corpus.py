"""A small valid recording of every kind that the package reads, to be damaged."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy
import scipy.io
import xarray

from pibert.data.format import write
from tests.data.helpers import make_trajectory
from tests.lookalikes import cfdbench, eagle, icp, openfoam, piv, realpdebench, vtk, well
from tests.lookalikes.flow import T, X, Y, fields, vectors
from tests.lookalikes.matlab import write_matlab_73

AXES = (X, Y, np.zeros(1))
NAMED: dict[str, Any] = {**fields(), "x": X, "y": Y, "t": T}
ONES = np.ones((4, 6))


def write_native(path: Path) -> None:
    write(path, [make_trajectory("a", 3), make_trajectory("b", 2, seed=1)])


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, values in NAMED.items():
            file[name] = values
        file.attrs["dt"] = 0.05
        file["u"].attrs["units"] = "m/s"


def write_groups(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for run in ("run1", "run2"):
            for name, values in fields().items():
                file.create_dataset(f"{run}/{name}", data=values, compression="gzip")


def write_pivlab(path: Path, *, v73: bool = False) -> None:
    frames = [piv.sample(), piv.sample()]
    piv.write_pivlab_mat(path, frames, [ONES, 2 * ONES], filtered=True, v73=v73)


def write_session(path: Path, *, v73: bool, structs: bool = False) -> None:
    field = piv.sample()
    rows = [*(field[name] for name in "xyuv"), ONES, *[np.empty((0, 0))] * 6, ONES]
    settings = {"calxy": 1e-4, "calu": 0.02, "calv": 0.02}
    piv.write_pivlab_session(path, [rows, rows], settings, v73=v73, structs=structs)


def write_netcdf(path: Path, engine: Any = "h5netcdf") -> None:
    data = {name: (("t", "y", "x"), v, {"units": "m/s"}) for name, v in fields().items()}
    axes = {"x": ("x", X, {"units": "m"}), "y": ("y", Y, {"units": "m"}), "t": T}
    xarray.Dataset(data, coords=axes).to_netcdf(path, engine=engine)


def write_realpdebench(path: Path) -> None:
    (written,) = realpdebench.write_raw(path.parent, realpdebench.flows(["10030"], (3, 4, 6)))
    written.rename(path)


def write_csv(path: Path) -> None:
    x, y = np.meshgrid(X, Y)
    u, v = fields().values()
    rows = [
        np.stack([np.full(x.size, t), *(array.ravel() for array in (x, y, u[n], v[n]))], -1)
        for n, t in enumerate(T[:2])
    ]
    np.savetxt(path, np.concatenate(rows), "%.6g", delimiter=",", header="t,x,y,u,v", comments="")


def write_safetensors(path: Path) -> None:
    stacked = np.stack(list(fields().values()), 1).astype(np.float32)
    arrays: dict[str, np.ndarray] = {
        "fields": stacked,
        "mask": np.ones(stacked.shape[2:], np.uint8),
    }
    facts = {"channels": ["u", "v"], "dt": 0.05, "dx": 0.3, "dy": 0.2, "length_unit": "m"}
    texts = {name: json.dumps(fact) for name, fact in facts.items()}
    path.write_bytes(safetensors.numpy.save(arrays, texts))


def write_scattered(path: Path) -> None:
    points = np.random.default_rng(0).random((40, 2))
    rows = np.concatenate([points, points**2], 1)
    np.savetxt(path, rows, "%.6g", delimiter=" ", header="x y u v", comments="% ")


def write_legacy(path: Path, kind: str = "STRUCTURED_POINTS", *, binary: bool = False) -> None:
    vtk.write_legacy(path, kind, AXES, {"U": vectors()}, binary=binary)


def write_xml(path: Path, form: str = "ascii", *, compressed: bool = False) -> None:
    vtk.write_xml(path, AXES, {"U": vectors()}, form=form, compressed=compressed)


def write_collection(path: Path) -> None:
    path.mkdir()
    for number in range(2):
        write_xml(path / f"f{number}.vti", "raw", compressed=True)
    vtk.write_collection(path / "flow.pvd", {0.0: "f0.vti", 0.1: "f1.vti"})


def write_foam(path: Path, *, binary: bool = False) -> None:
    frames = dict.fromkeys(("0", "0.5"), vectors().reshape(-1, 3))
    openfoam.write_case(path, X, Y, frames, binary=binary)


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
    "new.mat": lambda path: write_matlab_73(path, NAMED),
    "pivlab73.mat": lambda path: write_pivlab(path, v73=True),
    "flow.nc": write_netcdf,
    "old.mat": lambda path: scipy.io.savemat(path, {**NAMED, "info": {"name": "a flow"}}),
    "packed.mat": lambda path: scipy.io.savemat(path, NAMED, do_compression=True),
    "pivlab.mat": write_pivlab,
    "session.mat": lambda path: write_session(path, v73=False),
    "session73.mat": lambda path: write_session(path, v73=True),
    "session2026.mat": lambda path: write_session(path, v73=False, structs=True),
    "classic.nc": lambda path: write_netcdf(path, "scipy"),
    "arrow": lambda p: realpdebench.write_arrow(p, realpdebench.flows(["10030"], (3, 4, 6))),
    "flow.npy": lambda path: np.save(path, np.stack(list(fields().values()), 1)),
    "flow.npz": lambda path: np.savez(path, **NAMED),
    "flow.safetensors": write_safetensors,
    "packed.npz": lambda path: np.savez_compressed(path, **NAMED),
    "flow.csv": write_csv,
    "scattered.txt": write_scattered,
    "openpiv.txt": lambda path: piv.write_openpiv(path, piv.sample()),
    "insight.vec": lambda path: piv.write_tsi(path, piv.sample(), ONES),
    "pivlab.txt": lambda path: piv.write_pivlab(path, piv.sample(), scale=(1e-3, 1e-2)),
    "davis.txt": lambda path: piv.write_davis(path, piv.sample(), decimal_comma=True),
    "tecplot.dat": lambda path: piv.write_tecplot(path, piv.sample()),
    "legacy.vtk": write_legacy,
    "binary.vtk": lambda path: write_legacy(path, binary=True),
    "cells.vtk": lambda path: write_legacy(path, "UNSTRUCTURED_GRID", binary=True),
    "flow.vti": lambda path: write_xml(path, "raw", compressed=True),
    "flow.vtu": lambda path: write_xml(path, "binary"),
    "flow.vtr": lambda path: write_xml(path, "base64"),
    "flow.vts": write_xml,
    "series": write_collection,
    "case": write_foam,
    "binary-case": lambda path: write_foam(path, binary=True),
    "cfdbench": write_cfdbench,
    "eagle": write_eagle,
}
"""By the name of the file or folder."""

HDF5 = (
    *("native.h5", "named.h5", "groups.h5", "well.hdf5", "10030.h5", "run.h5", "new.mat"),
    *("pivlab73.mat", "session73.mat", "flow.nc"),
)
"""The HDF5 files."""
FRAGILE = (
    *("named.h5", "groups.h5", "well.hdf5", "run.h5", "new.mat", "pivlab73.mat", "flow.nc"),
    *("old.mat", "packed.mat", "pivlab.mat", "session.mat", "session73.mat", "session2026.mat"),
)
"""Files on which HDF5 may hang and scipy may crash: only a child reads them."""
