"""Duration of a step: the median of single calls, with the device synchronised."""

import statistics
import time
from collections.abc import Callable

import torch


def median_ms(step: Callable[[], None], rounds: int, warm_up: int = 5) -> float:
    times = []
    for _ in range(warm_up + rounds):
        _wait()
        start = time.perf_counter()
        step()
        _wait()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[warm_up:])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
