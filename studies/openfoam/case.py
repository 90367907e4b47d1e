"""A circular cylinder in OpenFOAM: write the case, run it, read forces, motion and frames.

Everything is in units of the diameter D, the stream speed U and the density. The domain reaches
14 D upstream and to the sides and 28 D downstream. Around the body lies an O-grid of four blocks in
a square of side 4 D; Cartesian blocks, stretched towards the edges, surround it. The mesh has one
layer, 1 D thick. The body is fixed, or mounted on a spring and free to move across the stream; the
mesh then follows it (``sixDoFRigidBodyMotion``). The solver is pimpleFoam, second-order in space
and time. The cases run with OpenFOAM v1912, the version that Debian ships.
"""

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from math import pi
from pathlib import Path

import numpy as np

VERSION = "v1912 (Debian 1912.200626)"
"""The version that the stored results come from."""
INSTALL = "install OpenFOAM (Debian: apt-get install openfoam)"
UPSTREAM, DOWNSTREAM, SIDE = 14.0, 28.0, 14.0


@dataclass(frozen=True, kw_only=True)
class Spring:
    """The mount of a body that moves across the stream."""

    mass: float
    """m / (rho D^2)."""
    reduced_velocity: float
    """U / (f D), f the natural frequency in vacuum."""
    damping_ratio: float = 0.0

    @property
    def stiffness(self) -> float:
        return self.mass * (2 * pi / self.reduced_velocity) ** 2

    @property
    def damping(self) -> float:
        return 2 * self.damping_ratio * self.mass * 2 * pi / self.reduced_velocity


@dataclass(frozen=True, kw_only=True)
class Cylinder:
    """One run of OpenFOAM."""

    reynolds: float
    spring: Spring | None = None
    warm_up: float = 100.0
    """Time before the first frame, in D/U."""
    frames: int = 2
    interval: float = 0.5
    """Time between two frames, in D/U."""
    step: float = 0.02
    """Time step in D/U."""
    refinement: float = 1.0
    """Factor on the number of cells in each direction."""
    initial_v: float = 0.1
    """Speed across the stream in the initial flow: it starts the shedding."""

    @property
    def end(self) -> float:
        return self.warm_up + (self.frames - 1) * self.interval


@dataclass(frozen=True)
class Series:
    """What OpenFOAM writes at every time step, in D/U, D, U and coefficients of force."""

    time: np.ndarray
    drag: np.ndarray
    lift: np.ndarray
    displacement: np.ndarray | None = None
    velocity: np.ndarray | None = None

    def at(self, time: np.ndarray) -> "Series":
        """The values at other times, by linear interpolation."""
        found = {
            name: np.interp(time, self.time, values)
            for name, values in vars(self).items()
            if values is not None
        }
        return Series(**found)


def is_installed() -> bool:
    return shutil.which("blockMesh") is not None and shutil.which("pimpleFoam") is not None


