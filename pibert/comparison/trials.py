"""Tuning trials: short runs that choose the learning rate and the optimiser of each trained model.

    runs/DATA/MODEL-tuning/OPTIMIZER-RATE/    a run folder with trial.json, what came of the trial

A trial is an ordinary run with a share of the samples, whose schedule anneals within that share. It
trains on the training part, and its result is the validation error of its best epoch, the measure
that also chooses the epoch of a run. The test part has no say. A trial whose loss is not finite
loses. Of equal results the one with the lower learning rate wins.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pibert import config
from pibert.comparison.curves import curves_of
from pibert.comparison.plan import Comparison, Entrant, Job, experiment_of
from pibert.comparison.tuning import Setting
from pibert.data.dataset import Window
from pibert.data.partial import replace_file
from pibert.experiments.experiment import DataConfig, Experiment
from pibert.experiments.flows import Flows
from pibert.experiments.run import run
from pibert.textfiles import read_json
from pibert.training.engine import Reporter

FILE = "trial.json"
Result = dict[str, Any]
"""``optimizer``, ``learning_rate``, ``samples`` seen, ``valid_error`` of the best epoch (None:
diverged), that ``epoch``, and ``diverged`` (why, or None)."""


@dataclass(frozen=True)
class Trial:
    """One setting of one model on one data set."""

    data: str
    entrant: str
    setting: Setting

    def folder(self, out: Path) -> Path:
        """The folder of its run."""
        rate = repr(float(self.setting.learning_rate))
        home = out / "runs" / self.data / f"{self.entrant}-tuning"
        return home / f"{self.setting.optimizer}-{rate}"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The setting that a model is trained with on a data set, and why."""

    setting: Setting
    tuned_on: str
    """The data set of the trials."""
    valid_error: float
    trials: Sequence[Result]
    edge: str | None
    """``lowest`` or ``highest``: no lower or higher learning rate was tried, so that a better one
    may lie beyond. None: rates on both sides were tried, or there was only one."""


def trials_of(comparison: Comparison, data: str, entrant: str) -> tuple[Trial, ...]:
    """The trials that decide for a model on a data set; none where it is not tuned."""
    tuning, own = comparison.tuning, comparison.entrants[entrant]
    if tuning is None or not own.is_trained:
        return ()
    source = tuning.reuse.get(data, data)
    return tuple(Trial(source, entrant, setting) for setting in tuning.settings(own.optimizer))


def all_trials(comparison: Comparison) -> tuple[Trial, ...]:
    """Every trial of a comparison once."""
    pairs = ((data, entrant) for data in comparison.data for entrant in comparison.entrants)
    return tuple(dict.fromkeys(t for pair in pairs for t in trials_of(comparison, *pair)))


def epoch_sizes(entrant: Entrant, data: DataConfig, flows: Flows) -> tuple[int, int]:
    """Samples of an epoch of pretraining and of training; less history makes more windows."""
    window = Window(history=entrant.history)
    parts = ("train", flows.labelled(data.labelled))
    pretraining, training = (len(flows.samples(part, window)) for part in parts)
    return pretraining, training


def trial_experiment(comparison: Comparison, trial: Trial, flows: Flows) -> Experiment:
    """The run of a trial.

    Raises:
        ValueError: The budget is less than half an epoch, so that the trial would exceed it.
    """
    tuning = comparison.tuning
    assert tuning is not None
    sizes = epoch_sizes(comparison.entrants[trial.entrant], comparison.data[trial.data], flows)
    plan = _with_setting(comparison, trial.entrant, trial.setting)
    plan = replace(plan, samples=tuning.samples(comparison.samples))
    try:
        experiment = experiment_of(plan, Job(trial.data, trial.entrant, tuning.seed), *sizes)
        if experiment.pretraining is None and plan.samples < sizes[1] / 2:
            raise ValueError(
                f"{plan.samples} samples are too few for {trial.entrant!r}: less than half an "
                f"epoch, which has {sizes[1]}; raise samples"
            )
    except ValueError as error:
        raise ValueError(
            f"{error} or tuning.budget: each tuning trial on {trial.data!r} sees "
            f"{tuning.budget:g} of {comparison.samples} samples"
        ) from None
    return experiment


