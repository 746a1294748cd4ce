"""What is no request, or lies about itself, ends its connection and harms nobody; a wrong batch has its error."""

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_thread import BrokerThread
from kafka_client import ConnectionEnded, KafkaClient, produce_fields, rows
from warmlog.blocking import Admin
from warmlog_broker.network.session import LINGER_S
from warmlog_protocol.batch import HEADER_BYTES, EndTxnMarker, encode_end_txn_marker, read_batch, read_header
from warmlog_protocol.batch.header import seal_batch
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.compiled import writer
from warmlog_protocol.kafka.schema import API
from wire_client import batch_of

HEAD = struct.pack(">hhih", 3, 1, 7, -1)


def frame(body: bytes, size: int | None = None) -> bytes:
    return struct.pack(">i", len(body) if size is None else size) + body


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"", size=-1),
        frame(b"", size=2**31 - 1),
        frame(HEAD, size=4),
        frame(HEAD, size=2 << 20),  # more than a request without records may have
        frame(struct.pack(">hhih", 3, 1, 7, 200) + b"short"),  # a client id that is longer than the request
        frame(struct.pack(">hhih", 3, 1, 7, 2) + b"\xc3\x28"),  # and one that is not UTF-8
        frame(HEAD + b"\x7f\xff\xff\xff"),  # two billion topics
        frame(HEAD + b"\x00\x00\x00\x01\x00\x09abc"),  # a name that is longer than the request
        frame(HEAD + b"\x00\x00\x00\x01\x00\x02\xc3\x28"),  # and one that is not UTF-8
        frame(HEAD),
        frame(struct.pack(">hhih", 77, 0, 7, -1)),  # an API that there is not
        frame(struct.pack(">hhih", 3, 44, 7, -1)),  # a version that there is not
        frame(struct.pack(">hhih", -5, -1, 7, -1)),
    ],
)
def test_what_is_no_request_ends_its_connection_alone(kafka_address: str, client: KafkaClient, sent: bytes) -> None:
    with KafkaClient(kafka_address) as other:
        other.call("ApiVersions", 0)
        other.socket.sendall(sent + b"\0" * 16)
        with pytest.raises(ConnectionEnded):
            other.receive_frame()
    assert client.call("ApiVersions", 0).error_code == 0


