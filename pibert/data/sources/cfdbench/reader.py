"""CFDBench (Luo, Chen, Zhang 2023): cavity, tube, dam and cylinder flows, read and written.

    <root>/<problem>/<subset>/caseNNNN/{u.npy, v.npy, case.json}    subset: prop, bc or geo

``u.npy`` and ``v.npy`` are (t, y, x), 64 x 64 points, row 0 at the bottom; ``case.json`` is a flat
object of numbers in SI units. Its ``viscosity`` is dynamic (Pa s); the parameter ``viscosity`` of a
trajectory is kinematic, as everywhere here. The points are taken as cell centres (dx = width / 64;
the publishers' loaders put the boundary values around them). Body masks are not stored: they are
made from the geometry again, a point being solid when it lies inside.

The spacing of frames is a constant of the publishers' loaders, not of the files: 0.1 s, but for the
cylinder 0.001 s in one loader and 0.1 s in another.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pibert.data.sources.arrays import open_array
from pibert.data.sources.cfdbench.case_files import (
    PROBLEMS,
    SUBSETS,
    body_of,
    box_of,
    find_cases,
    grid_of,
    name_of,
    read_case,
)
from pibert.data.sources.cfdbench.writer import write_cfdbench as write_cfdbench
from pibert.data.sources.recordings import Hints, Recordings, SourceError, check_channels
from pibert.data.splits import Segment, Split
from pibert.fields import FieldSpec, Parameter, Trajectory

TITLE = "CFDBench (cavity, tube, dam, cylinder)"

CONVERGED = 1e-3
"""Mean change of speed (m/s) between two frames below which a flow counts as steady."""


def recognise(path: Path) -> bool:
    try:
        return next(find_cases(path), None) is not None
    except (OSError, SourceError):
        return False


def open_recordings(
    path: Path, hints: Hints = Hints(), *, until_converged: bool = False
) -> Recordings:
    """The cases under a root, problem, subset or case folder, ordered as the publishers do.

    Args:
        path: The folder.
        hints: ``dt`` stands in for what the publishers' loaders say where a case states none.
        until_converged: Drop what follows the first frame from which the mean speed changes by less
            than ``CONVERGED``, as the publishers' loaders do except for the dam. Loading a case
            then reads it once.
    """
    path = Path(path).absolute()
    check_channels(path, hints, {"u": "u", "v": "v"})
    cases = {name_of(problem, folder): (problem, folder) for problem, folder in find_cases(path)}
    if not cases:
        raise SourceError(
            f"{path}: expected a CFDBench folder with case*/u.npy, v.npy and case.json, "
            f"below {' or '.join(PROBLEMS)} and {', '.join(SUBSETS)}; found none"
        )
    remarks = ["points are taken as cell centres; body masks are made from case.json"]
    if any(problem == "cylinder" for problem, _ in cases.values()) and hints.dt is None:
        remarks.append(
            "frames of the cylinder are taken as 0.001 s apart where the case does not say; the "
            "publishers' loaders say 0.001 s in one place and 0.1 s in another"
        )
    load = partial(_load, cases=cases, hints=hints, until_converged=until_converged)
    return Recordings(
        kind="cfdbench", path=path, names=tuple(cases), load=load, remarks=tuple(remarks)
    )


def published_split(
    names: Sequence[str], problem: str, *, task: Literal["next-frame", "whole-field"] = "next-frame"
) -> Split:
    """The publishers' split of one problem: by case, 80/10/10, from Python's shuffle with seed 0.

    It holds only for the complete set of cases, in the order prop, bc, geo, that they shuffled.

    Args:
        names: Of ``Recordings``; the segments are places in it, other problems are left out.
        problem: A key of ``PROBLEMS``.
        task: Their two families of loaders round the number of cases differently.
    """
    order = [i for i, name in enumerate(names) if name.startswith(f"{problem}_")]
    if not order:
        raise ValueError(
            f"no case of {problem!r} among {len(names)} names; choose from: {', '.join(PROBLEMS)}"
        )
    random.Random(0).shuffle(order)
    nearest = problem == "cavity" or (task == "whole-field" and problem in ("tube", "dam"))
    whole = round if nearest else int
    train, valid = whole(len(order) * 0.8), whole(len(order) * 0.1)
    segments = tuple(Segment(i) for i in order)
    return Split(segments[:train], segments[train : train + valid], (), segments[train + valid :])


def _load(
    name: str, *, cases: Mapping[str, tuple[str, Path]], hints: Hints, until_converged: bool
) -> Trajectory:
    problem, folder = cases[name]
    case = read_case(folder, problem)
    states = _StoredFrames(folder, *_stored_shape(folder))
    local: dict[str, Any] = {"points": "cell centres (assumed)", "derived": _derive(problem, case)}
    dt = case.get("dt", hints.dt or PROBLEMS[problem].dt)
    source = {
        # Not everything in this layout was published: write_cfdbench makes such folders too.
        "title": f"{problem} flow in CFDBench's layout",
        "kind": "simulated",
        "file": str(folder),
        "frames": states.count,
        "frame_interval": case.get("dt", PROBLEMS[problem].dt),
        "case": case,
    }
    if problem == "cylinder" and "dt" not in case:
        source["remark"] = "frame_interval is 0.1 s in another of the publishers' loaders"
    if until_converged:
        kept = _steady_frame(states) + 1
        local["until_converged"] = {"threshold": CONVERGED, "frames": kept, "of": states.count}
        states = replace(states, count=kept)
    grid = grid_of(problem, case, states.shape[2:])
    values = _parameters(problem, case)
    fluid = ("velocity", "density", "viscosity")
    return Trajectory(
        name=name,
        states=states,
        time=dt * torch.arange(states.count, dtype=torch.float64),
        spec=FieldSpec(
            channels=("u", "v"),
            units=("m/s", "m/s"),
            parameters=tuple(
                Parameter(name=key, scaling="log" if key in fluid else "linear") for key in values
            ),
            dt=dt,
            grid=grid,
            family="incompressible",
        ),
        parameters=values,
        body=body_of(problem, case, grid),
        valid=_Finite(states),
        source=source,
        local=local,
        length_unit="m",
        time_unit="s",
    )


def _parameters(problem: str, case: Mapping[str, float]) -> dict[str, float]:
    x0, x1, y0, y1 = box_of(problem, case)
    bodies = ("radius", "barrier_height", "barrier_width")
    return {
        "velocity": case[PROBLEMS[problem].velocity],
        "density": case["density"],
        "viscosity": case["viscosity"] / case["density"],
        "height": y1 - y0,
        "width": x1 - x0,
    } | {key: case[key] for key in bodies if key in PROBLEMS[problem].geometry}


def _derive(problem: str, case: Mapping[str, float]) -> dict[str, Any]:
    """What follows from the case but is not stated."""
    key, factor = PROBLEMS[problem].length
    speed, nu = case[PROBLEMS[problem].velocity], case["viscosity"] / case["density"]
    return {
        "viscosity": "kinematic: the source's dynamic viscosity by its density",
        "Re": speed * factor * case[key] / nu,
        "Re_length": f"{factor:g} {key}",
    }


def _stored_shape(folder: Path) -> tuple[int, tuple[int, int]]:
    """Number of frames and shape of the grid, after a look at both headers."""
    arrays = {name: open_array(folder / name) for name in ("u.npy", "v.npy")}
    for name, array in arrays.items():
        if array.ndim != 3 or not array.size or array.dtype.kind != "f":
            raise SourceError(
                f"{folder / name}: expected real numbers of shape (t, y, x), found {array.dtype} "
                f"of shape {array.shape}"
            )
    u, v = arrays.values()
    if u.shape != v.shape:
        raise SourceError(
            f"{folder}: u.npy and v.npy must have one shape, found {u.shape} and {v.shape}"
        )
    return u.shape[0], (u.shape[1], u.shape[2])


@dataclass(frozen=True)
class _StoredFrames:
    """The first frames of a case. Files are mapped for every read, so that it can be pickled."""

    folder: Path
    count: int
    grid_shape: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, 2, *self.grid_shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        names = ("u.npy", "v.npy")
        chosen = names if channels is None else [names[i] for i in channels]
        where = slice(*frames.indices(self.count))
        with np.errstate(over="ignore"):  # too large for float32: infinite, and so not valid
            fields = [open_array(self.folder / name)[where].astype(np.float32) for name in chosen]
        return torch.from_numpy(np.stack(fields, 1))


@dataclass(frozen=True)
class _Finite:
    """Points where all channels are finite."""

    states: _StoredFrames

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.states.count, *self.states.grid_shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        return self.states.read(frames).isfinite().all(1)


def _steady_frame(states: _StoredFrames) -> int:
    """The first frame that the next one hardly differs from; the last one if there is none."""
    before: Tensor | None = None
    for frame in range(states.count):
        speed = states.read(slice(frame, frame + 1)).square().sum(1).sqrt()
        if before is not None and bool((speed - before).abs().mean() < CONVERGED):
            return frame - 1
        before = speed
    return states.count - 1
