"""ASGI middleware around the routes: access, time limits, slow and departed clients, metrics.

It refuses a request before its body is read, and ends one whose client has gone or does not read
the answer.
"""

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from typing import Any

from fastapi import Request, Response
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect

from pibert.serve.answers import JSON, as_json
from pibert.serve.limits import MB, Budget, Hold, Refusal

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
BODY_PAUSE, BODY_RATE = 20.0, 50_000
"""Seconds that a body may lag behind this number of bytes per second."""
LINGER, MOST_DRAINED = 1.0, 64 * MB
"""Seconds and bytes that a refused client may continue to send."""
PIECE, PAUSE = 262_144, 30.0
"""Bytes of an answer that are sent at once, and seconds in which a client must read as many."""
DEPARTED = 499
"""Status in the metrics of a request whose client went away."""
REFUSED = "pibert.refused"
"""Key in the scope for the code with which the routes refused a request."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
_GUARDED = ("/metrics", "/models", "/openapi.json", "/v1/")
"""Paths that need the token: everything but the page, /health and /ready."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SAMPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

disable_created_metrics()  # one more series for each counter, of no use here


class Metrics:
    """Metrics of the server for Prometheus; every thread may add to them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def add(kind: Any, name: str, text: str, *labels: str, **options: Any) -> Any:
            return kind(f"pibert_{name}", text, labels, registry=self._registry, **options)

        self.requests = add(Counter, "requests", "Requests.", "route", "method", "status")
        self.rejected = add(Counter, "rejected", "Refused requests.", "code")
        self.diverged = add(Counter, "diverged", "Predictions that diverged.", "model")
        self.seconds = add(
            Histogram, "request_seconds", "Time per request.", "route", buckets=_SECONDS
        )
        self.batches = add(
            Histogram, "batch_samples", "Samples per step.", "model", buckets=_SAMPLES
        )
        self.queues = add(Gauge, "queue_requests", "Requests that wait or run.", "model")
        self.memory = add(Gauge, "memory_bytes", "Memory of all requests.")

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Gate:
    """Middleware around the routes.

    Args:
        app: The routes.
        metrics: Counts every request.
        seconds: A request may take.
        token: Callers must have it, if there is one.
        hosts: Names that the server may be called by; None: any. A page of another site can point
            its own name to a loopback address to read what is served there.
    """

    def __init__(
        self,
        app: Any,
        metrics: Metrics,
        *,
        seconds: float,
        token: str | None = None,
        hosts: Iterable[str] | None = None,
    ) -> None:
        self._app, self._metrics, self._seconds = app, metrics, seconds
        self._token = None if token is None else token.encode()
        self._hosts = None if hosts is None else frozenset(hosts)
        self.is_stopping = False
        self.num_requests = 0
        """Requests under way."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, code = time.monotonic(), 0, None
        body = _Body(receive)
        cut = asyncio.Event()

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = message | {"headers": list(message["headers"])}
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if status >= 400 and not await body.drained(scope):
                    headers["Connection"] = "close"
            for piece in _pieces(message):
                try:
                    async with asyncio.timeout(PAUSE):
                        await send(piece)
                except TimeoutError:
                    cut.set()
                    await asyncio.Event().wait()  # until it is cancelled

        async def refuse(refusal: Refusal) -> None:
            await response_of(refusal)(scope, receive, send_with_headers)

        self.num_requests += 1
        try:
            self._check(scope)
            ends = (body.departed(), cut.wait())
            async with asyncio.timeout(self._seconds):
                if not await _until(self._app(scope, body.receive, send_with_headers), *ends):
                    status = status or DEPARTED
        except Refusal as refusal:
            code = refusal.code
            await refuse(refusal)
        except TimeoutError:
            code = "timeout"
            if not status:  # else the answer has begun: the connection is cut
                await refuse(Refusal(code, f"expected to be done in {self._seconds:g} s, was not"))
        finally:
            self.num_requests -= 1
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - started
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.requests.labels(route, method, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            if code := code or scope.get(REFUSED):
                self._metrics.rejected.labels(code).inc()

    def _check(self, scope: Any) -> None:
        headers = Headers(scope=scope)
        if self._hosts is not None:
            host = _host(headers.get("host", ""))
            if host not in self._hosts:
                raise Refusal(
                    "wrong_host",
                    f"expected to be called as {' or '.join(sorted(self._hosts))}, found "
                    f"{host[:80]!r}; start the server with --host to serve other names",
                )
        if self._token is not None and scope["path"].startswith(_GUARDED):
            kind, _, token = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(
                token.strip().encode("latin-1"), self._token
            ):
                raise Refusal("unauthorized", "expected the header Authorization: Bearer TOKEN")
        if self.is_stopping and scope["path"] not in ("/health", "/ready"):
            raise Refusal("stopping", "the server is stopping; try another one")


@contextlib.asynccontextmanager
async def read_body(request: Request, most: int, bodies: Budget) -> AsyncIterator[bytes]:
    """The body of a request of at most ``most`` bytes, which count until the block is left."""
    hold, pieces = Hold(bodies, 0), list[bytes]()

    def check(size: int) -> None:
        if size > most:
            raise Refusal(
                "too_large", f"expected a body of at most {most / MB:g} MB, found more; send less"
            )
        if bodies.used > bodies.total:
            raise Refusal("busy", "too many requests are being read; try again later")

    stated = request.headers.get("content-length", "")
    if stated.isdecimal():
        check(int(stated))
    try:
        try:
            now = asyncio.get_running_loop().time
            deadline = now() + BODY_PAUSE
            async with asyncio.timeout_at(deadline) as limit:
                async for piece in request.stream():
                    hold.resize(hold.size + len(piece))
                    check(hold.size)
                    pieces.append(piece)
                    deadline = min(deadline + len(piece) / BODY_RATE, now() + BODY_PAUSE)
                    limit.reschedule(deadline)
        except TimeoutError:
            raise Refusal(
                "slow",
                f"expected a body at {BODY_RATE // 1000} kB/s or more with pauses of at most "
                f"{BODY_PAUSE:g} s, found {hold.size} bytes before it fell behind; send it at once",
            ) from None
        except ClientDisconnect:
            raise Refusal("malformed", f"the body was cut after {hold.size} bytes") from None
        pieces = [b"".join(pieces)]
        yield pieces.pop()  # held by the caller alone, who may free it early
    finally:
        hold.release()


class _Body:
    """Knows whether all of the body of a request was read."""

    def __init__(self, receive: Any) -> None:
        self._receive, self._whole = receive, asyncio.Event()

    async def receive(self) -> Any:
        message = await self._receive()
        if not message.get("more_body", False):
            self._whole.set()
        return message

    async def departed(self) -> None:
        """Wait until the client goes, once the body was read."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def drained(self, scope: Any) -> bool:
        """Whether the body has been read, after a last try.

        If a connection is closed while the client sends, the client may never see the answer.
        """
        if not self._whole.is_set() and "expect" not in Headers(scope=scope):
            size = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    while not self._whole.is_set() and size < MOST_DRAINED:
                        size += len((await self.receive()).get("body", b""))
        return self._whole.is_set()


async def _until(work: Coroutine[Any, Any, None], *ends: Coroutine[Any, Any, Any]) -> bool:
    """Run ``work`` unless one of ``ends`` finishes first; returns whether it was done."""
    task, *others = (asyncio.ensure_future(coroutine) for coroutine in (work, *ends))
    try:
        await asyncio.wait((task, *others), return_when=asyncio.FIRST_COMPLETED)
        return task.done() and await task is None
    finally:
        for other in (task, *others):
            other.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


def _pieces(message: Any) -> Iterator[Any]:
    """Split a message, so that little data waits in the server for a slow client."""
    body = message.get("body", b"")
    if len(body) <= PIECE:
        yield message
        return
    view, last = memoryview(body), len(body) - PIECE
    for start in range(0, len(body), PIECE):
        more = start < last or message.get("more_body", False)
        yield message | {"body": view[start : start + PIECE], "more_body": more}


def _host(header: str) -> str:
    """Without the port, and without the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def response_of(refusal: Refusal) -> Response:
    return Response(as_json(refusal.plain()), refusal.status, refusal.headers, JSON)
