"""Numbered files, compressed files, and numbers in text.

Columns of text may be separated by blanks, tabs, commas or semicolons; a comma between digits is a
decimal comma if something else separates the columns. Lines before the first row are the header.
An empty cell is NaN, and so are NA, n/a, null, - and the like; 1.0D-03 is a number of Fortran.

Files of a folder or pattern are frames in the order of the numbers in their names. If several
numbers change, the last one counts frames and the others distinguish trajectories. Decimal numbers,
such as times, are refused where their last digits are not in their order.

A few kilobytes can unpack to gigabytes, but fields rarely compress to less than a twentieth: a file
may unpack to 20 times its size, or to 256 MB if that is more.
"""

import csv
import gzip
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from pibert.data.readers.recordings import SourceError
from pibert.data.units import PIXEL, parse_unit
from pibert.files import require_regular

_ALWAYS = 256 << 20
_RATIO = 20


def unpacked_limit(size: int) -> int:
    """Return the number of bytes that a file of this size may unpack to."""
    return max(_ALWAYS, _RATIO * size)


def unpack_gzip(path: Path) -> bytes:
    """Unpack a file; ValueError if it unpacks to more than ``unpacked_limit``."""
    limit = unpacked_limit(path.stat().st_size)
    with gzip.open(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(
            f"it unpacks to more than {limit >> 20} MB; if the data are real, unpack it first"
        )
    return data


GAPS = "frames are missing between the numbers of the files"
_DECIMAL = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+", re.IGNORECASE)
_FRAME_FOLDER = re.compile(r"(?:frame|step|time|t)?[ _-]?\d+", re.IGNORECASE)


def expand_pattern(path: Path) -> list[Path]:
    """Return the files and folders that match a pattern such as ``run*/B*.txt``."""
    base = next(parent for parent in path.parents if parent.exists())
    return sorted(base.glob(str(path.relative_to(base))))


def find_files(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the file itself, the files of a folder, or those of a pattern."""
    require_regular(path)
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else expand_pattern(path)
    files = [file for file in found if file.suffix.lower() in suffixes and file.name[0] != "."]
    for file in files:
        require_regular(file)
    return sorted(files)


def shared_folder(files: Sequence[Path]) -> Path:
    """Return the innermost folder that holds all files."""
    return Path(os.path.commonpath([file.absolute().parent for file in files]))


def label(file: Path, base: Path) -> str:
    """Return the name of a file with those of its folders below ``base`` in front."""
    return "-".join(file.absolute().relative_to(base).with_suffix("").parts)


def group_by_number(files: Sequence[Path]) -> dict[str, dict[int, Path]]:
    """Return the files of each trajectory, by name, in the order of their frame numbers.

    Files in several folders are one trajectory per folder, or one frame per folder if the names of
    the folders are only numbers.
    """
    base = shared_folder(files) if files else Path()
    names = {file: file.absolute().relative_to(base).as_posix() for file in files}
    alike: dict[str, list[Path]] = {}
    for file in files:
        if re.search(r"(?:^|/)\d+\.\d+/", names[file]):
            raise SourceError(
                f"{file}: the folder has a decimal number, which orders no frames; rename it"
            )
        alike.setdefault(re.sub(r"\d+", "#", names[file]), []).append(file)
    groups: dict[str, dict[int, Path]] = {}
    for skeleton, similar in alike.items():
        stems = {file: names[file].removesuffix(file.suffix) for file in similar}
        _check_order(stems)
        counter, taken = _frame_counter(list(stems.values())), set(groups)
        for file, stem in stems.items():
            number, name = 0, stem
            if counter is not None:
                found = _numbers(stem)[counter]
                number, rest = int(found[0]), stem[: found.start()] + stem[found.end() :]
                name = re.sub(r"([ _./-])[ _./-]+", r"\1", rest).strip(" _./-") or "vectors"
            name = name if name.replace("/", "-") not in taken else f"{name} {skeleton}"
            members = groups.setdefault(name.replace("/", "-"), {})
            if number in members:
                raise SourceError(
                    f"{file}: {members[number].name} has the same number; keep recordings in "
                    "folders"
                )
            members[number] = file
    return {name: dict(sorted(members.items())) for name, members in groups.items()}


def _check_order(stems: Mapping[Path, str]) -> None:
    """Refuse decimal numbers in names, such as times, if their last digits do not order them."""
    rows = [[match[0] for match in _DECIMAL.finditer(stem)] for stem in stems.values()]
    for words in zip(*rows, strict=True):
        parts: dict[str, list[str]] = {}
        for word in dict.fromkeys(words):
            whole, _, digits = word.partition(".")
            parts.setdefault(whole, []).append(digits)
        values = sorted(map(float, set(words)))
        # The digits after the point count frames in run1.9, run1.10 and in run1.01, run2.01.
        even = len(parts) > 1 and len(values) > 2 and np.allclose(np.diff(values, 2), 0)
        has_exponents = len(values) > 1 and "e" in "".join(words).lower()
        if even or has_exponents or not all(map(_count_up, parts.values())):
            raise SourceError(
                f"{next(iter(stems))}: the names have decimal numbers ({', '.join(words[:3])}), "
                "whose last digits do not order the frames; number the files 0, 1, 2 ..."
            )


def _count_up(decimals: Sequence[str]) -> bool:
    """Return whether digits after a point are in the order of their decimals, or count by one."""
    if not all(map(str.isdecimal, decimals)):
        return True
    ordered = sorted(decimals, key=int)
    counts = {int(later) - int(digits) for digits, later in pairwise(ordered)} == {1}
    return counts or ordered == sorted(decimals, key=lambda digits: float(f"0.{digits}"))


def count_frames(numbers: Sequence[int]) -> list[float] | None:
    """Return the frames that the numbers of files count, from 0; None if none is missing.

    Evenly numbered files have no gaps: in 0, 5, 10, 20 the frame 15 is missing, and only that.
    """
    steps = {later - number for number, later in pairwise(numbers)}
    every = math.gcd(*steps)
    return [float((n - numbers[0]) // every) for n in numbers] if len(steps) > 1 else None


def find_series(path: Path, suffixes: Sequence[str]) -> dict[str, dict[int, Path]]:
    """Return the trajectories of a file, folder or pattern; a single one has the folder's name."""
    groups = group_by_number(find_files(path, suffixes))
    if not groups:
        raise SourceError(f"{path}: it holds no files {', '.join(suffixes)}; name their folder")
    if len(groups) == 1 and path.is_dir():
        return {path.name: next(iter(groups.values()))}
    return groups


def _numbers(stem: str) -> list[re.Match[str]]:
    return list(re.finditer(r"\d+", stem))


def _frame_counter(stems: Sequence[str]) -> int | None:
    """Return which number in the names counts frames; those of folders such as run1 do not."""
    rows = [[int(number[0]) for number in _numbers(stem)] for stem in stems]
    counter = None
    for index, number in enumerate(_numbers(stems[0])):
        folder, slash, _ = stems[0][number.start() :].partition("/")
        name = stems[0][: number.start()].rpartition("/")[2] + folder
        changes = len({row[index] for row in rows}) > 1
        if changes and (not slash or _FRAME_FOLDER.fullmatch(name)):
            counter = index
    return counter


def parse_numbers(text: bytes, dtype: str) -> np.ndarray:
    """Return the numbers of a text, as ``f4``, ``i8`` ... in the machine's byte order.

    Raises ValueError on anything but numbers and white space, or on integers out of range.
    """
    kind, count = np.dtype(dtype), count_words(text)
    if not count:
        return np.empty(0, kind)
    with warnings.catch_warnings():
        # On other text some versions of NumPy warn, others raise ValueError.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(text, f"{kind.kind}8", sep=" ")
        except (DeprecationWarning, ValueError):
            values = np.empty(0)
    if len(values) != count:  # NumPy also reads 1-2 as two numbers
        raise ValueError("a list of numbers holds something else")
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(kind)
    limits = np.iinfo(kind)
    low, high = values.min(), values.max()
    if low < limits.min or high > limits.max:
        raise ValueError(f"numbers from {low} to {high}, out of the range of {kind.name}")
    return values.astype(kind)


def count_words(text: bytes) -> int:
    """Count the words of a text without splitting it."""
    is_space = np.frombuffer(text, np.uint8) <= ord(" ")
    starts = is_space[:-1] & ~is_space[1:]
    return int(starts.sum()) + int(len(is_space) > 0 and not is_space[0])


_COMMENT = re.compile(r"^\s*(?!#[Nn]/?[Aa]\b)(?:[#%]+|//|!)\s?")
_QUOTED = re.compile(r'"([^"]*)"')
_VALUE = r"\w+\s?=\s?[-+.\w]+"
# COMSOL's "u (m/s) @ t=0.1, Re=100": a long name is separated from the next by one blank.
_CONDITIONED = [
    re.compile(rf"[^\s@]+(?: [(\[][^)\]]*[)\]])?(?: @ (?:\d+: )?{value}(?:, {value})*)?")
    for value in (_VALUE, rf"{_VALUE} [^\s,@]+")
]
_HEAD_BYTES = 1 << 16
_FORTRAN = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))[dD]([-+]?\d+)")
_MISSING = re.compile(
    r"#?n/?a|null|-{1,3}|[-+]?nan(?:\(\w*\))?|[-+]?1\.#(?:[qs]nan|ind)0*", re.IGNORECASE
)
"""Words for a missing value: of R, Excel, SQL, and of C programs on Windows."""


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a file."""

    names: tuple[str, ...]
    """The header's names; ``column 1`` and so on without a header."""
    values: np.ndarray
    """(rows, columns) in float64."""
    comments: tuple[str, ...]
    """The lines of the header, without comment characters."""
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
    """Return the first complete lines of a text file; None if it is no text. Never raises."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            data = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return None
    if not data or b"\0" in data:
        return None
    # Whole lines: a cut may also split a character.
    return _decode(data[: data.rfind(b"\n") + 1] if len(data) == _HEAD_BYTES else data).splitlines()


def _decode(data: bytes) -> str:
    """Return a text in UTF-8 or, as many programs on Windows write it (µm, m²/s²), in Latin-1."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def has_rows(head: Sequence[str]) -> bool:
    """Return whether there are two rows with the same number of columns."""
    start = _first_row(head)
    if start is None:
        return False
    index, style = start
    rows = [line for line in head[index : index + 3] if line.strip()]
    return len(rows) > 1 and len(style.cells(rows[0])) == len(style.cells(rows[1])) > 1


