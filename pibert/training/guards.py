"""Around the loop: signals, memory, values that are not finite, random numbers, time.

Reading a loss makes the host wait for the device, and the device then waits for the host to queue
more work. So the loss of a step is copied to the host without waiting, and checked after the next
step has been queued. Nothing is lost by the delay: the batch is kept until then, and no state is
saved before its last step has been checked.

Dropout uses torch's generators. They are seeded before every piece from (seed, epoch, step, piece,
process), so a resumed run uses the same random numbers as one that was never stopped.
"""

import hashlib
import math
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from pibert import stopping
from pibert.compilation import compile_if_possible
from pibert.data.dataset import Samples
from pibert.fields import Batch
from pibert.training.state import has_state, write_tensors

COMPILED = ("forward", "reconstruct", "consistency")
"""Methods of a model that are compiled, where it has them."""
_SAME_REQUEST_SECONDS = 2.0


class StopSignals(AbstractContextManager["StopSignals"]):
    """Ctrl-C and SIGTERM ask the loop to stop after the step; a second one stops at once.

    A SIGTERM right after another signal is the same request: job schedulers send it to a parent and
    to its children, and a parent passes it on.
    """

    def __init__(self) -> None:
        self.asked = False
        self._asked_at = 0.0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        # Only the main thread may set handlers; elsewhere signals act as they did.
        if threading.current_thread() is threading.main_thread():
            for number in stopping.STOPPING:
                self._former[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        """Wait, at most until the run is asked to stop."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _ask(self, number: int, frame: FrameType | None) -> None:
        stopping.note(number)
        now = time.monotonic()
        if not self.asked:
            self.asked, self._asked_at = True, now
        elif number == signal.SIGINT or now - self._asked_at > _SAME_REQUEST_SECONDS:
            raise KeyboardInterrupt("stopped at once; what was saved before is unchanged")


@contextmanager
def memory_advice(micro_batch: int, precision: str) -> Iterator[None]:
    """Turn an out-of-memory error into one that states what to lower."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        on_host = "DefaultCPUAllocator" in str(error)
        if not (isinstance(error, torch.OutOfMemoryError) or on_host):
            raise
        half = f", for instance to {micro_batch // 2}" if micro_batch > 1 else ""
        other = "" if precision == "bf16" else ", precision = 'bf16'"
        raise MemoryError(
            f"out of memory: lower micro_batch, now {micro_batch}{half} (the result is the same), "
            f"or take a smaller grid{other}, or resident = false; "
            f"{str(error).splitlines()[0] if str(error) else 'no more is known'}"
        ) from error


def seed_generators(device: torch.device, *numbers: int) -> None:
    """Seed torch's generators of the host and of one device by some numbers."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    mixed = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1
    # Straight to the generators: torch.manual_seed goes round all devices.
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(mixed)
    elif device.type == "mps":
        torch.mps.manual_seed(mixed)


@contextmanager
def own_generators(device: torch.device) -> Iterator[None]:
    """Restore the caller's torch generators afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


@contextmanager
def compiled(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Compile the model's methods meanwhile; its state dict does not change."""
    with ExitStack() as stack:
        for name in COMPILED if wanted else ():
            if hasattr(model, name):
                setattr(model, name, compile_if_possible(getattr(model, name)))
                stack.callback(model.__dict__.pop, name, None)
        yield


@dataclass(frozen=True)
class _Watched:
    """A step whose loss is on its way to the host."""

    total: int
    epoch: int
    step: int
    batches: list[Batch]
    values: Tensor
    own: Tensor
    arrived: Any

    @property
    def where(self) -> str:
        return f"epoch {self.epoch}, step {self.step} (step {self.total} of the run)"


class LateCheck:
    """Checks the loss of every step one step late, and stops if it is not finite.

    Args:
        device: Where the losses are.
        samples: To name the trajectories of a batch.
        path: Where to write the batch of a value that is not finite.
        gather: Plain values of all processes.
        report: Called with the steps done and the loss.
    """

    def __init__(
        self,
        device: torch.device,
        samples: Samples,
        path: Path,
        gather: Callable[[Any], list[Any]],
        report: Callable[[int, float], None],
    ) -> None:
        self._device, self._samples, self._path = device, samples, path
        self._gather, self._report = gather, report
        self._waiting: _Watched | None = None

    def watch(
        self,
        loss: Tensor,
        norm: Tensor,
        own: Tensor,
        batches: list[Batch],
        *,
        total: int,
        epoch: int,
        step: int,
    ) -> None:
        """Take in a step, and check the one before.

        Args:
            loss: Of the whole batch.
            norm: Of its gradient.
            own: The share of this process in the loss.
            batches: The pieces of this process.
            total: Steps done since the start, with this one.
            epoch: The first is 1.
            step: In the epoch, the first is 1.
        """
        values = torch.stack((loss, norm))
        arrived = None
        if self._device.type == "cuda":
            pinned = torch.empty(2, dtype=values.dtype, pin_memory=True)
            values = pinned.copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        before = self._waiting
        self._waiting = _Watched(total, epoch, step, batches, values, own, arrived)
        self._check(before)

    def finish(self) -> None:
        """Check the last step too."""
        before, self._waiting = self._waiting, None
        self._check(before)

    def _check(self, watched: _Watched | None) -> None:
        if watched is None:
            return
        if watched.arrived is not None:
            watched.arrived.synchronize()
        loss, norm = watched.values.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._stop(watched, loss, norm)
        self._report(watched.total, loss)

    def _stop(self, watched: _Watched, loss: float, norm: float) -> None:
        what = f"a loss of {loss}" if not math.isfinite(loss) else f"a gradient of norm {norm}"
        names = sorted({name for batch in watched.batches for name in self._names(batch)})
        is_mine = not math.isfinite(watched.own.item())
        found = self._gather((is_mine, names, has_state(self._path.parent)))
        # If no process's own loss is to blame, all of them are asked.
        blamed = [entry for entry in found if entry[0]] or found
        saved = ""
        if is_mine or not any(mine for mine, *_ in found):
            saved = self._save(watched, f"{what} in {watched.where}", names)
        paths = ", ".join(path for path in self._gather(saved) if path)
        names = sorted({name for _, own, _ in blamed for name in own})
        state = "the last saved state is good" if found[0][2] else "no state was saved yet"
        raise FloatingPointError(
            f"{what} in {watched.where}, in a batch from trajectories {', '.join(names)}; the "
            f"batch is in {paths or 'no file: it could not be written'}, {state}; look for bad "
            "values in these trajectories, or lower the learning rate in another run folder"
        )

    def _names(self, batch: Batch) -> list[str]:
        homes = {self._samples.locate(sample)[0] for sample in batch.sample.tolist()}
        return [self._samples.trajectories[home].name for home in homes]

    def _save(self, watched: _Watched, what: str, names: Sequence[str]) -> str:
        tensors = {
            f"{piece}/{name}": value
            for piece, batch in enumerate(watched.batches)
            for name, value in vars(batch).items()
            if isinstance(value, Tensor)
        }
        counts = {"epoch": watched.epoch, "step": watched.step, "total": watched.total}
        with suppress(OSError):
            write_tensors(self._path, tensors, {"what": what, **counts, "trajectories": names})
            return str(self._path)
        return ""


class Stopwatch:
    """Adds up the time of the sections of an epoch; costs nothing when it is off.

    A section within another counts as that one. On a GPU the sections are marked in its queue, so
    the loop does not wait for the marks.
    """

    def __init__(self, device: torch.device, enabled: bool) -> None:
        self._on_gpu, self._enabled = device.type == "cuda", enabled
        self._off = nullcontext()
        self._running = False
        self._seconds: dict[str, float] = {}
        self._marks: list[tuple[str, Any, Any]] = []

    def __call__(self, section: str) -> AbstractContextManager[None]:
        return self._measure(section) if self._enabled and not self._running else self._off

    @contextmanager
    def _measure(self, section: str) -> Iterator[None]:
        self._running = True
        try:
            if self._on_gpu:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                yield
                end.record()
                self._marks.append((section, start, end))
            else:
                began = time.perf_counter()
                yield
                self._add(section, time.perf_counter() - began)
        finally:
            self._running = False

    def _add(self, section: str, seconds: float) -> None:
        self._seconds[section] = self._seconds.get(section, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Seconds of every section since the last call."""
        if self._marks:
            torch.cuda.synchronize()
        for section, start, end in self._marks:
            self._add(section, start.elapsed_time(end) / 1000.0)
        self._marks.clear()
        seconds, self._seconds = self._seconds, {}
        return seconds
