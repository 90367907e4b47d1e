"""Answers as bytes: JSON, npy or safetensors, whole or as a stream of blocks."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pibert.serve.arrays import write_npy, write_safetensors
from pibert.serve.asked import JSON, NPY, SAFETENSORS
from pibert.serve.refusal import Refusal

STREAMS = {
    JSON: "application/x-ndjson",
    NPY: "application/vnd.pibert.npy-blocks",
    SAFETENSORS: "application/vnd.pibert.safetensors-blocks",
}
"""Content type of a stream of blocks of each kind."""
_END, _ERROR = 0, 0xFFFFFFFF
MOST_NUMBERS = 500_000
"""In an answer, or a block of one, as JSON: to write it holds up all other requests meanwhile."""


@dataclass(frozen=True, eq=False)
class Answer:
    """Arrays and plain facts by name. ``a.b`` in a name is a member b of an object a in JSON."""

    arrays: dict[str, np.ndarray]
    """The first one is what an npy file holds."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Plain JSON, all numbers finite."""


def encode(answer: Answer, kind: str) -> bytes:
    if kind == NPY:
        return write_npy(next(iter(answer.arrays.values())))
    if kind == SAFETENSORS:
        texts = {name: as_json(fact).decode() for name, fact in answer.facts.items()}
        # True and false as uint8, which every reader has.
        plain = {n: a.astype(np.uint8) if a.dtype == bool else a for n, a in answer.arrays.items()}
        return write_safetensors(plain, texts)
    count = sum(array.size for array in answer.arrays.values())
    if count > MOST_NUMBERS:
        raise Refusal(
            "too_large",
            f"expected an answer of at most {MOST_NUMBERS:,} numbers as JSON, found {count:,}; ask "
            f"for less, or for safetensors with the header Accept: {SAFETENSORS}",
        )
    whole: dict[str, Any] = {}
    values = answer.facts | {name: _as_lists(array) for name, array in answer.arrays.items()}
    for name, value in values.items():
        holder, _, member = name.partition(".")
        if member:
            whole.setdefault(holder, {})[member] = value
        else:
            whole[name] = value
    return as_json(whole)


def as_json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _as_lists(array: np.ndarray) -> Any:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        plain = array.astype(object)
        plain[~np.isfinite(array)] = None
        return plain.tolist()
    return array.tolist()


def frame_block(answer: Answer, kind: str) -> tuple[bytes, bytes]:
    """One block of a stream; in two pieces, as joining them would copy all of it."""
    data = encode(answer, kind)
    return (data, b"\n") if kind == JSON else (struct.pack("<I", len(data)), data)


def frame_end(frames: int, kind: str) -> bytes:
    """What ends a stream that is complete."""
    if kind == JSON:
        return as_json({"end": True, "frames": frames}) + b"\n"
    return struct.pack("<I", _END)


def frame_error(refusal: Refusal, kind: str) -> bytes:
    """What ends a stream that is not complete."""
    text = as_json(refusal.plain())
    return text + b"\n" if kind == JSON else struct.pack("<II", _ERROR, len(text)) + text


def choose_kind(accept: str | None, default: str, allowed: Sequence[str], streams: bool) -> str:
    """The kind of answer that a client wants most; ``default`` where it does not care."""
    if accept is None or not accept.strip():
        return default
    wanted = {kind: (kind, *([STREAMS[kind]] if streams else [])) for kind in allowed}
    best, best_quality = None, 0.0
    for kind in sorted(allowed, key=lambda kind: kind != default):
        quality = _quality(accept, wanted[kind])
        if quality > best_quality:
            best, best_quality = kind, quality
    if best is None:
        raise Refusal(
            "not_acceptable",
            f"this can be answered as {', '.join(allowed)}, found Accept: {accept}",
        )
    return best


def _quality(accept: str, names: Sequence[str]) -> float:
    """What an Accept header makes of a content type, by its most specific entry.

    Args:
        accept: The header.
        names: Of the content type; all are of the family application.
    """
    found: tuple[int, float] = (-1, 0.0)
    ranks = {"*/*": 0, "application/*": 1} | dict.fromkeys(names, 2)
    for entry in accept.split(","):
        media, *options = (part.strip().lower() for part in entry.split(";"))
        rank = ranks.get(media, -1)
        if rank > found[0]:
            found = rank, _weight(options)
    return found[1]


def _weight(options: Sequence[str]) -> float:
    for option in options:
        if option.startswith("q="):
            try:
                return min(1.0, max(0.0, float(option[2:])))
            except ValueError:
                return 0.0
    return 1.0
