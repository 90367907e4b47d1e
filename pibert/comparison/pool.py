"""Work on many items with several processes, each on its own GPU if there are enough."""

import concurrent.futures
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import torch

from pibert import stopping

T = TypeVar("T")


class ProcessKilled(RuntimeError):
    """The process that worked on an item died."""

    def __init__(self) -> None:
        super().__init__("its process was killed")


def work_on(
    items: Sequence[T],
    work: Callable[[T, int], Any],
    *,
    workers: int,
    device: str,
    done: Callable[[T, Any], None],
    failed: Callable[[T, Exception], None],
) -> None:
    """Call ``work(item, sharing)`` for every item in new processes.

    A process that is killed ends the others too; the items lost that way are tried once more, each
    alone.

    Args:
        items: What to work on.
        work: Can be pickled; ``sharing`` is how many processes share a device.
        workers: Processes at a time.
        device: ``cuda`` gives each process one of the GPUs.
        done: Called here with an item and its result.
        failed: Called here with an item and its error.
    """
    for item in _in_pool(items, work, workers, device, done, failed):
        for _ in _in_pool((item,), work, 1, device, done, failed):
            failed(item, ProcessKilled())


def _in_pool(
    items: Sequence[T],
    work: Callable[[T, int], Any],
    workers: int,
    device: str,
    done: Callable[[T, Any], None],
    failed: Callable[[T, Exception], None],
) -> list[T]:
    """Returns the items lost because a process died."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    count = torch.cuda.device_count() if device == "cuda" else 0
    gpus = (visible or [str(number) for number in range(count)])[:count]
    context = multiprocessing.get_context("spawn")
    slots = context.Queue()
    for slot in range(workers):
        slots.put(gpus[slot % count] if count else None)
    threads = max(1, (os.cpu_count() or 1) // workers)
    sharing = math.ceil(workers / max(count, 1))
    lost: list[T] = []
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=context, initializer=_take_device, initargs=(slots, threads)
    )
    try:
        waiting = {pool.submit(work, item, sharing): item for item in items}
        for future in concurrent.futures.as_completed(waiting):
            item = waiting[future]
            try:
                result = future.result()
            except BrokenProcessPool:
                lost.append(item)
            except Exception as error:
                failed(item, error)
            else:
                done(item, result)
    except KeyboardInterrupt:
        if stopping.is_terminated():  # Ctrl-C reaches all processes of a terminal
            for child in multiprocessing.active_children():
                child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return lost


def _take_device(slots: Any, threads: int) -> None:
    """Take a device, in a process that has not touched any yet."""
    gpu = slots.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch.set_num_threads(threads)
