"""Writer of CFDBench's layout, to compare with its loaders.

    <folder>/<problem>/<subset>/caseNNNN/{u.npy, v.npy, case.json}

Numbers are written unchanged, though CFDBench's are in SI units. Only a dam without units is
scaled, because its barrier must stand at x = 0.5: lengths, times and viscosity by one factor, which
keeps velocities and the Reynolds number. A key ``dt`` is added if the frames have another time step
than the publishers' loaders assume; our reader uses it, theirs do not. Points inside the body
become zero; missing points are refused. The layout has no sides, pressure and series.
"""

import io
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pibert.data.filling import count_filled
from pibert.data.partial import partial_path, writing
from pibert.data.readers.cfdbench import BARRIER_START, PROBLEMS, body_of
from pibert.data.resample import represent
from pibert.fields import Trajectory
from pibert.notes import warn

SIZE = (64, 64)
"""Rows and columns of every field of CFDBench."""


def write_cfdbench(
    folder: Path | str,
    problem: Literal["cavity", "tube", "dam", "cylinder"],
    subset: Literal["prop", "bc", "geo"],
    trajectories: Iterable[Trajectory],
) -> tuple[Path, ...]:
    """Write trajectories as cases 0, 1, ..., each whole or not at all; return the case folders.

    Fields on another grid than 64 x 64 are resized. Speed, density and viscosity are the parameters
    ``velocity``, ``density`` (default 1) and ``viscosity`` (kinematic), or follow from the spec:
    its reference scales, its viscosity, the Reynolds number. Lengths are those of the grid and its
    body.
    """
    written = []
    for number, trajectory in enumerate(trajectories):
        target = Path(folder) / problem / subset / f"case{number:04d}"
        if target.exists():
            raise FileExistsError(f"{target} exists; remove it or choose another folder")
        case = json.dumps(_describe_case(trajectory, problem), indent=2, allow_nan=False)
        _write_whole(target, *_velocities(trajectory), case)
        written.append(target)
    return tuple(written)


def _describe_case(trajectory: Trajectory, problem: str) -> dict[str, float]:
    """Return the content of ``case.json``."""
    spec, grid = trajectory.spec, trajectory.spec.grid
    if spec.dt is None:
        raise ValueError(
            f"trajectory {trajectory.name!r}: CFDBench's frames are evenly spaced in time, but its "
            "dt is not known; state it"
        )
    scale, barrier = _find_barrier(trajectory) if problem == "dam" else (1.0, {})
    velocity, density, viscosity = _fluid(trajectory)
    dt, (ny, nx) = spec.dt * scale, grid.shape
    width, height = nx * grid.dx * scale, ny * grid.dy * scale
    case = {
        PROBLEMS[problem].velocity: velocity,
        "density": density,
        "viscosity": viscosity * density * scale,
    }
    if problem == "cylinder":
        x, y, radius = _find_disc(trajectory)
        # Their loaders assume the cylinder at the origin.
        left, bottom = grid.origin[0] - grid.dx / 2 - x, grid.origin[1] - grid.dy / 2 - y
        case |= {"radius": radius, "x_min": left, "x_max": left + width}
        case |= {"y_min": bottom, "y_max": bottom + height}
    else:
        case |= {"height": height, "width": width, **barrier}
    if problem == "dam":
        case |= {"dx": width / SIZE[1], "dy": height / SIZE[0]}
    if abs(dt - PROBLEMS[problem].dt) > 1e-6 * dt:
        case["dt"] = dt
    return case


def _fluid(trajectory: Trajectory) -> tuple[float, float, float]:
    """Velocity, density and kinematic viscosity; one may follow from Re and the other."""
    values, spec = trajectory.parameters, trajectory.spec
    velocity = values.get("velocity", spec.reference_velocity)
    viscosity = values.get("viscosity", spec.viscosity)
    length, reynolds = spec.reference_length, values.get("Re")
    if length and reynolds and velocity and viscosity is None:
        viscosity = velocity * length / reynolds
    elif length and reynolds and viscosity and velocity is None:
        velocity = reynolds * viscosity / length
    if velocity is None or viscosity is None:
        raise ValueError(
            f"trajectory {trajectory.name!r}: CFDBench states velocity and viscosity, but neither "
            f"parameters {sorted(values)} nor reference scales, viscosity and Re give both"
        )
    return velocity, values.get("density", 1.0), viscosity


