"""CFDBench (Luo, Chen, Zhang 2023): cavity, tube, dam and cylinder flows.

    <root>/<problem>/<subset>/caseNNNN/{u.npy, v.npy, case.json}    subset: prop, bc or geo

``u.npy`` and ``v.npy`` are (t, y, x), 64 x 64 points, row 0 at the bottom; ``case.json`` is a flat
object of numbers in SI units. Its ``viscosity`` is dynamic (Pa s); the parameter ``viscosity`` of a
trajectory is kinematic, as everywhere here. Points are taken as cell centres (dx = width / 64; the
publishers' loaders put the boundary values around them). Body masks are computed from the geometry.

Published files do not state the time between frames. The publishers' loaders use 0.1 s; for the
cylinder one loader uses 0.001 s and another 0.1 s.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.data.readers.arrays import open_array, require_keys
from pibert.data.readers.recordings import (
    PARSING,
    Hints,
    Recordings,
    SourceError,
    check_channels,
    reading,
)
from pibert.data.splits import Segment, Split
from pibert.data.views import MappedFrames, finite_points, pick
from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides, Trajectory
from pibert.files import parse_json, read_text
from pibert.notes import warn

TITLE = "CFDBench (cavity, tube, dam, cylinder)"
ISOLATED = False

SUBSETS = ("prop", "bc", "geo")
"""In the publishers' order, which their split depends on."""
BARRIER_START = 0.5
"""x of the dam's barrier, a constant of the publishers' loader."""
SMALLEST, LARGEST = 1e-18, 1e18
"""Range of the numbers of a case: the ratio of two of them is then a float32 that is not zero."""
CASES = {"cavity": 159, "tube": 175, "dam": 220, "cylinder": 185}
"""Published cases of each problem."""
CONVERGED = 1e-3
"""Mean change of speed (m/s) between two frames below which a flow counts as steady."""

FILES = ("u.npy", "v.npy", "case.json")
"""Of every case."""

_CENTRE = ("center_x", "center_y")
_SIGNED = ("x_min", "x_max", "y_min", "y_max", *_CENTRE)
_WALLS = Sides(*[Boundary.WALL] * 4)
_CHANNEL = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.WALL)


@dataclass(frozen=True)
class Problem:
    """Keys of a problem's cases and its boundaries."""

    velocity: str
    """Key of the speed of the lid or the inflow."""
    geometry: tuple[str, ...]
    """Keys of the lengths."""
    length: tuple[str, float]
    """Key and factor of the length in Re."""
    sides: Sides
    dt: float
    """Time between frames where the case states none (the published ones do not)."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.velocity, "density", "viscosity", *self.geometry)


_BARRIER = ("height", "width", "barrier_height", "barrier_width")
_CYLINDER = ("radius", "x_min", "x_max", "y_min", "y_max")
PROBLEMS = {
    "cavity": Problem("vel_top", ("height", "width"), ("width", 1.0), _WALLS, 0.1),
    "tube": Problem("vel_in", ("height", "width"), ("height", 1.0), _CHANNEL, 0.1),
    "dam": Problem("velocity", _BARRIER, ("barrier_height", 1.0), _CHANNEL, 0.1),
    "cylinder": Problem("vel_in", _CYLINDER, ("radius", 2.0), _CHANNEL, 0.001),
}


def body_of(problem: str, case: Mapping[str, float], grid: Grid) -> Bool[Tensor, "y x"] | None:
    """Mark the grid points inside the cylinder or the dam's barrier."""
    x, y = grid.coordinates(torch.float64)
    if problem == "cylinder":
        x0, y0 = case.get("center_x", 0.0), case.get("center_y", 0.0)
        return (x - x0) ** 2 + (y - y0) ** 2 <= case["radius"] ** 2
    if problem == "dam":
        end = BARRIER_START + case["barrier_width"]
        return (x >= BARRIER_START) & (x <= end) & (y <= case["barrier_height"])
    return None


