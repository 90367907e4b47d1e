"""The runs of a comparison: trained and evaluated one after the other, or on several devices.

Tuning trials come first. Finished runs are skipped and interrupted ones resumed. A run that fails
is reported, and the others go on without it.
"""

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from pibert import config, stopping
from pibert.comparison.checks import claim_folder, refuse_other_training
from pibert.comparison.plan import Comparison, Job, experiment_of
from pibert.comparison.pool import ProcessKilled, work_on
from pibert.comparison.trials import (
    Result,
    Trial,
    all_trials,
    epoch_sizes,
    perform,
    trial_experiment,
    trials_of,
    tuned,
)
from pibert.data.partial import replace_file
from pibert.evaluation.scores import read_card, read_scores
from pibert.experiments.evaluation import (
    add_cost,
    evaluate,
    identity_of,
    nmse_of,
    refuse_short_flows,
)
from pibert.experiments.experiment import Experiment, Pretraining
from pibert.experiments.flows import Flows, outline, prepare
from pibert.experiments.physics_notes import physics_notes
from pibert.experiments.run import run
from pibert.experiments.run_folder import curves_of
from pibert.notes import InputWarning, warn
from pibert.textfiles import read_text
from pibert.training.engine import Silent

CONCURRENCY = ".runs_at_a_time"
"""In a run folder: the largest number of runs that shared the device while it was trained. Hidden,
because a folder with other files does not count as new."""
FAILURE = "failure.txt"
"""In the folder of a run that failed: the whole error."""
Item = TypeVar("Item", Job, Trial)


@runtime_checkable
class Watcher(Protocol):
    """Receives the progress of the runs."""

    def simulated(self, done: int | float, total: int | None = None) -> None:
        """So many of the flows are simulated."""
        ...

    def update(self, job: Job, state: str, nmse: float | None = None) -> None:
        """A run is waiting, training, evaluated, timed, done or failed; its error if known."""
        ...

    def update_trial(self, trial: Trial, state: str, error: float | None = None) -> None:
        """A tuning trial is waiting, training, done, diverged or failed; its validation error."""
        ...


class _Unwatched:
    """A watcher that ignores everything."""

    def simulated(self, done: int | float, total: int | None = None) -> None: ...

    def update(self, job: Job, state: str, nmse: float | None = None) -> None: ...

    def update_trial(self, trial: Trial, state: str, error: float | None = None) -> None: ...


