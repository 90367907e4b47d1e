"""Tuning trials: short runs that choose the learning rate and the optimiser of each trained model.

    runs/DATA/MODEL-tuning/OPTIMIZER-RATE/    a run folder with trial.json, the result of the trial

A trial is an ordinary run with a share of the samples, whose schedule anneals within that share.
Its result is the validation error of its best epoch, which also chooses the epoch of a run; the
test split is not used. A trial whose loss is not finite loses. Of equal results the one with the
lower learning rate wins.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pibert import config
from pibert.comparison.plan import Candidate, Comparison, Job, Setting, experiment_of
from pibert.data.dataset import Window
from pibert.data.partial import replace_file
from pibert.experiments.experiment import DataConfig, Experiment
from pibert.experiments.flows import Flows
from pibert.experiments.run import run
from pibert.experiments.run_folder import curves_of
from pibert.files import read_json
from pibert.training.engine import Reporter

FILE = "trial.json"
Result = dict[str, Any]
"""``optimizer``, ``learning_rate``, ``samples`` seen, ``valid_error`` of the best epoch (None:
diverged), that ``epoch``, and ``diverged`` (why, or None)."""


@dataclass(frozen=True)
class Trial:
    """One setting of one model on one data set."""

    data: str
    candidate: str
    setting: Setting

    def folder(self, out: Path) -> Path:
        """The folder of its run."""
        rate = repr(float(self.setting.learning_rate))
        home = out / "runs" / self.data / f"{self.candidate}-tuning"
        return home / f"{self.setting.optimizer}-{rate}"


@dataclass(frozen=True)
class Choice:
    """The setting that a model is trained with on a data set."""

    setting: Setting
    valid_error: float
    edge: str | None
    """``lowest`` or ``highest``: the learning rate is at the end of those tried, so a better one
    may lie beyond. None: rates on both sides were tried, or there was only one."""


def trials_of(comparison: Comparison, data: str, candidate: str) -> tuple[Trial, ...]:
    """Return the trials that decide for a model on a data set; none if it is not tuned."""
    tuning, model = comparison.tuning, comparison.candidates[candidate]
    if tuning is None or not model.is_trained:
        return ()
    source = tuning.reuse.get(data, data)
    return tuple(Trial(source, candidate, setting) for setting in tuning.settings(model.optimizer))


def all_trials(comparison: Comparison) -> tuple[Trial, ...]:
    """Return every trial of a comparison once."""
    pairs = itertools.product(comparison.data, comparison.candidates)
    return tuple(dict.fromkeys(t for pair in pairs for t in trials_of(comparison, *pair)))


def epoch_sizes(candidate: Candidate, data: DataConfig, flows: Flows) -> tuple[int, int]:
    """Return the samples of an epoch of pretraining and of training."""
    window = Window(history=candidate.history)
    subsets = ("train", flows.labelled(data.labelled))
    pretraining, training = (len(flows.samples(subset, window)) for subset in subsets)
    return pretraining, training


def trial_experiment(comparison: Comparison, trial: Trial, flows: Flows) -> Experiment:
    """Return the experiment of a trial.

    Raises:
        ValueError: The budget is less than half an epoch, so that the trial would exceed it.
    """
    tuning = comparison.tuning
    assert tuning is not None
    sizes = epoch_sizes(comparison.candidates[trial.candidate], comparison.data[trial.data], flows)
    plan = _with_setting(comparison, trial.candidate, trial.setting)
    plan = replace(plan, samples=tuning.samples(comparison.samples), rollout_share=0.0)
    try:
        experiment = experiment_of(plan, Job(trial.data, trial.candidate, tuning.seed), *sizes)
        if experiment.pretraining is None and plan.samples < sizes[1] / 2:
            raise ValueError(
                f"{plan.samples} samples are too few for {trial.candidate!r}: less than half an "
                f"epoch, which has {sizes[1]}; raise samples"
            )
    except ValueError as error:
        raise ValueError(
            f"{error} or the share of each tuning trial on {trial.data!r}, {tuning.budget:g} of "
            f"{comparison.samples} samples: --set tuning.budget=1"
        ) from None
    return experiment


def perform(
    comparison: Comparison, trial: Trial, out: Path, flows: Flows, reporter: Reporter | None = None
) -> Result:
    """Run a trial, unless that is done; returns its result."""
    folder, experiment = trial.folder(out), trial_experiment(comparison, trial, flows)
    identity = config.fingerprint(
        {"run": config.as_plain(experiment, former=True), "data": flows.source}
    )
    former = _read(folder)
    if former is not None and former["identity"] == identity:
        return former
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
    """Return the result of a trial; None if it is not finished or its file is damaged."""
    try:
        result = read_json(folder / FILE)
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def choose(comparison: Comparison, out: Path, data: str, candidate: str) -> Choice | None:
    """Choose the setting of a model on a data set by the results of its trials; None: not tuned.

    Raises:
        ValueError: A trial is not finished, or all of them diverged.
    """
    trials = trials_of(comparison, data, candidate)
    if not trials:
        return None
    results = []
    for trial in trials:
        result = _read(trial.folder(out))
        if result is None:
            raise ValueError(
                f"the tuning trial of {candidate!r} with {trial.setting} is not finished; run the "
                "same comparison again"
            )
        results.append(result)
    finite = [result for result in results if result["valid_error"] is not None]
    if not finite:
        tried = ", ".join(str(trial.setting) for trial in trials)
        raise ValueError(
            f"all {len(trials)} tuning trials of {candidate!r} on {trials[0].data!r} diverged "
            f"({tried}): {results[0]['diverged']}; try lower tuning.learning_rates"
        )
    best = min(finite, key=lambda result: (result["valid_error"], result["learning_rate"]))
    rates = [trial.setting.learning_rate for trial in trials]
    ends = {min(rates): "lowest", max(rates): "highest"}
    edge = ends.get(best["learning_rate"]) if len(ends) > 1 else None
    setting = Setting(best["optimizer"], best["learning_rate"])
    return Choice(setting, best["valid_error"], edge)


def tuned(comparison: Comparison, job: Job, out: Path) -> Comparison:
    """Return the plan of a run, its candidate with the settings that its trials chose."""
    choice = choose(comparison, out, job.data, job.candidate)
    if choice is None:
        return comparison
    return _with_setting(comparison, job.candidate, choice.setting)


def with_chosen(comparison: Comparison, results: Mapping[str, Any], source: str) -> Comparison:
    """Return a plan whose trained candidates have the settings that another comparison chose.

    ``results`` are those of a tuned comparison of one data set, ``source`` names them in errors.
    """
    if comparison.tuning is not None:
        raise ValueError(f"expected a plan without tuning, since {source} has the learning rates")
    chosen = {row["model"]: row["chosen"] for row in results["tuning"] if row["chosen"]}
    if not chosen:
        raise ValueError(f"{source}: was not tuned; tune it (--tune), or leave out --rates")
    data = sorted({row["tuned_on"] for row in results["tuning"]})
    if len(data) > 1:
        raise ValueError(
            f"{source}: tuned on {len(data)} data sets ({', '.join(data)}); name a comparison that "
            "was tuned on one"
        )
    trained = [name for name, own in comparison.candidates.items() if own.is_trained]
    if missing := [name for name in trained if name not in chosen]:
        raise ValueError(
            f"{source}: no learning rate was chosen for {', '.join(missing)}, but for "
            f"{', '.join(chosen)}; tune them there (--tune), or leave them out "
            "(--models)"
        )
    keys = ("optimizer", "learning_rate")
    return replace(
        comparison,
        candidates={
            name: replace(own, **{key: chosen[name][key] for key in keys if name in trained})
            for name, own in comparison.candidates.items()
        },
    )


def _with_setting(comparison: Comparison, name: str, setting: Setting) -> Comparison:
    candidate = replace(comparison.candidates[name], **vars(setting))
    return replace(comparison, tuning=None, candidates={**comparison.candidates, name: candidate})


def as_rows(comparison: Comparison, out: Path) -> list[dict[str, Any]]:
    """Return trials and choice of every tuned model on every data set, as plain JSON.

    ``chosen`` is None if the trials did not lead to a choice.
    """
    rows = []
    for data, candidate in itertools.product(comparison.data, comparison.candidates):
        trials = trials_of(comparison, data, candidate)
        if not trials:
            continue
        row: dict[str, Any] = {"data": data, "model": candidate, "tuned_on": trials[0].data}
        try:
            choice = choose(comparison, out, data, candidate)
            assert choice is not None
            row["chosen"] = {"valid_error": choice.valid_error, **vars(choice.setting)}
            row["edge"] = choice.edge
        except ValueError as error:
            row |= {"chosen": None, "edge": None, "problem": str(error)}
        row["trials"] = []
        for trial in trials:
            folder = trial.folder(out)
            result = {key: v for key, v in (_read(folder) or {}).items() if key != "identity"}
            path = {"folder": str(folder.relative_to(out))}
            row["trials"].append(vars(trial.setting) | result | path)
        rows.append(row)
    return rows
