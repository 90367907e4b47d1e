"""When the state of a run is saved, what goes into it, and how a run takes it up again.

The state is saved after an epoch, within one when some time has passed, at the end, and when the
run is asked to stop. Where epochs take seconds, some are passed over, so that saving costs no more
than a hundredth of the time. All processes take part, the first one writes. All of them read: the
folder of a run is on a file system that they share.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from pibert.training.journal import LogSums
from pibert.training.optimizers import RunningMean, moments, set_moments
from pibert.training.processes import Processes
from pibert.training.state import (
    FILE,
    Progress,
    State,
    generator_states,
    load_state,
    save_state,
    set_generator_states,
)

_TIMES_ITS_COST = 100.0


@dataclass(kw_only=True)
class Checkpoints:
    """The state of a run folder and what it is made of."""

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
    """Told if the last state is damaged, and the one before it is taken."""
    _saved: float = field(default_factory=time.perf_counter)
    _cost: float = 0.0
    """Seconds that the last save took."""

    def is_due(self, *, after_epoch: bool = False) -> bool:
        """Whether it is time to save; the first process knows for all."""
        wait = 60.0 * self.minutes
        if after_epoch:
            wait = min(wait, _TIMES_ITS_COST * self._cost)
        return self.processes.is_first and time.perf_counter() - self._saved >= wait

    def save(self, progress: Progress, logs: LogSums) -> str:
        """Save the state; gives why that failed, or nothing. The last one stays then."""
        began, trouble = time.perf_counter(), ""
        progress = replace(progress, logs=self.processes.gather(logs.to_plain()))
        if self.processes.is_first:
            state = State(
                identity=self.identity,
                seed=self.seed,
                progress=progress,
                model=self.model.state_dict(),
                mean={} if self.mean is None else self.mean.named(),
                optimizer=moments(self.optimizers, self.model),
                generators=generator_states(self.processes.device),
            )
            try:
                save_state(self.folder, state)
            except OSError as error:
                trouble = error.strerror or str(error) or type(error).__name__
        self._saved = time.perf_counter()
        self._cost = self._saved - began
        return str(self.processes.gather(trouble)[0])

    def load(self, logs: LogSums) -> Progress | None:
        """Take up the state of the folder, if it has one; gives how far it had come."""
        stored = load_state(self.folder, identity=self.identity, seed=self.seed, say=self.say)
        steps = self.processes.gather(None if stored is None else stored.progress.total)
        if len(set(steps)) > 1:
            raise ValueError(
                f"the processes find different states in {self.folder} (steps {steps}); expected a "
                "folder that all nodes share"
            )
        if stored is None:
            return None
        last = self.folder / FILE
        if stored.path != last and stored.path is not None and self.processes.is_first:
            # In the place of the damaged one, which the next save would make the previous one.
            os.replace(stored.path, last)
        try:
            self.model.load_state_dict(dict(stored.model))
            set_moments(self.optimizers, self.model, stored.optimizer)
            if self.mean is not None:
                self.mean.load(stored.mean)
            self._take_up(stored, logs)
        except (RuntimeError, ValueError, LookupError, TypeError, OverflowError) as error:
            raise ValueError(
                f"the state in {self.folder} does not fit this model ({error}); take another folder"
            ) from None
        self._saved = time.perf_counter()
        return replace(stored.progress, logs=[])

    def _take_up(self, stored: State, logs: LogSums) -> None:
        """The sums of the logs and the random generators."""
        sums, processes = stored.progress.logs, self.processes
        if len(sums) == processes.count:
            logs.load(sums[processes.rank])
        elif processes.is_first:
            logs.load(entry for part in sums for entry in part)
        if processes.is_first:
            set_generator_states(stored.generators, processes.device)
