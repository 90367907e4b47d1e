"""Solver output in CFDBench's layout: the flows of docs/supplement.md.

    python -m studies.cfdbench --out data/cfdbench cavity tube cylinder
    python -m studies.cfdbench --out data/cfdbench cavity --cases 8 --frames 20    # small

A problem becomes ``<out>/<problem>/prop/caseNNNN/{u.npy, v.npy, case.json}`` (Luo, Chen and Zhang
2023): float64 (t, 64, 64), rows from the bottom, SI units. The solver works in units of a length D
and a speed U. Here D, U and the density are the same for all cases of a problem, and the viscosity
U D / Re is what differs, as in the subset ``prop``. D and U are such that frames are as far apart
as the publishers' loaders take for granted, so that ``case.json`` has their keys and no other.

Two things differ from the published set. The cylinder stands in a wide stream, of which only a part
is stored, while readers of this layout assume walls at the sides. And the layout cannot hold the
pressure.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch

from pibert.data.format import Reader
from pibert.data.generate import change, generate, recipe_hash
from pibert.data.writers.cfdbench import write_cfdbench
from pibert.experiments.flows import cache_folder
from pibert.fields import FieldSpec, Parameter, Trajectory
from pibert.solver.presets import find_preset
from pibert.solver.recipes import Recipe

Problem = Literal["cavity", "tube", "cylinder"]
SUBSET: Literal["prop"] = "prop"
"""Subset of cases that differ by their fluid alone."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The flows of a problem: what to simulate, and what D and U are in metres."""

    length: float
    """D in m: side of the cavity, distance of the tube's walls, diameter of the cylinder."""
    speed: float
    """U in m/s: of the lid or the stream."""
    density: float
    """In kg/m^3; it decides the dynamic viscosity of ``case.json`` and nothing else."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """Changes of the demo preset."""
    has_cylinder: bool = False


FLOWS: dict[Problem, Flow] = {
    # Frames every 0.25 D/U = 0.1 s.
    "cavity": Flow(length=0.4, speed=1.0, density=1.0),
    "tube": Flow(length=0.1, speed=0.25, density=500.0, recipe={"points": 64, "speed": 0.1}),
    # Frames every 0.5 D/U = 0.001 s; 3 D before and 8 D behind the centre, 3 D to either side.
    "cylinder": Flow(
        length=0.02,
        speed=10.0,
        density=10.0,
        recipe={
            "view": [64, 117],
            "body": [31.5, 31.5, 32 / 3],
            "domain": [18.0, 12.0],
            "upstream": 6.0,
            "warm_up": 30.0,
        },
        has_cylinder=True,
    ),
}


def recipe_of(problem: Problem, *, cases: int | None = None, frames: int | None = None) -> Recipe:
    """Settings of the solver.

    Args:
        problem: Which flows.
        cases: How many; as many as the preset if not given.
        frames: Of each; as many as the preset if not given.
    """
    numbers = {"samples": cases, "frames": frames}
    changes = {name: value for name, value in numbers.items() if value is not None}
    return change(find_preset(problem), FLOWS[problem].recipe | changes)


def in_metres(trajectory: Trajectory, flow: Flow) -> Trajectory:
    """Velocities of a trajectory in units of D and U as one in m and m/s, in double precision.

    Its parameters are those that a CFDBench case states; the viscosity is kinematic.
    """
    spec, grid = trajectory.spec, trajectory.spec.grid
    if trajectory.length_unit != "D" or spec.dt is None:
        raise ValueError(
            f"trajectory {trajectory.name!r}: expected lengths in D and a time step, found "
            f"{trajectory.length_unit!r} and {spec.dt}"
        )
    length, speed = flow.length, flow.speed
    values = {
        "velocity": speed,
        "density": flow.density,
        "viscosity": speed * length / trajectory.parameters["Re"],
    }
    if flow.has_cylinder:
        values["radius"] = length / 2
    places = [spec.channels.index(name) for name in ("u", "v")]
    return Trajectory(
        name=trajectory.name,
        states=speed * trajectory.read(channels=places).double(),
        time=length / speed * trajectory.time,
        spec=FieldSpec(
            channels=("u", "v"),
            units=("m/s", "m/s"),
            parameters=tuple(Parameter(name=name) for name in values),
            dt=length / speed * spec.dt,
            grid=replace(
                grid,
                dx=length * grid.dx,
                dy=length * grid.dy,
                origin=(length * grid.origin[0], length * grid.origin[1]),
            ),
            family=spec.family,
        ),
        parameters=values,
        source=trajectory.source,
        length_unit="m",
        time_unit="s",
    )


def make(
    out: Path,
    problem: Problem,
    *,
    cases: int | None = None,
    frames: int | None = None,
    device: str = "cpu",
) -> tuple[Path, ...]:
    """Simulate a problem, unless that is done, and write its cases.

    Args:
        out: The root of the layout.
        problem: Which flows.
        cases: How many.
        frames: Of each.
        device: Where to simulate.

    Returns:
        The case folders.
    """
    place = out / problem / SUBSET
    if place.exists():
        raise FileExistsError(f"{place} exists; remove it or choose another folder")
    recipe = recipe_of(problem, cases=cases, frames=frames)
    path = cache_folder() / f"{problem}-{recipe_hash(recipe)}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    generate(recipe, path, device=device)
    with Reader(path) as reader:
        scaled = (in_metres(trajectory, FLOWS[problem]) for trajectory in reader)
        return write_cfdbench(out, problem, SUBSET, scaled)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; arguments are those of the process if not given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("problems", nargs="+", choices=get_args(Problem), metavar="PROBLEM")
    parser.add_argument("--out", type=Path, default=Path("data/cfdbench"))
    parser.add_argument("--cases", type=int, help="of each problem; 12 if not given")
    parser.add_argument("--frames", type=int, help="of each case; 40, for the cylinder 60")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    for problem in cast(list[Problem], options.problems):
        written = make(
            options.out,
            problem,
            cases=options.cases,
            frames=options.frames,
            device=options.device,
        )
        print(f"{problem}: {len(written)} cases in {written[0].parent}")


if __name__ == "__main__":
    main()
