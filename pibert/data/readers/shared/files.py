"""Numbered files, compressed files, and numbers in text.

Columns of text may be separated by blanks, tabs, commas or semicolons; a comma between digits is a
decimal comma where something else separates the columns. Lines before the first row are the header.
An empty cell is NaN.

Files of a folder or pattern are frames in the order of the numbers in their names. Where several
numbers change, the last one counts frames and the others distinguish trajectories.

A few kilobytes can unpack to gigabytes, and fields rarely shrink to less than a twentieth of their
size: a file may unpack to 20 times its size, or to 256 MB where that is more.
"""

import csv
import gzip
import lzma
import os
import re
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pibert.data.readers.recordings import SourceError
from pibert.regular_files import require_regular

_ALWAYS = 256 << 20
_RATIO = 20
_LZMA_MEMORY = 256 << 20
"""LZMA's highest preset needs a quarter of this; a damaged header may ask for gigabytes."""


def unpacked_limit(size: int) -> int:
    """Bytes that a file of this size may unpack to."""
    return max(_ALWAYS, _RATIO * size)


def unpack_zlib(packed: bytes | memoryview, size: int) -> bytes:
    """Unpack data that declares its size; ValueError if it has another one."""
    return _checked(zlib.decompressobj().decompress(packed, size + 1), size)


def unpack_lzma(packed: bytes | memoryview, size: int) -> bytes:
    """Unpack data that declares its size; ValueError if it has another one."""
    decompressor = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
    return _checked(decompressor.decompress(packed, size + 1), size)


def unpack_gzip(path: Path) -> bytes:
    """Unpack a file; ValueError if it unpacks to more than ``unpacked_limit``."""
    limit = unpacked_limit(path.stat().st_size)
    with gzip.open(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(
            f"it unpacks to more than {limit >> 20} MB, which is too much for its size; if the "
            "data are real, unpack the file first"
        )
    return data


def _checked(data: bytes, size: int) -> bytes:
    if len(data) != size:
        found = "more" if len(data) > size else f"{len(data)}"
        raise ValueError(f"a block declares {size} bytes and unpacks to {found}")
    return data


_FRAME_FOLDER = re.compile(r"(?:frame|step|time|t)?[ _-]?\d+", re.IGNORECASE)


def expand_pattern(path: Path) -> list[Path]:
    """What fits a pattern such as ``run/B*.txt`` or ``run*/B*.txt``; nothing where nothing does."""
    base = next(parent for parent in path.parents if parent.exists())
    return sorted(base.glob(str(path.relative_to(base))))


def find_files(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """The file itself, the files of a folder, or those of a pattern such as ``run/B*.txt``."""
    require_regular(path)
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else expand_pattern(path)
    files = [file for file in found if file.suffix.lower() in suffixes and file.name[0] != "."]
    for file in files:
        require_regular(file)
    return sorted(files)


def shared_folder(files: Sequence[Path]) -> Path:
    """The innermost folder that holds all files."""
    return Path(os.path.commonpath([file.absolute().parent for file in files]))


def label(file: Path, base: Path) -> str:
    """The name of a file, after those of the folders between it and the one shared by all."""
    return "-".join(file.absolute().relative_to(base).with_suffix("").parts)


def group_by_number(files: Sequence[Path]) -> dict[str, dict[int, Path]]:
    """Trajectories by name: the files in the order of their frame numbers.

    Where the files lie in several folders, these are trajectories, or frames if only numbered.
    """
    skeletons: dict[str, list[Path]] = {}
    base = shared_folder(files) if files else Path()
    names = {file: file.absolute().relative_to(base).as_posix() for file in files}
    for file in files:
        if re.search(r"(?:^|/)\d+\.\d+/", names[file]):
            raise SourceError(
                f"{file}: the folder is named by a decimal number, which does not define the order "
                "of frames; number the folders, or name the files of one"
            )
        skeletons.setdefault(re.sub(r"\d+", "#", names[file]), []).append(file)
    groups: dict[str, dict[int, Path]] = {}
    for skeleton, alike in skeletons.items():
        stems = [names[file].removesuffix(file.suffix) for file in alike]
        numbers = np.array([[int(n) for n in re.findall(r"\d+", stem)] for stem in stems])
        changing = [
            int(place)
            for place in np.flatnonzero((numbers != numbers[0]).any(0))
            if _counts_frames(stems[0], int(place))
        ]
        taken = set(groups)
        for file, stem, row in zip(alike, stems, numbers, strict=True):
            number, name = 0, stem
            if changing:
                number, place = int(row[changing[-1]]), _number_in(stem, changing[-1])
                rest = stem[: place.start()] + stem[place.end() :]
                name = re.sub(r"([ _./-])[ _./-]+", r"\1", rest).strip(" _./-") or "vectors"
            name = name.replace("/", "-")
            other = f"{name} {skeleton}".replace("/", "-")
            members = groups.setdefault(name if name not in taken else other, {})
            if number in members:
                raise SourceError(
                    f"{file}: {members[number].name} has the same number; keep the files of one "
                    "recording in a folder of their own"
                )
            members[number] = file
    return {name: dict(sorted(members.items())) for name, members in groups.items()}


def _number_in(stem: str, which: int) -> re.Match[str]:
    return list(re.finditer(r"\d+", stem))[which]


def _counts_frames(stem: str, which: int) -> bool:
    """Whether a number may be that of a frame: those in names of folders such as run1 are not."""
    number = _number_in(stem, which)
    folder, slash, _ = stem[number.start() :].partition("/")
    name = stem[: number.start()].rpartition("/")[2] + folder
    return not slash or _FRAME_FOLDER.fullmatch(name) is not None


def parse_numbers(text: bytes, dtype: str) -> np.ndarray:
    """The numbers of a text, as ``f4``, ``i8`` ... in the machine's byte order.

    Raises ValueError if it holds anything but numbers and white space, or a whole number out of the
    type's range.
    """
    kind, count = np.dtype(dtype), count_words(text)
    if not count:
        return np.empty(0, kind)
    with warnings.catch_warnings():
        # Of text that is no number some versions of NumPy warn; others raise ValueError.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(text, f"{kind.kind}8", sep=" ")
        except (DeprecationWarning, ValueError):
            raise ValueError("a list of numbers holds something else") from None
    if len(values) != count:  # NumPy takes 1-2 for two numbers
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
    """How many words a text has, counted without making them."""
    is_space = np.frombuffer(text, np.uint8) <= ord(" ")
    starts = is_space[:-1] & ~is_space[1:]
    return int(starts.sum()) + int(len(is_space) > 0 and not is_space[0])


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
    unnamed = tuple(f"column {number}" for number in range(1, values.shape[1] + 1))
    return Table(names or unnamed, values, comments, named=names is not None)


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
