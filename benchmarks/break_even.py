"""When a trained model pays: time per frame of the solver and of the surrogate, side by side.

The solver runs the case and settings that the model's training data came from, as its provenance
states them, in the middle of their range of parameters; the surrogate predicts frames on its own
grid, with all of ``Predictor``. They take turns in one process: after every block of solver steps,
the surrogate is timed once for each batch size. Ratios are medians over these turns.

Where the solver averages several cells over a point of a frame, it is timed once more with one cell
per point: the coarsest solver whose frames have as many points.

    python benchmarks/break_even.py [MODEL] [--device cuda] [--out break_even.json]

Break-even is the number N of frames for which training and N predicted frames take as long as N
simulated frames: N = cost / (solver - surrogate) per frame. The cost is that of training, without
and with that of simulating the training data. The time of training is the recorded one (the log of
a run, or the card of a shipped model), which counts only on the hardware where it was measured. On
other hardware it is the number of samples in training times the measured time of a forward and
backward pass for each, without optimiser and validation: a lower bound.
"""

import argparse
import dataclasses
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import pibert
from pibert import config
from pibert.data.generate import change
from pibert.evaluation.cost import device_name
from pibert.experiments.experiment import Experiment
from pibert.experiments.run_folder import stage_logs
from pibert.fields import PARAMETER_WIDTH
from pibert.files import read_json
from pibert.inference import Predictor
from pibert.inference.model_file import find_model
from pibert.solver.lattice_recipe import LatticeRecipe
from pibert.solver.presets import find_preset
from pibert.solver.recipes import Recipe

STEPS = 2
"""Frames of a timed rollout."""
Task = Callable[[], int]
"""Does a piece of work; returns how many frames or samples it was."""
Clock = Callable[[], float]


class _Enough(Exception):
    """Enough blocks of the solver were timed."""


class Training(NamedTuple):
    """A recorded time of training."""

    seconds: float
    hardware: str
    source: str


def recipe_of(experiment: Experiment) -> Recipe:
    """The recipe of the solver that made the training data."""
    data = experiment.data
    if data.case is None:
        raise ValueError(
            f"the model was trained on {data.path}, expected data of our solver: there is no "
            "solver to compare with"
        )
    return change(find_preset(data.case, data.preset), data.recipe)


def coarser(recipe: Recipe) -> Recipe | None:
    """The recipe with one cell per point of a frame; None if it has that already."""
    if getattr(recipe, "cells_per_point", 1) == 1:
        return None
    return change(recipe, {"cells_per_point": 1})


