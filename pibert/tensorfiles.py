"""Safetensors files, read whole into memory.

The ``safetensors`` package would map a file into memory: the process is killed (SIGBUS) if the file
is truncated while its tensors are in use, and it waits forever for a named pipe.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from pibert.regular_files import require_regular
from pibert.textfiles import parse_json


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file and the metadata in its header.

    Raises:
        ValueError: It is not a complete safetensors file; the caller names the file.
        OSError: It cannot be read.
    """
    require_regular(path)
    data = path.read_bytes()
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"found {len(data):,} bytes that are not ({error})") from None
    header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, dict(header.get("__metadata__") or {})