class _Steps(Silent):
    """Reports the progress of a run as a state, ``training 40 %``."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report, self._total = report, 1

    def start(self, total_steps: int, done: int) -> None:
        self._total = max(total_steps, 1)

    def step(self, done: int, loss: float) -> None:
        self._report(f"training {100 * done / self._total:.0f} %")


def carry_out(
    comparison: Comparison, out: Path, watcher: Watcher, *, workers: int = 1
) -> dict[Job, str]:
    """Train and evaluate all runs that are not done yet; returns the failed ones with the reason.

    Args:
        comparison: The plan.
        out: Its folder.
        watcher: Receives the progress.
        workers: Runs at a time, each in its own process and on its own GPU where there are enough;
            1: in this process.
    """
    read = prepare if workers == 1 else outline  # each process reads what it needs
    device = _device(comparison)
    flows = {
        name: read(data, device=device, on_progress=watcher.simulated)
        for name, data in comparison.data.items()
    }
    _check_flows(comparison, flows)
    claim_folder(comparison, out)  # after all checks
    _note_physics(comparison, flows)
    jobs = comparison.jobs()
    for job in jobs:
        watcher.update(job, "waiting")
    failed = _tune(comparison, out, flows, watcher, workers)

    def train(job: Job) -> float | None:
        with _without_warnings():
            return _train_and_evaluate(comparison, job, out, flows[job.data], watcher)

    def done(job: Job, error: float | None) -> None:
        if workers == 1:
            _measure_cost(comparison, job, out, watcher)
        else:
            watcher.update(job, "evaluated", error)

    def fail(job: Job, error: Exception) -> None:
        failed[job] = _explained(error, job.folder(out))
        watcher.update(job, "failed")

    todo = [job for job in jobs if job not in failed]
    _for_each(todo, train, partial(_job_alone, comparison, out), workers, device, done, fail)
    for job in todo if workers > 1 else ():
        if job not in failed:
            try:
                # Only now: times are valid while no other run uses the device.
                _measure_cost(comparison, job, out, watcher)
            except Exception as error:
                fail(job, error)
    return failed


def _for_each(
    items: Sequence[Item],
    work: Callable[[Item], Any],
    work_alone: Callable[[Item, int], Any],
    workers: int,
    device: str,
    done: Callable[[Item, Any], None],
    failed: Callable[[Item, Exception], None],
) -> None:
    """Work on all items, here or in processes of their own; one that fails does not stop others."""
    if workers > 1 and items:
        work_on(items, work_alone, workers=workers, device=device, done=done, failed=failed)
        return
    for item in items:
        try:
            done(item, work(item))
        except Exception as error:
            failed(item, error)


def _check_flows(comparison: Comparison, flows: Mapping[str, Flows]) -> None:
    """Check that the data allow all runs and trials, before any of them begins."""
    for name, own in flows.items():
        if not own.split.valid:  # as the data state it; other splits are checked with the plan
            raise ValueError(
                f"data set {name!r} has no validation split, so a model could only be chosen on "
                "test data; state one, or choose data.split = 'trajectory' or 'time'"
            )
        refuse_short_flows(name, own, comparison.history, comparison.rollout)
    for trial in all_trials(comparison):
        trial_experiment(comparison, trial, flows[trial.data])  # refuses a budget that is too small


def _tune(
    comparison: Comparison, out: Path, flows: Mapping[str, Flows], watcher: Watcher, workers: int
) -> dict[Job, str]:
    """Run all tuning trials that are not done yet; returns the runs that lack one, with why."""
    trials = all_trials(comparison)
    problems: dict[Trial, str] = {}

    def attempt(trial: Trial) -> Result:
        reporter = _Steps(partial(watcher.update_trial, trial))
        return _try(comparison, trial, out, flows[trial.data], reporter)

    def done(trial: Trial, result: Result) -> None:
        error = result["valid_error"]
        watcher.update_trial(trial, "diverged" if error is None else "done", error)

    def fail(trial: Trial, error: Exception) -> None:
        problems[trial] = _explained(error, trial.folder(out))
        watcher.update_trial(trial, "failed")

    for trial in trials:
        watcher.update_trial(trial, "waiting")
    alone = partial(_trial_alone, comparison, out)
    _for_each(trials, attempt, alone, workers, _device(comparison), done, fail)
    failed: dict[Job, str] = {}
    for job in comparison.jobs():
        for trial in trials_of(comparison, job.data, job.candidate):
            if trial in problems and job not in failed:
                failed[job] = f"tuning with {trial.setting} failed: {problems[trial]}"
                watcher.update(job, "failed")
    return failed


def _try(
    comparison: Comparison, trial: Trial, out: Path, flows: Flows, reporter: _Steps | None = None
) -> Result:
    (trial.folder(out) / FAILURE).unlink(missing_ok=True)
    with _without_warnings():
        return perform(comparison, trial, out, flows, reporter)


def _note_physics(comparison: Comparison, flows: Mapping[str, Flows]) -> None:
    """Warn once which physics is off, and for which models."""
    for data, own in flows.items():
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
                for note in physics_notes(experiment, own, "train"):
                    affected.setdefault(note, []).append(name)
        for note, names in affected.items():
            warn(f"{data}, {', '.join(names)}: {note}")


def _train_and_evaluate(
    comparison: Comparison,
    job: Job,
    out: Path,
    flows: Flows,
    watcher: Watcher,
    *,
    at_a_time: int = 1,
) -> float | None:
    """Train and evaluate one run, unless that is done; returns its error."""
    folder = job.folder(out)
    history, rollout = comparison.history, comparison.rollout
    source = comparison.candidates[job.candidate].run
    if source is None:
        plan = tuned(comparison, job, out)
        sizes = epoch_sizes(plan.candidates[job.candidate], plan.data[job.data], flows)
        experiment = experiment_of(plan, job, *sizes)
        watcher.update(job, "training")
        (folder / FAILURE).unlink(missing_ok=True)  # the folder of a new run must be empty
        with _tracking_concurrency(folder, at_a_time):
            run(experiment, folder, reporter=_Steps(partial(watcher.update, job)), flows=flows)
    else:
        refuse_other_training(Path(source), comparison.data[job.data], flows)
        folder.mkdir(parents=True, exist_ok=True)
    trained = folder if source is None else Path(source)
    error = _known_error(folder, identity_of(trained, flows, history, rollout))
    if error is None:
        watcher.update(job, "evaluating")
        scores = evaluate(
            trained,
            flows,
            into=folder,
            history=history,
            rollout=rollout,
            device=_device(comparison),
            labels=job.labels,
            at_a_time=_concurrent_runs(folder) if source is None else None,
        )
        error = nmse_of(scores.card)
    return error


@contextlib.contextmanager
def _tracking_concurrency(folder: Path, at_a_time: int) -> Iterator[None]:
    """Store the largest number of runs that shared the device while this run was trained.

    Written before the first step, because a run may be killed; undone if nothing was trained. If
    the file is damaged and the run had begun, the number stays unknown and the file as it is.
    """
    before, known = sum(1 for _ in curves_of(folder)), _concurrent_runs(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if before and known is None:
        yield
        return
    _write_concurrency(folder, max(at_a_time, known or 1) if before else at_a_time)
    yield
    if known is not None and sum(1 for _ in curves_of(folder)) == before:
        _write_concurrency(folder, known)


def _concurrent_runs(folder: Path) -> int | None:
    """The stored number of runs that shared the device; None if the file is damaged."""
    path = folder / CONCURRENCY
    if not path.exists():
        return 1
    try:
        count = int(read_text(path))
    except (ValueError, OSError):
        return None
    return count if count >= 1 else None


def _write_concurrency(folder: Path, count: int) -> None:
    replace_file(folder / CONCURRENCY, f"{count}\n".encode())


def _measure_cost(comparison: Comparison, job: Job, out: Path, watcher: Watcher) -> None:
    """Measure the cost of an evaluated model, unless that is done."""
    folder, source = job.folder(out), comparison.candidates[job.candidate].run
    card = read_card(folder)
    if "cost" not in card:
        watcher.update(job, "timing", nmse_of(card))
        add_cost(folder if source is None else Path(source), folder, _device(comparison))
    watcher.update(job, "done", nmse_of(card))


def _known_error(folder: Path, identity: str) -> float | None:
    """The error of a run that was evaluated in this way before; None if it was not."""
    with contextlib.suppress(ValueError, OSError, KeyError):
        card = read_scores(folder).card
        if card["identity"] == identity:
            return nmse_of(card)
    return None


def _explained(error: Exception, folder: Path) -> str:
    """The error in a line; its traceback goes to the run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).write_text("".join(traceback.format_exception(error)))
    text = str(error).strip() or "no reason given"
    known = isinstance(
        error, ValueError | OSError | ImportError | FloatingPointError | ProcessKilled
    )
    return text if known else f"{type(error).__name__}: {text}"


def _job_alone(comparison: Comparison, out: Path, job: Job, sharing: int) -> float | None:
    """A job in a process of its own."""
    with _without_warnings():
        flows = _own_flows(comparison, job.data)
        return _train_and_evaluate(comparison, job, out, flows, _Unwatched(), at_a_time=sharing)


def _trial_alone(comparison: Comparison, out: Path, trial: Trial, sharing: int) -> Result:
    """A trial in a process of its own."""
    with _without_warnings():
        flows = _own_flows(comparison, trial.data)
    return _try(comparison, trial, out, flows)


_prepared: dict[str, Flows] = {}
"""The last data set that a process of a pool has read; only one, because they may be large."""


def _own_flows(comparison: Comparison, name: str) -> Flows:
    if stopping.is_asked():  # in the run before this one
        raise KeyboardInterrupt
    data = comparison.data[name]
    key = config.fingerprint(config.as_plain(data))
    if key not in _prepared:
        _prepared.clear()
        _prepared[key] = prepare(data, device=_device(comparison))
    return _prepared[key]


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Warnings about the flows appear once, when they are prepared, and not for every run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        yield


def _device(comparison: Comparison) -> str:
    wanted = comparison.hardware.accelerator
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
