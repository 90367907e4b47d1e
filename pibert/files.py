"""Files of runs, models and settings, read within limits: JSON, TOML and safetensors.

Such a file may be damaged or hostile. It must be a regular file: opening a named pipe would wait
forever, and a device never ends. Texts are of moderate size and depth, since code that walks
through nested values recurses once per level. Safetensors are read whole: the package would map
the file into memory, and the process is killed (SIGBUS) if that is truncated while in use.
"""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 64 << 20
"""Largest file in bytes."""
LARGEST_TOML = 128 << 10
"""Largest TOML file: the time to parse one can grow with the square of its length."""
DEEPEST = 64
"""Nested levels of lists and tables."""
_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_TOO_DEEP = f"more than {DEEPEST} nested levels of lists and tables"


def require_regular(path: Path | str) -> None:
    """Raise ``ValueError`` for a named pipe, a socket or a device; a folder or no file passes."""
    try:
        kind = _KINDS.get(stat.S_IFMT(Path(path).stat().st_mode))
    except OSError:
        return  # opening it reports the problem
    if kind is not None:
        raise ValueError(f"{path}: expected a file, found {kind}; copy the data to a file first")


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


def read_safetensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Return the tensors of a file and the metadata in its header.

    Raises:
        ValueError: It is not a complete safetensors file; the caller names the file.
        OSError: It cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    require_regular(path)
    data = path.read_bytes()
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"found {len(data):,} bytes that are not ({error})") from None
    header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, dict(header.get("__metadata__") or {})
