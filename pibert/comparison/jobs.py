"""The runs of a comparison: trained and judged one after the other, or on several devices.

Where the plan asks for tuning, all its trials come first. What is done is skipped; what was
interrupted goes on. A run that fails is reported and the others go on without it.
"""

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from pibert import config, stopping
from pibert.comparison.curves import curves_of
from pibert.comparison.entering import refuse_other_training
from pibert.comparison.evaluation import (
    add_cost,
    evaluate,
    identity_of,
    nmse_of,
    refuse_short_flows,
)
from pibert.comparison.folder import settle
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
from pibert.experiments.experiment import Experiment, Pretraining
from pibert.experiments.flows import Flows, outline, prepare
from pibert.experiments.physics_notes import physics_notes
from pibert.experiments.run import run
from pibert.remarks import InputWarning, warn
from pibert.training.engine import Reporter, Silent

COMPANY = ".runs_at_a_time"
"""In the folder of a run: the most runs that shared the device while it was trained. Hidden, as a
folder with other files is not taken for a new run."""
FAILURE = "failure.txt"
"""In the folder of a run that failed: the whole error."""


@runtime_checkable
class Watcher(Protocol):
    """Told how the runs come on."""

    def simulated(self, done: int | float, total: int | None = None) -> None:
        """So many of the flows are simulated."""
        ...

    def update(self, job: Job, state: str, nmse: float | None = None) -> None:
        """A run is waiting, training, judged, timed, done or failed; its error where known."""
        ...

    def update_trial(self, trial: Trial, state: str, error: float | None = None) -> None:
        """A tuning trial is waiting, training, done, diverged or failed; its validation error."""
        ...


