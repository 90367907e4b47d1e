"""From an experiment to a finished run folder.

    config.json         the experiment, and what it ran on
    log.jsonl           a line per epoch
    model.safetensors   the best weights, with model.json all that is needed to predict
    state.safetensors   to resume from; state-previous.safetensors is the state before it
    curves.png          losses over the epochs
    tensorboard/        the same for TensorBoard

``docs/runs.md`` is the contract. A training that begins with pretraining keeps that run, of the
same layout, in the folder ``pretraining`` inside.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn

from pibert import config
from pibert.data.dataset import BatchOrder, make_loader
from pibert.experiments.assembly import Parts, assemble
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.physics_notes import physics_notes
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
from pibert.models.references.simple import Reference
from pibert.predictor import read_model, save_model
from pibert.remarks import warn
from pibert.report.curves import draw_curves
from pibert.training import engine
from pibert.training.engine import Fitted, Reporter

PRETRAINING = "pretraining"
"""The folder of the pretraining inside a training's."""
BEGUN = ("log.jsonl", "state.safetensors", "state-previous.safetensors")
"""What a run that has begun leaves behind, one of them at least."""


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
    for note in physics_notes(experiment, parts.flows, stage):
        warn(note)
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


def _fit(
    experiment: Experiment,
    parts: Parts,
    out: Path,
    stage: Stage,
    fabric: Any,
    reporter: Reporter,
) -> Finished:
    if isinstance(parts.model, Reference):
        return _fit_reference(experiment, parts, out, stage, fabric)
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


def _fit_reference(
    experiment: Experiment, parts: Parts, out: Path, stage: Stage, fabric: Any
) -> Finished:
    """A predictor that is found in closed form: no epochs, and nothing to choose."""
    model = cast(Reference, parts.model)

    def fit_and_save() -> None:
        order = BatchOrder(len(parts.train), 256, seed=0, shuffle=False)
        model.fit(make_loader(parts.train, order), parts.flows.normalizer)
        _saver(experiment, parts, out, stage)(model, {})

    if not _is_readable(out):
        first_does(fabric, fit_and_save)
    fabric.barrier()
    fitted = Fitted(
        metrics={}, best_epoch=0, epochs=0, steps=0, stopped_early=False, resumed_from=None
    )
    return Finished(out, fitted, validated=False)


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

    def save(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        # A model file has no place for NaN; the monitored value is finite.
        finite = {name: v for name, v in metrics.items() if math.isfinite(v)}
        save_model(
            out,
            model,
            parts.flows.normalizer,
            provenance=provenance,
            metrics=finite,
            trained=parts.trained,
        )

    return save
