"""Output that all commands share: lines of text, notes, progress bars, JSON."""

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

import typer
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pibert.notes import Note, Notes
from pibert.progress import LogLines, progress_bar
from pibert.progress import digits as digits
from pibert.progress import is_first_process as is_first_process
from pibert.progress import say as say

_URGENT = ("ood", "ood-untested")
"""Codes of notes that are printed in red."""


class NotePrinter(Notes):
    """Prints each note once, on standard error."""

    def __init__(self) -> None:
        super().__init__(on_new=show_note)


def show_table(
    console: Console,
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    numbers: bool = False,
    **settings: Any,
) -> None:
    """Print a table, whose texts are not markup.

    ``numbers``: align all columns but the first, whose names are not wrapped.
    """
    table = Table(**settings)
    for place, column in enumerate(columns):
        is_name = numbers and not place
        justify: JustifyMethod = "right" if numbers and place else "left"
        table.add_column(Text(column), justify=justify, no_wrap=is_name)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def show_note(note: Note | str) -> None:
    urgent = isinstance(note, Note) and note.code in _URGENT
    say(Console(stderr=True), f"Note: {note}", "bold red" if urgent else None)


def complain(text: str) -> None:
    say(Console(stderr=True), text, "red")


def leads_shown(last: int) -> set[int]:
    """Return the lead times that tables show: 1, 2, 5, 10 ... and the last."""
    return {lead * 10**power for lead in (1, 2, 5) for power in range(8)} | {last}


_json_stream: TextIO | None = None
"""The stream of ``show_json`` while ``stdout_for_json`` is active; None: standard output."""


@contextlib.contextmanager
def stdout_for_json() -> Iterator[None]:
    """Reserve standard output for ``show_json``; anything else printed goes to standard error.

    Third-party packages print when they are imported or build a model. The file descriptor is
    redirected too, so that this holds for C libraries and child processes.
    """
    global _json_stream
    with contextlib.ExitStack() as stack:
        _json_stream = sys.stdout
        with contextlib.suppress(io.UnsupportedOperation):  # a stream in memory has none
            if sys.stdout.fileno() == 1:
                sys.stdout.flush()
                encoding = sys.stdout.encoding
                _json_stream = stack.enter_context(os.fdopen(os.dup(1), "w", encoding=encoding))
                os.dup2(sys.stderr.fileno(), 1)
                stack.callback(os.dup2, _json_stream.fileno(), 1)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            yield
        finally:
            _json_stream = None


def show_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object to standard output; values that are not finite become null."""
    text = json.dumps(_plain(content), ensure_ascii=False, allow_nan=False, indent=2)
    typer.echo(text, file=_json_stream)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def showing_progress(
    console: Console, total: int | float = 1, text: str = "{task.percentage:.0f} %"
) -> Iterator[Callable[[int | float], None]]:
    """Show a progress bar, or lines in a log; yields a function that takes how much is done."""
    lines = LogLines(total)
    with progress_bar(console, TextColumn(text), BarColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=total)

        def update(done: int | float) -> None:
            bar.update(task, completed=done)
            if bar.disable and lines.is_due():
                say(console, f"{text.format(task=bar.tasks[0])}  {lines.left(done)}".rstrip())
                console.file.flush()
                lines.written()

        yield update
