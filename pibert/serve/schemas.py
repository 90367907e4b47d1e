"""The HTTP interface as pydantic models: requests, answers and their OpenAPI description.

Requests as JSON, npy or safetensors have the same arguments, which are checked in one place. The
predictor checks the fields. The models of answers serve the description alone.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from typing_extensions import TypedDict

from pibert.fields import Grid
from pibert.serve.answers import (
    JSON,
    NPY,
    SAFETENSORS,
    STREAMS,
    read_json,
    read_npy,
    read_safetensors,
)
from pibert.serve.limits import SIDE, STATUS, Limits, Refusal

ARRAYS = ("fields", "mask")
ARGUMENTS = {
    "step": ("model", "parameters", "dx", "dy", "level", "consistency"),
    "rollout": ("model", "parameters", "dx", "dy", "level", "consistency", "steps"),
    "explain": ("model", "parameters", "dx", "dy"),
}
"""The arguments of each route beside the arrays."""


def _known_or_nan(given: float | list[float | None] | None) -> float | list[float]:
    if isinstance(given, list):
        return [math.nan if number is None else number for number in given]
    return math.nan if given is None else given


def _as_mask(values: np.ndarray) -> np.ndarray:
    if values.dtype == bool:
        return values
    if values.dtype.kind not in "iuf" or not bool(np.isin(values, (0, 1)).all()):
        raise ValueError("expected true and false, or 1 and 0")
    return values.astype(bool)


def _nested(description: str) -> WithJsonSchema:
    """The schema of an array as nested lists."""
    return WithJsonSchema({"type": "array", "items": {}, "description": description})


Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Parameter = Annotated[Number | list[Number | None] | None, AfterValidator(_known_or_nan)]
Spacing = Annotated[Number, Field(gt=0)]


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictRequest:
    """A request for a prediction, from ``read_request``."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    route: str
    """A key of ``ARGUMENTS``."""
    fields: Annotated[np.ndarray, _nested("(batch, history, channel, y, x)")]
    mask: Annotated[
        Annotated[np.ndarray, AfterValidator(_as_mask)] | None, _nested("True where known")
    ] = None
    model: Annotated[str | None, Field(description="Optional if one model is served")] = None
    parameters: Annotated[dict[str, Parameter], Field(description="null: unknown")]
    dx: Spacing | None = None
    dy: Spacing | None = None
    steps: Annotated[int, Strict(), Field(ge=1)] | None = None
    level: Annotated[Number, Field(gt=0, lt=1)] | None = None
    consistency: Annotated[bool, Strict()] = False

    @property
    def samples(self) -> int:
        return len(self.fields) if self.fields.ndim == 5 else 1

    @property
    def grid(self) -> Grid | None:
        """The grid of the fields, if its spacing is given."""
        if self.dx is None or self.dy is None:
            if self.dx is not self.dy:
                raise ValueError("expected both dx and dy or neither, found one")
            return None
        shape = self.fields.shape
        if len(shape) < 2 or min(shape[-2:]) < 1:
            raise ValueError(f"expected fields with rows and columns, found shape {shape}")
        return Grid((shape[-2], shape[-1]), self.dx, self.dy)


_ADAPTER = TypeAdapter(PredictRequest)
Short = Annotated[str | None, Field(max_length=40)]


class OpenQuery(BaseModel):
    """The query of ``/v1/open``; all but the first two are hints on what the file lacks."""

    name: str = ""
    trajectory: str | None = None
    dt: float | None = None
    dx: float | None = None
    dy: float | None = None
    unit: Short = None
    length_unit: Short = None
    time_unit: Short = None
    scale: Short = None
    pulse_delay: Short = None
    channels: str | None = Field(default=None, max_length=400)
    axes: str | None = Field(default=None, max_length=5)


def read_request(
    route: str, kind: str, body: bytes, query: Iterable[tuple[str, str]], limits: Limits
) -> PredictRequest:
    """Read a body of one of ``KINDS``; ``query`` holds the arguments of an npy body."""
    pairs = list(query)
    texts = dict(pairs)
    if len(texts) < len(pairs):
        raise Refusal("invalid", "expected each argument once, found one twice")
    if kind != NPY and texts:
        raise Refusal(
            "invalid",
            f"expected the arguments in the body, found {sorted(texts)} in the query; only an npy "
            "body has them there",
        )
    found: dict[str, Any]
    if kind == NPY:
        found = _from_texts(texts) | {"fields": read_npy(body)}
    elif kind == SAFETENSORS:
        arrays, metadata = read_safetensors(body)
        if unknown := sorted(set(arrays) - set(ARRAYS)):
            raise Refusal("invalid", f"expected the tensors fields and mask, found {unknown}")
        found = _from_texts(metadata) | arrays
    else:
        found = read_json(body)
        if not isinstance(found, dict):
            raise Refusal("malformed", f"expected a JSON object, found {type(found).__name__}")
        for name in ARRAYS:
            if found.get(name) is not None:
                found[name] = _numbers(found[name], name)
    return _check(route, found, limits)


