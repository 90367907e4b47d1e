"""From an experiment to a finished run folder.

    config.json         the experiment, and what it ran on
    log.jsonl           a line per epoch
    model.safetensors   the best weights, with model.json all that is needed to predict
    state.safetensors   to resume from
    curves.png          losses over the epochs
    tensorboard/        the same for TensorBoard

``docs/runs.md`` is the contract. A training that begins with pretraining keeps that run, of the
same layout, in the folder ``pretraining`` inside.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pibert import config
from pibert.data.dataset import Samples, Window
from pibert.experiments.experiment import Experiment, Pretraining, Weights
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.record import (
    Stage,
    commit,
    first_does,
    only_one,
    read_record,
    record,
    refuse_other,
    versions,
)
from pibert.models import build_model
from pibert.predictor import Predictor, load, read_model, save_model
from pibert.pretraining.negatives import Negatives
from pibert.report.curves import draw_curves
from pibert.training import engine
from pibert.training.augmentation import augmented
from pibert.training.consistency import equation_consistency
from pibert.training.engine import FitConfig, Fitted, Reporter
from pibert.training.losses import PAPER_WEIGHTS, LossScales, LossWeights
from pibert.training.masked import masked_physics
from pibert.training.objectives import Objective, supervised, weighted

PRETRAINING = "pretraining"
"""The folder of the pretraining inside a training's."""
BEGUN = ("log.jsonl", "state.safetensors")
"""What a run that has begun leaves behind, one or the other."""
_CALIBRATION = 512


@dataclass(frozen=True)
class Finished:
    """What came of a run."""

    folder: Path
    fitted: Fitted
    validated: bool
    """Whether there was a validation part; otherwise the last epoch counts as the best."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the best weights on the validation part, or of the last epoch of training."""
        return self.fitted.metrics

    @property
    def best_epoch(self) -> int:
        return self.fitted.best_epoch


@dataclass(frozen=True, eq=False)
class Parts:
    """All that a stage of a run is made of."""

    flows: Flows
    model: nn.Module
    objectives: Callable[[int], Objective]
    train: Samples
    valid: Samples | None
    schedule: FitConfig
    weights: Weights
    start: str | None
    """Fingerprint of the weights that it began with."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a run that goes on must find again."""
        return {
            "data": self.flows.source,
            "start": self.start,
            "schedule": config.as_plain(self.schedule),
        }


def run(
    experiment: Experiment,
    out: Path | str,
    *,
    stage: Stage = "train",
    reporter: Reporter | None = None,
    flows: Flows | None = None,
) -> Finished:
    """Run an experiment into a folder; go on with it where the folder holds it already.

    Nothing is written before all parts of the run have been made.

    Args:
        experiment: What to do.
        out: The run folder; one of another experiment is refused.
        stage: ``train`` pretrains first where the experiment says so; ``pretrain`` does only that.
        reporter: Told of the progress.
        flows: Those of the experiment, where the caller has prepared them for several runs.
    """
    out = Path(out)
    reporter = reporter or engine.Silent()
    fabric = engine.launch(experiment.hardware)
    first_does(fabric, lambda: refuse_other(experiment, out, stage))
    flows = flows or _flows_of_all(experiment, fabric, reporter)
    parts = assemble(experiment, flows, stage, experiment.start)
    if stage == "train" and experiment.pretraining is not None:
        before = assemble(experiment, flows, "pretrain", None)
        folder = out / PRETRAINING
        _begin(experiment, parts, out, stage, fabric)
        _begin(experiment, before, folder, "pretrain", fabric)
        _fit(experiment, before, folder, "pretrain", fabric, reporter)
        parts = assemble(experiment, flows, stage, str(folder))
    else:
        _begin(experiment, parts, out, stage, fabric)
    return _fit(experiment, parts, out, stage, fabric, reporter)


def _begin(experiment: Experiment, parts: Parts, out: Path, stage: Stage, fabric: Any) -> None:
    first_does(fabric, lambda: record(experiment, parts.facts, out, stage, fabric))


def resume(out: Path | str, *, reporter: Reporter | None = None) -> Finished:
    """Go on with the run in a folder."""
    out = Path(out).resolve()
    path = out / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{out}: no run to resume, {path.name} is missing; "
            "start one with: pibert train --config FILE --out RUN"
        )
    recorded = read_record(path)
    experiment = config.parse(Experiment, recorded["experiment"])
    # Paths of the experiment are meant from where the run was started.
    started_in = Path(recorded.get("directory", "."))
    with contextlib.chdir(started_in if started_in.is_dir() else "."):
        return run(experiment, out, stage=recorded["stage"], reporter=reporter)