def find_cases(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield problem and folder of every case, by problem, subset and number."""
    if (path / "case.json").is_file() and (path / "u.npy").is_file():
        yield _problem_of(path), path
    subsets = [path / subset for subset in SUBSETS]
    problems = [path / problem / subset for problem in PROBLEMS for subset in SUBSETS]
    for parent in filter(Path.is_dir, (path, *subsets, *problems)):
        cases = [folder for folder in parent.iterdir() if re.fullmatch(r"case\d+", folder.name)]
        for folder in sorted(cases, key=lambda folder: int(folder.name[4:])):
            if (folder / "u.npy").is_file() or (folder / "case.json").is_file():
                yield _problem_of(folder), folder


def _problem_of(folder: Path) -> str:
    """The problem of a case, from the folders above it, or else from the keys of the case."""
    stated = folder.parent.parent.name
    if stated in PROBLEMS:
        return stated
    case = _read_json(folder / "case.json")
    fitting = [name for name, problem in PROBLEMS.items() if set(problem.keys) <= set(case)]
    if len(fitting) != 1:
        raise SourceError(
            f"{folder / 'case.json'}: cannot find the problem from its keys {sorted(case)}; put "
            f"the case below a folder named {' or '.join(PROBLEMS)}, as CFDBench does"
        )
    return fitting[0]


def _read_json(path: Path) -> dict[str, Any]:
    with reading(path, "the JSON object of numbers", errors=PARSING):
        case = parse_json(read_text(path))
        if not isinstance(case, dict):
            raise ValueError(f"found {type(case).__name__}")
        return case


def read_case(folder: Path, problem: str) -> dict[str, float]:
    """Read the numbers of a case; text and flags that the publishers added are left out."""
    path = folder / "case.json"
    stated = _read_json(path)
    keys = PROBLEMS[problem].keys
    require_keys(path, keys, list(stated))
    for key in (*keys, "dt", *(_CENTRE if problem == "cylinder" else ())):
        lowest = -LARGEST if key in _SIGNED else SMALLEST
        value = stated.get(key, 1.0)
        if type(value) not in (int, float) or not lowest <= value <= LARGEST:
            raise SourceError(
                f"{path}: expected a number from {lowest:g} to {LARGEST:g} as {key!r}, found "
                f"{repr(value)[:40]}; correct it or leave the case out"
            )
    numbers = {key: value for key, value in stated.items() if type(value) in (int, float)}
    case = {key: float(value) for key, value in numbers.items() if abs(value) <= LARGEST}
    x0, x1, y0, y1 = _box(problem, case)
    if not (x1 - x0 >= SMALLEST and y1 - y0 >= SMALLEST):
        raise SourceError(f"{path}: x_min and y_min must lie below x_max and y_max, found {case}")
    return case


def _box(problem: str, case: Mapping[str, float]) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the domain."""
    if problem == "cylinder":
        return case["x_min"], case["x_max"], case["y_min"], case["y_max"]
    return 0.0, case["width"], 0.0, case["height"]


def recognise(path: Path) -> bool:
    return next(find_cases(path), None) is not None


def open_recordings(
    path: Path, hints: Hints = Hints(), *, until_converged: bool = False, in_points: bool = False
) -> Recordings:
    """Open the cases under a root, problem, subset or case folder, in the publishers' order.

    ``hints.dt`` applies where a case states no time step. ``until_converged`` drops what follows
    the first frame from which the mean speed changes by less than ``CONVERGED``, as the publishers'
    loaders do except for the dam; loading a case then reads it once. ``in_points`` counts grid
    points instead of metres, as the publishers do, so that cases of different size have one grid.
    Derivatives then have no physical meaning, and no equation is stated.
    """
    path = Path(path).absolute()
    check_channels(path, hints, {"u": "u", "v": "v"})
    cases = {}
    for problem, folder in find_cases(path):
        subset = [folder.parent.name] if folder.parent.name in SUBSETS else []
        cases["_".join([problem, *subset, folder.name])] = problem, folder
    if not cases:
        raise SourceError(
            f"{path}: no case*/u.npy, v.npy and case.json; give a folder of CFDBench, or "
            f"{download_command(path)}"
        )
    for _, folder in cases.values():
        if absent := [name for name in FILES if not (folder / name).is_file()]:
            raise SourceError(
                f"{folder}: found no {' or '.join(absent)}; unpack the archive again, or leave the "
                "case out"
            )
    notes = ["points are taken as cell centres; body masks are computed from case.json"]
    if any(problem == "cylinder" for problem, _ in cases.values()) and hints.dt is None:
        notes.append(
            "the cylinder states no time step: 0.001 s is taken, another published loader uses "
            "0.1 s"
        )
    return Recordings(
        kind="cfdbench",
        path=path,
        names=tuple(cases),
        load=lambda name: _load(name, *cases[name], hints, until_converged, in_points),
        notes=tuple(notes),
        published_split=lambda: published_split(tuple(cases)),
    )


def download_command(path: Path) -> str:
    """How to get the data, or simulate some in their layout."""
    problem = next((name for name in path.parts if name in PROBLEMS), "PROBLEM")
    return (
        f"download {problem} from huggingface.co/datasets/chen-yingfa/CFDBench and unpack it as "
        f".../{problem}/prop/case0000/u.npy; or simulate it: python -m studies.cfdbench {problem} "
        "--out FOLDER"
    )


def published_split(names: Sequence[str]) -> Split:
    """Return the publishers' split of one problem: by case, 80/10/10, Python's shuffle, seed 0.

    It holds only for the complete set of cases, in the order prop, bc, geo. Segments are positions
    in ``names``. Their next-frame loaders round the number of cases to the nearest for the cavity,
    and down for the others.
    """
    problems = sorted({name.partition("_")[0] for name in names})
    if len(problems) != 1:
        raise ValueError(
            f"found {', '.join(problems)}; give the folder of one problem, as the publishers split "
            "each"
        )
    (problem,) = problems
    if missing := [subset for subset in SUBSETS if not any(f"_{subset}_" in n for n in names)]:
        raise SourceError(
            f"the publishers split {', '.join(SUBSETS)} of a problem together, found none of "
            f"{', '.join(missing)}; name the folder of the problem, or complete it: "
            f"{download_command(Path(problem))}"
        )
    if len(names) != CASES[problem]:
        warn(
            f"the publishers have {CASES[problem]} cases of {problem}, found {len(names)}: this "
            "split follows their rule, but is not theirs"
        )
    order = list(range(len(names)))
    random.Random(0).shuffle(order)
    whole = round if problem == "cavity" else int
    train, valid = whole(len(order) * 0.8), whole(len(order) * 0.1)
    segments = tuple(Segment(i) for i in order)
    return Split(segments[:train], segments[train : train + valid], (), segments[train + valid :])


def _load(
    name: str,
    name_of_problem: str,
    folder: Path,
    hints: Hints,
    until_converged: bool,
    in_points: bool,
) -> Trajectory:
    problem, case = PROBLEMS[name_of_problem], read_case(folder, name_of_problem)
    count, (ny, nx) = _stored_shape(folder)
    states = MappedFrames((count, 2, ny, nx), partial(_read_frames, folder))
    x0, x1, y0, y1 = _box(name_of_problem, case)
    dx, dy = (x1 - x0) / nx, (y1 - y0) / ny
    grid = Grid((ny, nx), dx, dy, problem.sides, origin=(x0 + dx / 2, y0 + dy / 2))
    fluid = {
        "velocity": case[problem.velocity],
        "density": case["density"],
        "viscosity": case["viscosity"] / case["density"],
    }
    bodies = [key for key in problem.geometry if key == "radius" or "barrier" in key]
    values = {**fluid, "height": y1 - y0, "width": x1 - x0, **{key: case[key] for key in bodies}}
    key, factor = problem.length
    derived = {
        "viscosity": "kinematic: the source's dynamic viscosity by its density",
        "Re": values["velocity"] * factor * case[key] / values["viscosity"],
        "Re_length": f"{factor:g} {key}",
    }
    local: dict[str, Any] = {"points": "cell centres (assumed)", "derived": derived}
    dt = case.get("dt", hints.dt or problem.dt)
    source = {
        # Not everything in this layout was published: write_cfdbench makes such folders too.
        "title": f"{name_of_problem} flow in CFDBench's layout",
        "kind": "simulated",
        "file": str(folder),
        "frames": count,
        "frame_interval": case.get("dt", problem.dt),
        "case": case,
    }
    if name_of_problem == "cylinder" and "dt" not in case:
        source["note"] = "frame_interval is 0.1 s in another of the publishers' loaders"
    if until_converged:
        kept = _steady_frame(states) + 1
        local["until_converged"] = {"threshold": CONVERGED, "frames": kept, "of": count}
        states = replace(states, shape=(kept, 2, ny, nx))
    body = body_of(name_of_problem, case, grid)
    if in_points:
        grid = Grid((ny, nx), sides=grid.sides)
        local["family"] = "none: lengths count points"
    return Trajectory(
        name=name,
        states=states,
        time=dt * torch.arange(states.shape[0], dtype=torch.float64),
        spec=FieldSpec(
            channels=("u", "v"),
            units=("m/s", "m/s"),
            parameters=tuple(
                Parameter(name=key, scaling="log" if key in fluid else "linear") for key in values
            ),
            dt=dt,
            grid=grid,
            family=None if in_points else "incompressible",
        ),
        parameters=values,
        body=body,
        valid=finite_points(states),
        source=source,
        local=local,
        length_unit="px" if in_points else "m",
        time_unit="s",
    )


def _stored_shape(folder: Path) -> tuple[int, tuple[int, int]]:
    """Number of frames and shape of the grid, from both headers."""
    u, v = open_array(folder / "u.npy"), open_array(folder / "v.npy")
    if u.ndim != 3 or not u.size or u.shape != v.shape or u.dtype.kind + v.dtype.kind != "ff":
        raise SourceError(
            f"{folder}: expected u and v of one shape (t, y, x), found {u.dtype} of shape "
            f"{u.shape} and {v.dtype} of shape {v.shape}"
        )
    return u.shape[0], (u.shape[1], u.shape[2])


def _read_frames(folder: Path, frames: slice, channels: Sequence[int] | None) -> Tensor:
    """Read frames of a case; the files are mapped for every read."""
    with np.errstate(over="ignore"):  # too large for float32: infinite, and so not valid
        fields = [
            open_array(folder / name)[frames].astype(np.float32)
            for name in pick(("u.npy", "v.npy"), channels)
        ]
    return torch.from_numpy(np.stack(fields, 1))


def _steady_frame(states: MappedFrames) -> int:
    """The first frame that the next one hardly differs from; else the last frame."""
    before: Tensor | None = None
    for frame in range(states.shape[0]):
        speed = states.read(slice(frame, frame + 1)).square().sum(1).sqrt()
        if before is not None and bool((speed - before).abs().mean() < CONVERGED):
            return frame - 1
        before = speed
    return states.shape[0] - 1
