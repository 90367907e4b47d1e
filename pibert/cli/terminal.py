"""What all commands show in the same way: lines of text and progress bars."""

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def say(console: Console, text: str, style: str | None = None) -> None:
    """A line as it is: brackets are no markup, and a long one is left to the terminal."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    say(Console(stderr=True), text, "red")


def progress_bar(console: Console, *columns: ProgressColumn) -> Progress:
    """Shown in a terminal only; a log would fill with it."""
    return Progress(*columns, console=console, disable=not console.is_terminal)
