"""What every request passes: who may call, how long it may take, what is counted and told.

The gate stands outside the web framework, so that a request is refused before its body is read, and
ended when its client has gone or does not take the answer.
"""

import asyncio
import contextlib
import hmac
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Any

from pibert.serve.answers import as_json
from pibert.serve.limits import MB
from pibert.serve.metrics import Metrics
from pibert.serve.refusal import Refusal

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
LINGER, MOST_DRAINED = 1.0, 64 * MB
"""Seconds and bytes that a refused client may go on sending."""
PIECE, PAUSE = 262_144, 30.0
"""Bytes of an answer that are sent at once, and seconds in which a client must take as many."""
DEPARTED = 499
"""Status in the metrics of a request whose client went away; there is no answer."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
REFUSED = "pibert.refused"
"""Where the inner application notes in the scope with which code it refused a request."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
_GUARDED = ("/metrics", "/models", "/openapi.json", "/v1/")
"""What needs the token: all that is not the page or a sign of life."""


class Gate:
    """An ASGI application around another one.

    Args:
        app: The inner one.
        metrics: Gets every request.
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
                status, headers = message["status"], dict(HEADERS)
                if status >= 400 and not await body.drained(scope):
                    headers["Connection"] = "close"
                message = message | {"headers": [*message["headers"], *_lines(headers)]}
            for piece in _pieces(message):
                try:
                    async with asyncio.timeout(PAUSE):
                        await send(piece)
                except TimeoutError:
                    cut.set()
                    await asyncio.Event().wait()  # until it is cancelled

        self.num_requests += 1
        try:
            self._check(scope)
            ends = (body.departed(), cut.wait())
            async with asyncio.timeout(self._seconds):
                if not await _until(self._app(scope, body.receive, send_with_headers), *ends):
                    status = status or DEPARTED
        except Refusal as refusal:
            code = refusal.code
            await _tell(refusal, send_with_headers)
        except TimeoutError:
            code = "timeout"
            if not status:  # else it is too late to say it: the connection is cut
                words = f"expected to be done in {self._seconds:g} s, was not"
                await _tell(Refusal(code, words), send_with_headers)
        finally:
            self.num_requests -= 1
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - started
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.observe_request(route, method, status, seconds)
            if code := code or scope.get(REFUSED):
                self._metrics.count_rejected(code)

    def _check(self, scope: Any) -> None:
        headers = dict(scope["headers"])
        if self._hosts is not None:
            host = _host(headers.get(b"host", b"").decode("latin-1"))
            if host not in self._hosts:
                raise Refusal(
                    "wrong_host",
                    f"expected to be called as {' or '.join(sorted(self._hosts))}, found "
                    f"{host[:80]!r}; start the server with --host to serve other names",
                )
        if self._token is not None and scope["path"].startswith(_GUARDED):
            kind, _, token = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
                raise Refusal("unauthorized", "expected the header Authorization: Bearer TOKEN")
        if self.is_stopping and scope["path"] not in ("/health", "/ready"):
            raise Refusal("stopping", "the server is stopping; try another one")


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
        if not self._whole.is_set() and not any(name == b"expect" for name, _ in scope["headers"]):
            size = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    while not self._whole.is_set() and size < MOST_DRAINED:
                        size += len((await self.receive()).get("body", b""))
        return self._whole.is_set()


async def _until(work: Coroutine[Any, Any, None], *ends: Coroutine[Any, Any, Any]) -> bool:
    """Carry out some work, unless something else ends first; tells whether it was done."""
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


async def _tell(refusal: Refusal, send: Any) -> None:
    body = as_json(refusal.plain())
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = _lines(refusal.headers | headers)
    await send({"type": "http.response.start", "status": refusal.status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def _lines(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
