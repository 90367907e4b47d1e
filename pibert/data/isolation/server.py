"""The reading process: imports the readers once and forks a child for each recording.

It runs as ``python -m pibert.data.isolation.server DESCRIPTOR`` and ends when the program that
started it does. Only Linux forks: other systems have threads in their libraries that do not survive
it, so there the process serves one recording and ends.
"""

import contextlib
import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pibert.data.hdf5 import check_foreign
from pibert.data.isolation import error_kinds, limit_memory, receive_request, send_answer
from pibert.data.readers import READERS, identify
from pibert.data.readers.recordings import DamagedError, Recordings, TooLargeError
from pibert.fields import MASKS, Trajectory, read_mask

READY = b"r"
_Answer = tuple[dict[str, Any], dict[str, np.ndarray]]


def main(descriptor: int) -> None:
    with contextlib.suppress(ImportError):  # the reader reports what is missing
        import h5netcdf  # noqa: F401
        import scipy.io  # noqa: F401
        import xarray  # noqa: F401
    torch.set_num_threads(1)
    parent = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the system reaps children
    parent.sendall(READY)
    while True:
        message, descriptors, *_ = socket.recv_fds(parent, 1, 1)
        if not message:
            # Children may be busy for long, and nobody waits for them any more.
            os.killpg(os.getpid(), signal.SIGKILL)
        if sys.platform == "linux" and os.fork():
            os.close(descriptors[0])
            continue
        parent.close()
        with contextlib.suppress(EOFError, OSError):
            serve(socket.socket(fileno=descriptors[0]))
        os._exit(0)


def serve(connection: socket.socket) -> None:
    """Answer the requests for one recording."""
    reading: _Reading | None = None
    warnings.simplefilter("ignore")
    while True:
        limits, folder, what, *arguments = receive_request(connection)
        if reading is None:
            limit_memory(limits.memory)
            reading = _Reading(by_frames=limits.dataset is not None)
        # Nothing handles this signal: the system ends the process, whatever library it is in.
        signal.setitimer(signal.ITIMER_REAL, limits.seconds)
        try:
            if folder is not None:  # a relative path, and the program may have changed its folder
                os.chdir(folder)
            if limits.dataset is not None:
                check_foreign(arguments[0], limits.dataset)
            facts, arrays = getattr(reading, what)(*arguments)
        except Exception as error:
            failed = TooLargeError if isinstance(error, MemoryError) else DamagedError
            kind = next((kind for kind in error_kinds() if isinstance(error, kind)), failed)
            facts, arrays = {"error": kind.__name__, "message": _message(error, arguments[0])}, {}
        signal.setitimer(signal.ITIMER_REAL, 0)
        send_answer(connection, facts, arrays)


class _Reading:
    """The recordings of one request and the trajectories that were loaded."""

    recordings: Recordings

    def __init__(self, by_frames: bool) -> None:
        self.by_frames = by_frames
        """Whether fields in memory are sent by frames too, not whole: a client's may be huge."""
        self.loaded: dict[str, Trajectory] = {}

    def identify(self, path: Path) -> _Answer:
        return {"kind": identify(path, isolate=False)}, {}

    def open(self, path: Path, kind: str, hints: Any, options: dict[str, Any]) -> _Answer:
        self.recordings = found = READERS[kind].open_recordings(path, hints, **options)
        return {"kind": found.kind, "names": found.names, "notes": found.notes}, {}

    def load(self, path: Path, name: str) -> _Answer:
        flow = self._trajectory(name)
        facts: dict[str, Any] = {
            "spec": flow.spec.to_dict(),
            "sources": {},
            "fields": {
                key: getattr(flow, key)
                for key in ("name", "parameters", "source", "local", "length_unit", "time_unit")
            },
        }
        arrays = {"time": flow.time.numpy()}
        arrays |= {f"series/{key}": values.numpy() for key, values in flow.series.items()}
        for key in ("states", *MASKS):
            value = getattr(flow, key)
            if isinstance(value, Tensor) and (value.ndim == 2 or not self.by_frames):
                arrays[key] = value.numpy()
            elif value is not None:
                facts["sources"][key] = tuple(value.shape)
        return facts, arrays

    def read(
        self, path: Path, name: str, key: str, frames: slice, channels: list[int] | None
    ) -> _Answer:
        flow = self._trajectory(name)
        if key == "states":
            return {}, {"frames": flow.read(frames, channels).numpy()}
        return {}, {"frames": read_mask(getattr(flow, key), frames).numpy()}

    def _trajectory(self, name: str) -> Trajectory:
        if name not in self.loaded:
            self.loaded[name] = self.recordings[name]
        return self.loaded[name]


def _message(error: Exception, path: Path) -> str:
    if isinstance(error, MemoryError):
        return (
            f"{path}: reading it takes much more memory than data of this size should; it is "
            "damaged, or it unpacks to far more than it seems: get a new copy, or export less"
        )
    if isinstance(error, ValueError | OSError | ImportError):
        return str(error)
    kind = type(error).__name__
    return f"{path}: it cannot be read ({kind}: {error}); it is damaged: get a new copy of it"


if __name__ == "__main__":
    main(int(sys.argv[1]))
