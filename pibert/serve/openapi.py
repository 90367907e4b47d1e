"""The OpenAPI description of the routes, with examples."""

from typing import Any

from pibert.serve.answers import STREAMS
from pibert.serve.asked import ARGUMENTS, JSON, NPY, SAFETENSORS
from pibert.serve.refusal import STATUS

Description = dict[str, Any]
_FIELDS = [[[[[1.0, 1.1], [0.9, 1.0]], [[0.0, 0.1], [0.0, -0.1]]]]]
_PREDICTION = [[[[[1.0, 1.2], [0.8, 1.0]], [[0.0, 0.2], [0.0, -0.2]]]]]
_TEXTS = {"type": "array", "items": {"type": "string"}}
_NUMBER = {"type": "number"}
_FLAG = {"type": "boolean"}
_PER_SAMPLE = {"anyOf": [_NUMBER, {"type": "array", "items": _NUMBER}]}
_BINARY: Description = {"schema": {"type": "string", "format": "binary"}}
_SCHEMAS: dict[str, Description] = {
    "model": {"type": "string", "description": "May be left out if there is one."},
    "parameters": {
        "type": "object",
        "additionalProperties": {
            "anyOf": [
                {"type": ["number", "null"]},
                {"type": "array", "items": {"type": ["number", "null"]}},
            ]
        },
    },
    "dx": {"type": "number", "exclusiveMinimum": 0},
    "dy": {"type": "number", "exclusiveMinimum": 0},
    "level": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "consistency": {"type": "boolean"},
    "steps": {"type": "integer", "minimum": 1},
}
_NESTED = {"type": "array", "items": {}}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string", "enum": list(STATUS)},
                "message": {"type": "string"},
            },
        }
    },
}


def _errors(*codes: str) -> dict[int | str, Description]:
    """The answers to requests that are refused, by status."""
    found: dict[int | str, Description] = {}
    for code in ("unauthorized", "not_found", "not_allowed", "wrong_host", *codes, "internal"):
        example = {"error": {"code": code, "message": "expected ..., found ..."}}
        found[STATUS[code]] = {
            "description": code.replace("_", " "),
            "content": {JSON: {"schema": _ERROR, "example": example}},
        }
    return found


_BODY_ERRORS = (
    "malformed",
    "not_acceptable",
    "slow",
    "too_large",
    "unsupported",
    "invalid",
    "busy",
    "timeout",
)


def _plain(summary: str, schema: Description, example: Any, *codes: str) -> Description:
    content = {JSON: {"schema": schema, "example": example}}
    return {
        "summary": summary,
        "responses": {200: {"description": summary, "content": content}, **_errors(*codes)},
    }


def _object(**properties: Any) -> Description:
    return {"type": "object", "required": list(properties), "properties": properties}


def _prediction(route: str, summary: str, answer: Description) -> Description:
    arguments = {name: _SCHEMAS[name] for name in ARGUMENTS[route]}
    example: dict[str, Any] = {"fields": _FIELDS, "parameters": {"Re": 3900}}
    required = ["fields"]
    if route == "rollout":
        example["steps"] = 10
        required.append("steps")
    whole = {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": {
            "fields": _NESTED | {"description": "(batch, history, channel, y, x)"},
            "mask": _NESTED | {"description": "True where known."},
            **arguments,
        },
    }
    query = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": "With an npy body alone.",
            "schema": {"type": "string"} if name == "parameters" else schema,
        }
        for name, schema in arguments.items()
    ]
    body = {
        "required": True,
        "content": {
            JSON: {"schema": whole, "example": example},
            NPY: _BINARY,
            SAFETENSORS: _BINARY,
        },
    }
    return {
        "summary": summary,
        "responses": {
            200: {"description": summary, "content": answer},
            **_errors(*_BODY_ERRORS),
        },
        "openapi_extra": {"requestBody": body, "parameters": query},
    }


