"""Run an experiment into a run folder.

    config.json         the experiment, and the machine it ran on
    log.jsonl           a line per epoch
    model.safetensors   the best weights, with model.json all that is needed to predict
    state.safetensors   to resume from; state-previous.safetensors is the state before it
    curves.png          losses over the epochs
    tensorboard/ ...    files of the loggers (``training.logger``)

``docs/runs.md`` is the contract. A training that starts with pretraining keeps that run, with the
same layout, in its folder ``pretraining``. One that ends with rollouts keeps the training on single
steps, a run of its own, in the folder ``training``.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn

from pibert import config
from pibert.experiments.assembly import Part, Setup, TooShort, assemble, in_order
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.run_folder import (
    PRETRAINING,
    TRAINING,
    Stage,
    commit,
    experiment_of,
    first_does,
    only_one,
    read_config,
    refuse_other,
    versions,
    write_config,
)
from pibert.experiments.summary import (
    describe_stage,
    one_flow_note,
    physics_notes,
    shorter_rollouts_note,
    summarise,
)
from pibert.inference import read_model, save_model
from pibert.models.references.simple import Reference
from pibert.notes import Note, warn
from pibert.plugins import origin_of
from pibert.report.curves import draw_curves
from pibert.training import engine
from pibert.training.engine import Fitted, Reporter

BEGUN = ("log.jsonl", "state.safetensors", "state-previous.safetensors")
"""Files of a run that has begun; at least one of them exists."""


@dataclass(frozen=True)
class Finished:
    """The result of a run."""

    folder: Path
    fitted: Fitted
    validated: bool
    """Whether there was a validation split; otherwise the last epoch counts as the best."""
    longest_rollout: int
    """Frames that a rollout over the test split can have; 0: there is no test split."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the best weights on the validation split, or of the last epoch."""
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
    """Run an experiment into a folder, or resume it if the folder holds it already.

    Nothing is written before data, model and objectives are ready.

    Args:
        experiment: What to do.
        out: The run folder; one of another experiment is refused.
        stage: ``train`` pretrains first and trains on rollouts last if the experiment asks for it;
            ``pretrain`` only pretrains.
        reporter: Receives the progress.
        flows: Those of the experiment, if the caller has prepared them for several runs.
    """
    out = Path(out)
    reporter = reporter or engine.Reporter()
    fabric = engine.launch(experiment.hardware)
    first_does(fabric, lambda: refuse_other(experiment, out, stage))
    flows = flows or _flows_of_all(experiment, fabric, reporter)
    return _run_stages(experiment, out, stage, flows, fabric, reporter)


def _run_stages(
    experiment: Experiment,
    out: Path,
    stage: Stage,
    flows: Flows,
    fabric: Any,
    reporter: Reporter,
) -> Finished:
    """Run all stages but the last one into subfolders, and the last one into ``out``.

    Every stage is set up before anything is written, so that wrong settings cost nothing.
    """
    last: Part = stage
    if stage == "train" and experiment.rollout_training is not None:
        last = "rollouts"
    try:
        setup = assemble(experiment, flows, last, experiment.start)
    except TooShort as error:
        last = stage
        setup = assemble(experiment, flows, last, experiment.start)
        if fabric.is_global_zero:
            reporter.say(f"the stage on rollouts is left out: {error}")

    def begin(setup: Setup, folder: Path, stage: Stage) -> None:
        first_does(fabric, lambda: write_config(experiment, setup.facts, folder, stage, fabric))

    def announce(stages: Mapping[Part, Setup]) -> None:
        if fabric.is_global_zero:
            reporter.describe(summarise(experiment, stages, fabric.device.type))
            if (note := one_flow_note(setup.flows)) is not None and stage == "train":
                reporter.say(str(note))

    if last == "rollouts":
        single = replace(experiment, rollout_training=None)
        assemble(single, flows, "train", experiment.start)
        begin(setup, out, stage)
        _run_stages(single, out / TRAINING, stage, flows, fabric, reporter)
        setup = assemble(experiment, flows, last, str(out / TRAINING))
        if fabric.is_global_zero:
            reporter.describe([describe_stage(experiment, last, setup, fabric.device.type)])
            if (shorter := shorter_rollouts_note(experiment, setup)) is not None:
                reporter.say(str(shorter))
        return _fit(experiment, setup, out, stage, fabric, reporter)
    for note in physics_notes(experiment, setup.flows, stage):
        warn(note)
    if stage == "train" and experiment.pretraining is not None:
        before = assemble(experiment, flows, "pretrain", None)
        announce({"pretrain": before, "train": setup})
        folder = out / PRETRAINING
        begin(setup, out, stage)
        begin(before, folder, "pretrain")
        _fit(experiment, before, folder, "pretrain", fabric, reporter)
        setup = assemble(experiment, flows, stage, str(folder))
    else:
        announce({stage: setup})
        begin(setup, out, stage)
    return _fit(experiment, setup, out, stage, fabric, reporter)