def read_columns(path: Path) -> Table:
    """Read the columns of a text file; SourceError if there are none, or a row is broken."""
    require_regular(path)
    try:
        text = _decode(path.read_bytes())
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
    # Keep a leading tab: then the first column has no name.
    header = (_COMMENT.sub("", line) for line in lines[:first] if line.strip())
    comments = tuple(line.rstrip().lstrip(" ") for line in header)
    names = _find_names(comments, values.shape[1])
    unnamed = tuple(f"column {number}" for number in range(1, values.shape[1] + 1))
    return Table(names or unnamed, values, comments, named=names is not None)


def _first_row(lines: Sequence[str]) -> tuple[int, _Style] | None:
    for index, line in enumerate(lines):
        if not any(map(str.isdigit, line)):
            continue
        after = next((later for later in lines[index + 1 :] if later.strip()), line)
        for style in _STYLES:
            cells = style.cells(line)
            if all(map(_is_number, cells)):
                return index, style
            # A row with missing values, but not a title such as "2 - 3".
            known = None not in map(_number, cells) and sum(map(_is_number, cells)) > 1
            if known and len(style.cells(after)) == len(cells):
                return index, style
    return None


def _is_row(line: str) -> bool:
    return bool(line.strip()) and _COMMENT.match(line) is None


