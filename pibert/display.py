"""Pictures and tables that notebooks show."""

import base64
import html
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Picture:
    """A PNG that notebooks show."""

    png: bytes = field(repr=False)

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: Path | str) -> Path:
        """Write it to a file."""
        path = Path(path)
        path.write_bytes(self.png)
        return path


def draw(function: Callable[[Path], Any], path: Path | str | None = None) -> Picture:
    """The picture that a function writes to a file; kept in a file only if a path is given.

    The suffix of the path names the format of the file (.png, .pdf or .svg).
    """
    if path is not None:
        function(path := Path(path))
        if path.suffix.lower() == ".png":
            return Picture(path.read_bytes())
    with tempfile.TemporaryDirectory(prefix="pibert-") as folder:
        target = Path(folder) / "picture.png"
        function(target)
        return Picture(target.read_bytes())


def table_html(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table with a line of headings."""
    lines = [("th", columns), *(("td", row) for row in rows)]
    cells = (
        "".join(f"<{tag} style='text-align:left'>{html.escape(cell)}</{tag}>" for cell in line)
        for tag, line in lines
    )
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def as_html(
    facts: Mapping[str, str], notes: Iterable[object] = (), picture: Picture | None = None
) -> str:
    """A table of two columns, and notes and a picture below it."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    below = "".join(f"<p>Note: {html.escape(str(note))}</p>" for note in notes)
    if picture is not None:
        data = base64.b64encode(picture.png).decode()
        below += f"<img style='max-width:100%' src='data:image/png;base64,{data}'>"
    return f"<table>{rows}</table>{below}"
