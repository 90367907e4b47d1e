"""Numbers in columns of text: what separates them, what the header calls them, what else it says.

The rows may be separated by blanks, tabs, commas or semicolons; a comma between digits is a decimal
comma where something else separates the columns. Lines before the first row are the header. An
empty cell is NaN.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pibert.data.sources.recordings import SourceError
from pibert.regular_files import require_regular

_COMMENT = re.compile(r"^\s*(?:[#%]+|//|!)\s?")
_QUOTED = re.compile(r'"([^"]*)"')
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a file."""

    names: tuple[str, ...]
    """As the header has them; ``column 1`` and so on without one."""
    values: np.ndarray
    """(rows, columns) in float64."""
    comments: tuple[str, ...]
    """The lines of the header, without the marks of a comment."""
    named: bool = True
    """Whether the header names the columns."""


@dataclass(frozen=True)
class _Style:
    separator: str | None
    """None stands for any run of blanks."""
    decimal_comma: bool = False

    def cells(self, line: str) -> list[str]:
        if self.decimal_comma:
            line = line.replace(",", ".")
        return line.split(self.separator)


_STYLES = (
    *(_Style(separator) for separator in ("\t", None, ",", ";")),
    *(_Style(separator, decimal_comma=True) for separator in ("\t", ";", None)),
)


def read_head(path: Path) -> list[str] | None:
    """The first lines of a text file, whole ones; None where it is no text. Never raises."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            data = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return None
    if not data or b"\0" in data:
        return None
    lines = data.decode("utf-8-sig", "replace").splitlines()
    return lines[:-1] if len(data) == _HEAD_BYTES else lines


def has_rows(head: Sequence[str]) -> bool:
    """Whether two rows of as many numbers follow each other."""
    start = _first_row(head)
    if start is None:
        return False
    index, style = start
    rows = [line for line in head[index : index + 3] if line.strip()]
    return len(rows) > 1 and len(style.cells(rows[0])) == len(style.cells(rows[1])) > 1


def read_columns(path: Path) -> Table:
    """The columns of a text file; SourceError where there are none, or a row is broken."""
    require_regular(path)
    try:
        text = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    lines = text.splitlines()
    start = None if "\0" in text else _first_row(lines)
    if start is None:
        raise SourceError(f"{path}: expected columns of numbers as text, found no row of numbers")
    first, style = start
    if style.separator != "," and any("," in line for line in lines[first:] if _is_row(line)):
        style = replace(style, decimal_comma=True)  # the first row had none
    values = _parse(path, lines, first, style)
    # A tab in front stays: the first column has no name then.
    header = (_COMMENT.sub("", line) for line in lines[:first] if line.strip())
    comments = tuple(line.rstrip().lstrip(" ") for line in header)
    names = _find_names(comments, values.shape[1])
    if names is None:
        unnamed = tuple(f"column {number}" for number in range(1, values.shape[1] + 1))
        return Table(unnamed, values, comments, named=False)
    return Table(names, values, comments)


def _first_row(lines: Sequence[str]) -> tuple[int, _Style] | None:
    for index, line in enumerate(lines):
        if not any(map(str.isdigit, line)):
            continue
        for style in _STYLES:
            if all(_is_number(cell) for cell in style.cells(line)):
                return index, style
    return None


def _is_row(line: str) -> bool:
    return bool(line.strip()) and _COMMENT.match(line) is None


def _is_number(cell: str) -> bool:
    try:
        float(cell.strip() or "nan")
    except ValueError:
        return False
    return True


def _parse(path: Path, lines: Sequence[str], first: int, style: _Style) -> np.ndarray:
    rows, width = [], len(style.cells(lines[first]))
    for number, line in enumerate(lines[first:], first + 1):
        if not _is_row(line):
            continue
        cells = style.cells(line)
        if line.lstrip()[0].isalpha() and not _is_number(cells[0]):
            raise SourceError(
                f"{path}: line {number} is not a row of numbers ({line.strip()[:40]!r}); a file "
                "holds one table"
            )
        if len(cells) != width:
            raise SourceError(
                f"{path}: line {number} has {len(cells)} values where the first row has {width}; "
                "the file is damaged or was cut short"
            )
        rows.append(" ".join(cell.strip() or "nan" for cell in cells))
    try:
        values = np.loadtxt(rows, ndmin=2, comments=None)
    except ValueError as error:
        raise SourceError(f"{path}: a row is not made of numbers ({error})") from error
    # A separator at the end of every line makes no column.
    ended = width > 1 and not style.cells(lines[first])[-1].strip()
    return values[:, :-1] if ended and np.isnan(values[:, -1]).all() else values


def _find_names(comments: Sequence[str], width: int) -> tuple[str, ...] | None:
    """The names of the columns, where the last line of the header has so many."""
    whole = " ".join(comments)
    if re.search(r"\bVARIABLES\s*=", whole, re.IGNORECASE):
        declared = re.split(r"\bVARIABLES\s*=", whole, maxsplit=1, flags=re.IGNORECASE)[1]
        declared = re.split(r"\b(?:ZONE|DATASETAUXDATA)\b", declared, maxsplit=1)[0]
        names = _QUOTED.findall(declared) or re.split(r"[\s,]+", declared.strip(" ,"))
        return tuple(name.strip() for name in names) if len(names) == width else None
    line = comments[-1] if comments else ""
    for cells in (
        next(csv.reader([line], skipinitialspace=True), []),
        line.split("\t"),
        line.split(";"),
        re.split(r"\s{2,}", line),
        re.split(r"(?<=[\])])\s+", line),
        line.split(),
    ):
        names = [cell.strip().strip("\"'") for cell in cells]
        if any(names) and not names[0]:
            names[0] = "column 1"  # the numbers of the rows, as pandas writes them
        if len(names) == width and all(names) and not any(map(_is_number, names)):
            return tuple(names)
    return None
