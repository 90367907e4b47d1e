"""Small text files of runs, models and settings: JSON and TOML, read within limits.

Such a file may be damaged or hostile. It must be a regular file of moderate size: opening a named
pipe would wait forever, and a device never ends. Deeply nested values are refused, since code that
walks through them recurses once per level.
"""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from pibert.regular_files import require_regular

LARGEST = 64 << 20
"""Largest file in bytes."""
LARGEST_TOML = 128 << 10
"""Largest TOML file: the time to parse one can grow with the square of its length."""
DEEPEST = 64
"""Nested levels of lists and tables."""
_TOO_DEEP = f"more than {DEEPEST} nested levels of lists and tables"


def read_text(path: Path | str, largest: int = LARGEST, errors: str = "strict") -> str:
    """Read the UTF-8 text of a regular file; ``errors`` as for ``bytes.decode``.

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
    """Read a JSON file; ``ValueError`` names the file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, found {error}") from None


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; ``ValueError`` also for deep nesting."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return _shallow(value)


def read_toml(path: Path | str) -> dict[str, Any]:
    """Read a TOML file; ``ValueError`` names the file."""
    text = read_text(path, LARGEST_TOML)
    try:
        value: dict[str, Any] = _shallow(tomllib.loads(text))
    except (RecursionError, ValueError) as error:
        reason = _TOO_DEEP if isinstance(error, RecursionError) else error
        raise ValueError(f"{path}: not valid TOML: {reason}") from None
    return value


def _shallow(value: Any, level: int = 0) -> Any:
    if level > DEEPEST:
        raise ValueError(_TOO_DEEP)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for entry in inside:
        if isinstance(entry, dict | list):
            _shallow(entry, level + 1)
    return value
