"""Run the three cases with OpenFOAM and keep them, with OpenFOAM's own samples, as test data.

    python -m tests.openfoam.generate

needs OpenFOAM (v1912 made the stored data; ``apt-get install openfoam``) and takes about a minute.
Every case becomes ``data/CASE.tar.xz`` with some of its forms: as the solver leaves it (case), in
binary and compressed, of two processors, reconstructed from these, as foamToVTK writes it, and as
samples of a plane. ``data/CASE.npz`` has the values that OpenFOAM's ``cellPoint`` interpolation
gives at the points of a grid, NaN where no cell is: ``x``, ``y``, ``time`` and (t, y, x) ``u``,
``v``, ``p``. Each time is sampled by its own process: for a moving mesh OpenFOAM v1912 keeps the
weights of the first time.
"""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DATA = HERE / "data"


@dataclass(frozen=True)
class Case:
    """A case and the grid that it is sampled on."""

    solver: str
    left: float
    right: float
    bottom: float
    top: float
    shape: tuple[int, int]
    position: float
    """Of the plane along z."""
    forms: tuple[str, ...]

    @property
    def x(self) -> np.ndarray:
        return np.linspace(self.left, self.right, self.shape[1])

    @property
    def y(self) -> np.ndarray:
        return np.linspace(self.bottom, self.top, self.shape[0])


CASES = {
    "cavity": Case(
        "icoFoam",
        *(0, 0.1, 0, 0.08),
        shape=(14, 19),
        position=0.025,
        forms=("binary", "gzip", "decomposed", "collated", "vtk", "samples"),
    ),
    "cylinder": Case(
        "icoFoam", *(-2, 6, -2, 2), shape=(21, 41), position=0.0, forms=("vtk", "samples")
    ),
    "vibrating_cylinder": Case(
        "pimpleFoam",
        *(-2, 6, -2, 2),
        shape=(21, 41),
        position=0.0,
        forms=("decomposed", "collated", "reconstructed", "vtk"),
    ),
}

_IDLE = {"phi", "Uf", "uniform", "neighbour"}
_IDLE |= {"faceProcAddressing", "cellProcAddressing", "boundaryProcAddressing"}
"""Files that no reader looks at."""
_IDLE_IN_COPIES = ("system", "0.orig", "cellDisplacement", "pointDisplacement")
_DECOMPOSE = "numberOfSubdomains 2;\nmethod simple;\nsimpleCoeffs { n (2 1 1); delta 0.001; }\n"
_POINTS = """type sets;
libs (sampling);
interpolationScheme cellPoint;
setFormat raw;
fields (U p);
sets (grid {{ type cloud; axis xyz; points ({points}); }});
"""
_PLANE = """type surfaces;
libs (sampling);
interpolationScheme cellPoint;
surfaceFormat {form};
fields (U p);
surfaces
(
    mid
    {{
        type plane;
        planeType pointAndNormal;
        pointAndNormalDict {{ point (0 0 {position}); normal (0 0 1); }}
        interpolate {interpolate};
    }}
);
"""


def is_installed() -> bool:
    return shutil.which("blockMesh") is not None


