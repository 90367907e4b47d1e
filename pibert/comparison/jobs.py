"""The runs of a comparison: trained and evaluated one after the other, or on several devices.

Tuning trials come first. Finished runs are skipped and interrupted ones resumed. A run that fails
is reported, and the others continue. Costs are measured last, when no run uses the device.
"""

import contextlib
import json
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from pibert import config, stopping
from pibert.comparison.checks import claim_folder, refuse_other_training
from pibert.comparison.coarse_solver import folder_of as coarse_solver_folder
from pibert.comparison.coarse_solver import read_coarse_solver, score_coarse_solver, solver_of
from pibert.comparison.plan import Comparison, Job, experiment_of
from pibert.comparison.pool import ProcessKilled, work_on
from pibert.comparison.trials import (
    Trial,
    all_trials,
    epoch_sizes,
    perform,
    trial_experiment,
    trials_of,
    tuned,
)
from pibert.data.dataset import Window
from pibert.data.partial import replace_file
from pibert.evaluation.scores import read_card, read_scores
from pibert.evaluation.structure import score_wake_oscillator
from pibert.experiments.evaluation import (
    add_cost,
    evaluate,
    identity_of,
    nmse_of,
    refuse_short_flows,
)
from pibert.experiments.experiment import Experiment, Pretraining
from pibert.experiments.flows import Flows, outline, prepare
from pibert.experiments.run import run
from pibert.experiments.summary import physics_notes
from pibert.files import read_json, read_text
from pibert.notes import InputWarning, warn
from pibert.solver.vorticity import VorticityRecipe
from pibert.training.engine import Reporter

CONCURRENCY = ".runs_at_a_time"
"""In a run folder: the largest number of runs that shared the device while it was trained. Hidden,
because a folder with other files does not count as new."""
WAKE_OSCILLATOR = "wake-oscillator.json"
"""Beside the run folders of data with moving bodies: the scores of this reference."""
FAILURE = "failure.txt"
"""In the folder of a run that failed: the traceback."""
Item = Job | Trial


@runtime_checkable
class Watcher(Protocol):
    """Receives the progress of a comparison."""

    def simulated(self, done: int | float, total: int | None = None) -> None:
        """Take the number of simulated flows."""
        return None

    def update(self, item: Item, state: str, error: float | None = None) -> None:
        """Take the state of a run or tuning trial, and its error if that is known.

        A run is waiting, training, evaluating, evaluated, timing, done or failed, with its NMSE on
        test data. A trial is waiting, training, done, diverged or failed, with its validation
        error.
        """
        return None


class _Unwatched(Watcher):
    """Ignores the progress."""