def test_a_connection_that_ends_has_one_line_in_the_log_which_names_the_protocol(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    others = {
        "the peer speaks HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "the peer speaks TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "perhaps the peer speaks warmlog's protocol": struct.pack(">II", 64, 30),
        "Metadata request version 1: more topics than bytes": frame(HEAD + b"\x7f\xff\xff\xff" + bytes(60)),
    }
    with BrokerThread(tmp_path / "data", kafka_listen="127.0.0.1:0") as running:
        for told, begun in others.items():
            with KafkaClient(running.broker.listening.addresses["kafka"]) as other:
                other.socket.sendall(begun.ljust(68, b"\0"))
                with pytest.raises(ConnectionEnded):
                    other.receive_frame()
            (line,) = [each.getMessage() for each in caplog.records if "closed: " in each.getMessage()]
            assert told in line
            caplog.clear()


@pytest.mark.parametrize("version", [3, 9])
def test_records_that_end_after_their_request_end_the_connection(client: KafkaClient, version: int) -> None:
    client.create("cut-off")
    records = rows(b"a")
    client.send("Produce", version, records=records[:-20], **produce_fields("cut-off", records))
    with pytest.raises(ConnectionEnded):
        client.receive_frame()


def test_a_request_of_more_items_than_allowed_ends_the_connection(client: KafkaClient) -> None:
    topic = API["Metadata"].request.MetadataRequestTopic(name="t")
    client.send("Metadata", 1, topics=[topic] * 10_001)
    with pytest.raises(ConnectionEnded):
        client.receive_frame()


def test_before_the_beginning_of_a_request_nothing_large_is_received(kafka_address: str) -> None:
    with KafkaClient(kafka_address) as client:
        client.socket.sendall(struct.pack(">ihh", 50_000_000, 0, 99))
        with pytest.raises(ConnectionEnded):
            client.receive_frame()


def test_the_first_request_of_a_connection_may_be_a_large_one(kafka_address: str, client: KafkaClient) -> None:
    client.create("first")
    with KafkaClient(kafka_address) as other:
        assert other.produce("first", rows(bytes(20_000)), version=7).error_code == 0


def test_a_connection_that_is_turned_away_sends_nothing_large(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data", kafka_listen="127.0.0.1:0", max_connections_per_ip=1) as running:
        address = running.broker.listening.addresses["kafka"]
        with KafkaClient(address) as held, KafkaClient(address, timeout_s=LINGER_S / 2) as refused:
            held.call("ApiVersions", 0)
            refused.socket.sendall(struct.pack(">ihh", 50_000_000, 0, 9))
            with pytest.raises(ConnectionEnded):
                refused.receive_frame()


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_topic_without_a_name_has_a_response_in_every_version(client: KafkaClient, version: int) -> None:
    topic = API["Metadata"].request.MetadataRequestTopic(topic_id=b"x" * 16, name=None)
    (found,) = client.call("Metadata", version, topics=[topic]).topics
    assert (found.error_code, found.name or "") == (ErrorCode.UNKNOWN_TOPIC_ID, "")


PRODUCER: Any = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
CONTROL = encode_end_txn_marker(EndTxnMarker(True, 0), timestamp_ms=1, producer_id=5, producer_epoch=0)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"\0" * 60, ErrorCode.INVALID_RECORD),
        (rows(b"a")[:16] + b"\0" + rows(b"a")[17:], ErrorCode.INVALID_RECORD),  # magic 0
        (rows(b"a")[:16] + b"\1" + rows(b"a")[17:], ErrorCode.INVALID_RECORD),
        (batch_of([b"a"]), ErrorCode.INVALID_RECORD),  # columns
        (rows(b"a") + rows(b"b"), ErrorCode.INVALID_RECORD),  # two batches
        (rows(b"a")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (rows(b"a") + b"more", ErrorCode.CORRUPT_MESSAGE),
        (rows(b"a")[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),  # the CRC
        (CONTROL, ErrorCode.INVALID_RECORD),
        (rows(b"a", **PRODUCER | {"producer_id": 1 << 40}), ErrorCode.UNKNOWN_PRODUCER_ID),
        (rows(b"a", producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),  # without a sequence
        (rows(b"a", **PRODUCER, is_transactional=True), ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_a_batch_that_is_not_one_is_refused_and_not_written(
    client: KafkaClient, records: bytes, code: ErrorCode
) -> None:
    client.create("bad-batches")
    for version in (3, 8, 9, 12):
        refused = client.produce("bad-batches", records, version=version)
        assert (refused.error_code, refused.base_offset) == (code, -1)
    part, stored = client.fetch("bad-batches", max_wait_ms=0)
    assert (part.high_watermark, stored) == (0, b"")


def test_a_partition_that_is_refused_does_not_hold_back_the_others(client: KafkaClient) -> None:
    client.create("one-of-two")
    request = API["Produce"].request
    good = rows(b"good")
    data = [
        request.TopicProduceData("one-of-two", partition_data=[request.PartitionProduceData(0, len(good))]),
        request.TopicProduceData("bad/name", partition_data=[request.PartitionProduceData(0, 0)]),
    ]
    head, middle, last = writer("Produce", "request", 9)(request(acks=-1, timeout_ms=9000, topic_data=data))
    answered = client.receive("Produce", 9, client.send_body("Produce", 9, head + good + middle + last))
    assert [topic.partition_responses[0].error_code for topic in answered.responses] == [0, ErrorCode.INVALID_RECORD]


def test_a_whole_request_that_is_refused_is_said_for_each_partition(client: KafkaClient) -> None:
    client.create("twice")
    assert client.produce("twice", rows(b"a"), acks=3).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    request = API["Produce"].request
    part = request.PartitionProduceData(0, len(rows(b"a")))
    data = [request.TopicProduceData("twice", partition_data=[part, part])]
    first, second, last = writer("Produce", "request", 9)(request(acks=-1, timeout_ms=9000, topic_data=data))
    body = first + rows(b"a") + second + rows(b"a") + last
    answered = client.receive("Produce", 9, client.send_body("Produce", 9, body))
    assert [part.error_code for part in answered.responses[0].partition_responses] == 2 * [ErrorCode.INVALID_REQUEST]


def test_a_large_batch_is_received_in_a_buffer_of_its_own_and_stored(client: KafkaClient) -> None:
    client.create("large")
    value = bytes(range(256)) * 3600
    assert client.produce("large", rows(value)).error_code == 0
    _, records = client.fetch("large")
    assert read_batch(records).columns.values == value


def test_a_count_that_lies_is_found_where_batches_are_opened(broker: BrokerThread, client: KafkaClient) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("opened", configs={"cleanup.policy": "compact"})
    batch = rows(b"a", keys=[b"k"])
    for count in (0, 2, 2**24, 2**31 - 1):
        header = read_header(batch)._replace(record_count=count, last_offset_delta=max(count, 1) - 1)
        refused = client.produce("opened", seal_batch(header, batch[HEADER_BYTES:]))
        assert refused.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert client.fetch("opened", max_wait_ms=0)[0].high_watermark == 0


@pytest.fixture
def small_broker(tmp_path: Path) -> Iterator[BrokerThread]:
    settings = {"socket_request_max_bytes": 1 << 20, "request_header_max_bytes": 1 << 16}
    with BrokerThread(tmp_path / "data", kafka_listen="127.0.0.1:0", **settings) as running:
        yield running


def test_only_requests_that_need_it_may_be_large(small_broker: BrokerThread) -> None:
    address = small_broker.broker.listening.addresses["kafka"]
    for key, size in [(3, (1 << 16) + 1), (11, (1 << 19) + 1), (0, (1 << 20) + 1)]:
        with KafkaClient(address) as client:
            client.call("ApiVersions", 0)
            client.socket.sendall(struct.pack(">ihh", size, key, 1))
            with pytest.raises(ConnectionEnded):
                client.receive_frame()
    with KafkaClient(address) as client:
        client.call("ApiVersions", 0)
        assert client.produce("none", rows(bytes(900_000))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
