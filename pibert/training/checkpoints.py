"""Checkpoints of a run: its state, its best weights, and waiting while they cannot be written.

The state is saved after an epoch, within one when some time has passed, at the end, and when the
run is asked to stop. If epochs take seconds, some are skipped, so that saving takes at most a
hundredth of the time. All processes take part and the first one writes. All of them read: the run
folder must be on a shared file system.

The best weights count as such only once they are on the disk. If those of a resumed run are
missing, they are written again, provided its state still has them. With a running mean of the
weights, the mean is validated and kept.

If a file cannot be written, for instance because the disk is full, training waits; after half an
hour it stops, with what was saved before.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pibert.models.compatibility import current_weights
from pibert.models.pibert import PIBERT
from pibert.models.pibert_mr import PIBERTMR
from pibert.training.guards import StopSignals
from pibert.training.journal import LogSums
from pibert.training.optimizers import RunningMean, moments, set_moments
from pibert.training.processes import Processes
from pibert.training.state import FILE, Progress, State, load_state, save_state

RETRY_SECONDS = 10.0
"""Between two attempts to write."""
LONGEST_SECONDS = 1800.0
"""After which a run stops trying."""
_TIMES_ITS_COST = 100.0
SaveBest = Callable[[nn.Module, Mapping[str, Any]], None]


@dataclass(kw_only=True)
class Checkpoints:
    """The state and the best weights in a run folder."""

    folder: Path
    identity: str
    seed: int
    minutes: float
    """Between two saves within an epoch; 0: every step."""
    model: nn.Module
    optimizers: Sequence[Optimizer]
    mean: RunningMean | None
    processes: Processes
    say: Callable[[str], None]
    """Receives notes about damaged states and files that cannot be written."""
    signals: StopSignals = field(default_factory=StopSignals)
    save_best: SaveBest | None = None
    """Called in the first process, with the model that has the weights and their metrics."""
    _saved: float = field(default_factory=time.perf_counter)
    _cost: float = 0.0
    """Seconds that the last save took."""

    # The state

    def is_due(self, *, after_epoch: bool = False) -> bool:
        """Whether it is time to save; the first process decides for all."""
        wait = 60.0 * self.minutes
        if after_epoch:
            wait = min(wait, _TIMES_ITS_COST * self._cost)
        return self.processes.is_first and time.perf_counter() - self._saved >= wait

    def save(self, progress: Progress, logs: LogSums) -> str:
        """Save the state; returns the error if that failed, or nothing. The last one then stays."""
        began = time.perf_counter()
        progress = replace(progress, logs=self.processes.gather(logs.to_plain()))

        def write() -> None:
            state = State(
                identity=self.identity,
                seed=self.seed,
                progress=progress,
                model=self.model.state_dict(),
                mean={} if self.mean is None else self.mean.named(),
                optimizer=moments(self.optimizers, self.model),
            )
            save_state(self.folder, state)

        problem = self._attempt(write)
        self._saved = time.perf_counter()
        self._cost = self._saved - began
        return problem

    def load(self, logs: LogSums) -> Progress | None:
        """Restore the state of the folder, if it has one; returns its progress."""
        stored = load_state(self.folder, identity=self.identity, seed=self.seed, say=self.say)
        steps = self.processes.gather(None if stored is None else stored.progress.total)
        if len(set(steps)) > 1:
            raise ValueError(
                f"the processes find different states in {self.folder} (steps {steps}); use a "
                "folder that all nodes share"
            )
        if stored is None:
            return None
        last, processes = self.folder / FILE, self.processes
        if stored.path != last and stored.path is not None and processes.is_first:
            # In place of the damaged one, which the next save would make the previous one.
            os.replace(stored.path, last)
        try:
            self.model.load_state_dict(self._renamed(stored.model))
            set_moments(self.optimizers, self.model, self._renamed(stored.optimizer))
            if self.mean is not None:
                self.mean.load(self._renamed(stored.mean))
            sums = stored.progress.logs
            if len(sums) == processes.count:
                logs.load(sums[processes.rank])
            elif processes.is_first:  # of another number of processes
                logs.load(entry for process in sums for entry in process)
        except (RuntimeError, ValueError, LookupError, TypeError, OverflowError) as error:
            raise ValueError(
                f"the state in {self.folder} does not fit this model ({error}); use another folder"
            ) from None
        self._saved = time.perf_counter()
        return replace(stored.progress, logs=[])

    def _renamed(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by parameter, of a state of any version, under the present names."""
        return current_weights(
            "pibert" if isinstance(self.model, PIBERT | PIBERTMR) else "", stored
        )

    # The best weights

    def best_applied(self) -> AbstractContextManager[None]:
        """In this context the model has the weights that are validated and kept."""
        return nullcontext() if self.mean is None else self.mean.applied()

    def keep_best(
        self, progress: Progress, metrics: dict[str, float], epoch: int, value: float | None
    ) -> Progress | None:
        """Write the current weights as the best; returns the progress with them.

        None if the run was asked to stop before they could be written.
        """
        what = f"the best weights in {self.folder}"
        if not self.until_written(what, lambda: self._write_best(metrics)):
            return None
        return replace(progress, best_epoch=epoch, best_value=value, best_metrics=metrics)

    def restore_best(self, progress: Progress, exists: Callable[[], bool]) -> None:
        """Write the best weights of a resumed run again if they are missing.

        Raises:
            ValueError: They are missing, and the state has others.
            OSError: They could not be written again.
        """
        has_best = progress.best_epoch > 0 or progress.best_value is not None
        is_missing = has_best and self.processes.is_first and not exists()
        if not self.processes.agree([is_missing])[0]:
            return
        if progress.best_epoch == progress.epoch and progress.step == 0:
            with self.best_applied():
                problem = self._write_best(progress.best_metrics)
            if problem:
                raise OSError(f"could not write the best model in {self.folder} again: {problem}")
        elif progress.best_value is not None:  # without validation the next epoch writes it
            raise ValueError(
                f"the best model of the run in {self.folder}, of epoch {progress.best_epoch}, is "
                f"missing, and the state is that after step {progress.total}; restore its files, "
                "or start again in another folder"
            )

    def _write_best(self, metrics: Mapping[str, float]) -> str:
        """Write the current weights; returns the error if that failed, or nothing."""
        self.model.eval()
        save = self.save_best
        return self._attempt(lambda: None if save is None else save(self.model, metrics))

    # Writing

    def _attempt(self, write: Callable[[], None]) -> str:
        """Write in the first process; returns the error in all of them, or nothing."""
        problem = ""
        if self.processes.is_first:
            try:
                write()
            except OSError as error:
                problem = error.strerror or str(error) or type(error).__name__
        return str(self.processes.gather(problem)[0])

    def until_written(self, what: str, attempt: Callable[[], str]) -> bool:
        """Repeat an attempt until it succeeds; False if the run is asked to stop meanwhile.

        ``attempt`` returns the error, or nothing, the same in all processes.

        Raises:
            OSError: It could not be written for too long.
        """
        began, is_reported = time.monotonic(), False
        while problem := attempt():
            is_over = time.monotonic() - began >= LONGEST_SECONDS
            stop, is_over = self.processes.agree([self.signals.asked, is_over])
            if stop:
                return False
            minutes = f"{LONGEST_SECONDS / 60:.3g} minutes"
            if is_over:
                raise OSError(
                    f"could not write {what} for {minutes}: {problem}; the run stops; free some "
                    "space, then run the same command again: it resumes from the last save"
                )
            if not is_reported:
                self.say(
                    f"could not write {what}: {problem}; training waits until it can, at most "
                    f"{minutes}"
                )
                is_reported = True
            self.signals.wait(RETRY_SECONDS)
        if is_reported:
            self.say(f"{what} is written; training continues")
        return True
