"""A coupled model that learned from our solver, rolled out from flows that OpenFOAM computed.

For the test flows of the run OpenFOAM simulates the same Reynolds number, mass ratio, reduced
velocity and damping. The model is rolled out from the first frame of both.
"""

from collections.abc import Callable, Sequence
from math import pi
from pathlib import Path
from typing import Any

from pibert.data.dataset import Window
from pibert.data.format import Reader, write
from pibert.evaluation.structure import DAMPING_RATIO, score_structure
from pibert.experiments.held_out import flows_of_run, flows_to_score
from pibert.fields import FieldSpec, Trajectory
from pibert.inference import load
from studies.openfoam.case import Cylinder, Spring, run
from studies.openfoam.compare import cost
from studies.openfoam.frames import read_frames

WARM_UP, SPAN = 60.0, 60.0
"""Of OpenFOAM, in D/U: the span is 6 periods or more."""
SCALED = {"refinement": 0.8, "step": 0.025, "initial_v": 0.2}
"""Mesh, time step and start of the vibrating cylinder (``compare.vibrating``)."""


def measure(
    folder: Path,
    work: Path,
    say: Callable[[str], None],
    span: tuple[float, float] = (WARM_UP, SPAN),
    numbers: Sequence[int] = (),
) -> dict[str, Any]:
    """Return rows of vibration measures: the model from our frames, and from OpenFOAM's.

    Args:
        folder: A run on single cylinders on springs, such as the preset ``coupled-single``.
        work: Of the simulations; finished ones are reused.
        say: Takes lines on the progress.
        span: Length of the warm-up and of the frames, in D/U.
        numbers: Of the test flows to simulate, from 0; none: all.
    """
    predictor, own = load(folder), flows_of_run(folder)
    if wrong := sorted({*numbers} - {*range(len(own.split.test))}):
        raise ValueError(
            f"--flows: expected numbers of test flows from 0 to {len(own.split.test) - 1}, found "
            f"{', '.join(map(str, wrong))}; leave them out"
        )
    segments = [own.split.test[n] for n in numbers] if numbers else own.split.test
    test = [own.trajectories[segment.trajectory] for segment in segments]
    _check(folder, predictor.spec, test)
    assert predictor.spec.dt is not None
    flows, seconds = [], []
    for flow in test:
        case = _case(flow, predictor.spec.dt, span)
        simulated = work / _name(case)
        if not simulated.exists():
            run(case, simulated)
        frames = simulated / f"frames-{predictor.spec.grid.dx:.4g}.h5"
        if not frames.exists():
            write(frames, [read_frames(simulated, case, predictor.spec.grid)])
        flows.append(Reader(frames)[0])
        seconds.append(cost(simulated)["cpu_seconds"])
        say(f"{simulated.name}: done")
    together = work / "response.h5"
    together.unlink(missing_ok=True)
    write(together, flows)
    window = Window(history=predictor.history)
    both = {"lattice": own.samples(segments, window)}
    both["openfoam"] = flows_to_score(folder, together).samples("test", window)
    rows = {name: score_structure(predictor, samples)[0] for name, samples in both.items()}
    facts = {"model": predictor.card["model"]["name"], "test_flows": len(own.split.test)}
    return {**facts, "cpu_seconds": seconds, **rows}


def _name(case: Cylinder) -> str:
    assert case.spring is not None
    numbers = (case.reynolds, case.spring.mass, case.spring.reduced_velocity)
    timing = (case.spring.damping_ratio, case.warm_up, case.end, case.interval)
    return "response-" + "-".join(f"{number:.4g}" for number in (*numbers, *timing))


def _case(flow: Trajectory, dt: float, span: tuple[float, float]) -> Cylinder:
    given = flow.parameters
    spring = Spring(
        mass=0.25 * pi * given["mass_ratio"],
        reduced_velocity=given["reduced_velocity"],
        damping_ratio=float(flow.local[DAMPING_RATIO]),
    )
    return Cylinder(
        reynolds=given["Re"],
        spring=spring,
        warm_up=span[0],
        frames=1 + round(span[1] / dt),
        interval=dt,
        **SCALED,
    )


def _check(folder: Path, spec: FieldSpec, test: list[Trajectory]) -> None:
    """Refuse runs on flows that OpenFOAM's case does not have."""
    if not spec.moving or not test:
        raise ValueError(f"{folder}: expected a run on moving bodies with test flows, found none")
    for flow in test:
        if flow.length_unit != "D" or flow.local.get("gap", 0) is not None:
            raise ValueError(
                f"{folder}: expected single cylinders in units of D and U, as OpenFOAM simulates, "
                f"found {flow.name} with a gap of {flow.local.get('gap')} and lengths in "
                f"{flow.length_unit}; train on data.preset = 'coupled-single'"
            )
