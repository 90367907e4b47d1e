"""The runs of a comparison: trained and judged one after the other, or on several devices.

What is done is skipped; what was interrupted goes on. A run that fails is reported and the others
go on without it.
"""

import concurrent.futures
import contextlib
import math
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
from pibert.data.dataset import Window
from pibert.data.partial import replace_file
from pibert.evaluation.scores import read_card, read_scores
from pibert.experiments.experiment import Experiment, Pretraining
from pibert.experiments.flows import Flows, outline, prepare
from pibert.experiments.physics_notes import physics_notes
from pibert.experiments.run import run
from pibert.remarks import InputWarning, warn
from pibert.training.engine import Silent

COMPANY = ".runs_at_a_time"
"""In the folder of a run: the most runs that shared the device while it was trained. Hidden, as a
folder with other files is not taken for a new run."""


@runtime_checkable
class Watcher(Protocol):
    """Told how the runs come on."""

    def simulated(self, done: int | float, total: int | None = None) -> None:
        """So many of the flows are simulated."""
        ...

    def update(self, job: Job, state: str, nmse: float | None = None) -> None:
        """A run is waiting, training, judged, timed, done or failed; its error where known."""
        ...


class _Steps(Silent):
    """Tells the watcher how far a run has come."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        self._job, self._watcher, self._total = job, watcher, 1

    def start(self, total_steps: int, done: int) -> None:
        self._total = max(total_steps, 1)

    def step(self, done: int, loss: float) -> None:
        self._watcher.update(self._job, f"training {100 * done / self._total:.0f} %")


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
    settle(comparison, out)  # not before all of it can run
    _note_physics(comparison, flows)
    jobs = comparison.jobs()
    for job in jobs:
        watcher.update(job, "waiting")
    if workers > 1:
        failed = _in_processes(comparison, out, watcher, workers)
    else:
        failed = {}
    for job in jobs:
        if job in failed:
            continue
        try:
            if workers == 1:
                with _unremarked():
                    _one(comparison, job, out, flows[job.data], watcher)
            # Only now: times are true while no other run is under way.
            _price(comparison, job, out, watcher)
        except Exception as error:  # one run must not cost the others
            failed[job] = _explained(error, job.folder(out))
            watcher.update(job, "failed")
    return failed


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
        # An epoch of a model that needs less history has more windows.
        own = Window(history=comparison.entrants[job.entrant].history)
        labelled = flows.labelled(comparison.data[job.data].labelled)
        sizes = [len(flows.samples(part, own)) for part in ("train", labelled)]
        experiment = experiment_of(comparison, job, *sizes)
        watcher.update(job, "training")
        with _noting_company(folder, at_a_time):
            run(experiment, folder, reporter=_Steps(job, watcher), flows=flows)
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


def _in_processes(
    comparison: Comparison, out: Path, watcher: Watcher, workers: int
) -> dict[Job, str]:
    """The same with a process for each worker; the progress of a single run is not seen."""
    failed, lost = _in_pool(comparison, comparison.jobs(), out, watcher, workers)
    for job in lost:  # a process that was killed takes the others with it: each on its own now
        failed |= _in_pool(comparison, (job,), out, watcher, 1)[0]
        failed |= {job: "its process was killed"} if not _is_judged(job, out, failed) else {}
    return failed


def _in_pool(
    comparison: Comparison, jobs: Sequence[Job], out: Path, watcher: Watcher, workers: int
) -> tuple[dict[Job, str], list[Job]]:
    """What failed, and what was lost because a process died."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    count = torch.cuda.device_count() if _device(comparison) == "cuda" else 0
    gpus = (visible or [str(number) for number in range(count)])[:count]
    context = multiprocessing.get_context("spawn")
    slots = context.Queue()
    for slot in range(workers):
        slots.put(gpus[slot % count] if count else None)
    threads = max(1, (os.cpu_count() or 1) // workers)
    sharing = math.ceil(workers / max(count, 1))
    failed: dict[Job, str] = {}
    lost: list[Job] = []
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=context, initializer=_settle, initargs=(slots, threads)
    )
    try:
        waiting = {pool.submit(_alone, comparison, job, out, sharing): job for job in jobs}
        for future in concurrent.futures.as_completed(waiting):
            job = waiting[future]
            try:
                watcher.update(job, "judged", future.result())
            except BrokenProcessPool:
                lost.append(job)
            except Exception as error:
                failed[job] = _explained(error, job.folder(out))
                watcher.update(job, "failed")
    except KeyboardInterrupt:
        if stopping.is_terminated():  # Ctrl-C reaches all processes of a terminal
            for child in multiprocessing.active_children():
                child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return failed, lost


def _is_judged(job: Job, out: Path, failed: Mapping[Job, str]) -> bool:
    return job in failed or (job.folder(out) / "scores.json").exists()


def _settle(slots: Any, threads: int) -> None:
    """Take a device, in a process that has not touched any yet."""
    gpu = slots.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch.set_num_threads(threads)


def _explained(error: Exception, folder: Path) -> str:
    """What went wrong in a line; all of it is kept beside the run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "failure.txt").write_text("".join(traceback.format_exception(error)))
    text = str(error).strip() or "no reason given"
    known = isinstance(error, ValueError | OSError | ImportError | FloatingPointError)
    return text if known else f"{type(error).__name__}: {text}"


class _Nobody:
    """A watcher who does not look."""

    def simulated(self, done: int | float, total: int | None = None) -> None: ...

    def update(self, job: Job, state: str, nmse: float | None = None) -> None: ...


_prepared: dict[str, Flows] = {}
"""What a process of a pool has read already: the last set alone, as sets may be large."""


def _alone(comparison: Comparison, job: Job, out: Path, sharing: int) -> float | None:
    if stopping.is_asked():  # in the run before this one
        raise KeyboardInterrupt
    data = comparison.data[job.data]
    key = config.fingerprint(config.as_plain(data))
    with _unremarked():
        if key not in _prepared:
            _prepared.clear()
            _prepared[key] = prepare(data, device=_device(comparison))
        return _one(comparison, job, out, _prepared[key], _Nobody(), at_a_time=sharing)


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
