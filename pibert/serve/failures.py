"""Errors in a route as answers."""

from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from pibert.serve.answers import as_json
from pibert.serve.asked import JSON
from pibert.serve.gate import REFUSED
from pibert.serve.refusal import FAULT, Refusal


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    request.scope[REFUSED] = error.code
    return Response(as_json(error.plain()), error.status, error.headers, JSON)


async def _faulty(request: Request, error: Exception) -> Response:
    return await _refused(request, Refusal("internal", FAULT))


async def _not_valid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return await _refused(request, Refusal("invalid", f"{where}: {first['msg']}"))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {404: "not_found", 405: "not_allowed"}
    code = known.get(error.status_code, "malformed")
    response = await _refused(request, Refusal(code, f"{request.url.path:.200}: {error.detail}"))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


HANDLERS: dict[Any, Any] = {
    Refusal: _refused,
    RequestValidationError: _not_valid,
    HTTPException: _http_error,
    Exception: _faulty,
}
"""Of a FastAPI application."""
