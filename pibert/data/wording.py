"""Text of messages, and imports of optional packages."""

import importlib
from typing import Any


def counted(number: int, noun: str) -> str:
    """``1 frame``, ``2 frames``, ``3 trajectories``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def import_extra(name: str, purpose: str, extra: str = "io") -> Any:
    """Import a module of an extra; the ImportError names the extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{purpose} needs {package}: pip install 'pibert-cfd[{extra}]'"
        ) from error
