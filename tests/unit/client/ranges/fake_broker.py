"""A broker in a thread that serves one partition from memory and does what a script says: for tests of the reader.

It speaks the real protocol over real sockets. The script is a list of functions, one for each Fetch that comes in, that
get the request and the honest answer and return what is sent; None closes the connection. When the script is through,
answers are honest.
"""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from warmlog_protocol.batch import read_header
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import (
    APIS,
    ApiVersions,
    BrokerMetadata,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    HandshakeRequest,
    HandshakeResponse,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from warmlog_protocol.wire.connection import ServerConnection

TOPIC_ID = b"0123456789abcdef"
Answer = tuple[FetchedPartition, bytes]
Step = Callable[[FetchPartition, Answer], Answer | ApiError | None]


class FakeBroker:
    """Serves `batches`, sealed ones in the order of their offsets."""

    def __init__(self, batches: Sequence[bytes], script: Sequence[Step] = (), *, log_start_offset: int = 0) -> None:
        self.batches = list(batches)
        self.script = list(script)
        self.log_start_offset = log_start_offset
        self.list_offsets_errors: list[ApiError] = []
        """What is answered instead of the log start, one each time."""
        self.fetches: list[FetchPartition] = []
        self.connections = 0
        self.most_unanswered = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._sockets: list[socket.socket] = []
        self.leader = self.address
        """Whom it names when it is asked for the leader."""

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads[1:]:
            thread.join()

    def answer(self, wanted: FetchPartition) -> Answer:
        """What an honest broker sends: whole batches from the one with the offset in it, the last one cut off."""
        headers = [read_header(batch) for batch in self.batches]
        rest = b"".join(
            batch
            for batch, header in zip(self.batches, headers, strict=True)
            if header.next_offset > wanted.fetch_offset
        )
        size_bytes = max(wanted.max_bytes, read_header(rest).size_bytes if rest else 0)
        payload = rest[:size_bytes]
        high_watermark = headers[-1].next_offset if headers else self.log_start_offset
        return self.partition(wanted, len(payload), high_watermark), payload

    def partition(
        self, wanted: FetchPartition, size_bytes: int, high_watermark: int, code: int = 0, message: str = ""
    ) -> FetchedPartition:
        return FetchedPartition(
            wanted.topic,
            wanted.partition,
            code,
            message,
            high_watermark,
            high_watermark,
            -1 if code else self.log_start_offset,
            0,
            TOPIC_ID,
            size_bytes,
        )

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or the kernel waits 40 ms for more
            self.connections += 1
            self._sockets.append(sock)
            self._threads.append(threading.Thread(target=self._serve, args=(sock,), daemon=True))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        core = ServerConnection(max_frame_bytes=1 << 20, buffer_bytes=1 << 16)
        try:
            while (count := sock.recv_into(core.get_buffer())) > 0:
                requests = core.received(count)
                self.most_unanswered = max(self.most_unanswered, len(requests))
                for request in requests:
                    if not self._handle(sock, core, request.correlation_id, request.message):
                        sock.close()
                        return
        except OSError:
            return

    def _handle(self, sock: socket.socket, core: ServerConnection, correlation_id: int, message: Message) -> bool:
        if isinstance(message, HandshakeRequest):
            apis = [ApiVersions(api.key, api.min_version, api.max_version) for api in APIS.values()]
            sock.sendall(core.respond(correlation_id, HandshakeResponse("fake", "cluster", 0, 1 << 20, apis)))
            return True
        if isinstance(message, ListOffsetsRequest):
            listed = [self._listed(wanted) for wanted in message.partitions]
            sock.sendall(core.respond(correlation_id, ListOffsetsResponse(listed)))
            return True
        if isinstance(message, MetadataRequest):
            sock.sendall(core.respond(correlation_id, self._metadata(message)))
            return True
        assert isinstance(message, FetchRequest)
        (wanted,) = message.partitions
        self.fetches.append(wanted)
        honest = self.answer(wanted)
        step = self.script.pop(0) if self.script else lambda _, answer: answer
        answer = step(wanted, honest)
        if answer is None:
            return False
        if isinstance(answer, ApiError):
            answer = self.partition(wanted, 0, honest[0].high_watermark, answer.code, str(answer)), b""
        partition, payload = answer
        sock.sendall(core.respond(correlation_id, FetchResponse([partition]), len(payload)) + payload)
        return True

    def _listed(self, wanted: ListOffsetsPartition) -> ListedOffset:
        if self.list_offsets_errors:
            error = self.list_offsets_errors.pop(0)
            return ListedOffset(wanted.topic, wanted.partition, error.code, str(error), -1, -1, -1)
        return ListedOffset(wanted.topic, wanted.partition, 0, "", -1, self.log_start_offset, 0)

    def _metadata(self, message: MetadataRequest) -> MetadataResponse:
        host, port = self.leader.rsplit(":", 1)
        partitions = [PartitionMetadata(0, number, 1, 0, [1], [1]) for number in range(3)]
        topics = [TopicMetadata(0, name, TOPIC_ID, partitions) for name in message.topics or ()]
        return MetadataResponse("cluster", 1, [BrokerMetadata(1, host, int(port))], topics)
