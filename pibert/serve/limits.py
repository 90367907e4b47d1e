"""Limits of requests, the memory budget of all requests together, and refusals.

Work and answers count from before memory is allocated until the last byte is sent or the client has
gone. The models and the activations of one model step do not count.
"""

import asyncio
import contextlib
import ctypes
import gc
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

MB = 1_000_000
SIDE = 4096
"""Most rows or columns of fields: resampling takes memory in proportion to their product."""
SHARE = 32
"""The least memory budget, as a multiple of the largest body."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of a server that only this machine can reach."""
POLL = 0.02
"""Seconds after which a request that waits for memory tries again."""
INTERVAL = 5.0
"""Seconds between two returns of memory on a server that is always busy."""

STATUS = {
    "malformed": 400,
    "unauthorized": 401,
    "not_found": 404,
    "not_allowed": 405,
    "not_acceptable": 406,
    "slow": 408,
    "too_large": 413,
    "unsupported": 415,
    "wrong_host": 421,
    "invalid": 422,
    "diverged": 422,
    "internal": 500,
    "busy": 503,
    "stopping": 503,
    "timeout": 504,
}
"""The HTTP status of each error code."""
FAULT = "internal server error; the server's log has details"


class Refusal(Exception):
    """An error that is returned to the client; the code is a key of ``STATUS``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def status(self) -> int:
        return STATUS[self.code]

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 503:
            return {"Retry-After": "1"}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}

    def plain(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"code": self.code, "message": self.message}}


def check_frame_size(shape: Sequence[int], limit: int) -> None:
    """Refuse frames (channel, y, x) that are too large."""
    if max(shape[1:]) > SIDE or 4 * math.prod(shape) > limit:
        raise Refusal(
            "too_large",
            f"expected at most {SIDE} rows and columns, and a frame of {limit / MB:.0f} MB, found "
            f"frames (channel, y, x) of shape {tuple(shape)}",
        )


def refusal_of(error: Exception) -> Refusal:
    """The error of a prediction as the client sees it; internal errors stay private."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, FloatingPointError):
        return Refusal("diverged", str(error))
    if isinstance(error, ValueError):
        return Refusal("invalid", str(error))
    return Refusal("internal", FAULT)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests, checked before anything of that size is allocated."""

    body: int = 64 * MB
    """Bytes of a request body."""
    steps: int = 1000
    """Steps of a rollout."""
    samples: int = 64
    """Samples of one request."""
    queue: int = 64
    """Requests per model that wait or run."""
    seconds: float = 120.0
    """From the first byte of a request to the last one of its answer."""
    memory: int = SHARE * 64 * MB
    """Bytes of all requests together: bodies, work and answers that are not sent yet."""
    batch: int = 16
    """Samples of one model step, of one or several requests."""
    wait: float = 0.005
    """Seconds that a new request waits for others to join it."""

    def __post_init__(self) -> None:
        for name in ("body", "steps", "samples", "queue", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name}: expected at least 1, found {getattr(self, name)}")
        if self.memory < SHARE * self.body:
            raise ValueError(
                f"--memory: expected at least {SHARE} times --body, for the work on the largest, "
                f"found {self.memory / MB:g} and {self.body / MB:g} MB"
            )
        if not self.seconds > 0 or not self.wait >= 0:
            raise ValueError(
                "expected a --timeout above 0 and a --wait of at least 0, found "
                f"{self.seconds:g} s and {1000 * self.wait:g} ms"
            )

    @property
    def json_body(self) -> int:
        """Bytes of a JSON body, which takes much more memory once it is parsed."""
        return max(1, self.body // 4)

    @property
    def unpacked(self) -> int:
        """Bytes of the arrays in a file that is sent, and of an answer of frames."""
        return 4 * self.body

    @property
    def bodies(self) -> int:
        """Bytes of all incoming bodies together."""
        return self.memory // 4

    @property
    def work(self) -> int:
        """Bytes of work and answers."""
        return self.memory - self.bodies


class Budget:
    """A number of bytes, from which every thread may take some."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    def check(self, size: int) -> None:
        """Refuse what does not fit even if no other request is served."""
        if size > self.total:
            raise Refusal(
                "too_large",
                f"expected a request that takes at most {self.total / MB:.0f} MB of memory, found "
                f"one of about {size / MB:.0f} MB; send fewer samples or a coarser grid, or start "
                "the server with a larger --memory",
            )

    def try_hold(self, size: int) -> "Hold | None":
        """Take ``size`` bytes; None if they are not free."""
        with self._lock:
            if self._used + size > self.total:
                return None
            self._used += size
        return Hold(self, size)

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> "AsyncIterator[Hold]":
        """Wait until ``size`` bytes are free, and take them until the block is left."""
        self.check(size)
        while (held := self.try_hold(size)) is None:
            await asyncio.sleep(POLL)
        try:
            yield held
        finally:
            held.release()

    def add(self, size: int) -> None:
        with self._lock:
            self._used += size


class Hold:
    """Bytes that one request has taken from a budget."""

    def __init__(self, budget: Budget, size: int) -> None:
        self._budget, self.size = budget, size

    def resize(self, size: int) -> None:
        """Change the number of bytes, even beyond what the budget has left."""
        self._budget.add(size - self.size)
        self.size = size

    def release(self) -> None:
        self.resize(0)


class Returner:
    """Returns memory that requests have freed to the system.

    Cancelled requests leave reference cycles with their arrays, which Python collects only after
    many more requests, and the allocator keeps freed blocks for later ones.
    """

    def __init__(self, budget: Budget) -> None:
        gc.freeze()  # the models stay: collecting need not look at them
        self._budget = budget
        self._is_due, self._last = False, time.monotonic()
        self._trim: Callable[[int], int] = lambda _: 0
        with contextlib.suppress(OSError, AttributeError):  # no glibc
            self._trim = ctypes.CDLL("libc.so.6").malloc_trim

    def tick(self, num_requests: int) -> None:
        """Return memory soon after the last of the requests, and regularly under constant load."""
        # A model may still work for a client that has gone.
        is_busy, now = num_requests > 0 or self._budget.used > 0, time.monotonic()
        if (self._is_due and not is_busy) or (is_busy and now - self._last > INTERVAL):
            gc.collect()
            self._trim(0)
            self._last = now
        self._is_due = is_busy
