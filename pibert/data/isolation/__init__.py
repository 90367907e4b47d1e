"""Reads foreign files in a separate process, with limits on memory and time.

The libraries that parse them (scipy, HDF5, VTK's compressors) were not made for hostile input: a
damaged file may crash them, hang them or make them allocate all memory. ``server`` is a process
that imports the readers once and forks a child for each recording; ``remote`` requests trajectories
and frames from the child. This module defines limits and messages. The parent unpickles nothing
that comes from a child: answers are JSON and raw arrays.
"""

import contextlib
import json
import os
import pickle
import socket
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_MEMORY_STATUS = Path("/proc/self/statm")
_LISTS = (".pvd", ".series", ".vtm", ".foam", ".openfoam")
"""Files that name others beside them, or stand for their folder."""
_MOST_FILES = 200_000
_LENGTH = struct.Struct("<Q")
_MOST_HEAD = 1 << 30


class Limits(NamedTuple):
    """Limits of one request to a reading process."""

    memory: int
    """Bytes that it may allocate."""
    seconds: float
    dataset: int | None = None
    """Bytes of a data set of an HDF5 file that a client sends; None: any."""


def error_kinds() -> tuple[type[Exception], ...]:
    """Return the errors that a child reports as they are; one that is of several is the first."""
    from pibert.data.format import FormatError
    from pibert.data.hdf5 import HDF5Error
    from pibert.data.readers.recordings import DamagedError, SourceError, TooLargeError

    kinds = (TooLargeError, DamagedError, SourceError, FormatError, HDF5Error)
    return (*kinds, FileNotFoundError, ValueError, OSError, ImportError)


def limits_for(path: Path) -> Limits:
    """Enough for any honest file: 50 times its size, at 100 kB/s, and a minimum."""
    if path.suffix.lower() in _LISTS:
        path = path.absolute().parent
    files: Iterator[Path] = (Path(f, name) for f, _, names in os.walk(path) for name in names)
    if not path.is_dir():
        files = iter([path] if path.exists() else path.parent.glob(path.name))
    size = 0
    for file in islice(files, _MOST_FILES):
        with contextlib.suppress(OSError):
            size += file.stat().st_size
    return Limits(memory=(3 << 29) + 50 * size, seconds=120 + size / 1e5)


def limit_memory(more: int) -> None:
    """Let this process allocate ``more`` bytes in addition, where the system reports its use."""
    if _MEMORY_STATUS.exists():
        import resource  # which Windows does not have

        used = int(_MEMORY_STATUS.read_text().split()[5]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + more, most))


def send_request(connection: socket.socket, *request: Any) -> None:
    """Send a request to a child; its arguments are our own and may be any objects."""
    data = pickle.dumps(request)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_request(connection: socket.socket) -> tuple[Any, ...]:
    """Receive a request; ``EOFError`` when the program has ended."""
    request: tuple[Any, ...] = pickle.loads(_receive_sized(connection))
    return request


def send_answer(
    connection: socket.socket, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    described = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    head = json.dumps([facts, described], default=lambda number: number.tolist()).encode()
    connection.sendall(_LENGTH.pack(len(head)) + head)
    for array in arrays.values():
        connection.sendall(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def receive_answer(connection: socket.socket) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Receive facts and arrays of a child; ``EOFError`` when it died."""
    facts, described = json.loads(_receive_sized(connection))
    arrays = {}
    for name, kind, shape in described:
        arrays[name] = np.empty(shape, np.dtype(kind))
        _receive(connection, arrays[name].reshape(-1).view(np.uint8).data)
    return facts, arrays


def _receive_sized(connection: socket.socket) -> bytearray:
    (length,) = _LENGTH.unpack(_receive(connection, bytearray(_LENGTH.size)))
    if length > _MOST_HEAD:
        raise EOFError
    return _receive(connection, bytearray(length))


def _receive(connection: socket.socket, buffer: Any) -> Any:
    """Fill a buffer and return it."""
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return buffer