def _is_number(cell: str) -> bool:
    return not _MISSING.fullmatch(cell.strip()) and _number(cell) is not None


def _number(cell: str) -> float | None:
    """Return the number in a cell, NaN for a missing value; None for another text."""
    cell = cell.strip() or "nan"
    if _MISSING.fullmatch(cell):
        return math.nan
    try:
        return None if "_" in cell else float(_FORTRAN.sub(r"\1e\2", cell))
    except ValueError:
        return None


def _parse(path: Path, lines: Sequence[str], first: int, style: _Style) -> np.ndarray:
    rows: dict[int, str] = {}
    width = len(style.cells(lines[first]))
    for number, line in enumerate(lines[first:], first + 1):
        if not _is_row(line):
            continue
        cells = style.cells(line)
        if line.lstrip()[0].isalpha() and _number(cells[0]) is None:
            raise SourceError(
                f"{path}: line {number} is no row of numbers ({line.strip()[:40]!r}); keep one "
                "table"
            )
        if len(cells) != width:
            raise SourceError(
                f"{path}: line {number} has {len(cells)} values, not {width}; get a whole copy"
            )
        rows[number] = " ".join(cell.strip() or "nan" for cell in cells)
    try:
        values = np.loadtxt(list(rows.values()), ndmin=2, comments=None)
    except ValueError:
        values = np.empty(0)
    if values.shape != (len(rows), width):  # a cell with blanks, or another notation
        values = np.empty((len(rows), width))
        for row, number in zip(values, rows, strict=True):
            row[:] = _numbers_of(path, number, style.cells(lines[number - 1]))
    # A separator at the end of every line is not a column.
    ended = width > 1 and not style.cells(lines[first])[-1].strip()
    return values[:, :-1] if ended and np.isnan(values[:, -1]).all() else values


