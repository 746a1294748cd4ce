"""A client of Kafka's protocol of a few lines, for tests that need requests as no library sends them."""

import socket
import struct
from typing import Any, Self

from warmlog_protocol.batch import MAGIC_ROWS, encode_batch, read_batch, to_rows
from warmlog_protocol.kafka.compiled import reader, skip_tags, writer
from warmlog_protocol.kafka.schema import API

TIMEOUT_S = 40
MANY_ITEMS = 100_000


class ConnectionEnded(Exception):
    """The broker has closed the connection."""


class KafkaClient:
    """One connection. `call` sends a request and waits for its response; `send` and `receive` are its halves."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S, client_id: str = "test") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id.encode()
        self._next_correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, name: str, version: int, **fields: Any) -> Any:
        """Return the response to a request of these fields."""
        return self.receive(name, version, self.send(name, version, **fields))

    def send(self, name: str, version: int, *, records: bytes = b"", **fields: Any) -> int:
        """Send a request, with `records` for the first field of that type; return its correlation id."""
        pieces = writer(name, "request", version)(API[name].request(**fields))
        return self.send_body(name, version, pieces[0] + records + b"".join(pieces[1:]))

    def send_body(self, name: str, version: int, body: bytes) -> int:
        """Send a request whose body is already written."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        head = struct.pack(">hhih", API[name].key, version, correlation_id, len(self._client_id)) + self._client_id
        if version in API[name].flexible:
            head += b"\0"
        self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        return correlation_id

    def receive(self, name: str, version: int, correlation_id: int) -> Any:
        """Return the next response, which must be that to this request."""
        frame = self.receive_frame()
        assert int.from_bytes(frame[:4], "big") == correlation_id
        position = 4
        if version in API[name].flexible and name != "ApiVersions":
            position = skip_tags(frame, position)
        self.body = frame[position:]
        return reader(name, "response", version)(self.body, MANY_ITEMS)

    def receive_frame(self) -> bytes:
        """Return the next frame without its size. ConnectionEnded if there is none."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            try:
                some = self.socket.recv(count - len(received))
            except ConnectionResetError:
                some = b""
            if not some:
                raise ConnectionEnded
            received += some
        return received

    # --- the requests that most tests need

    def create(self, topic: str) -> None:
        """Have a topic created by asking for it, which a broker with auto.create.topics.enable does."""
        topics = [API["Metadata"].request.MetadataRequestTopic(name=topic)]
        assert self.call("Metadata", 9, topics=topics).topics[0].error_code == 0

    def produce(self, topic: str, records: bytes, *, partition: int = 0, version: int = 9, acks: int = -1) -> Any:
        """Produce one record set; return the response of its partition."""
        response = self.call("Produce", version, records=records, **produce_fields(topic, records, partition, acks))
        return response.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int = 0, *, version: int = 11, **more: Any) -> tuple[Any, bytes]:
        """Fetch from one partition; return its response and its records."""
        request = API["Fetch"].request
        partition = request.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        fields = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 24, "session_epoch": -1} | more
        topics = [request.FetchTopic(topic=topic, partitions=[partition])]
        response = self.call("Fetch", version, topics=topics, **fields)
        part = response.responses[0].partitions[0]
        return part, self.body[part.records]


def produce_fields(topic: str, records: bytes, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    """Return the fields of a Produce request for one record set."""
    request = API["Produce"].request
    part = request.PartitionProduceData(partition, len(records))
    return {"acks": acks, "timeout_ms": 10_000, "topic_data": [request.TopicProduceData(topic, partition_data=[part])]}


def rows(*values: bytes | None, **more: Any) -> bytes:
    """Return a batch as clients of Kafka write it."""
    batch = encode_batch(values, timestamps_ms=1_700_000_000_000, **more)
    made = to_rows(read_batch(batch))
    assert made[16] == MAGIC_ROWS
    return made
