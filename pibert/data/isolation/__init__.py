"""Reading foreign files in a separate process, with limits on memory and time.

The libraries that parse them (scipy, HDF5, VTK's compressors) were not made for hostile input: a
damaged file may crash them, hang them or make them allocate everything. ``server`` is a process
that imports the readers once and forks a child for each recording; ``remote`` asks the child for
trajectories and frames. Limits and messages are defined here. The parent unpickles nothing that
comes from a child: answers are JSON and raw arrays.
"""

import json
import os
import pickle
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_STATEMENTS = Path("/proc/self/statm")
_LISTS = (".pvd", ".series", ".vtm", ".foam", ".openfoam")
"""Files that name others beside them, or stand for their folder."""
_MOST_FILES = 200_000


class Limits(NamedTuple):
    """Of one request to a reading process."""

    memory: int
    """Bytes that it may allocate."""
    seconds: float


def limits_for(path: Path) -> Limits:
    """Enough for any honest file: 50 times its size, at 100 kB/s, and something for small ones."""
    size = _size(path)
    return Limits(memory=(3 << 29) + 50 * size, seconds=120 + size / 1e5)


def limit_memory(more: int) -> None:
    """Let this process allocate so many bytes more than now, where the system reports them."""
    if _STATEMENTS.exists():
        import resource  # which Windows does not have

        used = int(_STATEMENTS.read_text().split()[5]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + more, most))


def _size(path: Path) -> int:
    if path.suffix.lower() in _LISTS:
        path = path.absolute().parent
    if path.is_dir():
        files: Iterator[Path] = (
            Path(folder, name) for folder, _, names in os.walk(path) for name in names
        )
    else:
        files = iter([path] if path.exists() else path.parent.glob(path.name))
    total = 0
    for file in islice(files, _MOST_FILES):
        try:
            total += file.stat().st_size
        except OSError:
            continue
    return total


_LENGTH = struct.Struct("<Q")
_MOST_HEAD = 1 << 30


def send_request(connection: socket.socket, request: Sequence[Any]) -> None:
    """Ask a child for something; the arguments are our own and may be any objects."""
    data = pickle.dumps(tuple(request))
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_request(connection: socket.socket) -> tuple[Any, ...]:
    """What a program asks; ``EOFError`` when it is gone."""
    (length,) = _LENGTH.unpack(_receive(connection, bytearray(_LENGTH.size)))
    request: tuple[Any, ...] = pickle.loads(_receive(connection, bytearray(length)))
    return request


def send_answer(
    connection: socket.socket, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    described = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    head = json.dumps([facts, described], default=_plain).encode()
    connection.sendall(_LENGTH.pack(len(head)) + head)
    for array in arrays.values():
        connection.sendall(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def receive_answer(connection: socket.socket) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Facts and arrays of a child; ``EOFError`` when it died."""
    (length,) = _LENGTH.unpack(_receive(connection, bytearray(_LENGTH.size)))
    if length > _MOST_HEAD:
        raise EOFError
    facts, described = json.loads(_receive(connection, bytearray(length)))
    arrays = {}
    for name, kind, shape in described:
        arrays[name] = np.empty(shape, np.dtype(kind))
        _receive(connection, arrays[name].reshape(-1).view(np.uint8).data)
    return facts, arrays


def _receive(connection: socket.socket, buffer: Any) -> Any:
    """The buffer, filled."""
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return buffer


def _plain(value: Any) -> Any:
    """NumPy's numbers among facts as Python's."""
    return value.tolist()
