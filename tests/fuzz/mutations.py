"""Damage to the bytes of a file: what disks, transfers and attackers do."""

import re
import struct
from collections.abc import Callable
from random import Random

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NAME = re.compile(rb"[A-Za-z_]{2,}")
_EXTREMES = (
    *(b"0", b"-1", b"3", b"nan", b"inf", b"1e308", b"1e-320", b"999999999999", b"2147483648"),
    *(b"4294967296", b"18446744073709551616", b"9" * 40, b"x"),
)
_SIZES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40)
_WORDS = (
    *(b"{", b"}", b"(", b";", b"<a>", b'"', b"/*", b"#{", b"$a", b"${", b'#include "U"', b"\0"),
    *(b"string", b"uniform", b"List<vector> 3{(0 0 0)}", b'"(.*)*"', b"CELLS 1 4\n"),
)
"""Of VTK, OpenFOAM and XML files."""


def _flip(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: Random) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256)))


def _cut(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data)) :]


def _drop(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 4, 8, 64, 512))]


def _repeat(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    data[start:start] = data[start : start + rng.choice((1, 8, 64))] * rng.choice((1, 2, 50))


def _insert(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    data[start:start] = rng.choice((rng.randbytes(rng.choice((1, 4, 16))), rng.choice(_WORDS)))


def _size(data: bytearray, rng: Random) -> None:
    """An extreme whole number where a size or an address may be."""
    size, kind = rng.choice(((2, "H"), (4, "I"), (8, "Q")))
    if len(data) > size:
        start = rng.randrange(min(len(data) - size, rng.choice((400, len(data)))))
        number = rng.choice(_SIZES) % 256**size
        data[start : start + size] = struct.pack(rng.choice("<>") + kind, number)


def _blank(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice((4, 64, 1024)))
    data[start:stop] = bytes(stop - start)


def _number(data: bytearray, rng: Random) -> None:
    """One number of a text or a header replaced by another, or by an extreme one."""
    _exchange(data, rng, _NUMBER, _EXTREMES)


def _name(data: bytearray, rng: Random) -> None:
    _exchange(data, rng, _NAME, (b"", b"x"))


def _exchange(
    data: bytearray, rng: Random, what: re.Pattern[bytes], others: tuple[bytes, ...]
) -> None:
    found = list(what.finditer(data[: 1 << 14]))
    if found:
        chosen = rng.choice(found[:20] if rng.random() < 0.5 else found)
        new = rng.choice((rng.choice(found)[0], rng.choice(others)))
        data[chosen.start() : chosen.end()] = new


def _lines(data: bytearray, rng: Random) -> None:
    """Lines that are repeated, or two that are swapped."""
    lines = data.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    if rng.random() < 0.5:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines[one:one] = lines[one : one + rng.choice((1, 3, 10))] * rng.choice((1, 2, 20))
    data[:] = b"\n".join(lines)


_KINDS: tuple[Callable[[bytearray, Random], None], ...] = (
    *(_flip, _set, _cut, _drop, _repeat, _insert, _insert, _size, _size, _blank),
    *(_number, _number, _number, _number, _name, _lines, _lines),
)


def mutate(data: bytes, rng: Random) -> bytes:
    """The bytes with one to three kinds of damage."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if damaged:
            rng.choice(_KINDS)(damaged, rng)
    return bytes(damaged)
