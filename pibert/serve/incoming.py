"""Bodies of requests as they come in: counted, so that none is read further than allowed."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.requests import ClientDisconnect

from pibert.serve.limits import MB, Limits
from pibert.serve.refusal import Refusal


class Intake:
    """Reads bodies; all of them together may take so much memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, 0

    @contextlib.asynccontextmanager
    async def body(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """The body of a request; its bytes count until the block is left.

        Args:
            request: Of which nothing was read yet.
            most: Bytes that it may have.
        """
        stated = request.headers.get("content-length", "")
        if stated.isdecimal():
            self._check(int(stated), most)
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async for part in request.stream():
                    size += len(part)
                    self._held += len(part)
                    self._check(size, most)
                    parts.append(part)
            except ClientDisconnect:
                raise Refusal("malformed", f"the body was cut after {size} bytes") from None
            yield b"".join(parts)
        finally:
            self._held -= size

    def _check(self, size: int, most: int) -> None:
        if size > most:
            raise Refusal(
                "too_large", f"expected a body of at most {most / MB:g} MB, found more; send less"
            )
        if self._held > self._limits.held:
            raise Refusal("busy", "too much is being worked on; try again later")