def _flows_of_all(experiment: Experiment, fabric: Any, reporter: Reporter) -> Flows:
    """The first process finds or simulates the flows, the others take them from the cache."""
    device = str(fabric.device)
    made = first_does(
        fabric, lambda: prepare(experiment.data, device=device, on_progress=reporter.simulated)
    )
    return made or prepare(experiment.data, device=device)


def assemble(experiment: Experiment, flows: Flows, stage: Stage, start: str | None) -> Parts:
    """Make all parts of a stage; what is wrong with the settings is found here.

    Args:
        experiment: What to do.
        flows: Those of the experiment.
        stage: Whether to pretrain or to train.
        start: A run or model whose weights to begin with.
    """
    weights, schedule = experiment.weights, experiment.training
    segments = flows.labelled(experiment.data.labelled)
    if stage == "pretrain":
        weights, segments = experiment.pretraining_weights, flows.split.train
        schedule = experiment.pretraining or Pretraining()
    if not weights.supervised and schedule.monitor == "reconstruction":
        schedule = replace(schedule, monitor="loss")  # the default, where nothing is predicted
    flows, model = _make_model(experiment, flows, start)
    window = _window(experiment, model, weights)
    return Parts(
        flows=flows,
        model=model,
        objectives=make_objectives(experiment, flows, model, weights),
        train=flows.samples(segments, window),
        valid=flows.samples("valid", window) if flows.split.valid else None,
        schedule=schedule,
        weights=weights,
        start=None if start is None else load(start).card["weights"]["sha256"],
    )


def _fit(
    experiment: Experiment,
    parts: Parts,
    out: Path,
    stage: Stage,
    fabric: Any,
    reporter: Reporter,
) -> Finished:
    with contextlib.ExitStack() as stack:
        first_does(fabric, lambda: stack.enter_context(only_one(out)))
        if fabric.is_global_zero:
            stack.callback(_draw_curves, out, reporter)  # also when the run is interrupted
            stack.push(partial(_forget_if_refused, out))
        fitted = engine.fit(
            parts.model,
            parts.objectives,
            parts.train,
            parts.valid,
            parts.schedule,
            folder=out,
            seed=experiment.seed,
            hardware=experiment.hardware,
            identity=config.identity(experiment),
            save_best=_saver(experiment, parts, out, stage),
            best_is_there=lambda: _is_readable(out),
            reporter=reporter,
            fabric=fabric,
        )
    fabric.barrier()
    return Finished(out, fitted, parts.valid is not None)


def _forget_if_refused(out: Path, kind: Any, error: Any, _: Any) -> None:
    """A run that the engine refuses before its first step has not begun."""
    if isinstance(error, ValueError) and not any((out / name).exists() for name in BEGUN):
        (out / "config.json").unlink(missing_ok=True)


def _draw_curves(out: Path, reporter: Reporter) -> None:
    try:
        if (out / "log.jsonl").exists():
            draw_curves(out / "log.jsonl", out / "curves.png")
    except ValueError:
        return  # no epoch is complete yet
    except OSError as error:
        reporter.say(f"could not draw {out / 'curves.png'}: {error.strerror or error}")


def _is_readable(folder: Path) -> bool:
    try:
        read_model(folder)
    except (ValueError, OSError):
        return False
    return True


def _make_model(experiment: Experiment, flows: Flows, start: str | None) -> tuple[Flows, nn.Module]:
    """The model before training, and the flows in its units."""
    options, chosen = experiment.model.options, experiment.model
    torch.manual_seed(experiment.seed)
    begun = None if start is None else load(start)
    if begun is not None and start is not None:
        flows = _in_units_of(begun, flows, start)
    try:
        model = build_model(chosen.name, preset=chosen.preset, spec=flows.spec, **options)
    except ValueError as error:
        raise ValueError(f"[model] and its options: {error}") from None
    if begun is None:
        _calibrate(model, flows)
        return flows, model
    try:
        model.load_state_dict(begun.model.state_dict())
    except RuntimeError as error:
        first = str(error).splitlines()[1:2]
        raise ValueError(
            f"the weights of {start} do not fit this experiment's model: "
            f"{' '.join(first).strip()}; give both the same [model]"
        ) from None
    return flows, model


def _in_units_of(begun: Predictor, flows: Flows, start: str) -> Flows:
    """A model that is trained further keeps its scaling of fields and parameters."""
    mine, theirs = flows.spec, begun.spec
    for what in ("channels", "units", "parameter_names"):
        if getattr(mine, what) != getattr(theirs, what):
            raise ValueError(
                f"{start} was trained on {what} {getattr(theirs, what)}, but these data have "
                f"{getattr(mine, what)}; choose the same [data] channels, or another start"
            )
    spec = replace(mine, parameters=theirs.parameters)
    return replace(flows, normalizer=begun.normalizer, spec=spec)