def _static_body(trajectory: Trajectory) -> Tensor:
    body = trajectory.spec.grid.body
    if body is None or not bool(body.any()):
        raise ValueError(
            f"trajectory {trajectory.name!r}: expected a body that does not move, found "
            f"{'none' if trajectory.body is None else 'one that is empty or moves'}"
        )
    return body


def _find_disc(trajectory: Trajectory) -> tuple[float, float, float]:
    """Centre and radius of the cylinder."""
    body, grid = _static_body(trajectory), trajectory.spec.grid
    radius = trajectory.parameters.get("radius")
    if radius is None:
        area = float(body.sum()) * grid.dx * grid.dy
        stated = trajectory.spec.reference_length
        radius = (area / torch.pi) ** 0.5 if stated is None else stated / 2
    mask = body_of("cylinder", {"radius": radius}, grid)
    if mask is not None and torch.equal(mask, body):
        return 0.0, 0.0, radius
    x, y = (coordinate[body].mean().item() for coordinate in grid.coordinates(torch.float64))
    return x, y, radius


def _find_barrier(trajectory: Trajectory) -> tuple[float, dict[str, float]]:
    """Return the factor that moves the barrier to CFDBench's position; its height and width."""
    body, grid, values = _static_body(trajectory), trajectory.spec.grid, trajectory.parameters
    rows, columns = body.any(1).nonzero().flatten(), body.any(0).nonzero().flatten()
    distance = float(columns[0]) * grid.dx
    scale = 1.0 if abs(distance - BARRIER_START) <= grid.dx else BARRIER_START / (distance or 1.0)
    if rows[0] or columns[0] == 0 or (scale != 1.0 and trajectory.length_unit == "m"):
        raise ValueError(
            f"trajectory {trajectory.name!r}: CFDBench's barrier stands on the bottom, "
            f"{BARRIER_START:g} m behind the inflow; found one in row {int(rows[0])}, {distance:g} "
            f"{trajectory.length_unit or 'units of length'} behind it"
        )
    height = values.get("barrier_height", float(rows[-1] + 1) * grid.dy)
    width = values.get("barrier_width", float(len(columns)) * grid.dx)
    return scale, {"barrier_height": height * scale, "barrier_width": width * scale}


def _velocities(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    view = represent(trajectory, channels=("u", "v"), size=SIZE)
    fields, known = view.read().cpu(), view.known().cpu()
    body = view.spec.grid.body
    solid = torch.zeros(SIZE, dtype=torch.bool) if body is None else body
    known &= fields.isfinite().all(1)
    missing = int((~known & ~solid).sum())
    if missing:
        raise ValueError(
            f"trajectory {trajectory.name!r}: {missing} values are missing or not finite, which "
            "CFDBench's layout cannot mark; fill them or leave the trajectory out"
        )
    if filled := count_filled(view)[0]:
        warn(
            f"trajectory {trajectory.name!r}: {filled} of its vectors were filled, not measured, "
            "which CFDBench's layout cannot mark: readers will count them as ground truth"
        )
    u, v = torch.where(solid, 0.0, fields).unbind(1)
    return u.numpy(), v.numpy()


def _write_whole(target: Path, u: np.ndarray, v: np.ndarray, case: str) -> None:
    unfinished = partial_path(target)
    try:
        with writing(target):
            unfinished.mkdir(parents=True)
            for name, array in (("u.npy", u), ("v.npy", v)):
                content = io.BytesIO()  # np.save to a file hides the reason of an error
                np.save(content, array, allow_pickle=False)
                (unfinished / name).write_bytes(content.getvalue())
            (unfinished / "case.json").write_text(case)
            unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