def resume(out: Path | str, *, reporter: Reporter | None = None) -> Finished:
    """Resume the run in a folder."""
    out = Path(out).resolve()
    path = out / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{out}: no run to resume, {path.name} is missing; "
            "start one with: pibert train --config FILE --out RUN"
        )
    experiment, started_in = experiment_of(out)
    with contextlib.chdir(started_in):
        return run(experiment, out, stage=read_config(path)["stage"], reporter=reporter)


def _flows_of_all(experiment: Experiment, fabric: Any, reporter: Reporter) -> Flows:
    """Prepare the flows: the first process may simulate them, the others read the cache."""
    device = str(fabric.device)
    flows = first_does(
        fabric, lambda: prepare(experiment.data, device=device, on_progress=reporter.simulated)
    )
    return flows or prepare(experiment.data, device=device)


def _fit(
    experiment: Experiment,
    setup: Setup,
    out: Path,
    stage: Stage,
    fabric: Any,
    reporter: Reporter,
) -> Finished:
    if isinstance(setup.model, Reference):
        return _fit_reference(experiment, setup, out, stage, fabric)
    with contextlib.ExitStack() as stack:
        first_does(fabric, lambda: stack.enter_context(only_one(out)))
        if fabric.is_global_zero:
            stack.callback(_draw_curves, out, reporter)  # also when the run is interrupted
            stack.push(partial(_forget_if_refused, out))
        fitted = engine.fit(
            setup.model,
            setup.objectives,
            setup.train,
            setup.valid,
            setup.schedule,
            folder=out,
            seed=experiment.seed,
            hardware=experiment.hardware,
            identity=config.identity(experiment),
            settings=config.as_plain(experiment),
            save_best=_saver(experiment, setup, out, stage),
            best_exists=lambda: _is_readable(out),
            calls=setup.rollout.steps_at,
            validation=setup.validation,
            keeps_start=setup.keeps_start,
            reporter=reporter,
            fabric=fabric,
        )
    fabric.barrier()
    if setup.validation is None and fitted.start_metrics and not fitted.best_epoch:
        error = fitted.start_metrics["reconstruction"]
        warn(
            Note(
                "start-kept",
                "no epoch lowers the validation error of the model that training started from, "
                f"{error:.4g}: its weights are kept",
                "lower the learning rate, such as --set training.learning_rate="
                f"{setup.schedule.learning_rate / 8:g}, or train longer",
            )
        )
    return _finished(out, fitted, setup)


def _fit_reference(
    experiment: Experiment, setup: Setup, out: Path, stage: Stage, fabric: Any
) -> Finished:
    """Fit a predictor in closed form, without epochs."""
    model = cast(Reference, setup.model)

    def fit_and_save() -> None:
        train, *valid = (
            in_order(samples) for samples in (setup.train, setup.valid) if samples is not None
        )
        model.fit(train, setup.flows.normalizer, *valid)
        _saver(experiment, setup, out, stage)(model, {})

    if not _is_readable(out):
        first_does(fabric, fit_and_save)
    fabric.barrier()
    fitted = Fitted(
        metrics={}, best_epoch=0, epochs=0, steps=0, stopped_early=False, resumed_from=None
    )
    return _finished(out, fitted, setup)


def _finished(out: Path, fitted: Fitted, setup: Setup) -> Finished:
    history = cast(Any, setup.model).config.history
    validated = setup.valid is not None and fitted.epochs > 0
    return Finished(out, fitted, validated, max(0, setup.flows.longest("test") - history))


def _forget_if_refused(out: Path, kind: Any, error: Any, _: Any) -> None:
    """Remove config.json of a run that the engine refuses before its first step."""
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


def _saver(
    experiment: Experiment, setup: Setup, out: Path, stage: Stage
) -> Callable[[nn.Module, Mapping[str, Any]], None]:
    provenance = {
        "experiment": config.as_plain(experiment),
        "stage": stage,
        "data": setup.flows.source,
        "versions": versions(),
        "commit": commit(),
    }
    if (origin := origin_of(type(setup.model))) is not None:
        provenance["model_from"] = origin

    def save(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        # JSON has no NaN; the monitored value is finite.
        finite = {name: v for name, v in metrics.items() if math.isfinite(v)}
        save_model(
            out,
            model,
            setup.flows.normalizer,
            provenance=provenance,
            metrics=finite,
            trained=setup.trained,
        )

    return save
