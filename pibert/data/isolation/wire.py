"""Messages between a program and its reading process: a head and arrays, over a socket."""

import json
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
