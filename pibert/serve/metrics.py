"""Counters of the server in Prometheus' text format."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SAMPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Counts of values up to each bound, with their sum."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: Labels) -> Iterable[str]:
        total = 0
        bounds = (*(f"{bound:g}" for bound in self._bounds), "+Inf")
        for bound, count in zip(bounds, self._counts, strict=True):
            total += count
            yield f"{name}_bucket{_written((*labels, ('le', bound)))} {total}"
        yield f"{name}_sum{_written(labels)} {self._sum:.9g}"
        yield f"{name}_count{_written(labels)} {total}"


class Metrics:
    """What happened so far; every thread may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[Labels] = Counter()
        self._rejected: Counter[Labels] = Counter()
        self._seconds: dict[Labels, Histogram] = {}
        self._batches: dict[Labels, Histogram] = {}

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        where = (("route", route),)
        with self._lock:
            self._requests[(*where, ("method", method), ("status", str(status)))] += 1
            self._seconds.setdefault(where, Histogram(_SECONDS)).observe(seconds)

    def observe_batch(self, model: str, samples: int) -> None:
        with self._lock:
            own = self._batches.setdefault((("model", model),), Histogram(_SAMPLES))
            own.observe(float(samples))

    def count_rejected(self, code: str) -> None:
        with self._lock:
            self._rejected[(("code", code),)] += 1

    def text(self, queues: Mapping[str, int], memory: int) -> str:
        """All of it.

        Args:
            queues: Requests of each model that wait or run.
            memory: Bytes of the memory budget in use.
        """
        with self._lock:
            lengths: dict[Labels, int] = {
                (("model", name),): length for name, length in queues.items()
            }
            lines = [
                *_plain("pibert_requests_total", "counter", "Requests.", self._requests),
                *_bucketed("pibert_request_seconds", "Time of a request.", self._seconds),
                *_bucketed("pibert_batch_samples", "Samples of a model step.", self._batches),
                *_plain("pibert_queue_requests", "gauge", "Requests that wait or run.", lengths),
                *_plain("pibert_memory_bytes", "gauge", "Memory of all requests.", {(): memory}),
                *_plain("pibert_rejected_total", "counter", "Refused requests.", self._rejected),
            ]
        return "\n".join(lines) + "\n"


def _plain(name: str, kind: str, says: str, values: Mapping[Labels, int]) -> Iterable[str]:
    yield from (f"# HELP {name} {says}", f"# TYPE {name} {kind}")
    for labels, value in values.items():
        yield f"{name}{_written(labels)} {value}"


def _bucketed(name: str, says: str, values: Mapping[Labels, Histogram]) -> Iterable[str]:
    yield from (f"# HELP {name} {says}", f"# TYPE {name} histogram")
    for labels, histogram in values.items():
        yield from histogram.lines(name, labels)


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
