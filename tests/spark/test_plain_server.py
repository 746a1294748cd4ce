"""The server of the benchmarks that only stores and hands out: it does that, and ends."""

import os
import socket
from pathlib import Path

from benchmarks.spark.plain_server import RECEIVE_BYTES, SIZE, PlainServer

WAIT_S = 40


def test_what_was_stored_is_handed_out(tmp_path: Path) -> None:
    data = os.urandom(3 * RECEIVE_BYTES + 17)
    path = tmp_path / "a file"
    with PlainServer() as server:
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
            connection.sendall(f"PUT {path}\n".encode() + data)
            connection.shutdown(socket.SHUT_WR)
            assert SIZE.unpack(connection.recv(SIZE.size, socket.MSG_WAITALL)) == (len(data),)
        assert path.read_bytes() == data
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
            connection.sendall(f"GET {path}\n".encode())
            found = b""
            while received := connection.recv(RECEIVE_BYTES):
                found += received
        assert found == data
    assert not Path(f"/proc/{server.pid}").exists()


def test_what_cannot_be_stored_is_not_answered(tmp_path: Path) -> None:
    with PlainServer() as server, socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        connection.sendall(f"PUT {tmp_path / 'missing' / 'file'}\n".encode())
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
