"""Incomplete files: written beside their target, renamed when complete, removed if left over."""

import contextlib
import glob
import importlib
import io
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pibert.stopping import STOPPING


def check_writable(path: Path) -> None:
    """Raise if a file cannot be written, before any work is done; its folder may not exist yet."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{path}: {folder} is a file, not a folder; choose another path")
    if not os.access(folder, os.W_OK):
        raise PermissionError(
            f"{path}: the folder {folder} is not writable; choose another or change its permissions"
        )


def make_folder(path: Path) -> None:
    """Create the folder of a file that can be written."""
    check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise errors of the system with the file and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            error.errno,
            f"{path}: cannot write: {os.strerror(error.errno)}; nothing was changed; check the "
            "space and the permissions of the folder",
        ) from error


class PartialFile(io.RawIOBase):
    """An incomplete file for HDF5, whose writes never fail.

    HDF5 2.0 crashes the process when it closes a file that it cannot write. So the first error is
    kept for the writer to raise, and later data stays in memory until the file is closed.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("x+b", buffering=0)
        # The lock shows other writers that this one lives; some file systems have no locks.
        with contextlib.suppress(OSError):
            lock(self._file.fileno())
        self.error: OSError | None = None
        self._position, self._size = 0, 0
        self._rest: list[tuple[int, bytes]] = []

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        todo, offset = memoryview(data).cast("B"), self._position
        self._position += len(todo)
        self._size = max(self._size, self._position)
        length = len(todo)
        while todo and self.error is None:
            try:
                self._file.seek(offset)
                done = self._file.write(todo)
            except OSError as error:
                self.error = error
            else:
                todo, offset = todo[done:], offset + done
        if todo:
            self._rest.append((offset, bytes(todo)))
        return length

    def readinto(self, buffer: Any) -> int:
        view, start = memoryview(buffer).cast("B"), self._position
        count = max(0, min(len(view), self._size - start))
        self._file.seek(start)
        view[:count] = (self._file.read(count) or b"").ljust(count, b"\0")
        for offset, data in self._rest:
            first, last = max(offset, start), min(offset + len(data), start + count)
            if first < last:
                view[first - start : last - start] = data[first - offset : last - offset]
        self._position += count
        return count

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        if self.error is None:
            try:
                self._file.truncate(self._size)
            except OSError as error:
                self.error = error
        return self._size

    def close(self) -> None:
        self._file.close()
        super().close()


class GrowingFile:
    """An HDF5 file, opened by ``open_with``, with a temporary name until it is published."""

    def __init__(self, path: Path, open_with: Callable[[PartialFile], Any]) -> None:
        self._path, self._partial = path, partial_path(path)
        self.file: Any = None
        with interrupts_held():
            self._sink = PartialFile(self._partial)
            try:
                self.file = open_with(self._sink)
            except BaseException:
                self.discard()
                raise

    @contextlib.contextmanager
    def changed(self) -> Iterator[Any]:
        """Yield the HDF5 file to write to; raise an error of the disk at the end."""
        with interrupts_held():
            yield self.file
            self.raise_error()

    def close(self) -> None:
        """Complete the file; it still has its temporary name."""
        with interrupts_held():
            file, self.file = self.file, None
            file.close()
            self.raise_error()
            os.fsync(self._sink.fileno())

    def publish(self) -> None:
        if os.name == "nt":  # where an open file cannot be renamed
            self._sink.close()
        os.replace(self._partial, self._path)
        flush_folder(self._path.parent)

    def discard(self) -> None:
        """Close and remove the temporary file; does nothing after ``publish``."""
        with interrupts_held():
            if self.file is not None:
                file, self.file = self.file, None
                file.close()
            self._sink.close()
            with contextlib.suppress(OSError):
                self._partial.unlink(missing_ok=True)

    def raise_error(self) -> None:
        if self._sink.error is not None:
            raise self._sink.error


@contextlib.contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Delay Ctrl-C and SIGTERM while HDF5 works: raised inside its callbacks they would be lost.

    Yields a function that handles signals received so far, usually by raising; call it where
    nothing is half done. Later signals are handled at the end.
    """
    # Signals that are ignored, or end the process, keep their handlers.
    current = {number: signal.getsignal(number) for number in STOPPING}
    handlers = {number: handler for number, handler in current.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not handlers:
        yield lambda: None  # signals reach the main thread alone
        return
    received: list[int] = []

    def handle_received() -> None:
        if received:
            number = received[0]
            received.clear()
            handlers[signal.Signals(number)](number, None)

    for number in handlers:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield handle_received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        handle_received()


def replace_file(path: Path, content: bytes, *, former: Path | None = None) -> None:
    """Replace a file atomically: write the new one beside it, flush and rename it.

    A reader finds the old file or the new one; if writing fails, the old one stays. With
    ``former``, the old file gets that name in the same folder; an interrupt between the two renames
    leaves the old file under it and none under ``path``.
    """
    partial = partial_path(path)
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if former is not None and path.exists():
            os.replace(path, former)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that a rename survives a power cut, if supported."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def partial_path(path: Path) -> Path:
    """Return a name beside the target that contains the id of this process."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")


def remove_leftovers(path: Path) -> None:
    """Remove partial files and folders of the same target whose writer died."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*-*.partial"):
        pid = partial.name.removesuffix(".partial").rpartition(".")[2].partition("-")[0]
        if not pid.isdecimal() or _is_running(int(pid)):
            continue
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        elif not _is_locked(partial):
            partial.unlink(missing_ok=True)


def _is_locked(path: Path) -> bool:
    """Return whether a process, perhaps on another machine, holds the lock of the file."""
    try:
        with path.open("rb") as file:
            lock(file.fileno(), shared=True)
    except OSError:
        return True
    return False


def _is_running(pid: int) -> bool:
    """Return whether a process of this machine runs; True where that cannot be found out."""
    if os.name == "nt":  # where the call would end it
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it belongs to another user
    return True


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file until it is closed; ``BlockingIOError`` if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows, where all locks are exclusive
        msvcrt = importlib.import_module("msvcrt")
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(error.errno, "another process has locked it") from None
    else:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
