"""Free runs with random errors: what a comparison's models lack to keep the energy of turbulence.

    python -m studies.stochastic_rollouts outputs/jet --subset valid
    python -m studies.stochastic_rollouts outputs/jet --out docs/results/jet-stochastic.json
    python -m studies.stochastic_rollouts outputs/jet --figure docs/results/jet-stochastic.webp

A network that minimises squared errors predicts the mean of all frames that may follow. Of a
turbulent flow that mean has less energy than any of them, so energy is lost in every step of a
rollout. Here every predicted frame gets an error that the model made on a training frame, drawn at
random with all of its points and channels:

    x(n+1) = f(x(n)) + e,    e = x(m+1) - f(x(m)) of a random training frame m

If errors do not depend on the frame, this keeps the energy that the flow has in training.

The statistics of free runs (``pibert/evaluation/statistics.py``) are those of ``pibert compare``,
with the same starts and lengths. ``plain`` has the runs without errors, ``stochastic`` those of
several members, which differ in the errors that were drawn. References are ``truth``, the truth
against itself, and ``training``, consecutive stretches of the training part in place of a
prediction: other realisations of the same flow.
"""

import argparse
import itertools
import json
import statistics
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pibert import config
from pibert.comparison.checks import NAME
from pibert.comparison.plan import Comparison
from pibert.data.dataset import Samples, Window
from pibert.evaluation.measure import squared_unit
from pibert.evaluation.rollouts import (
    RolloutPredictor,
    read_frames,
    rolled_out,
    rollout_input,
    score_free_runs,
)
from pibert.evaluation.scores import as_numbers
from pibert.evaluation.scoring import sequences
from pibert.evaluation.statistics import LEAST_FRAMES, Statistics
from pibert.experiments.evaluation import FREE_RUN
from pibert.experiments.flows import prepare
from pibert.experiments.run_folder import commit, versions
from pibert.fields import FieldSpec, Normalizer
from pibert.files import read_json
from pibert.inference import load
from pibert.report.figures import (
    NORMAL,
    SMALL,
    add_bar,
    layer_of,
    maps_and_curves,
    name_axes,
    show,
    with_unit,
    write_figure,
)

TOGETHER = 64
"""Training frames that the model sees at once."""


@dataclass(eq=False)
class Stochastic:
    """A predictor whose frames get errors drawn from ``errors`` (n, c, y, x), in physical units."""

    predictor: RolloutPredictor
    errors: Tensor
    seed: int = 0
    spec: FieldSpec = field(init=False)
    normalizer: Normalizer = field(init=False)
    history: int = field(init=False)

    def __post_init__(self) -> None:
        own = self.predictor
        self.spec, self.normalizer, self.history = own.spec, own.normalizer, own.history

    def iterate(
        self, fields: Any, steps: int | None = None, parameters: Any = None, mask: Any = None
    ) -> Iterator[Any]:
        """One frame at a time; arguments as for ``Predictor.iterate``."""
        generator, window = torch.Generator().manual_seed(self.seed), fields
        for _ in itertools.count() if steps is None else range(steps):
            (frame,) = self.predictor.iterate(window, 1, parameters, mask)
            drawn = torch.randint(len(self.errors), (len(window),), generator=generator)
            frame = frame + self.errors[drawn][:, None]
            window = torch.cat((window, frame), 1)[:, -self.history :]
            yield frame


@dataclass(eq=False)
class Recorded:
    """Known frames (n, c, y, x) in place of a prediction, from a first one on."""

    frames: Tensor
    spec: FieldSpec
    normalizer: Normalizer
    history: int = 1

    def iterate(
        self, fields: Any, steps: int | None = None, parameters: Any = None, mask: Any = None
    ) -> Iterator[Any]:
        """The first ``steps`` frames, for every sample."""
        yield self.frames[:steps].expand(len(fields), -1, -1, -1, -1)


def one_step_errors(predictor: RolloutPredictor, samples: Samples) -> Tensor:
    """Truth minus prediction of every next frame, (n, c, y, x); zero where not measured."""
    starts, history = [samples.locate(n) for n in range(len(samples))], samples.window.history
    found: list[Tensor] = []
    for batch in (starts[n : n + TOGETHER] for n in range(0, len(starts), TOGETHER)):
        truth, known = read_frames(samples, batch, history, 1, truth=True)
        fields, parameters, mask = rollout_input(predictor, samples, batch)
        (frame,) = predictor.iterate(fields, 1, parameters, mask)
        found.append(torch.where(known[:, :, None], truth - frame, 0.0)[:, 0])
    return torch.cat(found)


def stretches(samples: Samples, count: int) -> Iterator[Tensor]:
    """Consecutive stretches of ``count`` true frames, (count, c, y, x)."""
    for piece in sequences(samples):
        for first in range(0, len(piece) - count + 1, count):
            truth, known = read_frames(samples, [samples.locate(piece[first])], 1, count)
            mean = truth.where(known[:, :, None], 0.0).sum(1) / known.sum(1).clamp(min=1)[:, None]
            yield torch.where(known[:, :, None], truth, mean[:, None])[0]


