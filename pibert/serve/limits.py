"""How much a request may ask for."""

from dataclasses import dataclass

MB = 1_000_000
SIDE = 4096
"""Rows and columns of fields: bringing a grid to another takes memory with their product."""

SHARE = 32
"""Least memory of all requests together by the size of a body."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Checked before anything of that size is made."""

    body: int = 64 * MB
    """Bytes."""
    steps: int = 1000
    samples: int = 64
    """Of one request."""
    queue: int = 64
    """Requests of a model that wait or run."""
    seconds: float = 120.0
    """From the first byte of a request to the last one of its answer."""
    memory: int = SHARE * 64 * MB
    """Bytes of all requests together: bodies, work and answers that are not sent yet."""
    batch: int = 16
    """Samples of one model step, of several requests together."""
    wait: float = 0.005
    """Seconds that a new request waits for others."""

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
        """A number in JSON takes few bytes, but many once it is read."""
        return max(1, self.body // 4)

    @property
    def unpacked(self) -> int:
        """Bytes of the arrays in a file that is sent, and of an answer of frames."""
        return 4 * self.body

    @property
    def bodies(self) -> int:
        """Bytes of all bodies together that come in or wait; the rest of ``memory`` is for work."""
        return self.memory // 4
