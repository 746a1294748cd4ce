"""The least that a server can do: hands out files over TCP, and stores what it receives, without a look at it.

A process of its own, as brokers are. A request is one line: `GET path`, answered with the bytes of the file until the
end of the connection, or `PUT path` and bytes until the client shuts its side, answered with their number once they are
on disk. Nothing is checked, framed or shared: whoever does more than this needs more.
"""

import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

RECEIVE_BYTES = 1024 * 1024
SIZE = struct.Struct(">q")
STOP_TIMEOUT_S = 10.0


class _Handler(socketserver.StreamRequestHandler):
    rbufsize = 0  # what follows the line is received straight into a buffer

    def handle(self) -> None:
        verb, path = self.rfile.readline().decode().rstrip("\n").split(" ", 1)
        if verb == "GET":
            with Path(path).open("rb") as file:
                self.connection.sendfile(file)
        else:
            self.connection.sendall(SIZE.pack(_store(self.connection, path)))


def _store(connection: socket.socket, path: str) -> int:
    """Writes what comes to `path`, and has it synced meanwhile; how many bytes are on disk."""
    size_bytes, is_over, written = 0, False, threading.Event()
    with Path(path).open("wb", buffering=0) as file, ThreadPoolExecutor(1) as pool:

        def sync() -> None:
            while not is_over:
                written.wait()
                written.clear()
                os.fdatasync(file.fileno())

        syncing = pool.submit(sync)
        try:
            buffer = memoryview(bytearray(RECEIVE_BYTES))
            while received := connection.recv_into(buffer, RECEIVE_BYTES, socket.MSG_WAITALL):
                size_bytes += file.write(buffer[:received])
                written.set()
        finally:
            is_over = True
            written.set()
        syncing.result()  # an error of the disk is reported to one sync only
        os.fdatasync(file.fileno())  # of what came during the thread's last
    return size_bytes


class PlainServer:
    """The server's process; a context manager that starts and stops it."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then closes its stdin
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._stop()
            raise RuntimeError("the plain server ended before it listened: see stderr")
        self.port = int(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        with self._process:  # closes the pipes, and waits
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()


def main() -> None:
    """Serves until its stdin is closed."""
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        print(server.server_address[1], flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
