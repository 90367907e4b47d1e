"""Content types: arrays to and from JSON, npy and safetensors, and answers as bytes or streams.

Declared sizes are checked before memory is allocated. Nothing is unpickled: an npy file of Python
objects is refused by its header.
"""

import io
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from pibert.serve.limits import Refusal

JSON, NPY = "application/json", "application/x-npy"
SAFETENSORS = "application/vnd.safetensors"
KINDS = (JSON, NPY, SAFETENSORS)
STREAMS = {
    JSON: "application/x-ndjson",
    NPY: "application/vnd.pibert.npy-blocks",
    SAFETENSORS: "application/vnd.pibert.safetensors-blocks",
}
"""Content type of a stream of blocks of each kind."""
MOST_NUMBERS = 500_000
"""In an answer, or a block of one, as JSON: encoding it blocks all other requests."""
NPY_MAGIC = b"\x93NUMPY"
_NUMBERS = "biufc"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_END, _ERROR = 0, 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Answer:
    """Arrays and plain facts by name. ``a.b`` in a name is a member b of an object a in JSON."""

    arrays: dict[str, np.ndarray]
    """The first one is the content of an npy file."""
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
            f"for less, or for safetensors: Accept: {SAFETENSORS}",
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
    """One block of a stream, in two pieces: joining them would copy it."""
    data = encode(answer, kind)
    return (data, b"\n") if kind == JSON else (struct.pack("<I", len(data)), data)


def frame_end(frames: int, kind: str, diverged: str | None = None) -> bytes:
    """The end of a stream with all frames; ``diverged`` is a report that they left all bounds.

    Blocks in npy carry no notes, so that their stream then ends with an error.
    """
    if kind == JSON:
        note = {} if diverged is None else {"diverged": diverged}
        return as_json({"end": True, "frames": frames, **note}) + b"\n"
    if kind == NPY and diverged is not None:
        text = f"all {frames} frames were sent, but {diverged}"
        return frame_error(Refusal("diverged", text), kind)
    return struct.pack("<I", _END)


def frame_error(refusal: Refusal, kind: str) -> bytes:
    """The end of a stream that is not complete."""
    text = as_json(refusal.plain())
    return text + b"\n" if kind == JSON else struct.pack("<II", _ERROR, len(text)) + text


def choose_kind(accept: str | None, default: str, allowed: Sequence[str], streams: bool) -> str:
    """The kind of answer that an Accept header prefers; ``default`` if it has no preference."""
    if accept is None or not accept.strip():
        return default
    weights: dict[str, float] = {}
    for entry in accept.lower().split(","):
        media, *options = (part.strip() for part in entry.split(";"))
        weights.setdefault(media, _weight(options))

    def weight(kind: str) -> float:
        names = (kind, *((STREAMS[kind],) if streams else ()), "application/*", "*/*")
        return next((weights[name] for name in names if name in weights), 0.0)

    best = max(sorted(allowed, key=lambda kind: kind != default), key=weight)
    if not weight(best) > 0:
        raise Refusal(
            "not_acceptable",
            f"expected Accept to allow {', '.join(allowed)}, found {accept}",
        )
    return best


def _weight(options: Sequence[str]) -> float:
    quality = next((option[2:] for option in options if option.startswith("q=")), "1")
    try:
        return min(1.0, max(0.0, float(quality)))
    except ValueError:
        return 0.0


def read_npy(data: bytes, what: str = "the body") -> np.ndarray:
    """The array of an npy file; it shares its memory with the bytes."""
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        shape, is_fortran, dtype = _HEADERS[version](stream)
    except Exception as error:  # of NumPy's parser, which raises many kinds
        raise _malformed(what, "an npy file of version 1 or 2", _line(error)) from None
    if dtype.hasobject:
        raise _malformed(what, "an npy file of numbers", "pickled Python objects")
    if dtype.kind not in _NUMBERS or any(type(n) is not int or n < 0 for n in shape):
        raise _malformed(what, "an npy file of numbers", f"{dtype} of shape {shape}")
    start, stated = stream.tell(), math.prod(shape) * dtype.itemsize
    if len(data) - start != stated:
        raise _malformed(what, f"{stated} bytes after the npy header", str(len(data) - start))
    try:
        if not stated:
            return np.empty(shape, dtype)
        array = np.frombuffer(data, dtype, offset=start)
        return array.reshape(shape, order="F" if is_fortran else "C")
    except ValueError as error:
        raise _malformed(what, "an npy file", _line(error)) from None


def write_npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def read_safetensors(
    data: bytes, what: str = "the body"
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and the metadata of a safetensors file."""
    try:
        arrays = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except Exception as error:  # of the parser, which raises many kinds
        raise _malformed(what, "a safetensors file", _line(error)) from None
    return arrays, header.get("__metadata__") or {}


def write_safetensors(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return bytes(save(whole, dict(metadata)))


def read_json(text: str | bytes, what: str = "the body") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(what, "JSON", _line(error)) from None


def _malformed(what: str, expected: str, found: str) -> Refusal:
    return Refusal("malformed", f"{what}: expected {expected}, found: {found}")


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]} ..."