def _from_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Arguments as texts: all are JSON except the name of the model."""
    if wrong := sorted(set(texts) & set(ARRAYS)):
        raise Refusal("invalid", f"expected arrays in the body, found {wrong} as text")
    return {
        name: text if name == "model" else read_json(text, repr(name))
        for name, text in texts.items()
    }


def _numbers(value: Any, what: str) -> np.ndarray:
    """Nested lists as an array: float64, or bool where all are true or false; null is NaN."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        array = np.asarray("not numbers")
    if array.dtype.kind not in "iufb" or (array.dtype.kind == "b" and what == "fields"):
        raise Refusal(
            "invalid",
            f"expected {what} as nested lists of numbers, all of one length on each level",
        )
    return array if array.dtype.kind == "b" else array.astype(np.float64)


def _check(route: str, found: Mapping[str, Any], limits: Limits) -> PredictRequest:
    known = (*ARRAYS, *ARGUMENTS[route])
    if unknown := sorted(set(found) - set(known)):
        raise Refusal("invalid", f"/v1/{route} takes {', '.join(known)}; found {_short(unknown)}")
    given = {name: value for name, value in found.items() if value is not None}
    if "fields" not in given:
        raise Refusal("invalid", "expected fields, found none")
    try:
        request = _ADAPTER.validate_python({"route": route, "parameters": {}} | given)
        _ = request.grid
    except ValidationError as error:
        raise Refusal("invalid", problem_of(error.errors(include_url=False)[0])) from None
    except ValueError as error:
        raise Refusal("invalid", str(error)) from None
    if max(request.fields.shape[-2:], default=0) > SIDE:
        shape = request.fields.shape[-2:]
        raise Refusal("invalid", f"expected at most {SIDE} rows and columns, found {shape}")
    if route == "rollout" and not 1 <= (request.steps or 0) <= limits.steps:
        raise Refusal(
            "invalid", f"steps: expected 1 to {limits.steps}, found {_short(request.steps)}"
        )
    if request.samples > limits.samples:
        raise Refusal(
            "invalid",
            f"expected at most {limits.samples} samples, found {request.samples}; send fewer at "
            "once",
        )
    return request


def problem_of(error: Mapping[str, Any], first: int = 0) -> str:
    """An error of pydantic in one line: where it is, what was expected and what was found.

    ``first`` is the part of its location that names the argument.
    """
    argument, *inner = error["loc"][first:]
    where = f"{argument}[{inner[0]!r:.80}]" if inner else str(argument)
    found = error["input"]
    size = f"{len(found)}: " if error["type"] == "string_too_long" else ""
    return f"{where}: {error['msg'].removeprefix('Value error, ')}, found {size}{_short(found)}"


