"""The states of all runs of a comparison while they train."""

from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pibert.comparison.jobs import FAILURE
from pibert.comparison.plan import Comparison, Job
from pibert.comparison.trials import Trial
from pibert.progress import digits, say


class LiveTable:
    """A watcher that shows the states of all runs; in a log, a line for each that is done."""

    def __init__(self, plan: Comparison, console: Console) -> None:
        self._console = console
        self._reported: set[object] = set()
        self._states: dict[Job | Trial, tuple[str, float | None]] = {}
        self._many = len(plan.data) > 1, len(plan.seeds) > 1
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shows = console.is_terminal

    def __enter__(self) -> Self:
        if self._shows:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shows:
            self._live.stop()

    def _report_once(self, key: object, text: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            say(self._console, text)
            self._console.file.flush()

    def simulated(self, done: int | float, total: int | None = None) -> None:
        if not self._shows:
            self._report_once("simulated", "simulating flows (kept in the cache)")
        else:
            of = "" if total is None else f" of {total}"
            self._live.update(Text(f"simulating flow {done:g}{of}"), refresh=True)

    def update(self, item: Job | Trial, state: str, error: float | None = None) -> None:
        self._states[item] = (state, error)
        if self._shows:
            self._live.update(self._table(), refresh=True)
            return
        name, is_run = f"{item.data} {item.candidate}", isinstance(item, Job)
        name += f" seed {item.seed}" if isinstance(item, Job) else f" tuning, {item.setting}"
        if is_run and state.startswith("training "):  # it has begun to step
            self._report_once((item, "training"), f"{name}: training")
        elif error is not None:
            metric = "nmse" if is_run else "validation error"
            self._report_once(item, f"{name}: {metric} {digits(error)}")
        elif state == "diverged":
            self._report_once(item, f"{name}: diverged")
        elif state == "failed":
            self._report_once(item, f"{name}: failed; {FAILURE} in its folder has the traceback")

    def _table(self) -> Table:
        """All runs, and the tuning trials that are training."""
        datasets, seeds = self._many
        table = Table("model", *(["data"] if datasets else []), *(["seed"] if seeds else []))
        table.add_column("state")
        table.add_column("NMSE", justify="right")
        for item, (state, error) in self._states.items():
            if isinstance(item, Job):
                seed, shown = str(item.seed), "" if error is None else digits(error)
            elif state.startswith("training"):
                seed, state, shown = "", f"{state}, tuning with {item.setting}", ""
            else:
                continue
            style = {"waiting": "dim", "done": "green", "failed": "red"}.get(state, "bold")
            extra = [item.data] * datasets + [seed] * seeds
            table.add_row(item.candidate, *extra, Text(state, style), shown)
        return table
