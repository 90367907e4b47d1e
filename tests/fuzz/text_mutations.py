"""Damage to text that has lines, words and numbers, such as VTK and OpenFOAM files."""

import re
from collections.abc import Callable
from random import Random

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NAME = re.compile(rb"[A-Za-z_]{2,}")
_EXTREMES = (b"-1", b"3", b"1e15", b"1e-30", b"4294967296", b"18446744073709551616", b"9" * 40)
_WORDS = (
    *(b"{", b"}", b"(", b";", b"<a>", b'"', b"/*", b"#{", b"$a", b"${", b'#include "U"', b"\0"),
    *(b"string", b"uniform", b"List<vector> 3{(0 0 0)}", b'"(.*)*"', b"CELLS 1 4\n"),
)


def repeat_lines(data: bytearray, rng: Random) -> None:
    lines = data.split(b"\n")
    start = rng.randrange(len(lines))
    lines[start:start] = lines[start : start + rng.choice((1, 3, 10))] * rng.choice((1, 2, 20))
    data[:] = b"\n".join(lines)


def swap_lines(data: bytearray, rng: Random) -> None:
    lines = data.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    data[:] = b"\n".join(lines)


def copy_number(data: bytearray, rng: Random) -> None:
    """One number of the file in the place of another, or an extreme one."""
    _replace(data, rng, _NUMBER, *_EXTREMES)


def copy_name(data: bytearray, rng: Random) -> None:
    """One word of the file in the place of another, or none."""
    _replace(data, rng, _NAME, b"", b"x")


def insert_word(data: bytearray, rng: Random) -> None:
    """A word with a meaning in one of the formats."""
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.choice(_WORDS)


def _replace(data: bytearray, rng: Random, what: re.Pattern[bytes], *others: bytes) -> None:
    found = list(what.finditer(data))
    if found:
        one = rng.choice(found)
        new = rng.choice((rng.choice(found)[0], rng.choice(others)))
        data[one.start() : one.end()] = new


TEXT: tuple[Callable[[bytearray, Random], None], ...] = (
    *(repeat_lines, swap_lines, copy_number, copy_number, copy_name, insert_word),
)
