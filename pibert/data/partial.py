"""Files that are not complete yet: written beside their target, and cleared away if left over."""

import contextlib
import fcntl
import glob
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
        raise NotADirectoryError(f"{path}: {folder} is a file, not a folder; choose another place")
    if not os.access(folder, os.W_OK):
        raise PermissionError(
            f"{path}: the folder {folder} cannot be written; choose another or change its rights"
        )


def make_folder(path: Path) -> None:
    """Create the folder of a file that can be written."""
    check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses is raised with the file and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            error.errno,
            f"{path}: cannot write: {os.strerror(error.errno)}; nothing was changed; check the "
            "space and the rights of the folder",
        ) from error


class PartialFile(io.RawIOBase):
    """A file on its way to its name, as HDF5 sees it: writes never fail.

    HDF5 2.0 crashes the process when it closes a file that it cannot write. So the first error is
    kept for the writer to raise, and what would follow it stays in memory until the file is closed.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        # Tells other writers that this one lives; some file systems have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.error: OSError | None = None
        self._position, self._size = 0, 0
        self._rest: list[tuple[int, bytes]] = []

    def fileno(self) -> int:
        return self._descriptor

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        todo, place = memoryview(data).cast("B"), self._position
        self._position += len(todo)
        self._size = max(self._size, self._position)
        length = len(todo)
        while todo and self.error is None:
            try:
                done = os.pwrite(self._descriptor, todo, place)
            except OSError as error:
                self.error = error
            else:
                todo, place = todo[done:], place + done
        if todo:
            self._rest.append((place, bytes(todo)))
        return length

    def readinto(self, buffer: Any) -> int:
        view, start = memoryview(buffer).cast("B"), self._position
        count = max(0, min(len(view), self._size - start))
        found = os.pread(self._descriptor, count, start)
        view[:count] = found.ljust(count, b"\0")
        for place, data in self._rest:
            first, last = max(place, start), min(place + len(data), start + count)
            if first < last:
                view[first - start : last - start] = data[first - place : last - place]
        self._position += count
        return count

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        if self.error is None:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError as error:
                self.error = error
        return self._size

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class GrowingFile:
    """What an HDF5 library (``open_with``) writes into, and the way to its final name."""

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
        """The library's file, to be written to; what the disk refused is raised at the end."""
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
        os.replace(self._partial, self._path)
        flush_folder(self._path.parent)

    def discard(self) -> None:
        """Close and remove; nothing is left to do after ``publish``."""
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
    """Ctrl-C and SIGTERM wait while HDF5 is at work: raised inside its callbacks they are lost.

    Gives a function to call where nothing is half done: it handles what has come so far, usually by
    raising it. What comes later is handled at the end.
    """
    # Signals that are ignored, or end the process, stay as they are.
    found = {number: signal.getsignal(number) for number in STOPPING}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not handlers:
        yield lambda: None  # they reach another thread
        return
    came: list[int] = []

    def let_through() -> None:
        if came:
            number = came[0]
            came.clear()
            handlers[signal.Signals(number)](number, None)

    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield let_through
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        let_through()


def replace_file(path: Path, content: bytes, *, former: Path | None = None) -> None:
    """Put a whole file in the place of an old one: written beside it, flushed, renamed.

    A reader finds the old file or the new one. Where writing fails the old one stays. With
    ``former``, the old file gets that name in the same folder; a stop between the two renames
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
    """Make the new name of a file survive a power cut; some file systems cannot."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def partial_path(path: Path) -> Path:
    """A name beside the target that contains the id of the writing process."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")


def remove_leftovers(path: Path) -> None:
    """Remove partial files and folders of the same target whose writer died."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*-*.partial"):
        pid = partial.name.removesuffix(".partial").rpartition(".")[2].partition("-")[0]
        if not pid.isdecimal() or Path(f"/proc/{pid}").exists():
            continue
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        elif not _is_locked(partial):
            partial.unlink(missing_ok=True)


def _is_locked(path: Path) -> bool:
    """Whether a process, perhaps on another machine, holds the lock of a file it writes."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