_STEP = {
    "model": "wake",
    "prediction": _PREDICTION,
    "channels": ["u", "v"],
    "units": ["m/s", "m/s"],
    "dt": 0.01,
    "remarks": [],
}
_ANSWER = _object(
    model={"type": "string"},
    prediction=_NESTED,
    channels=_TEXTS,
    units=_TEXTS,
    dt={"type": ["number", "null"]},
    remarks=_TEXTS,
)
_ANSWER["properties"] |= {
    "low": _NESTED,
    "high": _NESTED,
    "level": _NUMBER,
    "consistency": _PER_SAMPLE | {"description": "(batch,), or one without a batch."},
    "alarm": _object(
        p=_PER_SAMPLE,
        raised={"anyOf": [_FLAG, {"type": "array", "items": _FLAG}]},
        limited={"anyOf": [_FLAG, {"type": "array", "items": _FLAG}]},
        parts=_TEXTS,
        lowest=_NUMBER,
    ),
}
_LINES = '{"start": 0, "prediction": [...]}\n{"end": true, "frames": 1}\n'
_GRID = _object(
    shape={"type": "array", "items": {"type": "integer"}},
    dx=_NUMBER,
    dy=_NUMBER,
    x0=_NUMBER,
    y0=_NUMBER,
)
_PERHAPS = {"type": ["number", "null"]}
_WORDS = {"type": ["string", "null"]}
_RECORDING = _object(
    name={"type": "string"},
    frames={"type": "integer"},
    channels=_TEXTS,
    units=_TEXTS | {"type": ["array", "null"]},
    dt=_PERHAPS,
    uneven=_FLAG,
    t0=_PERHAPS,
    length_unit=_WORDS,
    time_unit=_WORDS,
    grid=_object(**_GRID["properties"] | dict.fromkeys(("dx", "dy", "x0", "y0"), _PERHAPS)),
    parameters={"type": "object"},
    predicted=_WORDS,
)
_RECORDED = {
    "name": "wake-0",
    "frames": 40,
    "channels": ["u", "v"],
    "units": ["m/s", "m/s"],
    "dt": 0.01,
    "uneven": False,
    "t0": 0.0,
    "length_unit": "m",
    "time_unit": "s",
    "grid": {"shape": [2, 2], "dx": 0.1, "dy": 0.1, "x0": -0.5, "y0": 0.0},
    "parameters": {"Re": 3900.0},
    "predicted": None,
}
_FRAMES: Description = {
    JSON: {
        "schema": _RECORDING,
        "example": _RECORDED
        | {"fields": _FIELDS[0], "known": [[[1, 1], [1, 1]]], "start": 0, "stop": 1},
    },
    NPY: _BINARY,
    SAFETENSORS: _BINARY,
}
_STATUS = _object(status={"type": "string"})

ALIVE = _plain("Whether the server lives.", _STATUS, {"status": "alive"})
READY = _plain("Whether it can predict.", _STATUS, {"status": "ready"}, "busy")
METRICS: Description = {
    "summary": "Counters for Prometheus.",
    "responses": {
        200: {
            "description": "Counters.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **_errors(),
    },
}
MODELS = _plain(
    "What each model is.",
    {
        "type": "array",
        "items": _object(
            name={"type": "string"},
            kind={"type": "string"},
            channels=_TEXTS,
            units=_TEXTS,
            history={"type": "integer"},
            horizon={"type": "integer"},
            grid=_GRID,
            parameters={"type": "array", "items": {"type": "object"}},
            trained={"type": "object"},
            weights={"type": "object"},
            metrics={"type": "object"},
            calibration={"type": ["object", "null"]},
        ),
    },
    [{"name": "wake", "kind": "pibert", "channels": ["u", "v"], "history": 1, "horizon": 1}],
)
STEP = _prediction(
    "step",
    "The next frames.",
    {JSON: {"schema": _ANSWER, "example": _STEP}, NPY: _BINARY, SAFETENSORS: _BINARY},
)
ROLLOUT = _prediction(
    "rollout",
    "The next steps, as a stream of blocks.",
    {
        STREAMS[JSON]: {"schema": {"type": "string"}, "example": _LINES},
        STREAMS[NPY]: _BINARY,
        STREAMS[SAFETENSORS]: _BINARY,
    },
)
EXPLAIN = _prediction(
    "explain",
    "What the model looked at.",
    {
        JSON: {"schema": _ANSWER, "example": _STEP | {"gate": 0.5, "bias": [[[0.1]]]}},
        SAFETENSORS: _BINARY,
    },
)
SAMPLES = _plain(
    "Recordings.", {"type": "array", "items": _RECORDING}, [{"id": "wake-0", **_RECORDED}]
)
SAMPLE: Description = {
    "summary": "Frames of a recording.",
    "responses": {
        200: {"description": "Frames.", "content": _FRAMES},
        **_errors("not_acceptable", "too_large", "invalid", "timeout"),
    },
}
OPEN: Description = {
    "summary": "Frames of a file of any kind that pibert convert reads.",
    "responses": {
        200: {"description": "Frames.", "content": _FRAMES},
        **_errors(*_BODY_ERRORS),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": _BINARY, NPY: _BINARY, SAFETENSORS: _BINARY},
        }
    },
}
