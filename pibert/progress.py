"""Lines of text and progress bars on a terminal, in a log or in a notebook."""

import importlib.util
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_FIRST, _EVERY = 10.0, 30.0
"""Seconds to the first line of progress outside a terminal, and between the others."""

_NOTEBOOK = 100
"""Characters of a line in a notebook."""


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: brackets are not markup, and the terminal wraps long lines.

    A notebook does not: lines are wrapped for it.
    """
    width = min(console.width, _NOTEBOOK) if console.is_jupyter else None
    console.print(
        text, style=style, markup=False, highlight=False, soft_wrap=width is None, width=width
    )


def digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def is_first_process() -> bool:
    """Return False in the other processes of a run on several devices, which stay silent."""
    # torchrun counts all processes; under SLURM it numbers nodes separately.
    names = ["RANK"] if "RANK" in os.environ else ["SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"]
    return all(os.environ.get(name, "0") == "0" for name in names)


def progress_bar(console: Console, *columns: ProgressColumn) -> Progress:
    """Return a bar that is shown in a terminal only: a log would fill with it."""
    return Progress(*columns, console=console, disable=not console.is_terminal)


class LogLines:
    """When to write a line of progress to a log, and how long the rest takes."""

    def __init__(self, total: int | float, done: int | float = 0) -> None:
        self._total, self._began = total, (time.monotonic(), done)
        self._due = self._began[0] + _FIRST

    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def written(self) -> None:
        """The next line is due in a while."""
        self._due = time.monotonic() + _EVERY

    def left(self, done: int | float) -> str:
        """Describe how long the rest takes, at the speed so far."""
        start, before = self._began
        if done <= before:
            return ""
        seconds = (self._total - done) * (time.monotonic() - start) / (done - before)
        for unit, length in (("h", 3600), ("min", 60)):
            if seconds >= length:
                return f"about {seconds / length:.2g} {unit} left"
        return f"about {seconds:.0f} s left"


class _Rate(ProgressColumn):
    """Samples per second of the last epoch; in the first one, steps per second."""

    def render(self, task: Task) -> Text:
        if task.fields["rate"]:
            return Text(f"{task.fields['rate']:,.0f} samples/s")
        return Text(f"{task.speed:.2g} per s" if task.speed else "")


class Reporter:
    """Receives the progress of a run, in its first process; this one ignores it."""

    def describe(self, lines: Iterable[str]) -> None:
        """Before training: model, flows and schedule."""

    def simulated(self, done: int | float, total: int | None = None) -> None:
        """Before training: how many of the flows to learn from are simulated."""

    def start(self, total_steps: int, done: int) -> None:
        """Training begins or resumes; ``done`` steps are complete already."""

    def step(self, done: int, loss: float) -> None:
        """``done`` steps are complete; the loss is that of the last checked step."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is finished: its line in the log."""

    def say(self, text: str) -> None:
        """A note for the user."""


class TrainingProgress(Reporter):
    """Shows a progress bar in a terminal; elsewhere, prints a line now and then.

    Only the first process of a run prints.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(quiet=not is_first_process())
        can_show = (
            not self._console.is_jupyter or importlib.util.find_spec("ipywidgets") is not None
        )
        self._shows = self._console.is_terminal and not self._console.quiet and can_show
        self._bar = progress_bar(
            self._console,
            TextColumn("{task.description} {task.completed:.0f}/{task.fields[of]}"),
            BarColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
        )
        self._bar.disable = not self._shows
        self._task: TaskID | None = None
        self._simulates, self._total = False, 0
        self._lines = LogLines(0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def simulated(self, done: int | float, total: int | None = None) -> None:
        if not self._simulates:
            self._simulates = True
            if not self._shows:
                self._print("simulating flows (kept in the cache)")
            self._start_task("simulating flow", total, 0)
        if total is not None and self._is_due():
            self._print(f"simulated {done:.1f} of {total} flows  {self._lines.left(done)}")
        self._update(completed=done)

    def start(self, total_steps: int, done: int) -> None:
        self._simulates, self._total = False, total_steps
        self._start_task("step", total_steps, done)

    def step(self, done: int, loss: float) -> None:
        if self._is_due():
            self._print(f"step {done} of {self._total}  loss {loss:.3e}  {self._lines.left(done)}")
        self._update(completed=done, loss=f"loss {loss:.3e}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        if rate := record.get("samples_per_second"):
            self._update(rate=rate)
        ends = record["epoch"] == 1 or record.get("step") == self._total
        if self._shows or ends or self._is_due():
            self._print(_describe_epoch(record))

    def describe(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._print(line)

    def say(self, text: str) -> None:
        self._print(f"Note: {text}", "yellow")

    def _is_due(self) -> bool:
        return not self._shows and self._lines.is_due()

    def _print(self, text: str, style: str | None = None) -> None:
        say(self._console, text, style)
        self._console.file.flush()
        self._lines.written()

    def _start_task(self, what: str, total: int | None, done: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        of = "?" if total is None else str(total)
        self._lines = LogLines(total or 0, done)
        self._task = self._bar.add_task(
            what, total=total, completed=done, of=of, rate=None, loss=""
        )

    def _update(self, **changes: Any) -> None:
        if self._task is not None:
            self._bar.update(self._task, **changes)


def _describe_epoch(record: Mapping[str, Any]) -> str:
    """Return a line with the losses, the time, and whether this is the best epoch so far."""
    words = [f"epoch {record['epoch']:>4}"]
    for split in ("train", "valid"):
        loss = (record.get(split) or {}).get("loss")
        if loss is not None:
            words.append(f"{split} {loss:.4e}")
    if record.get("seconds") is not None:
        words.append(f"{record['seconds']:.1f} s")
    if record.get("samples_per_second"):
        words.append(f"{record['samples_per_second']:,.0f} samples/s")
    return "  ".join(words + ["best so far"] * bool(record.get("best")))
