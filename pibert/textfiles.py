"""Small text files of runs, models and settings: JSON and TOML, read within limits.

Such a file may be damaged or hostile. It is read only if it is a regular file of moderate size:
opening a named pipe would wait forever, and a device never ends. Values that are nested too deeply
are refused, since code that walks through them calls itself once per level.
"""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from pibert.regular_files import require_regular

LARGEST = 64 << 20
"""Bytes of the largest file that is read."""
LARGEST_TOML = 128 << 10
"""The same of settings: the time to read TOML can grow with the square of its length."""
DEEPEST = 64
"""Levels of lists and tables inside each other."""


def read_text(path: Path | str, largest: int = LARGEST, errors: str = "strict") -> str:
    """The text of an ordinary file, UTF-8; ``errors`` as for ``bytes.decode``.

    Raises:
        ValueError: It is a pipe or a device, has more bytes than ``largest``, or is not UTF-8.
        OSError: It cannot be read.
    """
    require_regular(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(
            f"{path}: expected at most {largest >> 10:,} KiB of text, found {size:,} "
            "bytes; it is damaged or of another kind"
        )
    try:
        return content.decode("utf-8", errors)
    except UnicodeDecodeError:
        raise ValueError(f"{path}: expected text in UTF-8, found other bytes") from None


def read_json(path: Path | str) -> Any:
    """The value in a JSON file; ``ValueError`` names the file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, found {error}") from None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; ``ValueError`` also where it is nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    return _shallow(value)


def read_toml(path: Path | str) -> dict[str, Any]:
    """The tables of a TOML file; ``ValueError`` names the file."""
    text = read_text(path, LARGEST_TOML)
    try:
        value = tomllib.loads(text)
        _shallow(value)
    except RecursionError:
        raise ValueError(f"{path}: not valid TOML: {_too_deep()}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None
    return value


def _shallow(value: Any, level: int = 0) -> Any:
    if level > DEEPEST:
        raise ValueError(_too_deep())
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for entry in inside:
        if isinstance(entry, dict | list):
            _shallow(entry, level + 1)
    return value


def _too_deep() -> str:
    return f"more than {DEEPEST} levels of lists and tables inside each other"
