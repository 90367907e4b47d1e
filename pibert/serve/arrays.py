"""Arrays as bytes, npy and safetensors; what is read is checked before memory is taken for it.

Nothing is unpickled: an npy file of Python objects is refused by its header.
"""

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from pibert.serve.refusal import Refusal

NPY_MAGIC = b"\x93NUMPY"
_NUMBERS = "biufc"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


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
