"""What every request passes: who may call, how long it may take, how much is read, what is counted.

The gate stands outside the web framework, so that a request is refused before its body is read, and
ended when its client has gone or does not take the answer.
"""

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
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
"""Seconds that a body may lag behind a client that sends so many bytes a second."""
LINGER, MOST_DRAINED = 1.0, 64 * MB
"""Seconds and bytes that a refused client may go on sending."""
PIECE, PAUSE = 262_144, 30.0
"""Bytes of an answer that are sent at once, and seconds in which a client must take as many."""
DEPARTED = 499
"""Status in the metrics of a request whose client went away; there is no answer."""
REFUSED = "pibert.refused"
"""Where the inner application notes in the scope with which code it refused a request."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
_GUARDED = ("/metrics", "/models", "/openapi.json", "/v1/")
"""What needs the token: everything but the page, /health and /ready."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SAMPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

disable_created_metrics()  # one more series for each counter, of no use here


class Metrics:
    """Counters of the server for Prometheus; every thread may add to them."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._requests = Counter(
            "pibert_requests", "Requests.", ("route", "method", "status"), registry=own
        )
        self._seconds = Histogram(
            "pibert_request_seconds",
            "Time per request.",
            ("route",),
            registry=own,
            buckets=_SECONDS,
        )
        self._batches = Histogram(
            "pibert_batch_samples", "Samples per step.", ("model",), registry=own, buckets=_SAMPLES
        )
        self._queues = Gauge(
            "pibert_queue_requests", "Requests that wait or run.", ("model",), registry=own
        )
        self._memory = Gauge("pibert_memory_bytes", "Memory of all requests.", registry=own)
        self._rejected = Counter("pibert_rejected", "Refused requests.", ("code",), registry=own)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def observe_batch(self, model: str, samples: int) -> None:
        self._batches.labels(model).observe(samples)

    def count_rejected(self, code: str) -> None:
        self._rejected.labels(code).inc()

    def text(self, queues: Mapping[str, int], memory: int) -> str:
        """All metrics in Prometheus' text format.

        Args:
            queues: Requests of each model that wait or run.
            memory: Bytes of the memory budget in use.
        """
        for model, length in queues.items():
            self._queues.labels(model).set(length)
        self._memory.set(memory)
        return generate_latest(self._registry).decode()


class Gate:
    """An ASGI application around another one.

    Args:
        app: The inner one.
        metrics: Counts every request.
        seconds: A request may take.
        token: Callers must have it, if there is one.
        hosts: Names that the server may be called by; None: any. A page of another site can have
            its own name lead to a loopback address, and would read what is served there.
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
            if not status:  # else it is too late to say it: the connection is cut
                await refuse(Refusal(code, f"expected to be done in {self._seconds:g} s, was not"))
        finally:
            self.num_requests -= 1
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - started
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.observe_request(route, method, status, seconds)
            if code := code or scope.get(REFUSED):
                self._metrics.count_rejected(code)

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
    """The body of a request; its bytes count until the block is left.

    Args:
        request: Of which nothing was read yet.
        most: Bytes that it may have.
        bodies: The memory of all bodies together.
    """
    hold, parts = Hold(bodies, 0), list[bytes]()

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
                async for part in request.stream():
                    hold.resize(hold.size + len(part))
                    check(hold.size)
                    parts.append(part)
                    deadline = min(deadline + len(part) / BODY_RATE, now() + BODY_PAUSE)
                    limit.reschedule(deadline)
        except TimeoutError:
            raise Refusal(
                "slow",
                f"expected a body at {BODY_RATE // 1000} kB/s or more with pauses of at most "
                f"{BODY_PAUSE:g} s, found {hold.size} bytes before it fell behind; send it at once",
            ) from None
        except ClientDisconnect:
            raise Refusal("malformed", f"the body was cut after {hold.size} bytes") from None
        parts = [b"".join(parts)]
        yield parts.pop()  # held by the caller alone, who may free it early
    finally:
        hold.release()


class _Body:
    """The body of a request on its way, to know whether all of it was read."""

    def __init__(self, receive: Any) -> None:
        self._receive, self._whole = receive, asyncio.Event()

    async def receive(self) -> Any:
        message = await self._receive()
        if not message.get("more_body", False):
            self._whole.set()
        return message

    async def departed(self) -> None:
        """Wait until the client goes, after all of the body was read."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def drained(self, scope: Any) -> bool:
        """Whether the body has been read, after a last try.

        A connection that is closed while the client sends is reset, and the client may not get to
        see the answer.
        """
        if not self._whole.is_set() and "expect" not in Headers(scope=scope):
            size = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    while not self._whole.is_set() and size < MOST_DRAINED:
                        size += len((await self.receive()).get("body", b""))
        return self._whole.is_set()


async def _until(work: Coroutine[Any, Any, None], *ends: Coroutine[Any, Any, Any]) -> bool:
    """Carry out some work, unless something else ends first; returns whether it was done."""
    task, *others = (asyncio.ensure_future(coroutine) for coroutine in (work, *ends))
    try:
        await asyncio.wait((task, *others), return_when=asyncio.FIRST_COMPLETED)
        return task.done() and await task is None
    finally:
        for other in (task, *others):
            other.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


def _pieces(message: Any) -> Iterator[Any]:
    """A message as several, so that what waits in the server for a slow client stays small."""
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
