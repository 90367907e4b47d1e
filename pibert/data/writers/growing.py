"""An HDF5 file that grows under a temporary name; its errors are those of the disk."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pibert.data.partial import PartialFile, flush_folder, interrupts_held, partial_path

CHUNK_BYTES = 1 << 16


class GrowingFile:
    """What an HDF5 library writes into, and the way to its name.

    Args:
        path: The name it gets in the end.
        open_with: Makes the library's file of a binary file.
    """

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
            self._raise_error()

    def close(self) -> None:
        """Complete the file; it still has its temporary name."""
        with interrupts_held():
            file, self.file = self.file, None
            file.close()
            self._raise_error()
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

    def _raise_error(self) -> None:
        if self._sink.error is not None:
            raise self._sink.error


def frames_per_chunk(frame_bytes: int) -> int:
    return max(1, CHUNK_BYTES // frame_bytes)