def middle(recipe: Recipe, flows: int) -> list[int]:
    """Numbers of samples around the middle of the recipe's range of parameters."""
    first = max(0, (recipe.samples - flows) // 2)
    return list(range(first, min(first + flows, recipe.samples)))


def frames_of_data(recipe: Any) -> float:
    """Frames that the solver computes for the training data, warm-up included."""
    warm_up = 0.0
    for index in range(recipe.samples):
        if isinstance(recipe, LatticeRecipe):
            growth = recipe.draw(index)["Re"] if recipe.interval_grows else 1.0
            warm_up += recipe.warm_up / (recipe.interval * growth)
        else:
            warm_up += getattr(recipe, "warm_up", 0)
    kept, of = getattr(recipe, "burst", (1, 1))
    return recipe.samples * recipe.frames * of / kept + warm_up


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def timed(task: Task, device: str, clock: Clock) -> float:
    """Seconds per frame or sample of one call."""
    synchronise(device)
    start = clock()
    count = task()
    synchronise(device)
    return (clock() - start) / count


def take_turns(
    recipe: Any,
    flows: int,
    stride: int,
    tasks: dict[str, Task],
    rounds: int,
    device: str,
    clock: Clock,
) -> dict[str, list[float]]:
    """Seconds per frame of the solver and of each task, for every turn.

    The flow starts at rest: the time of a step does not depend on it. The first turn, which
    compiles, does not count.
    """
    found: dict[str, list[float]] = {name: [] for name in ("solver", *tasks)}
    cold = dataclasses.replace(recipe, warm_up=type(recipe.warm_up)(0))
    indices = middle(recipe, flows)
    # A lattice flow has its first frame before its first step.
    whole = recipe.frames - isinstance(recipe, LatticeRecipe)
    whole *= recipe.burst[1] / recipe.burst[0] if hasattr(recipe, "burst") else 1
    state = {"share": 0.0, "since": 0.0, "turn": -1}

    def progress(share: float) -> None:
        synchronise(device)
        now = clock()
        frames = (share - state["share"]) * whole * len(indices) / stride
        if state["turn"] >= 1 and frames > 0:
            found["solver"].append((now - state["since"]) / frames)
            for name, task in tasks.items():
                found[name].append(timed(task, device, clock))
            shown = "  ".join(f"{name} {1e3 * own[-1]:.4g}" for name, own in found.items())
            print(f"{shown} ms", file=sys.stderr, flush=True)
        if len(found["solver"]) >= rounds:
            raise _Enough
        state.update(share=share, turn=state["turn"] + 1, since=clock())

    for task in tasks.values():
        task()
    try:
        cold.simulate(indices, device=device, progress=progress)
    except _Enough:
        pass
    return found


def surrogate(predictor: Predictor, batch: int, device: str) -> Task:
    """A rollout of a batch, from standardised fields near their mean."""
    spec = predictor.spec
    shape = (batch, predictor.history, len(spec.channels), *spec.grid.shape)
    noise = 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    fields = predictor.normalizer.invert(noise).to(device)
    steps = STEPS * predictor.horizon

    def predict() -> int:
        predictor.predict(fields, steps)
        return batch * steps

    return predict


def training_pass(predictor: Predictor, batch: int, device: str, precision: str) -> Task:
    """A forward and a backward pass of the model."""
    model, spec = predictor.model, predictor.spec
    channels = predictor.history * len(spec.channels)
    x = torch.randn(batch, channels, *spec.grid.shape, device=device)
    parameters = x.new_zeros(batch, PARAMETER_WIDTH)
    known = torch.ones(batch, *spec.grid.shape, dtype=torch.bool, device=device)
    half = precision == "bf16" and device.startswith("cuda")

    def learn() -> int:
        model.zero_grad()
        with torch.enable_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
            model(x, parameters, known).float().square().mean().backward()
        return batch

    return learn


def recorded_training(folder: Path) -> Training | None:
    """The time of training in the log of a run, or in the card of a shipped model."""
    if logs := stage_logs(folder):
        lines = [line for stage in logs.values() for line in stage if line.get("kind") == "epoch"]
        seconds = sum(line.get("seconds") or 0.0 for line in lines)
        hardware = read_json(folder / "config.json")["hardware"]["name"]
        return Training(seconds, hardware, "log of the run")
    card = folder / "README.md"
    text = card.read_text() if card.exists() else ""
    section = text.partition("\n## Training\n")[2].partition("\n## ")[0]
    found = re.search(r"([\d,.]+) s on ([^.]+)\.", " ".join(section.split()))
    if found is None:
        return None
    return Training(float(found[1].replace(",", "")), found[2], "card of the model")


def samples_of(experiment: Experiment, recipe: Recipe, history: int) -> int | None:
    """Samples that training saw; None if other stages or data belong to it."""
    data = experiment.data
    stages = (experiment.pretraining, experiment.start, experiment.rollout_training)
    if any(stages) or data.split != "trajectory" or data.labelled < 1 or data.stride > 1:
        return None
    windows = data.shares.counts(recipe.samples)["train"] * (recipe.frames - history)  # type: ignore[attr-defined]
    return experiment.training.epochs * windows * experiment.rollout.steps


def break_even(cost: float, solver: float, surrogate: float) -> float | None:
    """Frames after which a cost in seconds is paid for; None: never."""
    return cost / (solver - surrogate) if solver > surrogate else None


def summarise(found: dict[str, list[float]]) -> dict[str, Any]:
    """Medians in milliseconds, and how many times faster than the solver each task is."""
    rows: dict[str, Any] = {}
    for name, seconds in found.items():
        ratios = [a / b for a, b in zip(found["solver"], seconds, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        rows[name] = {
            "ms": 1e3 * statistics.median(seconds),
            "times_faster": statistics.median(ratios),
            "quartiles": [low, high],
        }
    return rows


def measure(
    name: str, device: str, batch: int, flows: int | None, rounds: int, clock: Clock
) -> dict[str, Any]:
    """All times of a model, as plain JSON."""
    folder = find_model(name)
    predictor = pibert.load(folder, device)
    stated = predictor.card["provenance"]["experiment"]
    experiment = config.parse(Experiment, stated, "provenance")
    recipe = recipe_of(experiment)
    history, stride = predictor.history, experiment.data.stride
    tasks = {f"surrogate, batch {n}": surrogate(predictor, n, device) for n in (1, batch)}
    precision = experiment.hardware.precision
    samples = samples_of(experiment, recipe, history)
    passes = {"training, one sample": training_pass(predictor, min(batch, 64), device, precision)}
    hardware = device_name(torch.device(device))
    training = recorded_training(folder)
    kind = hardware.partition(",")[0].lower()
    same = training is not None and kind in training.hardware.lower()
    counts = [flows] if flows else [1, recipe.group] if device.startswith("cuda") else [1]
    result: dict[str, Any] = {
        "model": name,
        "grid": list(predictor.spec.grid.shape),
        "case": experiment.data.case,
        "preset": experiment.data.preset,
        "hardware": hardware,
        "torch": torch.__version__,
        "clock": clock.__name__,
        "recorded_training": None if training is None else training._asdict(),
        "trained_on_this_kind_of_machine": same,
        "training_samples": samples,
        "frames_of_training_data": frames_of_data(recipe) / stride,
        "solvers": [],
    }
    for label, solver in (
        ("as in the training data", recipe),
        ("one cell per point", coarser(recipe)),
    ):
        for count in counts if solver is not None else ():
            times = summarise(
                take_turns(solver, count, stride, tasks | passes, rounds, device, clock)
            )
            result["solvers"].append({"solver": label, "flows": count, "times": times})
    costs = {"recorded": training.seconds} if training is not None and same else {}
    per_sample = result["solvers"][0]["times"]["training, one sample"]["ms"] / 1e3
    if not same and samples is not None:
        costs["estimated, lower bound"] = per_sample * samples
    result["training_seconds"] = costs
    if training is not None and not same:
        costs = costs | {f"recorded on other hardware ({training.hardware})": training.seconds}
    for entry in result["solvers"]:
        solver_time = entry["times"]["solver"]["ms"] / 1e3
        # The data came from the recipe's own solver, whichever solver the model replaces.
        own = next(e for e in result["solvers"] if e["flows"] == entry["flows"])
        data = result["frames_of_training_data"] * own["times"]["solver"]["ms"] / 1e3
        entry["break_even_frames"] = {
            task: {
                how: {
                    "training": break_even(seconds, solver_time, entry["times"][task]["ms"] / 1e3),
                    "training_and_data": break_even(
                        seconds + data, solver_time, entry["times"][task]["ms"] / 1e3
                    ),
                }
                for how, seconds in costs.items()
            }
            for task in tasks
        }
    return result


def show(result: dict[str, Any]) -> None:
    rows, columns = result["grid"]
    print(f"{result['model']}: {rows} x {columns} points")
    print(f"hardware: {result['hardware']}, torch {result['torch']}, {result['clock']}")
    print(f"solver: {result['case']}, preset {result['preset']}")
    training = result["recorded_training"]
    if training is None:
        print("training: no time is recorded")
    else:
        print(
            f"training: {training['seconds']:g} s on {training['hardware']} ({training['source']})"
        )
        if not result["trained_on_this_kind_of_machine"]:
            print("  another machine: it cannot be set against the times measured here")
    for how, seconds in result["training_seconds"].items():
        print(f"training on this machine, {how}: {seconds:,.0f} s")
    print(f"training data: {result['frames_of_training_data']:,.0f} frames with warm-up")
    for entry in result["solvers"]:
        print(f"\nsolver {entry['solver']}, {entry['flows']} side by side:")
        for name, row in entry["times"].items():
            low, high = row["quartiles"]
            faster = (
                ""
                if name == "solver"
                else f"  {row['times_faster']:8.1f} x [{low:.1f}, {high:.1f}]"
            )
            print(f"  {name:24s} {row['ms']:10.2f} ms{faster if 'surrogate' in name else ''}")
        for task, hows in entry["break_even_frames"].items():
            for how, frames in hows.items():
                alone, both = (
                    "never" if value is None else f"{value:,.0f} frames"
                    for value in frames.values()
                )
                print(f"  break-even, {task}, training {how}: {alone}; with its data {both}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default="cylinder-mr", help="a run or a shipped model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="threads on a CPU")
    parser.add_argument("--batch", type=int, help="frames side by side; 8, on a GPU 128")
    parser.add_argument("--flows", type=int, help="flows of the solver; 1, on a GPU also its group")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("break_even.json"))
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure the time of the processor, for a busy machine; best with --threads 1",
    )
    given = parser.parse_args()
    clock = time.process_time if given.cpu_time else time.perf_counter
    on_gpu = given.device.startswith("cuda")
    if not on_gpu:
        torch.set_num_threads(given.threads)
    batch = given.batch or (128 if on_gpu else 8)
    result = measure(given.model, given.device, batch, given.flows, given.rounds, clock)
    show(result)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nAll numbers: {given.out}")


if __name__ == "__main__":
    main()
