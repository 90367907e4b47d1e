"""Our solver on a coarser grid, as a reference of rollouts: what the time of a surrogate buys.

For data of a recipe that has coarser grids (wakes of cylinders, vorticity in a periodic box). The
surrogate is the tested model, or else the first trained one. The grid is the finest whose time per
frame is at most that of the surrogate, else the coarsest that still resolves the flow. Both are
timed on the same device: the surrogate with the batch at which it is fastest, the solver on a GPU
with as many flows side by side, on a CPU with one.

A wake is simulated in a domain larger than its frames, so it cannot start from one of them: the
test flows are simulated again with their parameters and initial swirl, and the same stretches of
time are compared, in free runs alone. Vorticity starts from the frames of each rollout. Frames are
interpolated to the grid of the data.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pibert import __version__, config
from pibert.comparison.plan import Comparison, Job
from pibert.data.resample import interpolated
from pibert.evaluation.by_flow import spec_of
from pibert.evaluation.cost import device_name, wait
from pibert.evaluation.rollouts import Replay
from pibert.evaluation.scores import Scores, read_scores, save_scores
from pibert.experiments.evaluation import evaluate_frames
from pibert.experiments.flows import Flows, config_of, recipe_of, with_other_states
from pibert.fields import FieldSpec, Normalizer, Trajectory
from pibert.physics.spectral import on_grid
from pibert.report.comparison.results import COARSE_SOLVER
from pibert.solver.recipes import Diverged
from pibert.solver.vorticity import VorticityRecipe
from pibert.solver.wakes import Wakes

TIMED = 5
"""Stretches of a simulation that are timed; the first does not count."""
Solver = Wakes | VorticityRecipe


def solver_of(comparison: Comparison, data: str) -> Solver | None:
    """Return the recipe of the test flows if they can be simulated on coarser grids."""
    settings = config_of(comparison.data[data], "test")
    if settings.case is None:
        return None
    recipe = recipe_of(settings)
    return recipe if isinstance(recipe, Solver) and recipe.coarser() else None


def surrogate_of(comparison: Comparison, scores: Mapping[Job, Scores]) -> Scores | None:
    """Return the scores of the model that the solver must not be dearer than."""
    tested = [job for job in scores if job.candidate == comparison.tested_model]
    trained = [job for job in scores if comparison.candidates[job.candidate].is_trained]
    return next((scores[job] for job in (*tested, *trained)), None)


def folder_of(out: Path, data: str) -> Path:
    return out / "runs" / data / COARSE_SOLVER


def identity_of(comparison: Comparison, data: str, surrogate: Scores) -> str:
    """Return a hash, equal if the same flows are compared with the same surrogate."""
    plain = config.as_plain(comparison.data[data], former=True)
    facts = {"data": plain, "surrogate": surrogate.card["identity"], "version": __version__}
    return config.fingerprint(facts)


def read_coarse_solver(
    comparison: Comparison, data: str, scores: Mapping[Job, Scores], out: Path
) -> Scores | None:
    """Return the scores of the coarse solver beside these runs, if there are any."""
    surrogate = surrogate_of(comparison, scores)
    if surrogate is None or solver_of(comparison, data) is None:
        return None
    try:
        found = read_scores(folder_of(out, data))
    except (ValueError, OSError, KeyError):
        return None
    same = found.card.get("identity") == identity_of(comparison, data, surrogate)
    return found if same else None


def score_coarse_solver(
    comparison: Comparison,
    data: str,
    flows: Flows,
    scores: Mapping[Job, Scores],
    out: Path,
    device: str,
) -> None:
    """Simulate the test flows on a coarser grid and score them like free runs of a model."""
    surrogate, solver = surrogate_of(comparison, scores), solver_of(comparison, data)
    if surrogate is None or solver is None:
        return
    settings, card = config_of(comparison.data[data], "test"), surrogate.card
    cost = min(
        (b for b in card["cost"]["batches"] if b["ms_per_sample"] is not None),
        key=lambda batch: batch["ms_per_sample"],
    )
    per_frame = cost["ms_per_sample"] / card["model"]["config"].get("horizon", 1)
    tested = {s.trajectory: flows.trajectories[s.trajectory] for s in flows.split.test}
    before = 0 if settings == comparison.data[data] else len(flows.trajectories) - len(tested)
    samples = sorted(int(flow.local["sample"]) for flow in tested.values())
    middle = sorted(tested.values(), key=lambda flow: flow.local["sample"])[len(tested) // 2]
    together = cost["batch"] if device.startswith("cuda") else 1
    given = {"stride": settings.stride, "device": device, **spec_of(surrogate)}

    def seconds_of(recipe: Solver) -> float:
        if isinstance(recipe, VorticityRecipe):
            start = middle.read(slice(-1, None)).expand(together, 1, -1, -1, -1)
            return seconds_per_step(VorticitySolver(recipe=recipe, **given), start)
        sample = int(middle.local["sample"])
        return settings.stride * seconds_per_frame(recipe, sample, together, device)

    recipe, seconds = finest_within(solver.coarser(), 1e-3 * per_frame, seconds_of)
    predictor: Replay | VorticitySolver
    if isinstance(recipe, VorticityRecipe):
        predictor = VorticitySolver(recipe=recipe, **given)
    else:
        again = simulated(recipe, samples, device)

        def states(flow: Trajectory) -> Trajectory:
            coarse = again[int(flow.local["sample"])]
            if coarse is None:
                return replace(flow, states=torch.full(tuple(flow.states.shape), torch.nan))
            fields = interpolated(_without_body(coarse), coarse.spec.grid, flow.spec.grid)
            return replace(flow, states=fields, series=coarse.series)

        others = with_other_states(settings, states, [number - before for number in tested])
        replayed = {before + number: flow for number, flow in others.items()}
        predictor = Replay(flows=replayed, **spec_of(surrogate))
    found = evaluate_frames(predictor, flows, comparison.history, comparison.rollout, card)
    facts = {
        "resolution": recipe.resolution,
        "ms_per_frame": 1e3 * seconds,
        "solver_of_data": solver.resolution,
        "surrogate": card["labels"]["model"],
        "surrogate_ms_per_frame": per_frame,
        "surrogate_batch": cost["batch"],
        "side_by_side": together,
        "device": device_name(torch.device(device)),
    }
    labels = {"data": data, "model": COARSE_SOLVER}
    identity = identity_of(comparison, data, surrogate)
    head = {"labels": labels, "identity": identity, "coarse_solver": facts}
    folder_of(out, data).mkdir(parents=True, exist_ok=True)
    save_scores(folder_of(out, data), Scores(head | found.card, found.arrays))


def simulated(recipe: Wakes, samples: list[int], device: str) -> dict[int, Trajectory | None]:
    """Simulate some samples of a recipe; None for those that diverge."""
    found: dict[int, Trajectory | None] = {}
    for first in range(0, len(samples), recipe.group):
        group = samples[first : first + recipe.group]
        flows = recipe.simulate(group, device=device)
        found |= {
            sample: None if isinstance(flow, Diverged) else flow
            for sample, flow in zip(group, flows, strict=True)
        }
    return found


def _without_body(flow: Trajectory) -> Tensor:
    """Return the frames, with the pressure inside a fixed body continued from the fluid around.

    The velocity is zero there, as it is on the surface.
    """
    fields, body = flow.read(), flow.spec.grid.body
    if body is None or "p" not in flow.spec.channels:
        return fields
    place, fluid = flow.spec.channels.index("p"), (~body).to(fields)
    around = torch.nn.functional.avg_pool2d
    near = around(fields[:, place, None] * fluid, 5, 1, 2)
    share = around(fluid[None, None], 5, 1, 2).clamp(min=1e-9)
    fields = fields.clone()
    fields[:, place] = torch.where(body, (near / share)[:, 0], fields[:, place])
    return fields


def finest_within(
    recipes: Sequence[Any], limit: float, seconds_of: Callable[[Any], float]
) -> tuple[Any, float]:
    """Return the finest recipe within a time per frame, else the coarsest, and its time."""
    chosen = recipes[0], seconds_of(recipes[0])
    for recipe in recipes[1:] if chosen[1] <= limit else ():
        seconds = seconds_of(recipe)
        if seconds > limit:
            break
        chosen = recipe, seconds
    return chosen


class _Enough(Exception):
    """Enough stretches of a simulation were timed."""


def seconds_per_frame(recipe: Wakes, sample: int, together: int, device: str) -> float:
    """Return the time of a frame of one of several equal flows side by side."""
    marks: list[tuple[float, float]] = []

    def progress(share: float) -> None:
        wait(torch.device(device))
        marks.append((share, time.perf_counter()))
        if len(marks) > TIMED:
            raise _Enough

    with contextlib.suppress(_Enough):
        recipe.simulate([sample] * together, device=device, progress=progress)
    return _median_rate(marks) / recipe.intervals(sample) / together


def seconds_per_step(solver: "VorticitySolver", start: Tensor) -> float:
    """Return the time of a frame of one of the flows that begin at these frames."""
    marks = []
    for step, _ in enumerate(solver.iterate(start, TIMED + 1)):
        wait(torch.device(solver.device))
        marks.append((float(step), time.perf_counter()))
    return _median_rate(marks) / len(start)


def _median_rate(marks: Sequence[tuple[float, float]]) -> float:
    """Return the seconds of one unit, from pairs of units done and time."""
    pairs = list(zip(marks, marks[1:], strict=False))
    # The first stretch compiles, if there is more than one.
    return statistics.median((b - a) / (q - p) for (p, a), (q, b) in pairs[1:] or pairs)


@dataclass(frozen=True, eq=False, kw_only=True)
class VorticitySolver:
    """The solver of a recipe, as a predictor of frames on any grid of the same box."""

    recipe: VorticityRecipe
    stride: int
    device: str
    spec: FieldSpec
    normalizer: Normalizer
    history: int = 1

    def iterate(
        self, fields: Any, steps: int | None = None, parameters: Any = None, mask: Any = None
    ) -> Iterator[Any]:
        """Frames (batch, 1, channel, y, x) from the last one."""
        shape = self.recipe.simulated_grid.shape
        states = on_grid(fields[:, -1].to(self.device, torch.float64), shape)
        for _ in range(steps or 0):
            for _ in range(self.stride):
                states = self.recipe.advance(states, {})
            yield on_grid(states, fields.shape[-2:])[:, None].to(fields)