def _calibrate(model: Any, flows: Flows) -> None:
    """Give the physics bias its units and scales, from samples spread over the training part."""
    if not hasattr(model, "calibrate"):
        return
    samples = flows.samples("train", Window(history=model.config.history))
    step = max(1, len(samples) // _CALIBRATION)
    some = samples.batch(range(0, len(samples), step))
    model.calibrate(some.x, flows.normalizer, some.parameters, some.mask)


def _window(experiment: Experiment, model: Any, weights: Weights) -> Window:
    steps = experiment.rollout.steps if weights.supervised else 1
    return Window(history=model.config.history, horizon=model.config.horizon * steps)


def make_objectives(
    experiment: Experiment, flows: Flows, model: Any, weights: Weights
) -> Callable[[int], Objective]:
    """The objective of every epoch."""
    spec, normalizer = flows.spec, flows.normalizer
    scales = LossScales.from_training(spec, normalizer)
    parts: dict[str, tuple[float, Objective]] = {}
    if weights.mpp:
        _need(model, "reconstruct", "mpp")
        masked = masked_physics(experiment.masking, spec, normalizer, scales)
        parts["mpp"] = (weights.mpp, masked)
    if weights.ecp:
        _need(model, "consistency", "ecp")
        negatives = make_negatives(experiment, flows, model.config.history)
        parts["ecp"] = (weights.ecp, equation_consistency(negatives))
    losses = experiment.losses or _published_losses(experiment, scales)

    @cache  # the same object for the same work: the engine records it once
    def of_steps(steps: int) -> Objective:
        own = dict(parts)
        if weights.supervised:
            learn = supervised(scales, losses, experiment.rollout, steps=steps)
            own = {"supervised": (weights.supervised, learn), **own}
        return augmented(weighted(own), experiment.augmentation, spec, normalizer)

    return lambda epoch: of_steps(experiment.rollout.steps_at(epoch))


def _published_losses(experiment: Experiment, scales: LossScales) -> LossWeights:
    """Those of the model's preset; without the terms of a velocity where there is none."""
    published = PAPER_WEIGHTS.get(experiment.model.preset or "base", PAPER_WEIGHTS["base"])
    return published if scales.has_velocity else replace(published, reg=0.0)


def _need(model: nn.Module, method: str, weight: str) -> None:
    if not hasattr(model, method):
        raise ValueError(
            f"{type(model).__name__} has no head for this: expected a method {method!r}; "
            f"set the weight {weight} to 0"
        )


def make_negatives(experiment: Experiment, flows: Flows, history: int) -> Negatives:
    """What makes invalid windows of the experiment's flows."""
    homes = sorted({segment.trajectory for segment in flows.split.train})
    table = [flows.spec.encode_parameters(flows.trajectories[home].parameters) for home in homes]
    try:
        return Negatives(
            experiment.negatives,
            flows.spec,
            flows.normalizer,
            history,
            torch.cat(table),
            # Bodies that differ between trajectories show as unknown points.
            solid_unknown=flows.spec.grid.body is None and _have_bodies(flows),
            unknown_parameters=_lack_parameters(flows),
        )
    except ValueError as error:
        raise ValueError(
            f"equation consistency (model.options.history, [negatives]): {error}"
        ) from None


def _have_bodies(flows: Flows) -> bool:
    return any(trajectory.body is not None for trajectory in flows.trajectories)


def _lack_parameters(flows: Flows) -> bool:
    names = set(flows.spec.parameter_names)
    return any(names - set(trajectory.parameters) for trajectory in flows.trajectories)


def _saver(
    experiment: Experiment, parts: Parts, out: Path, stage: Stage
) -> Callable[[nn.Module, Mapping[str, Any]], None]:
    provenance = {
        "experiment": config.as_plain(experiment),
        "stage": stage,
        "data": parts.flows.source,
        "versions": versions(),
        "commit": commit(),
    }
    # Heads that pretraining trained are still there after training alone, but have drifted.
    trained = {
        "forward": parts.weights.supervised > 0,
        "reconstruct": parts.weights.mpp > 0,
        "consistency": parts.weights.ecp > 0,
    }

    def save(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        # A model file has no place for NaN; the monitored value is finite.
        finite = {name: v for name, v in metrics.items() if math.isfinite(v)}
        save_model(
            out,
            model,
            parts.flows.normalizer,
            provenance=provenance,
            metrics=finite,
            trained=trained,
        )

    return save
