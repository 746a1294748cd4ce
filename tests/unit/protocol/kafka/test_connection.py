"""Frames of Kafka's protocol: requests in any pieces, what is none, and who speaks another protocol."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_protocol.errors import RemoteProtocolError
from warmlog_protocol.kafka.compiled import writer
from warmlog_protocol.kafka.connection import KafkaConnection, KafkaRequest
from warmlog_protocol.kafka.schema import API, Api
from warmlog_protocol.wire.connection import ServerConnection

SERVED: dict[int, Api] = {api.key: api for api in API.values()}


def connection(buffer_bytes: int = 64) -> KafkaConnection:
    return KafkaConnection(
        SERVED, max_frame_bytes=10_000, buffer_bytes=buffer_bytes, max_request_bytes=1000, max_items=100
    )


def request_frame(name: str, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    tags = b"\0" if version in API[name].flexible else b""
    head = struct.pack(">hhih", API[name].key, version, correlation_id, len(client_id.encode())) + client_id.encode()
    return struct.pack(">i", len(head + tags + body)) + head + tags + body


def feed(connection: KafkaConnection | ServerConnection, data: bytes, step: int) -> list[KafkaRequest]:
    """Receive `data` in pieces of at most `step` bytes; the views of requests are copied, as the buffer is reused."""
    requests = []
    while data:
        room = connection.get_buffer()
        count = min(step, len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        for request in connection.received(count):
            assert isinstance(request, KafkaRequest)
            requests.append(request._replace(records=memoryview(bytes(request.records))))
    return requests


@given(st.integers(1, 300), st.sampled_from([16, 64, 1000]))
def test_requests_are_read_from_pieces_of_any_size(step: int, buffer_bytes: int) -> None:
    request = API["Produce"].request
    records = bytes(range(200))
    topics = [request.TopicProduceData("flights", partition_data=[request.PartitionProduceData(3, len(records))])]
    head, tail = writer("Produce", "request", 9)(request(acks=1, topic_data=topics))
    metadata = b"".join(writer("Metadata", "request", 9)(API["Metadata"].request(None)))
    sent = request_frame("Metadata", 9, 1, "", metadata) + request_frame("Produce", 9, 2, "né", head + records + tail)
    first, second = feed(connection(buffer_bytes), 2 * sent, step)[2:]
    assert (first.api.name, first.version, first.correlation_id, first.client_id) == ("Metadata", 9, 1, "")
    assert first.message == API["Metadata"].request(None, api_version=9)
    assert first.payload_bytes == 0
    assert (second.correlation_id, second.client_id, second.message.acks) == (2, "né", 1)
    (batch,) = second.batches()
    assert (batch.topic, batch.partition, bytes(batch.batch)) == ("flights", 3, records)


@pytest.mark.parametrize(
    ("begun", "named"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "the peer speaks TLS, not Kafka's protocol"),
        (b"GET / HT", "the peer speaks HTTP, not Kafka's protocol"),
        (b"hello, w", "the peer sends text"),
        (struct.pack(">II", 64, 30) + bytes(60), "perhaps the peer speaks warmlog's protocol"),
    ],
)
def test_a_peer_that_speaks_another_protocol_is_named(begun: bytes, named: str) -> None:
    with pytest.raises(RemoteProtocolError, match=named):
        feed(connection(), begun, 1000)


def test_a_client_of_kafka_at_the_other_listener_is_named() -> None:
    frame = request_frame("ApiVersions", 3, 0, "client", b"\x05test\x021\x00")
    with pytest.raises(RemoteProtocolError, match="the peer speaks Kafka's protocol, not warmlog's"):
        feed(ServerConnection(max_frame_bytes=1000, buffer_bytes=64), frame, 1000)
