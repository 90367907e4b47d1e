"""How a training run shows itself: a bar and a line per epoch in a terminal, little in a log."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from pibert.cli.terminal import progress_bar, say


def is_first_process() -> bool:
    """False in the other processes of a run on several devices, which stay silent."""
    # torchrun's own count of processes; under SLURM its nodes are numbered apart from it.
    names = ["RANK"] if "RANK" in os.environ else ["SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"]
    return all(os.environ.get(name, "0") == "0" for name in names)


class _Rate(ProgressColumn):
    """Samples per second as the last epoch had them; before that, steps per second."""

    def render(self, task: Task) -> Text:
        if task.fields["rate"]:
            return Text(f"{task.fields['rate']:,.0f} samples/s")
        return Text(f"{task.speed:.2g} per s" if task.speed else "")


class TrainingProgress:
    """Told by the training how it comes on; shows it in a terminal.

    Elsewhere only what a person should know is printed, and in other processes than the first
    nothing at all.
    """

    def __init__(self, console: Console | None = None, *, speaks: bool | None = None) -> None:
        self._speaks = is_first_process() if speaks is None else speaks
        self._console = console or Console(quiet=not self._speaks)
        self._shows = self._speaks and self._console.is_terminal
        self._bar = progress_bar(
            self._console,
            TextColumn("{task.description} {task.completed:.0f}/{task.fields[of]}"),
            BarColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
        )
        self._bar.disable = not self._shows
        self._steps: TaskID | None = None
        self._simulation: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def simulated(self, done: int | float, total: int | None = None) -> None:
        """So many of the flows to learn from are simulated."""
        if self._simulation is None:
            self._simulation = self._add("simulating flow", total, 0)
        self._bar.update(self._simulation, completed=done)

    def start(self, total_steps: int, done: int) -> None:
        """Training begins, or goes on after some steps."""
        for task in (self._simulation, self._steps):  # pretraining gives way to training
            if task is not None:
                self._bar.remove_task(task)
        self._simulation = None
        self._steps = self._add("step", total_steps, done)

    def step(self, done: int, loss: float) -> None:
        if self._steps is not None:
            self._bar.update(self._steps, completed=done, loss=f"loss {loss:.3e}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        rate = record.get("samples_per_second")
        if self._steps is not None and rate:
            self._bar.update(self._steps, rate=rate)
        if self._shows:
            say(self._console, describe_epoch(record))

    def say(self, text: str) -> None:
        if self._speaks:
            say(self._console, text, "yellow")

    def _add(self, what: str, total: int | None, done: int) -> TaskID:
        of = "?" if total is None else str(total)
        return self._bar.add_task(what, total=total, completed=done, of=of, rate=None, loss="")


def describe_epoch(record: Mapping[str, Any]) -> str:
    """One line: the losses, the time, and whether this is the best so far."""
    parts = [f"epoch {record['epoch']:>4}"]
    for part in ("train", "valid"):
        loss = (record.get(part) or {}).get("loss")
        if loss is not None:
            parts.append(f"{part} {loss:.4e}")
    if record.get("seconds") is not None:
        parts.append(f"{record['seconds']:.1f} s")
    if record.get("samples_per_second"):
        parts.append(f"{record['samples_per_second']:,.0f} samples/s")
    return "  ".join(parts) + ("  best so far" if record.get("best") else "")
