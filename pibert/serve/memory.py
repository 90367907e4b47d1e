"""The memory that requests may take together, and its way back to the system.

Work and answers are counted from before memory is taken until the last byte is sent or the client
has gone. The models themselves, and the activations of one model step, are not counted.
"""

import asyncio
import contextlib
import ctypes
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable

from pibert.serve.limits import MB, Limits
from pibert.serve.refusal import Refusal

POLL = 0.02
"""Seconds after which a request that waits for memory tries again."""
INTERVAL = 5.0
"""Seconds between two returns of memory on a server that is always busy."""


class Budget:
    """Bytes for work and answers; every thread may take and return some."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    def check(self, size: int) -> None:
        """Refuse what does not fit even if nobody else is served."""
        if size > self.total:
            raise Refusal(
                "too_large",
                f"expected a request that takes at most {self.total / MB:.0f} MB of memory, found "
                f"one of about {size / MB:.0f} MB; send fewer samples or a coarser grid, or start "
                "the server with a larger --memory",
            )

    def try_hold(self, size: int) -> "Hold | None":
        """Take so many bytes, unless others have them."""
        with self._lock:
            if self._used + size > self.total:
                return None
            self._used += size
        return Hold(self, size)

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> "AsyncIterator[Hold]":
        """Wait until so many bytes are free, and take them until the block is left."""
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
        """Count what is in use now; also where that is more than the budget has left."""
        self._budget.add(size - self.size)
        self.size = size

    def release(self) -> None:
        self.resize(0)


def make_budget(limits: Limits) -> Budget:
    """For all but the bodies that come in, which have their own share."""
    return Budget(limits.memory - limits.bodies)


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
        """Return memory soon after the last request, and now and then while there are some.

        Args:
            num_requests: Requests under way.
        """
        # A model may still work for a client that has gone.
        is_busy, now = num_requests > 0 or self._budget.used > 0, time.monotonic()
        if (self._is_due and not is_busy) or (is_busy and now - self._last > INTERVAL):
            gc.collect()
            self._trim(0)
            self._last = now
        self._is_due = is_busy
