"""Recordings whose trajectories and frames a reading process provides.

``PIBERT_READ_IN_PROCESS=1`` turns this off, to debug a reader or to read without limits; so does a
system that cannot fork.
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pibert.data.isolation import (
    Limits,
    error_kinds,
    limits_for,
    receive_answer,
    send_request,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.data.readers.recordings import Hints, Recordings
    from pibert.fields import Trajectory

IN_PROCESS = "PIBERT_READ_IN_PROCESS"
_PACKAGES = str(Path(__file__).absolute().parents[3])
"""The folder from which this package was imported."""
_MARGIN = 30.0
"""Seconds beyond its limit after which a child that does not answer is given up."""


def is_available() -> bool:
    """Whether files are read in separate processes."""
    wanted = os.environ.get(IN_PROCESS, "") in ("", "0")
    return wanted and hasattr(os, "fork") and bool(sys.executable)


class _Server:
    """The process that imports the readers; each process of a program has its own."""

    def __init__(self) -> None:
        self.lock, self.is_ready = threading.RLock(), False
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None

    def start(self) -> None:
        """Start the process; it imports the readers while this one continues."""
        with self.lock:
            if self.process is not None and self.process.poll() is None:
                return
            self.control, theirs = socket.socketpair()
            threads = dict.fromkeys(
                ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
            )
            paths = [path for path in sys.path if path]
            if _PACKAGES not in paths:  # such as the current folder, which sys.path does not name
                paths.insert(0, _PACKAGES)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pibert.data.isolation.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C and Ctrl-Z are for the program; the reading process ends with it.
                start_new_session=True,
            )
            theirs.close()
            self.is_ready = False

    def connect(self) -> socket.socket:
        """Return a connection to a new child."""
        with self.lock:
            self.start()
            assert self.control is not None
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    if not self.is_ready and not self.control.recv(1):
                        raise OSError("it ended at once")
                    self.is_ready = True
                    socket.send_fds(self.control, [b"c"], [theirs.fileno()])
                except OSError as error:
                    ours.close()
                    self.stop()
                    raise OSError(
                        f"the process that reads foreign files did not start ({error}); set "
                        f"{IN_PROCESS}=1 to read them without it"
                    ) from error
            if sys.platform != "linux":  # it serves one recording
                self.process, self.control = None, None
            return ours

    def stop(self) -> None:
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # with the children that it forked
            self.process.wait()
        self.process, self.control = None, None

    def forget(self) -> None:
        """In a forked process: leave the server to the parent, whose threads may hold the lock."""
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            self.process.returncode = 0  # not a child of this process
        self.lock, self.process, self.control = threading.RLock(), None, None


_SERVER = _Server()
_CHILDREN: "weakref.WeakSet[Child]" = weakref.WeakSet()
atexit.register(_SERVER.stop)


def _after_fork() -> None:
    """In a forked process: another thread of the parent may hold a lock."""
    _SERVER.forget()
    for child in list(_CHILDREN):
        child._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def start() -> None:
    """Start the reading process early: it imports the readers while the program imports its own."""
    if is_available():
        _SERVER.start()


class Child:
    """A process that reads one recording. It starts with the first request of each process."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path, self.limits = path, limits or limits_for(path)
        self._folder = None if path.is_absolute() else os.getcwd()
        self._opening: tuple[Any, ...] | None = None
        self._connection: socket.socket | None = None
        self._lock, self._pid = threading.Lock(), -1
        _CHILDREN.add(self)

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self._close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connection": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}
        _CHILDREN.add(self)

    def open(self, kind: str, hints: "Hints", options: Mapping[str, Any]) -> dict[str, Any]:
        """Open the recordings; other processes open them the same way when they need to."""
        opening = ("open", kind, hints, dict(options))
        facts, _ = self.ask(*opening)
        self._opening = opening
        return facts

    def ask(self, what: str, *arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        with self._lock:
            if self._connection is not None and self._pid != os.getpid():
                self._close()  # inherited through a fork: it belongs to the parent
            if self._connection is None:
                self._connection, self._pid = _SERVER.connect(), os.getpid()
                if self._opening is not None:
                    self._exchange(*self._opening)
            return self._exchange(what, *arguments)

    def _exchange(self, what: str, *arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self._connection is not None
        limits, begun = self.limits, time.monotonic()
        self._connection.settimeout(limits.seconds + _MARGIN)
        try:
            send_request(self._connection, limits, self._folder, what, self.path, *arguments)
            facts, arrays = receive_answer(self._connection)
        except (EOFError, OSError) as error:
            self._close()
            raise _died(self.path, time.monotonic() - begun >= limits.seconds) from error
        except BaseException:  # such as Ctrl-C: the next request would receive this answer
            self._close()
            raise
        if "error" in facts:
            raise _error(facts)
        return facts, arrays

    def _close(self) -> None:
        """Let the child end: it waits for requests until then."""
        assert self._connection is not None
        self._connection.close()
        self._connection = None


def identify_isolated(path: Path, limits: Limits | None = None) -> str:
    """Find the kind of a file in a separate process; by default with ``limits_for`` it."""
    return str(Child(path, limits).ask("identify")[0]["kind"])


def open_isolated(
    path: Path, kind: str, hints: "Hints", options: Mapping[str, Any], limits: Limits | None = None
) -> "Recordings":
    """Open the recordings of a file or folder in a separate process."""
    from pibert.data.readers.recordings import Recordings

    child = Child(path, limits)
    facts = child.open(kind, hints, options)
    names, notes, load = tuple(facts["names"]), tuple(facts["notes"]), partial(_load, child)
    return Recordings(kind=facts["kind"], path=path, names=names, load=load, notes=notes)


def _load(child: Child, name: str) -> "Trajectory":
    """A trajectory whose frames the child reads."""
    import torch

    from pibert.data.views import MappedFrames
    from pibert.fields import MASKS, FieldSpec, Trajectory

    facts, arrays = child.ask("load", name)
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    values: dict[str, Any] = {key: tensors.get(key) for key in ("states", *MASKS)}
    for key, shape in facts["sources"].items():
        values[key] = MappedFrames(tuple(shape), partial(_read_frames, child, name, key))
    series = {key[7:]: value for key, value in tensors.items() if key.startswith("series/")}
    spec, time = FieldSpec.from_dict(facts["spec"]), tensors["time"]
    return Trajectory(**facts["fields"], **values, spec=spec, time=time, series=series)


def _read_frames(
    child: Child, name: str, key: str, frames: slice, channels: Sequence[int] | None = None
) -> "Tensor":
    import torch

    chosen = None if channels is None else list(channels)
    _, arrays = child.ask("read", name, key, frames, chosen)
    return torch.from_numpy(arrays["frames"])


def _died(path: Path, is_late: bool) -> Exception:
    from pibert.data.readers.recordings import DamagedError, TooSlowError

    problem = "the reader crashed"
    if is_late:
        problem = "reading it took many times longer than data of this size should"
    kind = TooSlowError if is_late else DamagedError
    return kind(f"{path}: {problem}: the file is damaged; get a new copy of it")


def _error(facts: Mapping[str, Any]) -> Exception:
    kinds = {kind.__name__: kind for kind in error_kinds()}
    return kinds[facts["error"]](facts["message"])
