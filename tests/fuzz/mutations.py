"""Damage to the bytes of a file: what disks, transfers and attackers do."""

import re
import struct
from collections.abc import Callable
from random import Random

from tests.fuzz.text_mutations import TEXT

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_EXTREMES = (b"0", b"-1", b"nan", b"inf", b"1e308", b"1e-320", b"999999999999", b"2147483648", b"x")
_WORDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40)


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
    data[start:start] = rng.randbytes(rng.choice((1, 4, 16)))


def _word(data: bytearray, rng: Random) -> None:
    """An extreme whole number where a size or an address may be."""
    size, kind = rng.choice(((2, "H"), (4, "I"), (8, "Q")))
    if len(data) > size:
        start = rng.randrange(len(data) - size)
        word = rng.choice(_WORDS) % 256**size
        data[start : start + size] = struct.pack(rng.choice("<>") + kind, word)


def _number(data: bytearray, rng: Random) -> None:
    """Another number in a text or in the text of a header."""
    found = list(_NUMBER.finditer(data[: 1 << 14]))
    if found:
        chosen = rng.choice(found[:20] if rng.random() < 0.5 else found)
        data[chosen.start() : chosen.end()] = rng.choice(_EXTREMES)


def _blank(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice((4, 64, 1024)))
    data[start:stop] = bytes(stop - start)


_KINDS: tuple[Callable[[bytearray, Random], None], ...] = (
    *(_flip, _set, _cut, _drop, _repeat, _insert, _word, _word, _number, _number, _blank),
    *TEXT,
)


def mutate(data: bytes, rng: Random) -> bytes:
    """The bytes with one to three kinds of damage."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if damaged:
            rng.choice(_KINDS)(damaged, rng)
    return bytes(damaged)
