"""Progress of long studies as plain lines, at most one every few seconds."""

import time
from collections.abc import Mapping
from typing import Any

from pibert.progress import Reporter

SECONDS = 10.0


class Lines(Reporter):
    """A line at the start of a run and then every ten seconds."""

    def __init__(self) -> None:
        self._last = 0.0
        self._total = 0

    def start(self, total_steps: int, done: int) -> None:
        self._total = total_steps

    def epoch(self, record: Mapping[str, Any]) -> None:
        if time.monotonic() - self._last < SECONDS and record["step"] < self._total:
            return
        self._last = time.monotonic()
        valid = ", ".join(f"{name} {value:.4g}" for name, value in (record["valid"] or {}).items())
        self.say(
            f"epoch {record['epoch']}, step {record['step']} of {self._total}, "
            f"{record['samples_per_second']:.0f} samples/s; {valid}"
        )

    def say(self, text: str) -> None:
        print(text, flush=True)