def generate(folder: Path, out: Path) -> None:
    """Run all cases in a folder and write their archives and references to another."""
    out.mkdir(exist_ok=True)
    for name, case in CASES.items():
        make_forms(name, case, folder / name)
        values: dict[str, Any] = dict(sample(case, folder / name / "case"))
        np.savez_compressed(out / f"{name}.npz", **values)
        _tidy(folder / name)
        with tarfile.open(out / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(folder / name, name, filter=_anonymous)


def make_forms(name: str, case: Case, folder: Path) -> None:
    """One case in all its forms."""
    folder.mkdir(parents=True)
    solved = folder / "case"
    shutil.copytree(HERE / "cases" / name, solved)
    shutil.copytree(solved / "0.orig", solved / "0")
    run(solved, "blockMesh")
    run(solved, case.solver)
    for form in case.forms:
        _MAKE[form](case, solved, folder / form)


def _make_binary(case: Case, solved: Path, form: Path) -> None:
    shutil.copytree(solved, form)
    control = form / "system" / "controlDict"
    control.write_text(re.sub(r"(writeFormat\s+)ascii", r"\1binary", control.read_text()))
    run(form, "foamFormatConvert", "-constant")


def _make_gzip(case: Case, solved: Path, form: Path) -> None:
    shutil.copytree(solved, form)
    for folder in (*times_of(form), "constant/polyMesh"):
        for file in (form / folder).rglob("*"):
            if file.is_file():
                subprocess.run(["gzip", "-n", file], check=True)


def _make_decomposed(case: Case, solved: Path, form: Path) -> None:
    handler = ("-fileHandler", "collated" if form.name == "collated" else "uncollated")
    shutil.copytree(solved, form)
    head = "FoamFile { version 2.0; format ascii; class dictionary; object decomposeParDict; }\n"
    (form / "system" / "decomposeParDict").write_text(head + _DECOMPOSE)
    results = [form / time for time in times_of(form) if float(time) > 0]
    if "reconstructed" not in case.forms:
        run(form, "decomposePar", "-time", "0:", *handler)
    for folder in results:
        shutil.rmtree(folder)
    if "reconstructed" in case.forms:
        # decomposePar leaves out where the points of a moving mesh went.
        run(form, "decomposePar", *handler)
        mpi = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
        run(form, *mpi, case.solver, "-parallel", *handler)


def _make_reconstructed(case: Case, solved: Path, form: Path) -> None:
    shutil.copytree(form.with_name("decomposed"), form)
    run(form, "reconstructPar")
    for processor in form.glob("processor*"):
        shutil.rmtree(processor)


def _make_vtk(case: Case, solved: Path, form: Path) -> None:
    run(solved, "foamToVTK")
    (solved / "VTK").rename(form)
    for patches in form.glob("*/boundary"):
        shutil.rmtree(patches)


def _make_samples(case: Case, solved: Path, form: Path) -> None:
    for surface in ("vtk", "raw"):
        for interpolate in ("true", "false"):
            function = solved / "system" / f"{surface}_{interpolate}"
            function.write_text(
                _PLANE.format(form=surface, interpolate=interpolate, position=case.position)
            )
            run(solved, "postProcess", "-func", function.name)
            function.unlink()
    (solved / "postProcessing").rename(form)


_MAKE: dict[str, Callable[[Case, Path, Path], None]] = {
    "binary": _make_binary,
    "gzip": _make_gzip,
    "decomposed": _make_decomposed,
    "collated": _make_decomposed,
    "reconstructed": _make_reconstructed,
    "vtk": _make_vtk,
    "samples": _make_samples,
}


def times_of(case: Path) -> list[str]:
    """The time folders of a case, in order."""
    names = [entry.name for entry in case.iterdir() if re.fullmatch(r"[\d.]+", entry.name)]
    return sorted(names, key=float)


def sample(case: Case, folder: Path) -> dict[str, np.ndarray]:
    """What OpenFOAM samples at the points of the grid at every time after the first."""
    points = " ".join(f"({x:.9g} {y:.9g} {case.position:.9g})" for y in case.y for x in case.x)
    (folder / "system" / "atGrid").write_text(_POINTS.format(points=points))
    times = [time for time in times_of(folder) if float(time) > 0]
    fields = {name: np.full((len(times), *case.shape), np.nan, np.float32) for name in "uvp"}
    for frame, time in enumerate(times):
        run(folder, "postProcess", "-func", "atGrid", "-time", time)
        written = folder / "postProcessing" / "atGrid" / time
        for file, columns in (("grid_U.xy", "uv"), ("grid_p.xy", "p")):
            rows = np.loadtxt(written / file)
            column = np.abs(rows[:, :1] - case.x).argmin(1)
            row = np.abs(rows[:, 1:2] - case.y).argmin(1)
            for index, name in enumerate(columns, start=3):
                fields[name][frame, row, column] = rows[:, index]
    shutil.rmtree(folder / "postProcessing")
    (folder / "system" / "atGrid").unlink()
    return {"x": case.x, "y": case.y, "time": np.array(times, float), **fields}


def run(case: Path, *command: str) -> None:
    """A program of OpenFOAM in a case."""
    environment = {"WM_PROJECT_DIR": "/usr/share/openfoam", **os.environ, "PWD": str(case)}
    done = subprocess.run(command, cwd=case, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} in {case}:\n{done.stdout[-2000:]}{done.stderr}")


def _tidy(folder: Path) -> None:
    """Remove what no reader looks at, and the names of this machine's folders."""
    for file in sorted(folder.rglob("*"), reverse=True):
        inner = file.relative_to(folder)
        name, is_copy = file.name.removesuffix(".gz"), inner.parts[0] != "case"
        if name not in _IDLE and not (is_copy and name in _IDLE_IN_COPIES):
            continue
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink()
    for file in folder.glob("collated/**/*"):
        if file.is_file():
            file.write_bytes(file.read_bytes().replace(str(folder).encode(), b"."))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch), DATA)
