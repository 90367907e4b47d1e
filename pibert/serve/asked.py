"""What a request for a prediction asks, read from its body: JSON, npy or safetensors.

The three say the same; what they say is checked in one place. Fields themselves are judged by the
predictor.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pibert.fields import Grid
from pibert.serve.arrays import read_json, read_npy, read_safetensors
from pibert.serve.limits import SIDE, Limits
from pibert.serve.refusal import Refusal

JSON, NPY = "application/json", "application/x-npy"
SAFETENSORS = "application/vnd.safetensors"
KINDS = (JSON, NPY, SAFETENSORS)
ARGUMENTS = {
    "step": ("model", "parameters", "dx", "dy", "level", "consistency"),
    "rollout": ("model", "parameters", "dx", "dy", "level", "consistency", "steps"),
    "explain": ("model", "parameters", "dx", "dy"),
}
"""What each route takes beside the arrays."""
_ARRAYS = ("fields", "mask")


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """A request for a prediction."""

    route: str
    """A key of ``ARGUMENTS``."""
    fields: np.ndarray
    mask: np.ndarray | None = None
    model: str | None = None
    parameters: Mapping[str, float | list[float]]
    grid: Grid | None = None
    steps: int | None = None
    level: float | None = None
    consistency: bool = False

    @property
    def samples(self) -> int:
        return len(self.fields) if self.fields.ndim == 5 else 1


def read_asked(
    route: str, kind: str, body: bytes, query: Iterable[tuple[str, str]], limits: Limits
) -> Asked:
    """Read a body of one of ``KINDS``; ``query`` are the parameters of the address."""
    texts = _once(query)
    if kind != NPY and texts:
        raise Refusal(
            "invalid",
            f"expected the arguments in the body, found {sorted(texts)} in the address; only an "
            "npy body has them there",
        )
    said: dict[str, Any]
    if kind == NPY:
        said = _from_texts(texts) | {"fields": read_npy(body)}
    elif kind == SAFETENSORS:
        arrays, metadata = read_safetensors(body)
        if unknown := sorted(set(arrays) - set(_ARRAYS)):
            raise Refusal("invalid", f"expected the tensors fields and mask, found {unknown}")
        said = _from_texts(metadata) | arrays
    else:
        said = read_json(body)
        if not isinstance(said, dict):
            raise Refusal("malformed", f"expected a JSON object, found {type(said).__name__}")
        for name in _ARRAYS:
            if said.get(name) is not None:
                said[name] = _numbers(said[name], name)
    return _checked(route, said, limits)


def _once(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in pairs:
        if name in found:
            raise Refusal("invalid", f"expected {name!r} once, found it twice")
        found[name] = text
    return found


def _from_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Arguments that came as texts: all are JSON but the name of the model."""
    if stray := sorted(set(texts) & set(_ARRAYS)):
        raise Refusal("invalid", f"expected arrays as such, found {stray} as texts")
    return {
        name: text if name == "model" else read_json(text, repr(name))
        for name, text in texts.items()
    }


def _checked(route: str, said: Mapping[str, Any], limits: Limits) -> Asked:
    known = ARGUMENTS[route]
    if unknown := sorted(set(said) - set(known) - set(_ARRAYS)):
        raise Refusal(
            "invalid", f"/v1/{route} takes fields, mask, {', '.join(known)}; found {unknown}"
        )
    fields, mask, model = said.get("fields"), said.get("mask"), said.get("model")
    if fields is None:
        raise Refusal("invalid", "expected fields, found none")
    if model is not None and not isinstance(model, str):
        raise Refusal("invalid", f"expected the name of a model, found {_short(model)}")
    if max(fields.shape[-2:], default=0) > SIDE:
        raise Refusal(
            "invalid", f"expected at most {SIDE} rows and columns, found {fields.shape[-2:]}"
        )
    level = said.get("level")
    if level is not None:
        level = _number(level, "level")
        if not 0 < level < 1:
            raise Refusal("invalid", f"expected a level between 0 and 1, found {level:g}")
    consistency = said.get("consistency")
    if consistency is not None and not isinstance(consistency, bool):
        raise Refusal("invalid", f"expected consistency true or false, found {_short(consistency)}")
    asked = Asked(
        route=route,
        fields=fields,
        mask=None if mask is None else _as_mask(mask),
        model=model,
        parameters=_parameters(said.get("parameters")),
        grid=_grid(said.get("dx"), said.get("dy"), fields.shape),
        steps=_steps(said.get("steps"), limits.steps) if route == "rollout" else None,
        level=level,
        consistency=bool(consistency),
    )
    if asked.samples > limits.samples:
        raise Refusal(
            "invalid",
            f"expected at most {limits.samples} samples, found {asked.samples}; send fewer at once",
        )
    return asked


def _numbers(value: Any, what: str) -> np.ndarray:
    """Nested lists as an array: float64, or bool where all are true or false; null is NaN."""
    expected = f"expected {what} as nested lists of numbers, all of one length on each level"
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Refusal("invalid", f"{expected}, found others") from None
    if array.dtype.kind not in "iufb" or (array.dtype.kind == "b" and what == "fields"):
        raise Refusal("invalid", f"{expected}, found others")
    return array if array.dtype.kind == "b" else array.astype(np.float64)


def _as_mask(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "biuf" or not bool(np.isin(values, (0, 1)).all()):
        raise Refusal("invalid", "expected a mask of true and false, or 1 and 0, found others")
    return values.astype(bool)


def _number(value: Any, what: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        number = float(value)
    except (TypeError, OverflowError):
        raise Refusal("invalid", f"expected a number for {what}, found {_short(value)}") from None
    if not math.isfinite(number):
        raise Refusal("invalid", f"expected a finite number for {what}, found {number}")
    return number


def _parameters(value: Any) -> dict[str, float | list[float]]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal("invalid", f"expected parameters as an object, found {_short(value)}")

    def one(number: Any, name: str) -> float:
        return math.nan if number is None else _number(number, f"parameter {_short(name)}")

    return {
        name: [one(number, name) for number in given]
        if isinstance(given, list)
        else one(given, name)
        for name, given in value.items()
    }


def _grid(dx: Any, dy: Any, shape: tuple[int, ...]) -> Grid | None:
    if dx is None and dy is None:
        return None
    if dx is None or dy is None:
        raise Refusal("invalid", "expected both dx and dy or neither, found one")
    if len(shape) < 2 or min(shape[-2:]) < 1:
        raise Refusal("invalid", f"expected fields with rows and columns, found shape {shape}")
    try:
        return Grid((shape[-2], shape[-1]), _number(dx, "dx"), _number(dy, "dy"))
    except ValueError as error:
        raise Refusal("invalid", str(error)) from None


def _steps(value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise Refusal(
            "invalid", f"expected steps as a whole number from 1 to {most}, found {_short(value)}"
        )
    return value


def _short(value: Any) -> str:
    # Of a huge whole number even the text is refused.
    if isinstance(value, int) and abs(value) > 10**20:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]} ..."
