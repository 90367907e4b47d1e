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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pibert import config
from pibert.data.dataset import Window
from pibert.experiments.experiment import Experiment, Weights
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.record import Stage, commit, only_one, read_record, record, versions
from pibert.models import build_model
from pibert.predictor import Predictor, load, save_model
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
_CALIBRATION = 512


@dataclass(frozen=True)
class Finished:
    """What came of a run."""

    folder: Path
    fitted: Fitted

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the best weights on the validation part."""
        return self.fitted.metrics

    @property
    def best_epoch(self) -> int:
        return self.fitted.best_epoch


def run(
    experiment: Experiment,
    out: Path | str,
    *,
    stage: Stage = "train",
    reporter: Reporter | None = None,
    flows: Flows | None = None,
) -> Finished:
    """Run an experiment into a folder; go on with it where the folder holds it already.

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
    flows = flows or _flows_of_all(experiment, fabric, reporter)
    if stage == "pretrain":
        return _run_stage(experiment, flows, out, stage, fabric, reporter, start=experiment.start)
    start = experiment.start
    if experiment.pretraining is not None:
        folder = out / PRETRAINING
        record(experiment, flows.source, out, stage, fabric)
        _run_stage(experiment, flows, folder, "pretrain", fabric, reporter, start=None)
        start = str(folder)
    return _run_stage(experiment, flows, out, stage, fabric, reporter, start=start)


def resume(out: Path | str, *, reporter: Reporter | None = None) -> Finished:
    """Go on with the run in a folder."""
    out = Path(out)
    path = out / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{out}: no run to resume, {path.name} is missing; "
            "start one with: pibert train --config FILE --out RUN"
        )
    recorded = read_record(path)
    experiment = config.parse(Experiment, recorded["experiment"])
    return run(experiment, out, stage=recorded["stage"], reporter=reporter)


def _flows_of_all(experiment: Experiment, fabric: Any, reporter: Reporter) -> Flows:
    """The first process finds or simulates the flows, the others take them from the cache."""
    device = str(fabric.device)
    flows = None
    if fabric.is_global_zero:
        flows = prepare(experiment.data, device=device, on_progress=reporter.simulated)
    fabric.barrier()
    return flows or prepare(experiment.data, device=device)


def _run_stage(
    experiment: Experiment,
    flows: Flows,
    out: Path,
    stage: Stage,
    fabric: Any,
    reporter: Reporter,
    *,
    start: str | None,
) -> Finished:
    record(experiment, flows.source, out, stage, fabric)
    plan = (
        experiment.training if stage == "train" else experiment.pretraining or FitConfig(epochs=50)
    )
    weights = experiment.weights if stage == "train" else experiment.pretraining_weights
    flows, model = _make_model(experiment, flows, start)
    window = _window(experiment, model, weights)
    segments = flows.labelled(experiment.data.labelled) if stage == "train" else flows.split.train
    train = flows.samples(segments, window)
    valid = flows.samples("valid", window) if flows.split.valid else None
    with only_one(out, fabric.is_global_zero):
        fitted = engine.fit(
            model,
            make_objectives(experiment, flows, model, weights),
            train,
            valid,
            plan,
            folder=out,
            seed=experiment.seed,
            hardware=experiment.hardware,
            identity=config.identity(experiment),
            save_best=_saver(experiment, flows, out, stage, weights),
            reporter=reporter,
            fabric=fabric,
        )
        if fabric.is_global_zero:
            draw_curves(out / "log.jsonl", out / "curves.png")
    fabric.barrier()
    return Finished(out, fitted)


def _make_model(experiment: Experiment, flows: Flows, start: str | None) -> tuple[Flows, nn.Module]:
    """The model before training, and the flows in its units."""
    options, chosen = experiment.model.options, experiment.model
    torch.manual_seed(experiment.seed)
    if start is None:
        model = build_model(chosen.name, preset=chosen.preset, spec=flows.spec, **options)
        _calibrate(model, flows)
        return flows, model
    begun = load(start)
    flows = _in_units_of(begun, flows, start)
    model = build_model(chosen.name, preset=chosen.preset, spec=flows.spec, **options)
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
                f"{start} was trained on {what} {getattr(theirs, what)}, "
                f"but these data have {getattr(mine, what)}"
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
    return Negatives(experiment.negatives, flows.spec, flows.normalizer, history, torch.cat(table))


def _saver(
    experiment: Experiment, flows: Flows, out: Path, stage: Stage, weights: Weights
) -> Callable[[nn.Module, Mapping[str, Any]], None]:
    provenance = {
        "experiment": config.as_plain(experiment),
        "stage": stage,
        "data": flows.source,
        "versions": versions(),
        "commit": commit(),
    }
    # Heads that pretraining trained are still there after training alone, but have drifted.
    trained = {
        "forward": weights.supervised > 0,
        "reconstruct": weights.mpp > 0,
        "consistency": weights.ecp > 0,
    }

    def save(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        save_model(
            out,
            model,
            flows.normalizer,
            provenance=provenance,
            metrics=dict(metrics),
            trained=trained,
        )

    return save