def perform(
    comparison: Comparison, trial: Trial, out: Path, flows: Flows, reporter: Reporter | None = None
) -> Result:
    """Run a trial, unless that is done; gives its result."""
    assert comparison.tuning is not None
    folder, experiment = trial.folder(out), trial_experiment(comparison, trial, flows)
    identity = config.fingerprint({"run": config.as_plain(experiment), "data": flows.source})
    known = _read(folder)
    if known is not None and known["identity"] == identity:
        return known
    error, epoch, diverged = None, 0, None
    try:
        finished = run(experiment, folder, reporter=reporter, flows=flows)
        epoch = finished.best_epoch
        error = finished.metrics[experiment.training.monitor] if epoch else None
        diverged = None if epoch else "no epoch had a finite validation error"
    except FloatingPointError as reason:
        diverged = str(reason).partition(";")[0]  # without the advice for a single run
    seen = list(curves_of(folder))
    result: Result = {
        "optimizer": trial.setting.optimizer,
        "learning_rate": trial.setting.learning_rate,
        "samples": seen[-1]["samples"] if seen else 0,
        "epoch": epoch,
        "valid_error": error,
        "diverged": diverged,
        "identity": identity,
    }
    replace_file(folder / FILE, (json.dumps(result, indent=1) + "\n").encode())
    return result


def _read(folder: Path) -> Result | None:
    """What came of a trial; None where it is not finished."""
    try:
        found = read_json(folder / FILE)
    except (OSError, ValueError):  # a damaged one is written again
        return None
    return found if isinstance(found, dict) else None


def choose(comparison: Comparison, out: Path, data: str, entrant: str) -> Choice | None:
    """The setting of a model on a data set, from the results of its trials; None: not tuned.

    Raises:
        ValueError: A trial is not finished, or all of them diverged.
    """
    trials = trials_of(comparison, data, entrant)
    if not trials:
        return None
    results = [_read(trial.folder(out)) for trial in trials]
    for trial, result in zip(trials, results, strict=True):
        if result is None:
            raise ValueError(
                f"the tuning trial of {entrant!r} with {trial.setting} is not finished; run the "
                "same comparison again"
            )
    known = [result for result in results if result is not None]
    finite = [result for result in known if result["valid_error"] is not None]
    if not finite:
        tried = ", ".join(str(trial.setting) for trial in trials)
        raise ValueError(
            f"all {len(trials)} tuning trials of {entrant!r} on {trials[0].data!r} diverged "
            f"({tried}): {known[0]['diverged']}; try lower tuning.learning_rates"
        )
    best = min(finite, key=lambda result: (result["valid_error"], result["learning_rate"]))
    return Choice(
        setting=Setting(best["optimizer"], best["learning_rate"]),
        tuned_on=trials[0].data,
        valid_error=best["valid_error"],
        trials=known,
        edge=_edge(best["learning_rate"], [trial.setting.learning_rate for trial in trials]),
    )


def _edge(chosen: float, rates: Sequence[float]) -> str | None:
    ends = {min(rates): "lowest", max(rates): "highest"}
    return ends.get(chosen) if len(ends) > 1 else None


def tuned(comparison: Comparison, job: Job, out: Path) -> Comparison:
    """The plan of a run, in which its entrant has the settings that its trials chose."""
    choice = choose(comparison, out, job.data, job.entrant)
    return comparison if choice is None else _with_setting(comparison, job.entrant, choice.setting)


def _with_setting(comparison: Comparison, name: str, setting: Setting) -> Comparison:
    own = replace(
        comparison.entrants[name],
        learning_rate=setting.learning_rate,
        optimizer=setting.optimizer,
    )
    return replace(comparison, tuning=None, entrants={**comparison.entrants, name: own})


def as_records(comparison: Comparison, out: Path) -> list[dict[str, Any]]:
    """Trials and choice of every tuned model on every data set, as plain JSON.

    ``chosen`` is None where the trials did not lead to a choice.
    """
    found = []
    for data in comparison.data:
        for entrant in comparison.entrants:
            trials = trials_of(comparison, data, entrant)
            if trials:
                found.append(
                    {"data": data, "model": entrant, "tuned_on": trials[0].data}
                    | _decided(comparison, out, data, entrant)
                    | {"trials": [_shown(trial, out) for trial in trials]}
                )
    return found


def _decided(comparison: Comparison, out: Path, data: str, entrant: str) -> dict[str, Any]:
    try:
        choice = choose(comparison, out, data, entrant)
    except ValueError as error:
        return {"chosen": None, "edge": None, "problem": str(error)}
    assert choice is not None
    chosen = {"valid_error": choice.valid_error, **vars(choice.setting)}
    return {"chosen": chosen, "edge": choice.edge}


def _shown(trial: Trial, out: Path) -> Mapping[str, Any]:
    result = {k: v for k, v in (_read(trial.folder(out)) or {}).items() if k != "identity"}
    return {**vars(trial.setting), **result, "folder": str(trial.folder(out).relative_to(out))}