class _Steps(Reporter):
    """Reports the progress of a run as a state, ``training 40 %``."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report, self._total = report, 1

    def start(self, total_steps: int, done: int) -> None:
        self._total = max(total_steps, 1)

    def step(self, done: int, loss: float) -> None:
        self._report(f"training {100 * done / self._total:.0f} %")


def carry_out(
    comparison: Comparison, out: Path, watcher: Watcher | None = None, *, workers: int = 1
) -> dict[Job, str]:
    """Train and evaluate all runs that are not done yet; returns the failed ones with the reason.

    Args:
        comparison: The plan.
        out: Its folder.
        watcher: Receives the progress.
        workers: Runs at a time, each in its own process and on its own GPU where there are enough;
            1: in this process.
    """
    watcher = watcher or _Unwatched()
    read = prepare if workers == 1 else outline  # each process reads what it needs
    flows = {
        name: read(data, device=_device(comparison), on_progress=watcher.simulated)
        for name, data in comparison.data.items()
    }
    _check_flows(comparison, flows)
    claim_folder(comparison, out)  # after all checks
    _note_physics(comparison, flows)
    jobs, trials = comparison.jobs(), all_trials(comparison)
    items: tuple[Item, ...] = (*jobs, *trials)
    for item in items:
        watcher.update(item, "waiting")

    def work_on_all(items: Sequence[Any], done: Callable[[Any, Any], None]) -> dict[Any, str]:
        failed: dict[Any, str] = {}

        def fail(item: Any, error: Exception) -> None:
            failed[item] = _explain(error, item.folder(out))
            watcher.update(item, "failed")

        if workers > 1 and items:
            work, device = partial(_work, comparison, out), _device(comparison)
            work_on(items, work, workers=workers, device=device, done=done, failed=fail)
            return failed
        for item in items:
            try:
                done(item, _work(comparison, out, item, 1, flows[item.data], watcher))
            except Exception as error:
                fail(item, error)
        return failed

    def tried(trial: Trial, error: float | None) -> None:
        watcher.update(trial, "diverged" if error is None else "done", error)

    problems = work_on_all(trials, tried)
    failed: dict[Job, str] = {}
    for job in jobs:
        for trial in trials_of(comparison, job.data, job.candidate):
            if trial in problems and job not in failed:
                failed[job] = f"tuning with {trial.setting} failed: {problems[trial]}"
                watcher.update(job, "failed")
    todo = [job for job in jobs if job not in failed]
    failed |= work_on_all(todo, lambda job, error: watcher.update(job, "evaluated", error))
    for job in todo:
        if job not in failed:
            try:
                _measure_cost(comparison, job, out, watcher)
            except Exception as error:
                failed[job] = _explain(error, job.folder(out))
                watcher.update(job, "failed")
    for name, prepared in flows.items():
        if prepared.spec.moving:
            _score_wake_oscillator(out / "runs" / name / WAKE_OSCILLATOR, prepared, comparison)
    for name in comparison.data:
        _add_coarse_solver(comparison, name, flows[name] if workers == 1 else None, out, failed)
    return failed


def _score_wake_oscillator(path: Path, flows: Flows, comparison: Comparison) -> None:
    """Store the scores of a wake oscillator fitted on the training flows, unless that is done."""
    window = Window(history=comparison.history)
    split = {name: list(map(list, getattr(flows.split, name))) for name in ("train", "test")}
    facts = {"data": flows.source, "split": split, "history": window.history}
    identity = config.fingerprint(facts)
    if path.exists() and read_json(path).get("identity") == identity:
        return
    scores = score_wake_oscillator(flows.samples("train", window), flows.samples("test", window))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"identity": identity, **scores}, indent=1).encode())


def _add_coarse_solver(
    comparison: Comparison, data: str, flows: Flows | None, out: Path, failed: Mapping[Job, str]
) -> None:
    """Score the solver on a coarser grid, where there is one, unless that is done."""
    jobs = [job for job in comparison.jobs() if job.data == data and job not in failed]
    solver = solver_of(comparison, data)
    if not jobs or solver is None:
        return
    scores = {job: read_scores(job.folder(out)) for job in jobs}
    # Only vorticity can start from a frame, as rollouts by lead time do.
    kinds = ("free_run", "rollout") if isinstance(solver, VorticityRecipe) else ("free_run",)
    if not any(kind in own.card for own in scores.values() for kind in kinds):
        return
    if read_coarse_solver(comparison, data, scores, out) is not None:
        return
    try:
        flows = flows or _flows_of_process(comparison, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)  # of the flows, once more
            score_coarse_solver(comparison, data, flows, scores, out, _device(comparison))
    except Exception as error:
        reason = _explain(error, coarse_solver_folder(out, data))
        warn(f"{data}: the solver on a coarser grid is left out: {reason}")


def _check_flows(comparison: Comparison, flows: Mapping[str, Flows]) -> None:
    """Check that the data allow all runs and trials, before any of them begins."""
    for name, prepared in flows.items():
        if not prepared.split.valid:  # a stated split; others are checked with the plan
            raise ValueError(
                f"data set {name!r} has no validation split, so a model could only be chosen on "
                "test data; state one, or choose data.split = 'trajectory' or 'time'"
            )
        refuse_short_flows(name, prepared, comparison.history, comparison.rollout)
    # Both refuse a budget that is too small.
    for trial in all_trials(comparison):
        trial_experiment(comparison, trial, flows[trial.data])
    for job in comparison.jobs():
        candidate = comparison.candidates[job.candidate]
        if candidate.is_trained:
            sizes = epoch_sizes(candidate, comparison.data[job.data], flows[job.data])
            experiment_of(comparison, job, *sizes)


def _note_physics(comparison: Comparison, flows: Mapping[str, Flows]) -> None:
    """Warn once which physics is off, and for which models."""
    for data, prepared in flows.items():
        affected: dict[str, list[str]] = {}
        for name, candidate in comparison.candidates.items():
            if candidate.run is not None:
                continue
            experiment = Experiment(
                data=comparison.data[data],
                model=candidate.model,
                losses=candidate.losses,
                pretraining=Pretraining() if candidate.pretraining else None,
                pretraining_weights=candidate.pretraining_weights,
            )
            with contextlib.suppress(ValueError):  # the run itself reports it
                for note in physics_notes(experiment, prepared, "train"):
                    affected.setdefault(note, []).append(name)
        for note, names in affected.items():
            warn(f"{data}, {', '.join(names)}: {note}")


def _work(
    comparison: Comparison,
    out: Path,
    item: Item,
    sharing: int,
    flows: Flows | None = None,
    watcher: Watcher | None = None,
) -> float | None:
    """Do a run or a trial, unless it is done; returns its error.

    ``sharing`` is the number of runs that share the device. In a process of its own, the flows are
    read here.
    """
    watcher = watcher or _Unwatched()
    with warnings.catch_warnings():
        # Warnings about the flows appear once, when they are prepared, and not for every run.
        warnings.simplefilter("ignore", InputWarning)
        flows = flows or _flows_of_process(comparison, item.data)
        (item.folder(out) / FAILURE).unlink(missing_ok=True)
        reporter = _Steps(partial(watcher.update, item))
        if isinstance(item, Trial):
            error: float | None = perform(comparison, item, out, flows, reporter)["valid_error"]
            return error
        return _train_and_evaluate(comparison, item, out, flows, watcher, reporter, sharing)


def _train_and_evaluate(
    comparison: Comparison,
    job: Job,
    out: Path,
    flows: Flows,
    watcher: Watcher,
    reporter: _Steps,
    sharing: int,
) -> float | None:
    folder, source = job.folder(out), comparison.candidates[job.candidate].run
    history, rollout = comparison.history, comparison.rollout
    trained, shared = Path(source or folder), None
    if source is None:
        plan = tuned(comparison, job, out)
        sizes = epoch_sizes(plan.candidates[job.candidate], plan.data[job.data], flows)
        experiment = experiment_of(plan, job, *sizes)
        watcher.update(job, "training")
        shared = _note_sharing(folder, sharing)
        run(experiment, folder, reporter=reporter, flows=flows)
    else:
        refuse_other_training(trained, comparison.data[job.data], flows)
    identity = identity_of(trained, flows, history, rollout)
    with contextlib.suppress(ValueError, OSError, KeyError):
        card = read_scores(folder).card
        if card["identity"] == identity:
            return nmse_of(card)
    watcher.update(job, "evaluating")
    scores = evaluate(
        trained,
        flows,
        into=folder,
        history=history,
        rollout=rollout,
        device=_device(comparison),
        labels=job.labels,
        at_a_time=shared,
    )
    return nmse_of(scores.card)


def _note_sharing(folder: Path, sharing: int) -> int | None:
    """Store the largest number of runs that shared the device with this one, and return it.

    Written before the first step, because a run may be killed. None: the file is damaged.
    """
    path = folder / CONCURRENCY
    try:
        most = max(sharing, int(read_text(path)) if path.exists() else 1)
    except ValueError:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, f"{most}\n".encode())
    return most


def _measure_cost(comparison: Comparison, job: Job, out: Path, watcher: Watcher) -> None:
    """Measure the cost of an evaluated model, unless that is done."""
    folder = job.folder(out)
    card = read_card(folder)
    if "cost" not in card:
        watcher.update(job, "timing", nmse_of(card))
        trained = Path(comparison.candidates[job.candidate].run or folder)
        add_cost(trained, folder, _device(comparison))
    watcher.update(job, "done", nmse_of(card))


def _explain(error: Exception, folder: Path) -> str:
    """Return the error in a line; its traceback goes to the run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    text = str(error).strip() or "no reason given"
    expected = (ValueError, OSError, ImportError, FloatingPointError, ProcessKilled)
    return text if isinstance(error, expected) else f"{type(error).__name__}: {text}"


_prepared: dict[str, Flows] = {}
"""The last data set that a process of a pool has read; only one, because they may be large."""


def _flows_of_process(comparison: Comparison, name: str) -> Flows:
    if stopping.is_asked():  # in the run before this one
        raise KeyboardInterrupt
    data = comparison.data[name]
    key = config.fingerprint(config.as_plain(data))
    if key not in _prepared:
        _prepared.clear()
        _prepared[key] = prepare(data, device=_device(comparison))
    return _prepared[key]


def _device(comparison: Comparison) -> str:
    wanted = comparison.hardware.accelerator
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
