"""Safetensors files as the web viewer saves them.

They hold ``fields`` (t, c, y, x) or (c, y, x), and perhaps ``mask`` (1 where known) and ``body`` (1
inside). The metadata may state facts as JSON texts: names and units of the channels, spacing, first
position and time, parameters, and the model that predicted the fields.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.recordings import PARSING, Hints, Recordings, SourceError, reading
from pibert.data.readers.shared.assembly import make_recordings
from pibert.data.readers.shared.roles import Variable
from pibert.data.readers.shared.stores import MemoryStore
from pibert.files import parse_json, read_safetensors

TITLE = "safetensors, as the web viewer saves"
HINTS = ("channels",)
ISOLATED = False
UPLOADS = (".safetensors",)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_source(value: Any) -> bool:
    level = value.get("interval_level") if isinstance(value, dict) else ""
    return level is None or _is_number(level)


_FACTS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("dt", "dx", "dy"), lambda value: _is_number(value) and value > 0),
    **dict.fromkeys(("x0", "y0", "t0"), _is_number),
    **dict.fromkeys(("length_unit", "time_unit"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("channels", "units"), _are_texts),
    "parameters": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "source": _is_source,
}
"""What the metadata of a safetensors file may state, and whether a value can be that."""


def _read_facts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the facts in the metadata; what is null is unknown."""
    stated = {name: parse_json(text) for name, text in texts.items() if name in _FACTS}
    for name, value in stated.items():
        if value is not None and not _FACTS[name](value):
            raise ValueError(f"its metadata {name!r} is {texts[name]:.80}")
    return {name: value for name, value in stated.items() if value is not None}


def _take(arrays: Mapping[str, np.ndarray], path: Path, key: str) -> np.ndarray:
    return arrays[key]


def recognise(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in UPLOADS


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    with reading(path, "the safetensors file", errors=PARSING):
        tensors, texts = read_safetensors(path)
        facts = _read_facts(texts)
    wide = {key: t.float() if t.is_floating_point() else t for key, t in tensors.items()}
    arrays = {key: tensor.numpy() for key, tensor in wide.items()}
    found = [key for key in arrays if key not in ("mask", "body")]
    fields = arrays.pop(found[0] if len(found) == 1 else "fields", np.empty(0))
    fields = fields[None] if fields.ndim == 3 else fields
    names, units = facts.get("channels", ()), facts.get("units", ())
    count = fields.shape[1] if fields.ndim == 4 else 0
    if not count or (names or units) and not len({*names}) == count == len(units or names):
        raise SourceError(
            f"{path}: expected an array 'fields' of shape (t, c, y, x) or (c, y, x), and no names "
            f"and units of channels or one for each, found {', '.join(found)[:80]} of shape "
            f"{fields.shape}, names {list(names)[:8]} and units {list(units)[:8]}"
        )
    arrays["fields"] = fields
    for axis, length in zip("tyx", (len(fields), *fields.shape[2:]), strict=True):
        if step := facts.get(f"d{axis}"):
            start = facts.get(f"{axis}0", 0.0)
            arrays[axis] = start + step * np.arange(length)
    stated = {"valid": "mask"} if "mask" in arrays else {}
    stated |= {name: f"fields:{index}" for index, name in enumerate(names)}
    known = {key: facts[key] for key in facts if key in ("length_unit", "time_unit", "parameters")}
    if units:
        known["units"] = dict(zip(names, units, strict=True))
    variables = [
        Variable(key=key, shape=a.shape, dtype=a.dtype, axes="tcyx" if key == "fields" else None)
        for key, a in arrays.items()
    ]
    return make_recordings(
        "safetensors",
        MemoryStore(path, partial(_take, arrays)),
        variables,
        replace(hints, channels=stated | {**hints.channels}),
        source=facts.get("source", {}),
        facts=known,
    )