def _short(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # a whole number with thousands of digits
        return "a huge number"
    return text if len(text) <= 80 else f"{text[:80]} ..."


# The OpenAPI description.

Description = dict[str, Any]
Array = list[Any]
PerSample = float | list[float]
Flags = bool | list[bool]

_BINARY: Description = {"schema": {"type": "string", "format": "binary"}}
_FIELDS = [[[[[1.0, 1.1], [0.9, 1.0]], [[0.0, 0.1], [0.0, -0.1]]]]]
_LINES = '{"start": 0, "prediction": [...]}\n{"end": true, "frames": 1}\n'


class Status(TypedDict):
    status: Literal["alive", "ready"]


class Problem(TypedDict):
    code: Annotated[str, Field(json_schema_extra={"enum": list(STATUS)})]
    message: str


class Refused(TypedDict):
    error: Problem


class GridFacts(TypedDict):
    shape: list[int]
    dx: float | None
    dy: float | None
    x0: float | None
    y0: float | None


class ModelFacts(TypedDict):
    name: str
    kind: str
    channels: list[str]
    units: list[str]
    history: int
    horizon: int
    grid: GridFacts
    parameters: list[dict[str, Any]]
    trained: dict[str, Any]
    weights: dict[str, Any]
    metrics: dict[str, Any]
    calibration: dict[str, Any] | None


class OutOfDistribution(TypedDict):
    """The out-of-distribution warning, and the most unusual score of each sample."""

    p: PerSample
    flagged: Flags
    limited: Flags
    reasons: list[str]
    lowest_p: float


class NoteFacts(TypedDict):
    """A note on the input or the answer, as ``pibert.notes.Note``."""

    code: str
    text: str
    remedy: str
    severity: str
    subject: str


class Prediction(TypedDict):
    model: str
    prediction: Array
    channels: list[str]
    units: list[str]
    dt: float | None
    notes: list[NoteFacts]
    known: NotRequired[Array]
    low: NotRequired[Array]
    high: NotRequired[Array]
    level: NotRequired[float]
    ood: NotRequired[OutOfDistribution]
    consistency: NotRequired[PerSample]


class Explanation(Prediction):
    gate: NotRequired[float]
    bias: NotRequired[Array]


class Recording(TypedDict):
    name: str
    frames: int
    channels: list[str]
    units: list[str] | None
    dt: float | None
    uneven: bool
    t0: float | None
    length_unit: str | None
    time_unit: str | None
    grid: GridFacts
    parameters: dict[str, Any]
    predicted: str | None


class Sample(Recording):
    id: str
    models: list[str]


class Frames(Recording):
    fields: Array
    known: Array
    start: int
    stop: int
    notes: list[NoteFacts]


_BODY_ERRORS = tuple(
    "malformed not_acceptable slow too_large unsupported invalid busy timeout".split()
)


def _describe(summary: str, model: Any, *codes: str, **content: Description) -> Description:
    """A route; its answer in JSON is a ``model``, and ``codes`` are those of its errors."""
    found: dict[int | str, Description] = {200: {"description": summary, "model": model}}
    if content:
        found[200]["content"] = content
    for code in ("unauthorized", "not_found", "not_allowed", "wrong_host", *codes, "internal"):
        found[STATUS[code]] = {"description": code.replace("_", " "), "model": Refused}
    return {"summary": summary, "responses": found}


def _prediction(route: str, summary: str, model: Any, **content: Description) -> Description:
    whole = _ADAPTER.json_schema() | {"additionalProperties": False}
    arguments = {name: whole["properties"][name] for name in ARGUMENTS[route]}
    arrays = {name: whole["properties"][name] for name in ARRAYS}
    example: dict[str, Any] = {"fields": _FIELDS, "parameters": {"Re": 3900}}
    if route == "rollout":
        example["steps"] = 10
    required = [name for name in ("fields", "steps") if name in example]
    body = whole | {"properties": arrays | arguments, "required": required}
    texts = arguments | {"parameters": {"type": "string"}}
    query = [
        {"name": name, "in": "query", "description": "Only with an npy body.", "schema": schema}
        for name, schema in texts.items()
    ]
    kinds = {JSON: {"schema": body, "example": example}, NPY: _BINARY, SAFETENSORS: _BINARY}
    extra = {"requestBody": {"required": True, "content": kinds}, "parameters": query}
    return _describe(summary, model, *_BODY_ERRORS, **content) | {"openapi_extra": extra}


_ARRAYS = {NPY: _BINARY, SAFETENSORS: _BINARY}
ALIVE = _describe("Whether the server is alive.", Status)
READY = _describe("Whether the server can predict.", Status, "busy")
METRICS = _describe(
    "Metrics for Prometheus.", None, **{"text/plain": {"schema": {"type": "string"}}}
)
MODELS = _describe("The models that are served.", list[ModelFacts])
STEP = _prediction("step", "Predict the next frames.", Prediction, **_ARRAYS)
ROLLOUT = _prediction(
    "rollout",
    "Roll the model out autoregressively; the answer is a stream of blocks.",
    None,
    **{
        STREAMS[JSON]: {"schema": {"type": "string"}, "example": _LINES},
        STREAMS[NPY]: _BINARY,
        STREAMS[SAFETENSORS]: _BINARY,
    },
)
EXPLAIN = _prediction(
    "explain", "Show what the model attends to.", Explanation, **{SAFETENSORS: _BINARY}
)
SAMPLES = _describe("The recordings that the server offers.", list[Sample])
SAMPLE = _describe(
    "Frames of a recording.",
    Frames,
    *("not_acceptable", "too_large", "invalid", "timeout"),
    **_ARRAYS,
)
OPEN = _describe(
    "Frames of a file of any format that pibert convert reads.", Frames, *_BODY_ERRORS, **_ARRAYS
)
_FILE = {"application/octet-stream": _BINARY, **_ARRAYS}
OPEN["openapi_extra"] = {"requestBody": {"required": True, "content": _FILE}}
