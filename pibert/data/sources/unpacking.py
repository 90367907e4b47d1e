"""Compressed data, unpacked no further than its file declares or than its size makes plausible.

A few kilobytes can unpack to gigabytes. Fields rarely shrink to less than a twentieth of their
size, so a file may unpack to 20 times its size, or to 256 MB where that is more.
"""

import gzip
import lzma
import zlib
from pathlib import Path

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