def run(flow: Cylinder, folder: Path) -> float:
    """Write and run a case in a folder that does not exist yet; return the seconds it took.

    The case is complete when the folder has its name: an interrupted run leaves ``NAME.part``.
    """
    if not is_installed():
        raise RuntimeError(f"OpenFOAM is not installed: blockMesh is not on the path; {INSTALL}")
    work = folder.with_name(folder.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    write(flow, work)
    start = time.perf_counter()
    _call(work, "blockMesh")
    _call(work, "pimpleFoam")
    seconds = time.perf_counter() - start
    work.rename(folder)
    return seconds


def _call(case: Path, program: str) -> None:
    environment = {"WM_PROJECT_DIR": "/usr/share/openfoam", **os.environ, "PWD": str(case)}
    with (case / f"log.{program}").open("w") as log:
        done = subprocess.run([program], cwd=case, env=environment, stdout=log, stderr=log)
    if done.returncode:
        tail = (case / f"log.{program}").read_text()[-2000:]
        raise RuntimeError(f"{program} failed in {case} (exit status {done.returncode}):\n{tail}")


def read_series(folder: Path) -> Series:
    """Read the force coefficients of a run, and the displacement if the body moves."""
    file = folder / "postProcessing" / "forces" / "0" / "coefficient.dat"
    times, drag, lift = np.loadtxt(file, usecols=(0, 1, 3), unpack=True)
    log = (folder / "log.pimpleFoam").read_text()
    if "Centre of rotation" not in log:
        return Series(times, drag, lift)
    # The solver moves the body once in every outer iteration; the last one of a step counts.
    steps = re.split(r"^Time = ", log, flags=re.MULTILINE)[1:]
    vector = r": \(\S+ (\S+) \S+\)"
    y, v = (
        np.array([re.findall(name + vector, step)[-1] for step in steps], float)
        for name in ("Centre of mass", "Linear velocity")
    )
    return Series(times, drag, lift, y, v)


def write(flow: Cylinder, case: Path) -> None:
    """Write the files of a case."""
    moving = flow.spring is not None
    files = {
        "system/blockMeshDict": _mesh(flow.refinement),
        "system/controlDict": _CONTROL.format(
            step=flow.step, end=flow.end, start=flow.warm_up, interval=flow.interval
        ),
        "system/fvSchemes": _SCHEMES,
        "system/fvSolution": _SOLUTION.format(outer=2 if moving else 1),
        "constant/transportProperties": f"transportModel Newtonian; nu {1 / flow.reynolds:.9g};",
        "constant/turbulenceProperties": "simulationType laminar;",
        "0/U": _VELOCITY.format(
            v=flow.initial_v, wall="movingWallVelocity" if moving else "noSlip"
        ),
        "0/p": _PRESSURE,
    }
    if flow.spring is not None:
        files["constant/dynamicMeshDict"] = _MOTION.format(spring=flow.spring)
        files["0/pointDisplacement"] = _DISPLACEMENT
    kinds = {
        "0/U": "volVectorField",
        "0/p": "volScalarField",
        "0/pointDisplacement": "pointVectorField",
    }
    for name, text in files.items():
        file = case / name
        file.parent.mkdir(parents=True, exist_ok=True)
        head = (
            f"version 2.0; format ascii; class {kinds.get(name, 'dictionary')}; object {file.name};"
        )
        file.write_text(f"FoamFile {{ {head} }}\n{text}\n")


def _mesh(refinement: float) -> str:
    """The blocks: three rows of three, the middle one replaced by four around the body."""
    around, radial, wake, up, side = (round(n * refinement) for n in (32, 36, 70, 16, 16))
    x, y = (-UPSTREAM, -2.0, 2.0, DOWNSTREAM), (-SIDE, -2.0, 2.0, SIDE)
    outer = [(a, b) for b in y for a in x]
    r = 0.5 * 0.5**0.5
    points = outer + [(-r, -r), (r, -r), (r, r), (-r, r)]
    far = len(points)
    columns, rows = (up, around, wake), (side, around, side)
    grade_x, grade_y = (0.08, 1.0, 8.0), (0.08, 1.0, 12.5)

    def block(corners: tuple[int, ...], cells: tuple[int, int], grade: tuple[float, float]) -> str:
        both = " ".join(map(str, (*corners, *(far + c for c in corners))))
        return f"hex ({both}) ({cells[0]} {cells[1]} 1) simpleGrading ({grade[0]} {grade[1]} 1)"

    blocks = []
    for row in range(3):
        for column in range(3):
            a = 4 * row + column
            if (row, column) != (1, 1):
                cells, grade = (columns[column], rows[row]), (grade_x[column], grade_y[row])
                blocks.append(block((a, a + 1, a + 5, a + 4), cells, grade))
    square, body = (5, 6, 10, 9), (16, 17, 18, 19)
    arcs, wall = [], []
    for k in range(4):
        a, b = square[k], square[(k + 1) % 4]
        c, d = body[(k + 1) % 4], body[k]
        blocks.append(block((a, b, c, d), (around, radial), (1.0, 0.15)))
        middle = ((0, -0.5), (0.5, 0), (0, 0.5), (-0.5, 0))[k]
        for level, z in ((0, 0.0), (far, 1.0)):
            arcs.append(f"arc {d + level} {c + level} ({middle[0]} {middle[1]} {z})")
        wall.append((d, c))

    def faces(edges: list[tuple[int, int]]) -> str:
        return " ".join(f"({a} {b} {far + b} {far + a})" for a, b in edges)

    lines = [f"({a:.9g} {b:.9g} {z})" for z in (0, 1) for a, b in points]
    return _MESH.format(
        points="\n".join(lines),
        blocks="\n".join(blocks),
        arcs="\n".join(arcs),
        inlet=faces([(4 * k, 4 * k + 4) for k in range(3)]),
        outlet=faces([(4 * k + 3, 4 * k + 7) for k in range(3)]),
        sides=faces([(k, k + 1) for k in range(3)] + [(12 + k, 13 + k) for k in range(3)]),
        wall=faces(wall),
    )


_MESH = """scale 1;
vertices ({points});
blocks ({blocks});
edges ({arcs});
boundary
(
    inlet {{ type patch; faces ({inlet}); }}
    outlet {{ type patch; faces ({outlet}); }}
    sides {{ type patch; faces ({sides}); }}
    cylinder {{ type wall; faces ({wall}); }}
);
defaultPatch {{ name frontAndBack; type empty; }}
"""
_CONTROL = """application pimpleFoam;
startFrom startTime; startTime 0; stopAt endTime; endTime {end:.9g};
deltaT {step:.9g}; writeControl timeStep; writeInterval 1000000000;
writeFormat binary; timeFormat general; timePrecision 9; writePrecision 9;
functions
{{
    forces
    {{
        type forceCoeffs; libs (forces); patches (cylinder);
        rho rhoInf; rhoInf 1; magUInf 1; lRef 1; Aref 1;
        CofR (0 0 0); dragDir (1 0 0); liftDir (0 1 0); pitchAxis (0 0 1); log false;
    }}
    frames
    {{
        type writeObjects; libs (utilityFunctionObjects); objects (U p points);
        timeStart {start:.9g}; writeControl adjustableRunTime; writeInterval {interval:.9g};
        log false;
    }}
}}
"""
_SCHEMES = """ddtSchemes { default backward; }
gradSchemes { default Gauss linear; }
divSchemes
{
    default none;
    div(phi,U) Gauss LUST grad(U);
    div((nuEff*dev2(T(grad(U))))) Gauss linear;
}
laplacianSchemes { default Gauss linear corrected; }
interpolationSchemes { default linear; }
snGradSchemes { default corrected; }
"""
_SOLUTION = """solvers
{{
    "(p|pcorr).*" {{ solver GAMG; smoother GaussSeidel; tolerance 1e-06; relTol 0.01; }}
    pFinal {{ $p; relTol 0; }}
    "U.*" {{ solver smoothSolver; smoother symGaussSeidel; tolerance 1e-07; relTol 0; }}
}}
PIMPLE
{{
    nOuterCorrectors {outer}; nCorrectors 2; nNonOrthogonalCorrectors 0;
    moveMeshOuterCorrectors yes; correctPhi no;
}}
"""
_VELOCITY = """dimensions [0 1 -1 0 0 0 0];
internalField uniform (1 {v} 0);
boundaryField
{{
    inlet {{ type fixedValue; value uniform (1 0 0); }}
    outlet {{ type inletOutlet; inletValue uniform (0 0 0); value uniform (1 0 0); }}
    sides {{ type slip; }}
    cylinder {{ type {wall}; value uniform (0 0 0); }}
    frontAndBack {{ type empty; }}
}}
"""
_PRESSURE = """dimensions [0 2 -2 0 0 0 0];
internalField uniform 0;
boundaryField
{
    outlet { type fixedValue; value uniform 0; }
    "(inlet|sides|cylinder)" { type zeroGradient; }
    frontAndBack { type empty; }
}
"""
_DISPLACEMENT = """dimensions [0 1 0 0 0 0 0];
internalField uniform (0 0 0);
boundaryField
{
    cylinder { type calculated; }
    "(inlet|outlet|sides)" { type fixedValue; value uniform (0 0 0); }
    frontAndBack { type empty; }
}
"""
_MOTION = """dynamicFvMesh dynamicMotionSolverFvMesh;
motionSolverLibs (sixDoFRigidBodyMotion);
motionSolver sixDoFRigidBodyMotion;
sixDoFRigidBodyMotionCoeffs
{{
    patches (cylinder);
    innerDistance 1; outerDistance 10;
    mass {spring.mass:.9g}; centreOfMass (0 0 0.5); momentOfInertia (1 1 1);
    accelerationRelaxation 1; accelerationDamping 1;
    rho rhoInf; rhoInf 1; report on;
    solver {{ type Newmark; }}
    constraints
    {{
        across {{ sixDoFRigidBodyMotionConstraint line; direction (0 1 0); }}
        upright {{ sixDoFRigidBodyMotionConstraint orientation; }}
    }}
    restraints
    {{
        spring
        {{
            sixDoFRigidBodyMotionRestraint linearSpring;
            anchor (0 0 0.5); refAttachmentPt (0 0 0.5); restLength 0;
            stiffness {spring.stiffness:.9g}; damping {spring.damping:.9g};
        }}
    }}
}}
"""
