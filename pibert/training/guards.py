"""Around the loop: signals, memory, values that are not finite, random numbers, time.

Reading a loss makes the host wait for the device, and the device then waits for the host to queue
more work. So the loss of a step is copied to the host without waiting, and checked after the next
step has been queued. The delay loses nothing: the batch is kept until then, and no state is saved
before its last step has been checked.

Dropout uses torch's generators. They are seeded before every piece from (seed, epoch, step, piece,
process), so a resumed run uses the same random numbers as an uninterrupted one.
"""

import hashlib
import math
import signal
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
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
"""Methods of a model that are compiled, if it has them."""
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
    """Turn an out-of-memory error into one that states which settings to lower."""
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
            f"or use a smaller grid{other}, or resident = false; {str(error).partition(chr(10))[0]}"
        ) from error


def seed_generators(device: torch.device, *numbers: int) -> None:
    """Seed torch's generators of the host and of one device by some numbers."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    mixed = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1
    # torch.manual_seed would seed all devices.
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(mixed)
    elif device.type == "mps":
        torch.mps.manual_seed(mixed)


@contextmanager
def compiled(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Compile the model's methods in this context; its state dict does not change."""
    with ExitStack() as stack:
        for name in COMPILED if wanted else ():
            if hasattr(model, name):
                setattr(model, name, compile_if_possible(getattr(model, name)))
                stack.callback(model.__dict__.pop, name, None)
        yield


@dataclass
class StepResult:
    """A step whose loss has not been checked yet."""

    total: int
    """Finished steps since the start, with this one."""
    epoch: int
    """The first is 1."""
    step: int
    """In the epoch, the first is 1."""
    batches: list[Batch]
    """The pieces of this process."""
    share: Tensor
    """The share of this process in the loss."""
    values: Tensor
    """The loss of the whole batch and the norm of its gradient."""

    @property
    def where(self) -> str:
        return f"epoch {self.epoch}, step {self.step} (step {self.total} of the run)"


class LateCheck:
    """Checks the loss of every step one step late, and stops if it is not finite.

    It then writes the batch to ``path``. ``gather`` collects plain values of all processes;
    ``report`` is called with the number of finished steps and the loss.
    """

    def __init__(
        self,
        samples: Samples,
        path: Path,
        gather: Callable[[Any], list[Any]],
        report: Callable[[int, float], None],
    ) -> None:
        self._samples, self._path, self._gather, self._report = samples, path, gather, report
        self._waiting: tuple[StepResult, Any] | None = None

    def watch(self, result: StepResult) -> None:
        """Take in a step, and check the one before."""
        arrived = None
        if result.values.is_cuda:
            pinned = torch.empty(2, dtype=result.values.dtype, pin_memory=True)
            result.values = pinned.copy_(result.values, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        before, self._waiting = self._waiting, (result, arrived)
        self._check(before)

    def finish(self) -> None:
        """Check the last step."""
        before, self._waiting = self._waiting, None
        self._check(before)

    def _check(self, waiting: tuple[StepResult, Any] | None) -> None:
        if waiting is None:
            return
        result, arrived = waiting
        if arrived is not None:
            arrived.synchronize()
        loss, norm = result.values.tolist()
        if not math.isfinite(loss):
            self._stop(result, f"a loss of {loss}")
        if not math.isfinite(norm):
            self._stop(result, f"a gradient of norm {norm}")
        self._report(result.total, loss)

    def _stop(self, result: StepResult, what: str) -> None:
        numbers = [sample for batch in result.batches for sample in batch.sample.tolist()]
        homes = {self._samples.locate(sample)[0] for sample in numbers}
        names = sorted({self._samples.trajectories[home].name for home in homes})
        is_bad = not math.isfinite(result.share.item())
        # If the share of no process is to blame, all of them write their batches.
        is_bad |= not any(self._gather(is_bad))
        saved = self._save(result, what, names) if is_bad else ""
        blamed = [entry for entry in self._gather((is_bad, names, saved)) if entry[0]]
        paths = ", ".join(path for *_, path in blamed if path) or "no file: it could not be written"
        names = sorted({name for _, listed, _ in blamed for name in listed})
        state = "no state was saved yet"
        if has_state(self._path.parent):
            state = "the last saved state is good"
        raise FloatingPointError(
            f"{what} in {result.where}, in a batch from trajectories {', '.join(names)}; the batch "
            f"is in {paths}, {state}; look for bad values in these trajectories, or lower the "
            "learning rate in another run folder"
        )

    def _save(self, result: StepResult, what: str, names: list[str]) -> str:
        """Write the batch; returns the path, or nothing if that failed."""
        tensors = {
            f"{piece}/{name}": value
            for piece, batch in enumerate(result.batches)
            for name, value in vars(batch).items()
            if isinstance(value, Tensor)
        }
        counts = {"epoch": result.epoch, "step": result.step, "total": result.total}
        header = {"what": f"{what} in {result.where}", **counts, "trajectories": names}
        with suppress(OSError):
            write_tensors(self._path, tensors, header)
            return str(self._path)
        return ""


class Stopwatch:
    """Adds up the time of the sections of an epoch; does nothing when it is off.

    A section within another counts as the outer one. On a GPU every section waits for the device.
    """

    def __init__(self, device: torch.device, enabled: bool) -> None:
        self._on_gpu, self._enabled = device.type == "cuda", enabled
        self._running = False
        self._seconds: dict[str, float] = defaultdict(float)

    def __call__(self, section: str) -> AbstractContextManager[None]:
        return self._measure(section) if self._enabled and not self._running else nullcontext()

    @contextmanager
    def _measure(self, section: str) -> Iterator[None]:
        self._running = True
        began = self._now()
        try:
            yield
        finally:
            self._running = False
            self._seconds[section] += self._now() - began

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def take(self) -> dict[str, float]:
        """Seconds of every section since the last call."""
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds
