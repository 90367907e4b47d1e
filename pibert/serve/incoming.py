"""Bodies of requests as they come in: counted, so that none is read further than allowed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.requests import ClientDisconnect

from pibert.serve.limits import MB, Limits
from pibert.serve.refusal import Refusal

PAUSE, RATE = 20.0, 50_000
"""Seconds that a body may lag behind a client that sends so many bytes a second."""


class Intake:
    """Reads bodies; all of them together may take so much memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self.held = limits, 0

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
                now = asyncio.get_running_loop().time
                deadline = now() + PAUSE
                async with asyncio.timeout_at(deadline) as limit:
                    async for part in request.stream():
                        size += len(part)
                        self.held += len(part)
                        self._check(size, most)
                        parts.append(part)
                        deadline = min(deadline + len(part) / RATE, now() + PAUSE)
                        limit.reschedule(deadline)
            except TimeoutError:
                raise Refusal(
                    "slow",
                    f"expected a body at {RATE // 1000} kB/s or more with pauses of at most "
                    f"{PAUSE:g} s, found {size} bytes before it lagged behind; send it at once",
                ) from None
            except ClientDisconnect:
                raise Refusal("malformed", f"the body was cut after {size} bytes") from None
            parts = [b"".join(parts)]
            yield parts.pop()  # held by the caller alone, who may free it early
        finally:
            self.held -= size

    def _check(self, size: int, most: int) -> None:
        if size > most:
            raise Refusal(
                "too_large", f"expected a body of at most {most / MB:g} MB, found more; send less"
            )
        if self.held > self._limits.bodies:
            raise Refusal("busy", "too much is being worked on; try again later")
