"""What all commands show in the same way: lines of text, progress bars, JSON."""

import json
import math
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn


def say(console: Console, text: str, style: str | None = None) -> None:
    """A line as it is: brackets are no markup, and a long one is left to the terminal."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    say(Console(stderr=True), text, "red")


def show_json(found: Mapping[str, Any]) -> None:
    """What a script reads: one object on standard output; null where nothing can be said."""
    typer.echo(json.dumps(_plain(found), ensure_ascii=False, allow_nan=False, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def progress_bar(console: Console, *columns: ProgressColumn) -> Progress:
    """Shown in a terminal only; a log would fill with it."""
    return Progress(*columns, console=console, disable=not console.is_terminal)
