"""Who sends mutated frames: one at a time, each followed by a request that tells whether the connection still lives."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import msgspec

from faults.fuzzing.corpus import PASSWORD, USER, corpus, handshake, pack, request, sentinel
from faults.fuzzing.mutation import MUTATIONS
from warmlog_protocol.messages import AuthenticateRequest
from warmlog_protocol.sasl.scram import ClientExchange
from warmlog_protocol.wire.frames import HEAD_BYTES

ANSWER_TIMEOUT_S, MOST_TIMEOUT_S = 0.05, 1.0
"""A frame that says it is longer than it is swallows what comes after it: then nothing is answered. What is waited at
least, and at most where answers take long."""
FRAMES_A_CONNECTION = 40
SENTINEL_ID = 0x5EED
LOGIN_ID = 0x106
LOGIN_SHARE = 0.5
MECHANISM = "SCRAM-SHA-256"


@dataclass(slots=True)
class Tally:
    """What became of the frames."""

    frames: int = 0
    connections: int = 0
    answered: int = 0
    closed: int = 0
    swallowed: int = 0
    logins: int = 0
    by_mutation: dict[str, int] = field(default_factory=dict)


class Peer(threading.Thread):
    """Sends `frames` mutated frames over as many connections as that takes."""

    def __init__(self, address: tuple[str, int], frames: int, seed: int, *, is_authenticated: bool = False) -> None:
        """`is_authenticated`: the listener authenticates, which the peer does on some of its connections."""
        super().__init__(name=f"peer-{seed}", daemon=True)
        self.tally = Tally()
        self.error: BaseException | None = None
        self._address = address
        self._is_authenticated = is_authenticated
        self._frames = frames
        self._usual_s = MOST_TIMEOUT_S / 10
        self.luck = Random(seed)
        self.corpus = corpus()
        self.handshake = handshake()
        self.sentinel = sentinel(SENTINEL_ID)

    def run(self) -> None:
        try:
            while self.tally.frames < self._frames:
                self._connect()
        except BaseException as error:
            self.error = error

    def _connect(self) -> None:
        self.tally.connections += 1
        with socket.create_connection(self._address, timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Closing resets: sockets that linger would use up the ports.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader = self.reader(connection)
            if self.luck.random() < 0.95:
                connection.sendall(self.handshake)
                if self._is_authenticated and self.luck.random() < LOGIN_SHARE:
                    self._log_in(connection, reader)
            for _ in range(FRAMES_A_CONNECTION):
                if self.tally.frames >= self._frames or not self._send(connection, reader):
                    return

    def _log_in(self, connection: socket.socket, reader: "Reader") -> None:
        exchange = ClientExchange(MECHANISM, USER, PASSWORD)
        response = self._authenticate(connection, reader, exchange.first())
        exchange.finish(self._authenticate(connection, reader, exchange.final(response)))
        self.tally.logins += 1

    def _authenticate(self, connection: socket.socket, reader: "Reader", data: bytes) -> bytes:
        connection.sendall(pack(request(AuthenticateRequest(MECHANISM, data), correlation_id=LOGIN_ID)))
        _, error_code, *fields = msgspec.msgpack.decode(reader.wait_for(LOGIN_ID))
        assert error_code == 0, fields
        assert isinstance(fields[0], bytes)
        return fields[0]

    def mutated(self) -> tuple[str, bytes]:
        """The next frame, and what is wrong with it."""
        mutation = self.luck.choice(MUTATIONS)
        return mutation.__name__, mutation(self.luck.choice(self.corpus), self.luck)

    def reader(self, connection: socket.socket) -> "Reader":
        return Reader(connection, HEAD_BYTES, _correlation_id)

    def _send(self, connection: socket.socket, reader: "Reader") -> bool:
        """Whether the connection is still good for more."""
        tally, luck = self.tally, self.luck
        name, frame = self.mutated()
        tally.frames += 1
        tally.by_mutation[name] = tally.by_mutation.get(name, 0) + 1
        try:
            if luck.random() < 0.02:
                connection.sendall(frame)
                return False  # gone without a word
            began_s = time.monotonic()
            connection.sendall(frame + self.sentinel)
            connection.settimeout(min(MOST_TIMEOUT_S, max(ANSWER_TIMEOUT_S, 10 * self._usual_s)))
            reader.wait_for(SENTINEL_ID)
            self._usual_s += (time.monotonic() - began_s - self._usual_s) / 8
        except TimeoutError:
            tally.swallowed += 1
            return False
        except OSError:
            tally.closed += 1
            return False
        tally.answered += 1
        return True


class Reader:
    """Takes frames apart as far as it needs: it looks for one correlation id."""

    def __init__(self, connection: socket.socket, head_bytes: int, id_of: Callable[[bytes], int]) -> None:
        """`head_bytes` is what comes before the header, `id_of` returns the correlation id of a header."""
        self._connection = connection
        self._head_bytes = head_bytes
        self._id_of = id_of
        self._data = b""

    def wait_for(self, correlation_id: int) -> bytes:
        """The header of the answer with this id; ConnectionError when the broker closes."""
        while True:
            while len(self._data) >= self._head_bytes:
                (size,) = struct.unpack_from(">I", self._data)
                if len(self._data) < size + 4:
                    break
                header = self._data[self._head_bytes : size + 4]
                self._data = self._data[size + 4 :]
                if self._id_of(header) == correlation_id:
                    return header
            received = self._connection.recv(65_536)
            if not received:
                raise ConnectionResetError("closed by the broker")
            self._data += received


def _correlation_id(header: bytes) -> int:
    """The first field of an answer's header: a msgpack array that begins with an integer."""
    kind = header[1]
    sizes = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
    if kind < 0x80:
        return kind
    return int.from_bytes(header[2 : 2 + sizes.get(kind, 0)], "big")