def _numbers_of(path: Path, line: int, cells: Sequence[str]) -> list[float]:
    """Return the numbers in a row; SourceError that names a cell without one."""
    values = []
    for column, cell in enumerate(cells, 1):
        value = _number(cell)
        if value is None:
            raise SourceError(
                f"{path}: line {line}, column {column}: expected a number, found "
                f"{cell.strip()[:40]!r}; write nan for a missing value, and leave out columns of "
                "text"
            )
        values.append(value)
    return values


def _find_names(comments: Sequence[str], width: int) -> tuple[str, ...] | None:
    """Return the names of the columns if the last line of the header has this number of names.

    A last line of units belongs to the names in the line before it.
    """
    whole = " ".join(comments)
    if re.search(r"\bVARIABLES\s*=", whole, re.IGNORECASE):
        declared = re.split(r"\bVARIABLES\s*=", whole, maxsplit=1, flags=re.IGNORECASE)[1]
        declared = re.split(r"\b(?:ZONE|DATASETAUXDATA)\b", declared, maxsplit=1)[0]
        listed = _QUOTED.findall(declared) or re.split(r"[\s,]+", declared.strip(" ,"))
        return tuple(name.strip() for name in listed) if len(listed) == width else None
    names = _split_names(comments[-1], width) if comments else None
    if names is None or not all(map(_is_unit, names)) or {*names} == {"-"}:
        return names
    before = _split_names(comments[-2], width) if len(comments) > 1 else None
    if before is None or all(map(_is_unit, before)):
        return names
    units = (unit.strip("[]() ") for unit in names)
    return tuple(f"{name} [{unit}]" for name, unit in zip(before, units, strict=True))


def _is_unit(text: str) -> bool:
    if (text[0] in "[(" and text[-1] in "])") or text == "-":
        return True
    return parse_unit(text) is not None or (PIXEL.match(text) is not None and " " not in text)


def _split_names(line: str, width: int) -> tuple[str, ...] | None:
    """Return this number of names in a line; None if it has another number, or numbers."""
    for cells in (
        next(csv.reader([line], skipinitialspace=True), []),
        line.split("\t"),
        line.split(";"),
        re.split(r"\s{2,}", line),
        re.split(r"(?<=[\])])\s+", line),
        line.split(),
        *(pattern.findall(line) for pattern in _CONDITIONED if "@" in line),
    ):
        names = [cell.strip().strip("\"'") for cell in cells]
        if any(names) and not names[0]:
            names[0] = "column 1"  # the numbers of the rows, as pandas writes them
        if len(names) == width + 1 and not names[-1]:
            names.pop()  # a separator at the end of the line
        numeric = any(_is_number(name) or name.lower() == "nan" for name in names)
        if len(names) == width and all(names) and not numeric:
            return tuple(names)
    return None