def score(
    predictor: RolloutPredictor, samples: Samples, frames: int, most: int, terms: str = "terms"
) -> dict[str, float | None]:
    """Return the statistics of free runs by name; None where undefined or infinite."""
    found = score_free_runs(predictor, samples, frames, most)
    measure = Statistics(spec=predictor.spec, normalizer=predictor.normalizer)
    values = as_numbers(measure.values(found[terms].sum(0)))
    return {entry.metric: value for entry, value in zip(measure.entries, values, strict=True)}


def spread(members: list[dict[str, float | None]]) -> dict[str, Any]:
    """Return mean, lowest and highest value over members; None where one of them is not finite."""
    found = {}
    for name in members[0]:
        values = [member.get(name) for member in members]
        known = [value for value in values if value is not None]
        whole = len(known) == len(values)
        found[name] = [statistics.fmean(known), min(known), max(known)] if whole else None
    return found


def study(folder: Path, subset: str, members: int) -> dict[str, Any]:
    """Return the statistics by data set and model; see the module."""
    plan = config.as_kind(read_json(folder / NAME), Comparison)
    frames = FREE_RUN if plan.rollout.free_run is None else plan.rollout.free_run
    found: dict[str, Any] = {}
    for name, data in plan.data.items():
        flows = prepare(data)
        samples = flows.samples(subset, Window(history=plan.history))
        training = flows.samples("train", Window(history=plan.history))
        count = min(frames, max(len(piece) for piece in sequences(samples)))
        if count < LEAST_FRAMES:
            raise ValueError(f"{name}: expected {LEAST_FRAMES} frames or more, found {count}")
        rows: dict[str, Any] = {}
        for job in (job for job in plan.jobs() if job.data == name):
            if not (job.folder(folder) / "model.json").exists():
                continue
            predictor = load(job.folder(folder))
            if not rows:
                whole = (samples, frames, plan.rollout.starts)
                rows["truth"] = score(predictor, *whole, terms="sampling")
                recorded = (
                    Recorded(own, predictor.spec, predictor.normalizer)
                    for own in stretches(training, count)
                )
                rows["training"] = spread([score(own, *whole) for own in recorded])
            errors = one_step_errors(predictor, training)
            noisy = [score(Stochastic(predictor, errors, n), *whole) for n in range(members)]
            rows[f"{job.candidate}-{job.seed}"] = {
                "plain": score(predictor, *whole),
                "stochastic": spread(noisy),
                "error_rms": float(errors.square().mean().sqrt()),
            }
            print(name, job.candidate, job.seed, json.dumps(rows[f"{job.candidate}-{job.seed}"]))
        found[name] = {"frames": count, "rows": rows}
    return found


def draw(folder: Path, subset: str, path: Path) -> None:
    """Draw the last frame of a free run of the plan's tested model, and the energy over time."""
    plan = config.as_kind(read_json(folder / NAME), Comparison)
    job = next(job for job in plan.jobs() if job.candidate == plan.tested_model)
    flows, predictor = prepare(plan.data[job.data]), load(job.folder(folder))
    samples = flows.samples(subset, Window(history=plan.history))
    training = flows.samples("train", Window(history=plan.history))
    noisy = Stochastic(predictor, one_step_errors(predictor, training))
    piece = next(iter(sequences(samples)))
    count = min(plan.rollout.free_run or FREE_RUN, len(piece))
    runs = [(samples.locate(piece[0]), count)]
    plain, stochastic = (next(iter(rolled_out(own, samples, runs))) for own in (predictor, noisy))
    known = plain.known.all(0)
    frames = {
        "truth": plain.truth,
        job.candidate: plain.prediction,
        f"{job.candidate} with random errors": stochastic.prediction,
    }
    name, unit = predictor.spec.channels[0], predictor.spec.units[0]
    figure, maps, (curve,) = maps_and_curves(predictor.spec.grid, 3, 3, curves=1)
    layers = [layer_of(own[-1, 0], known) for own in frames.values()]
    low, high, colours = layers[0].scale()
    for ax, layer, title in zip(maps, layers, frames, strict=True):
        image = show(ax, layer, predictor.spec.grid, low, high, colours)
        ax.set_title(f"{title}\n{with_unit(name, unit)}, frame {count}", fontsize=NORMAL)
        ax.tick_params(labelsize=SMALL)
    add_bar(maps[-1], image, extend="both")
    mean = plain.truth.mean(0)
    for title, own in frames.items():
        # From the true mean: a run that leaves the flow has more.
        energy = (own - mean).square()[..., known].mean(-1).sum(1) / 2
        curve.plot(range(1, count + 1), energy, label=title)
    name_axes(curve, "", "frame", with_unit("energy of the fluctuations", squared_unit(unit)))
    write_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="of a comparison whose models are trained")
    parser.add_argument("--subset", choices=("valid", "test"), default="test")
    parser.add_argument("--members", type=int, default=10, help="runs with other random errors")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--figure", type=Path, help="draw this picture of the tested model instead")
    given = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the flows, once for each model
        if given.figure is not None:
            return draw(given.folder, given.subset, given.figure)
        found = study(given.folder, given.subset, given.members)
    facts = {"subset": given.subset, "members": given.members, "data": found}
    text = json.dumps({**facts, "commit": commit(), "versions": versions()}, indent=1)
    if given.out is None:
        print(text)
    else:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
