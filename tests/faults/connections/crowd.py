"""Many clients in one process of their own, so that their descriptors and their work are not the tester's.

Everything here runs in that process: the functions are its commands, `_held` is what they share.
"""

import resource
import socket
import struct
import time
from typing import NamedTuple

from warmlog_protocol.messages import ApiKey, HandshakeRequest, MetadataRequest, ProducePartition, ProduceRequest
from warmlog_protocol.wire.frames import HEAD_BYTES, pack_frame

TIMEOUT_S = 30.0
HALF_FRAME_BYTES = 20_000
HALF_REQUEST = ProduceRequest(-1, 1000, [ProducePartition("t", 0, HALF_FRAME_BYTES)])

_held: list[socket.socket] = []


class Cut(NamedTuple):
    """What became of half-open connections: how many the broker closed, and when the first and the last of them."""

    count: int
    first_s: float
    last_s: float


def begin(descriptors: int) -> None:
    """Lets this process have so many descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(descriptors, hard), hard))


def connect(address: tuple[str, int], count: int) -> int:
    """Opens and greets with `count` connections, and keeps them; returns how many the broker has answered."""
    for _ in range(count):
        connection = _connect(address)
        _held.append(connection)
        connection.sendall(_handshake())
        _receive_answer(connection)
    return count


def ask() -> int:
    """One request on each connection that is held, in turn; returns how many were answered."""
    request = pack_frame((int(ApiKey.METADATA), 0, 1), MetadataRequest([]))
    for connection in _held:
        connection.sendall(request)
        _receive_answer(connection)
    return len(_held)


def half_open(address: tuple[str, int], count: int) -> Cut:
    """Opens `count` connections: one half stop in the middle of the Handshake, the others in that of a request.

    Returns once the broker has closed them all, or after the timeout.
    """
    handshake = _handshake()
    half = pack_frame((int(ApiKey.PRODUCE), 0, 1), HALF_REQUEST, HALF_FRAME_BYTES) + bytes(HALF_FRAME_BYTES // 2)
    begin_s = time.monotonic()
    connections = []
    try:
        for number in range(count):
            connection = _connect(address)
            connections.append(connection)
            if number % 2:
                connection.sendall(handshake[: len(handshake) // 2])
            else:
                connection.sendall(handshake)
                _receive_answer(connection)
                connection.sendall(half)
        ends_s = [time.monotonic() - begin_s for connection in connections if _is_closed(connection)]
    finally:
        for connection in connections:
            connection.close()
    return Cut(len(ends_s), min(ends_s, default=0.0), max(ends_s, default=0.0))


def close() -> None:
    """Closes all connections that are held."""
    for connection in _held:
        connection.close()
    _held.clear()


def _connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Closing resets: thousands of sockets that linger would use up the ports.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return connection


def _handshake() -> bytes:
    return pack_frame((int(ApiKey.HANDSHAKE), 0, 0), HandshakeRequest("crowd", "1"))


def _receive_answer(connection: socket.socket) -> None:
    head = _receive(connection, HEAD_BYTES)
    _receive(connection, struct.unpack_from(">I", head)[0] + 4 - HEAD_BYTES)


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        piece = connection.recv(size_bytes - len(data))
        if not piece:
            raise ConnectionResetError("closed by the broker")
        data += piece
    return data


def _is_closed(connection: socket.socket) -> bool:
    """Waits for the end of the connection; False when it does not come in time."""
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True
    except TimeoutError:
        return False