class _Steps(Silent):
    """Tells how far a run has come."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._total = tell, 1

    def start(self, total_steps: int, done: int) -> None:
        self._total = max(total_steps, 1)

    def step(self, done: int, loss: float) -> None:
        self._tell(f"training {100 * done / self._total:.0f} %")


def carry_out(
    comparison: Comparison, out: Path, watcher: Watcher, *, workers: int = 1
) -> dict[Job, str]:
    """Train and judge all that is not done yet; gives what failed, and why.

    Args:
        comparison: The plan.
        out: Its folder.
        watcher: Told of the progress.
        workers: Runs at a time, each in a process of its own and on a GPU of its own where there
            are enough of them; 1: in this process.
    """
    look = prepare if workers == 1 else outline  # each process reads what it needs
    flows = {
        name: look(data, device=_device(comparison), on_progress=watcher.simulated)
        for name, data in comparison.data.items()
    }
    for name, own in flows.items():
        if not own.split.valid:  # as the data state it; other splits are checked with the plan
            raise ValueError(
                f"data set {name!r} has no validation part, so a model could only be chosen on "
                "test data; state one, or choose data.split = 'trajectory' or 'time'"
            )
    for name, own in flows.items():
        refuse_short_flows(name, own, comparison.history, comparison.rollout)
    for trial in all_trials(comparison):
        trial_experiment(comparison, trial, flows[trial.data])  # refuses a budget that is too small
    settle(comparison, out)  # not before all of it can run
    _note_physics(comparison, flows)
    jobs = comparison.jobs()
    for job in jobs:
        watcher.update(job, "waiting")
    failed = _tune(comparison, out, flows, watcher, workers)

    def fail(job: Job, error: Exception) -> None:
        failed[job] = _explained(error, job.folder(out))
        watcher.update(job, "failed")

    todo = [job for job in jobs if job not in failed]
    if workers > 1:
        work_on(
            todo,
            partial(_job_alone, comparison, out),
            workers=workers,
            device=_device(comparison),
            done=lambda job, error: watcher.update(job, "judged", error),
            failed=fail,
        )
    for job in todo:
        if job in failed:
            continue
        try:
            if workers == 1:
                with _unremarked():
                    _one(comparison, job, out, flows[job.data], watcher)
            # Only now: times are true while no other run is under way.
            _price(comparison, job, out, watcher)
        except Exception as error:  # one run must not cost the others
            fail(job, error)
    return failed


def _tune(
    comparison: Comparison, out: Path, flows: Mapping[str, Flows], watcher: Watcher, workers: int
) -> dict[Job, str]:
    """Run all tuning trials that are not done yet; gives the runs that cannot do without one."""
    trials = all_trials(comparison)
    problems: dict[Trial, str] = {}

    def done(trial: Trial, result: Result) -> None:
        error = result["valid_error"]
        watcher.update_trial(trial, "diverged" if error is None else "done", error)

    def fail(trial: Trial, error: Exception) -> None:
        problems[trial] = _explained(error, trial.folder(out))
        watcher.update_trial(trial, "failed")

    for trial in trials:
        watcher.update_trial(trial, "waiting")
    if workers > 1 and trials:
        work_on(
            trials,
            partial(_trial_alone, comparison, out),
            workers=workers,
            device=_device(comparison),
            done=done,
            failed=fail,
        )
    for trial in trials if workers == 1 else ():
        reporter = _Steps(partial(watcher.update_trial, trial))
        try:
            done(trial, _try(comparison, trial, out, flows[trial.data], reporter))
        except Exception as error:
            fail(trial, error)
    failed: dict[Job, str] = {}
    for job in comparison.jobs():
        for trial in trials_of(comparison, job.data, job.entrant):
            if trial in problems and job not in failed:
                failed[job] = f"tuning with {trial.setting} failed: {problems[trial]}"
                watcher.update(job, "failed")
    return failed


def _try(
    comparison: Comparison,
    trial: Trial,
    out: Path,
    flows: Flows,
    reporter: Reporter | None = None,
) -> Result:
    _forget_failure(trial.folder(out))
    with _unremarked():
        return perform(comparison, trial, out, flows, reporter)


def _note_physics(comparison: Comparison, flows: Mapping[str, Flows]) -> None:
    """Say once which physics is off, and for which models."""
    for data, own in flows.items():
        affected: dict[str, list[str]] = {}
        for name, entrant in comparison.entrants.items():
            if entrant.run is not None:
                continue
            experiment = Experiment(
                data=comparison.data[data],
                model=entrant.model,
                losses=entrant.losses,
                pretraining=Pretraining() if entrant.pretraining else None,
                pretraining_weights=entrant.pretraining_weights,
            )
            with contextlib.suppress(ValueError):  # the run itself will tell
                for note in physics_notes(experiment, own, "train"):
                    affected.setdefault(note, []).append(name)
        for note, names in affected.items():
            warn(f"{data}, {', '.join(names)}: {note}")


def _one(
    comparison: Comparison,
    job: Job,
    out: Path,
    flows: Flows,
    watcher: Watcher,
    *,
    at_a_time: int = 1,
) -> float | None:
    """Train and judge one run, unless that is done; gives its error."""
    folder = job.folder(out)
    history, rollout = comparison.history, comparison.rollout
    source = comparison.entrants[job.entrant].run
    if source is None:
        plan = tuned(comparison, job, out)
        sizes = epoch_sizes(plan.entrants[job.entrant], plan.data[job.data], flows)
        experiment = experiment_of(plan, job, *sizes)
        watcher.update(job, "training")
        _forget_failure(folder)
        with _noting_company(folder, at_a_time):
            run(experiment, folder, reporter=_Steps(partial(watcher.update, job)), flows=flows)
    else:
        refuse_other_training(Path(source), comparison.data[job.data], flows)
        folder.mkdir(parents=True, exist_ok=True)
    trained = folder if source is None else Path(source)
    error = _done(folder, identity_of(trained, flows, history, rollout))
    if error is None:
        watcher.update(job, "judging")
        scores = evaluate(
            trained,
            flows,
            into=folder,
            history=history,
            rollout=rollout,
            device=_device(comparison),
            labels={"data": job.data, "model": job.entrant, "seed": job.seed},
            at_a_time=_company(folder) if source is None else None,
        )
        error = nmse_of(scores.card)
    return error


def _forget_failure(folder: Path) -> None:
    """Try a run again: with nothing but its former error in it, the folder is that of a new one."""
    (folder / FAILURE).unlink(missing_ok=True)


@contextlib.contextmanager
def _noting_company(folder: Path, at_a_time: int) -> Iterator[None]:
    """Write down how many runs shared the device while a run was trained, at most.

    A run that is resumed with others beside it, or without, keeps the largest number. It is written
    before the first step, since a run may be killed; where nothing was trained it is taken back.
    """
    before, known = sum(1 for _ in curves_of(folder)), _company(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write_company(folder, max(at_a_time, known if before else 1))
    yield
    if sum(1 for _ in curves_of(folder)) == before:
        _write_company(folder, known)


def _company(folder: Path) -> int:
    path = folder / COMPANY
    return int(path.read_text()) if path.exists() else 1


def _write_company(folder: Path, count: int) -> None:
    replace_file(folder / COMPANY, f"{count}\n".encode())


def _price(comparison: Comparison, job: Job, out: Path, watcher: Watcher) -> None:
    """Measure what a judged model costs, unless that is done."""
    folder, source = job.folder(out), comparison.entrants[job.entrant].run
    card = read_card(folder)
    if "cost" not in card:
        watcher.update(job, "timing", nmse_of(card))
        add_cost(folder if source is None else Path(source), folder, _device(comparison))
    watcher.update(job, "done", nmse_of(card))


def _done(folder: Path, identity: str) -> float | None:
    """The error of a run that was judged in this way before; None if it was not."""
    with contextlib.suppress(ValueError, OSError, KeyError):
        card = read_scores(folder).card
        if card["identity"] == identity:
            return nmse_of(card)
    return None


def _explained(error: Exception, folder: Path) -> str:
    """What went wrong in a line; all of it is kept beside the run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).write_text("".join(traceback.format_exception(error)))
    text = str(error).strip() or "no reason given"
    known = isinstance(
        error, ValueError | OSError | ImportError | FloatingPointError | ProcessKilled
    )
    return text if known else f"{type(error).__name__}: {text}"


class _Nobody:
    """A watcher who does not look."""

    def simulated(self, done: int | float, total: int | None = None) -> None: ...

    def update(self, job: Job, state: str, nmse: float | None = None) -> None: ...

    def update_trial(self, trial: Trial, state: str, error: float | None = None) -> None: ...


def _job_alone(comparison: Comparison, out: Path, job: Job, sharing: int) -> float | None:
    with _unremarked():
        flows = _own_flows(comparison, job.data)
        return _one(comparison, job, out, flows, _Nobody(), at_a_time=sharing)


def _trial_alone(comparison: Comparison, out: Path, trial: Trial, sharing: int) -> Result:
    with _unremarked():
        flows = _own_flows(comparison, trial.data)
    return _try(comparison, trial, out, flows)


_prepared: dict[str, Flows] = {}
"""What a process of a pool has read already: the last set alone, as sets may be large."""


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
def _unremarked() -> Iterator[None]:
    """What is odd about the flows is said where they are found, not again by every run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        yield


def _device(comparison: Comparison) -> str:
    wanted = comparison.hardware.accelerator
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
