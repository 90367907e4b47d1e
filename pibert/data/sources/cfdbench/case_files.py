"""The cases of CFDBench: which problems there are, where their folders lie, what they state.

A case is a folder ``<problem>/<subset>/caseNNNN`` with ``u.npy``, ``v.npy`` and ``case.json``, a
flat object of numbers in SI units; its ``viscosity`` is dynamic. Cases are ordered by problem,
subset (prop, bc, geo) and number, as in the publishers' loaders.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.data.sources.arrays import require_keys
from pibert.data.sources.recordings import SourceError
from pibert.fields import Boundary, Grid, Sides
from pibert.regular_files import require_regular

SUBSETS = ("prop", "bc", "geo")
"""In the publishers' order, which their split depends on."""
BARRIER_START = 0.5
"""x of the dam's barrier, a constant of the publishers' loader."""
SMALLEST, LARGEST = 1e-18, 1e18
"""Range of the numbers of a case: the ratio of two of them is then a float32 that is not zero."""

_CENTRE = ("center_x", "center_y")
_SIGNED = ("x_min", "x_max", "y_min", "y_max", *_CENTRE)
_WALLS = Sides(*[Boundary.WALL] * 4)
_CHANNEL = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.WALL)


@dataclass(frozen=True)
class Problem:
    """What the files of a problem hold."""

    velocity: str
    """Key of the speed of the lid or the inflow."""
    geometry: tuple[str, ...]
    """Keys of the lengths."""
    length: tuple[str, float]
    """Key and factor of the length in Re."""
    sides: Sides
    dt: float
    """Between frames, where the case does not say (the published ones do not)."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.velocity, "density", "viscosity", *self.geometry)


PROBLEMS = {
    "cavity": Problem("vel_top", ("height", "width"), ("width", 1.0), _WALLS, 0.1),
    "tube": Problem("vel_in", ("height", "width"), ("height", 1.0), _CHANNEL, 0.1),
    "dam": Problem(
        "velocity",
        ("height", "width", "barrier_height", "barrier_width"),
        ("barrier_height", 1.0),
        _CHANNEL,
        0.1,
    ),
    "cylinder": Problem(
        "vel_in", ("radius", "x_min", "x_max", "y_min", "y_max"), ("radius", 2.0), _CHANNEL, 0.001
    ),
}


def body_of(problem: str, case: Mapping[str, float], grid: Grid) -> Bool[Tensor, "y x"] | None:
    """The points of a grid inside the cylinder or the dam's barrier."""
    x, y = grid.coordinates(torch.float64)
    if problem == "cylinder":
        x0, y0 = case.get("center_x", 0.0), case.get("center_y", 0.0)
        return (x - x0) ** 2 + (y - y0) ** 2 <= case["radius"] ** 2
    if problem == "dam":
        end = BARRIER_START + case["barrier_width"]
        return (x >= BARRIER_START) & (x <= end) & (y <= case["barrier_height"])
    return None


def find_cases(path: Path) -> Iterator[tuple[str, Path]]:
    """Problem and folder of every case, by problem, subset and number."""
    if (path / "case.json").is_file() and (path / "u.npy").is_file():
        yield _problem_of(path), path
    subsets = [path / subset for subset in SUBSETS]
    problems = [path / problem / subset for problem in PROBLEMS for subset in SUBSETS]
    for place in (path, *subsets, *problems):
        if place.is_dir():
            cases = [f for f in place.iterdir() if _number(f) >= 0 and _is_case(f)]
            yield from ((_problem_of(folder), folder) for folder in sorted(cases, key=_number))


def _is_case(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("u.npy", "case.json"))


def _number(folder: Path) -> int:
    digits = folder.name.removeprefix("case")
    return int(digits) if digits.isdecimal() and digits != folder.name else -1


def _problem_of(folder: Path) -> str:
    """By the folder's place, or else by the keys of the case."""
    stated = folder.parent.parent.name
    if stated in PROBLEMS:
        return stated
    case = _read_json(folder / "case.json")
    fitting = [name for name, problem in PROBLEMS.items() if set(problem.keys) <= set(case)]
    if len(fitting) != 1:
        raise SourceError(
            f"{folder / 'case.json'}: cannot tell the problem from its keys {sorted(case)}; put "
            f"the case below a folder named {' or '.join(PROBLEMS)}, as CFDBench does"
        )
    return fitting[0]


def name_of(problem: str, folder: Path) -> str:
    subset = folder.parent.name
    return "_".join((problem, subset, folder.name) if subset in SUBSETS else (problem, folder.name))


def _read_json(path: Path) -> dict[str, Any]:
    require_regular(path)
    try:
        case = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(
            f"{path}: expected a JSON object of numbers, but it cannot be read ({error})"
        ) from error
    if not isinstance(case, dict):
        raise SourceError(f"{path}: expected a JSON object of numbers, found {type(case).__name__}")
    return case


def read_case(folder: Path, problem: str) -> dict[str, float]:
    """The numbers of a case, checked; texts and flags that the publishers added are left out."""
    path = folder / "case.json"
    stated = _read_json(path)
    require_keys(path, PROBLEMS[problem].keys, list(stated))
    case = {key: float(value) for key, value in stated.items() if _is_number(value)}
    for key in (*PROBLEMS[problem].keys, "dt", *(_CENTRE if problem == "cylinder" else ())):
        if key not in stated:
            continue
        lowest = -LARGEST if key in _SIGNED else SMALLEST
        if key not in case or not lowest <= case[key] <= LARGEST:
            found = stated[key]
            found = type(found).__name__ if isinstance(found, list | dict) else repr(found)[:40]
            raise SourceError(
                f"{path}: expected a number from {lowest:g} to {LARGEST:g} as {key!r}, found "
                f"{found}; correct it or leave the case out"
            )
    x0, x1, y0, y1 = box_of(problem, case)
    if not (x1 - x0 >= SMALLEST and y1 - y0 >= SMALLEST):
        raise SourceError(f"{path}: x_min and y_min must lie below x_max and y_max, found {case}")
    return case


def _is_number(value: object) -> bool:
    """Whether a value of JSON is a finite number; true and false are not."""
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # a whole number that no float can hold
        return False


def grid_of(problem: str, case: Mapping[str, float], shape: tuple[int, ...]) -> Grid:
    x0, x1, y0, y1 = box_of(problem, case)
    ny, nx = shape
    dx, dy = (x1 - x0) / nx, (y1 - y0) / ny
    return Grid((ny, nx), dx, dy, PROBLEMS[problem].sides, origin=(x0 + dx / 2, y0 + dy / 2))


def box_of(problem: str, case: Mapping[str, float]) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the domain."""
    if problem == "cylinder":
        return case["x_min"], case["x_max"], case["y_min"], case["y_max"]
    return 0.0, case["width"], 0.0, case["height"]
