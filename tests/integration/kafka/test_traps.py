"""What breaks when clients of Kafka meet a broker that is not Kafka: versions, bytes, addresses, topics and records.

The numbers are those of the list by which this listener is judged.
"""

import asyncio
import errno
import re
import select
import struct
import time
from pathlib import Path
from typing import Any, cast

import aiokafka
import confluent_kafka
import pytest

from broker_thread import BrokerThread
from kafka_client import ConnectionEnded, KafkaClient, produce_fields, rows
from waiting import wait_until
from warmlog.blocking import Admin
from warmlog_broker.kafka.converted import ConvertedBatches
from warmlog_broker.kafka.data.fetch import fetch
from warmlog_broker.kafka.translators import TRANSLATORS, Kafka
from warmlog_broker.network.request import Endpoint, MessageWithSlices
from warmlog_broker.runtime.counters import Conversions
from warmlog_protocol import messages as m
from warmlog_protocol.batch import NO_PRODUCER_ID, encode_batch, iter_batches, read_batch, read_header, to_rows
from warmlog_protocol.batch.header import seal_batch
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.compiled import reader, writer
from warmlog_protocol.kafka.schema import API
from wire_client import WireClient, batch_of

CORRELATION_BYTES = 4


def test_each_trap_has_a_test() -> None:
    numbers = [
        re.findall(r"def test_trap_(\d+)_", path.read_text()) for path in Path(__file__).parent.glob("test_*.py")
    ]
    assert {int(number) for found in numbers for number in found} == set(range(1, 35))


def offered(response: Any) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}


def test_trap_1_api_versions_in_an_unknown_version_gets_the_list_in_the_oldest_form(client: KafkaClient) -> None:
    client.send_body("ApiVersions", 99, b"\xff what no version has \xff")
    frame = client.receive_frame()
    response = reader("ApiVersions", "response", 0)(frame[CORRELATION_BYTES:], 1000)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert offered(response)[API["ApiVersions"].key] == (0, 4)
    again = client.call("ApiVersions", 4, client_software_name="test", client_software_version="1")
    assert offered(again) == offered(response)
    assert again.error_code == ErrorCode.NONE


def test_trap_2_produce_is_offered_from_0_on_and_served_from_3_on(kafka_address: str, client: KafkaClient) -> None:
    assert offered(client.call("ApiVersions", 0))[API["Produce"].key] == (0, 13)
    with KafkaClient(kafka_address) as old:
        old.send_body("Produce", 2, b"")
        with pytest.raises(ConnectionEnded):
            old.receive_frame()


def test_trap_3_what_is_offered_is_served(client: KafkaClient) -> None:
    assert offered(client.call("ApiVersions", 3)) == {
        API[name].key: (0 if name == "Produce" else API[name].versions.first, API[name].versions.last)
        for name in TRANSLATORS
    }


NEEDED_VERSIONS = {
    "kcat 1.7.1": {"Produce": (7, 7), "Fetch": (11, 11), "Metadata": (2, 4), "ApiVersions": (0, 3)},
    "@platformatic/kafka": {
        "Produce": (7, 11),
        "Fetch": (12, 17),
        "ListOffsets": (5, 9),
        "Metadata": (9, 12),
        "OffsetCommit": (8, 9),
        "OffsetFetch": (8, 9),
        "FindCoordinator": (4, 6),
        "JoinGroup": (6, 9),
        "SyncGroup": (4, 5),
        "Heartbeat": (4, 4),
        "LeaveGroup": (4, 5),
        "SaslHandshake": (1, 1),
        "SaslAuthenticate": (2, 2),
        "ApiVersions": (3, 4),
        "CreateTopics": (7, 7),
        "DeleteTopics": (6, 6),
        "DeleteRecords": (2, 2),
        "InitProducerId": (3, 5),
        "AddOffsetsToTxn": (1, 4),
        "EndTxn": (3, 4),
        "TxnOffsetCommit": (3, 4),
    },
    "sarama 1.61": {"Produce": (10, 10), "Fetch": (12, 12), "ListOffsets": (6, 6), "JoinGroup": (8, 8)},
    "kafka_exporter": {"OffsetFetch": (4, 4), "DescribeGroups": (0, 0), "Metadata": (1, 1), "ListOffsets": (1, 1)},
    "Java 3.x": {"InitProducerId": (3, 4), "AddPartitionsToTxn": (0, 3), "EndTxn": (1, 4), "TxnOffsetCommit": (3, 4)},
}
"""Of requests that these clients send in no other versions."""


@pytest.mark.parametrize("name", NEEDED_VERSIONS)
def test_trap_4_clients_find_a_version_that_they_speak(client: KafkaClient, name: str) -> None:
    told = offered(client.call("ApiVersions", 3))
    for api, (first, last) in NEEDED_VERSIONS[name].items():
        lowest, highest = told[API[api].key]
        assert lowest <= last, f"{api}: {lowest} to {highest}"
        assert first <= highest, f"{api}: {lowest} to {highest}"


def test_trap_5_an_empty_response_has_an_empty_field_of_records(client: KafkaClient) -> None:
    client.create("trap-5")
    for version in (4, 11, 12):
        part, records = client.fetch("trap-5", version=version, max_wait_ms=0)
        assert (part.error_code, part.records, records) == (0, part.records, b"")
        assert part.records is not None


def test_trap_6_unknown_tagged_fields_are_skipped(client: KafkaClient) -> None:
    client.create("trap-6")
    body = b"\x02\x07trap-6" + b"\x01\x63\x02ab" + b"\x00\x00\x00" + b"\x01\x05\x01x"
    response = client.receive("Metadata", 9, client.send_body("Metadata", 9, body))
    assert [topic.name for topic in response.topics] == ["trap-6"]


def test_trap_7_no_feature_begins_with_version_0(client: KafkaClient) -> None:
    response = client.call("ApiVersions", 3)
    assert all(each.min_version > 0 for each in response.supported_features)
    assert response.finalized_features_epoch >= 0


def test_trap_8_acks_0_has_no_response_and_an_error_ends_the_connection(client: KafkaClient) -> None:
    client.create("trap-8")
    client.send("Produce", 9, records=rows(b"silent"), **produce_fields("trap-8", rows(b"silent"), acks=0))
    part, records = client.fetch("trap-8")
    assert [read_batch(records).columns.count, part.high_watermark] == [1, 1]
    client.send("Produce", 9, records=b"no batch", **produce_fields("trap-8", b"no batch", acks=0))
    with pytest.raises(ConnectionEnded):
        client.receive_frame()


def test_trap_8_responses_come_in_the_order_of_requests(kafka_address: str, client: KafkaClient) -> None:
    client.create("trap-8-order")
    request = API["Fetch"].request
    partition = request.FetchPartition(partition=0, partition_max_bytes=1000)
    topics = [request.FetchTopic(topic="trap-8-order", partitions=[partition])]
    waiting = client.send("Fetch", 11, max_wait_ms=300_000, min_bytes=1, topics=topics, session_epoch=-1)
    after = client.send("ApiVersions", 0)
    with KafkaClient(kafka_address) as other:  # a long poll holds back nobody else
        other.call("Metadata", 9, topics=[])
        assert not select.select([client.socket], (), (), 0.3)[0]
        other.produce("trap-8-order", rows(b"a"))
    client.receive("Fetch", 11, waiting)
    client.receive("ApiVersions", 0, after)


def test_trap_9_without_a_setting_clients_are_told_the_address_that_they_came_to(
    kafka_address: str, client: KafkaClient
) -> None:
    (told,) = client.call("Metadata", 9, topics=[]).brokers
    assert f"{told.host}:{told.port}" == kafka_address


def test_trap_10_a_topic_that_was_just_created_can_be_produced_to(client: KafkaClient) -> None:
    client.create("trap-10")
    assert client.produce("trap-10", rows(b"first")).error_code == ErrorCode.NONE


def test_trap_10_only_what_may_be_created_is(client: KafkaClient) -> None:
    topic = API["Metadata"].request.MetadataRequestTopic
    wanted = {"topics": [topic(name="trap-10-not"), topic(name="no/name")]}
    without = client.call("Metadata", 9, allow_auto_topic_creation=False, **wanted)
    assert [each.error_code for each in without.topics] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    asked = client.call("Metadata", 9, **wanted)
    assert [each.error_code for each in asked.topics] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_trap_11_which_list_means_all_topics_depends_on_the_version(client: KafkaClient) -> None:
    client.create("trap-11")
    assert "trap-11" in {topic.name for topic in client.call("Metadata", 0, topics=[]).topics}
    assert "trap-11" in {topic.name for topic in client.call("Metadata", 1, topics=None).topics}
    assert client.call("Metadata", 1, topics=[]).topics == []


def test_trap_12_a_response_names_the_partitions_that_were_asked_for(client: KafkaClient) -> None:
    client.create("trap-12")
    request = API["Fetch"].request
    part = request.FetchPartition
    topics = [
        request.FetchTopic(topic="trap-12", partitions=[part(partition=7), part(partition=0)]),
        request.FetchTopic(topic="trap-12-none", partitions=[part(partition=0)]),
    ]
    response = client.call("Fetch", 11, topics=topics, max_wait_ms=0, session_epoch=-1)
    assert [
        (topic.topic, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in response.responses
    ] == [("trap-12", [(7, 3), (0, 0)]), ("trap-12-none", [(0, 3)])]


def test_trap_12_topics_by_id_as_well(client: KafkaClient) -> None:
    client.create("trap-12-id")
    wanted = API["Metadata"].request.MetadataRequestTopic
    (topic,) = client.call("Metadata", 12, topics=[wanted(name="trap-12-id")]).topics
    request = API["Produce"].request
    records = rows(b"by id")
    data = [
        request.TopicProduceData(topic_id=each, partition_data=[request.PartitionProduceData(0, size)])
        for each, size in ((b"?" * 16, 0), (topic.topic_id, len(records)))
    ]
    answered = client.receive(
        "Produce", 13, client.send_body("Produce", 13, _with_records(data, records, acks=-1, timeout_ms=10_000))
    )
    assert [(each.topic_id, each.partition_responses[0].error_code) for each in answered.responses] == [
        (b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
        (topic.topic_id, ErrorCode.NONE),
    ]
    fetch = API["Fetch"].request
    topics = [
        fetch.FetchTopic(topic_id=each, partitions=[fetch.FetchPartition(partition=0, partition_max_bytes=1 << 20)])
        for each in (b"?" * 16, topic.topic_id)
    ]
    fetched = client.call("Fetch", 13, topics=topics, max_wait_ms=5000, min_bytes=1, session_epoch=-1)
    codes = [(each.topic_id, each.partitions[0].error_code) for each in fetched.responses]
    assert codes == [(b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID), (topic.topic_id, ErrorCode.NONE)]
    assert read_batch(client.body[fetched.responses[1].partitions[0].records]).columns.count == 1
    (by_id,) = client.call("Metadata", 12, topics=[wanted(topic_id=topic.topic_id)]).topics
    assert by_id.name == "trap-12-id"


def _with_records(data: list[Any], records: bytes, **fields: Any) -> bytes:
    """Write a Produce request whose last partition alone has records."""
    *heads, last = writer("Produce", "request", 13)(API["Produce"].request(topic_data=data, **fields))
    return b"".join(heads) + records + last


def test_trap_13_there_are_no_fetch_sessions(client: KafkaClient) -> None:
    client.create("trap-13")
    assert client.call("Fetch", 11, topics=[], session_epoch=0, max_wait_ms=0).session_id == 0
    unknown = client.call("Fetch", 11, topics=[], session_id=7, session_epoch=1, max_wait_ms=0)
    assert (unknown.error_code, unknown.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    final = client.call("Fetch", 11, topics=[], session_id=7, session_epoch=-1, max_wait_ms=0)
    assert final.error_code == ErrorCode.NONE


def test_trap_20_a_gap_that_compaction_left_is_a_batch_that_ends_where_reading_goes_on() -> None:
    request = API["Fetch"].request
    partition = request.FetchPartition(partition=0, fetch_offset=10, partition_max_bytes=1000)
    asked = request(topics=[request.FetchTopic(topic="t", partitions=[partition])], session_epoch=-1, api_version=11)
    for next_offset, last_delta in [(25, 14), (10 + 2**33, 2**31 - 1)]:
        gap = m.FetchedPartition("t", 0, 0, "", 2**40, 2**40, 0, 3, bytes(16), 0, next_offset=next_offset)
        answered = MessageWithSlices(m.FetchResponse([gap]), [[]])
        handler = Endpoint("Fetch", lambda *_, answered=answered: answered)
        response: Any = fetch(
            Kafka(cast("Any", None), {m.FetchRequest: handler}, ConvertedBatches(0, 0, Conversions())),
            cast("Any", None),
            asked,
        )
        (records,) = response.slices[0]
        batch = read_batch(records)
        assert (batch.base_offset, batch.record_count, batch.header.last_offset_delta) == (10, 0, last_delta)
        assert response.message.responses[0].partitions[0].records == len(records)


async def test_trap_20_consumers_read_over_gaps(tmp_path: Path) -> None:
    """Compaction leaves a few records of each segment, with gaps between them."""
    settings = {"log_cleaner_backoff_ms": 20, "kafka_listen": "127.0.0.1:0"}
    topic = {"cleanup_policy": "compact", "segment_bytes": "4096", "min_cleanable_dirty_ratio": "0"}
    with BrokerThread(tmp_path / "data", **settings) as running, WireClient(running.address) as own:
        address = running.broker.listening.addresses["kafka"]
        own.create_topic("state", **topic)
        now_ms = time.time_ns() // 1_000_000
        with KafkaClient(address) as client:
            for number in range(200):
                keys = [b"%d" % (number * key % 90) for key in range(10)]
                records = to_rows(read_batch(encode_batch([b"x" * 20] * 10, keys=keys, timestamps_ms=now_ms)))
                assert client.produce("state", records).error_code == 0
            wait_until(lambda: len(read_all(client, "state")) < 1000)
            expected = [offset for offset, _ in read_all(client, "state")]
        assert expected[-1] == 1999
        async with aiokafka.AIOKafkaConsumer(
            "state", bootstrap_servers=address, auto_offset_reset="earliest", max_partition_fetch_bytes=3000
        ) as consumer:
            offset = -1
            while offset < 1999:
                offset = (await asyncio.wait_for(consumer.getone(), 40)).offset
        settings = {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False}
        other = confluent_kafka.Consumer({**settings, "fetch.message.max.bytes": 3000})
        other.assign([confluent_kafka.TopicPartition("state", 0, 0)])
        while (message := other.poll(20)) is not None and message.offset() < 1999:
            assert message.error() is None
        other.close()


def read_all(client: KafkaClient, topic: str) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    position = 0
    while True:
        part, records = client.fetch(topic, position, max_wait_ms=0)
        assert part.error_code == 0
        if not records:
            return found
        for batch in iter_batches(records):
            found += [each for each in zip(batch.offsets(), batch.keys(), strict=True) if each[0] >= position]
            position = batch.next_offset


def test_trap_21_a_response_has_at_most_one_batch_beyond_its_limit_also_after_a_conversion(
    broker: BrokerThread, client: KafkaClient
) -> None:
    client.create("trap-21")
    with WireClient(broker.address) as own:
        for _ in range(5):
            payload = batch_of([b"x" * 1000])
            request = m.ProduceRequest(-1, 10_000, [m.ProducePartition("trap-21", 0, len(payload))])
            own.call(request, payload)
    for version in (4, 11, 12):
        _, records = client.fetch("trap-21", version=version, max_bytes=1)
        assert read_header(records).size_bytes == len(records)
        part, records = client.fetch("trap-21", offset=1, version=version, max_bytes=3000)
        first = read_header(records)
        assert (part.error_code, first.magic, first.base_offset) == (ErrorCode.NONE, 2, 1)
        assert first.size_bytes * 2 == len(records) < 3000


def put_columns(broker: BrokerThread, topic: str, *values: bytes | None) -> None:
    with WireClient(broker.address) as own:
        own.produce(topic, batch_of(values), timeout_ms=60_000)


def fetch_several(client: KafkaClient, max_bytes: int, *topics: str) -> list[tuple[int, bytes]]:
    """Return the error code and the records of each."""
    request = API["Fetch"].request
    part = request.FetchPartition(partition=0, partition_max_bytes=max_bytes)
    wanted = [request.FetchTopic(topic=name, partitions=[part]) for name in topics]
    response = client.call(
        "Fetch", 11, topics=wanted, max_wait_ms=10_000, max_bytes=max_bytes, min_bytes=1, session_epoch=-1
    )
    parts = [topic.partitions[0] for topic in response.responses]
    assert response.error_code == 0
    return [(part.error_code, client.body[part.records]) for part in parts]


def test_trap_21_only_the_first_partition_has_a_batch_beyond_the_limit(
    broker: BrokerThread, client: KafkaClient
) -> None:
    client.create("trap-21-rows")
    client.produce("trap-21-rows", rows(b"x" * 100))
    for name in ("trap-21-a", "trap-21-b"):
        client.create(name)
        put_columns(broker, name, *[None] * 1000)

    def sizes(*topics: str) -> list[int]:
        return [len(records) for _, records in fetch_several(client, 5000, *topics)]

    of_a, of_b = sizes("trap-21-a", "trap-21-b")
    assert (of_a > 5000, of_b) == (True, 0)
    of_rows, of_a = sizes("trap-21-rows", "trap-21-a")
    assert (of_rows > 100, of_a) == (True, 0)


def test_trap_21_the_limit_of_the_broker_is_one_of_rows(client: KafkaClient, broker: BrokerThread) -> None:
    request = API["IncrementalAlterConfigs"].request

    def limit(operation: int) -> None:
        change = request.AlterableConfig("fetch.max.bytes", operation, None if operation else "1048576")
        resources = [request.AlterConfigsResource(4, "1", [change])]
        assert client.call("IncrementalAlterConfigs", 1, resources=resources).responses[0].error_code == 0

    for name in ("limited-a", "limited-b"):
        client.create(name)
        put_columns(broker, name, *[None] * 100_000)
    limit(0)
    try:
        found = fetch_several(client, 2**31 - 1, "limited-a", "limited-b")
        assert [(code, len(records) > 500_000) for code, records in found] == [(0, True), (0, False)]
    finally:
        limit(1)


def test_a_partition_that_cannot_be_read_does_not_hold_back_the_others(
    broker: BrokerThread, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    client.create("readable")
    client.produce("readable", rows(b"x"))
    client.create("unreadable")
    put_columns(broker, "unreadable", b"x")
    monkeypatch.setattr(ConvertedBatches, "rows_of", broken)
    (code, readable), (failed, nothing) = fetch_several(client, 1 << 20, "readable", "unreadable")
    assert (code, failed, nothing) == (0, ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert read_batch(readable).columns.count == 1


def test_trap_21_the_first_batch_comes_whole_for_an_offset_in_its_middle(client: KafkaClient) -> None:
    client.create("trap-21-middle")
    client.produce("trap-21-middle", rows(b"a", b"b", b"c"))
    _, records = client.fetch("trap-21-middle", offset=2, max_bytes=1)
    assert (read_header(records).base_offset, read_batch(records).columns.count) == (0, 3)


def test_trap_22_a_time_after_all_records_has_neither_offset_nor_time_nor_error(client: KafkaClient) -> None:
    client.create("trap-22")
    client.produce("trap-22", rows(b"a", b"b"))
    for timestamp, offset, time_ms in [(2**40, 0, 1_700_000_000_000), (2**42, -1, -1), (-3, 0, 1_700_000_000_000)]:
        assert list_offset(client, "trap-22", timestamp, 7) == (ErrorCode.NONE, offset, time_ms)
    found = [list_offset(client, "trap-22", special, 9)[:2] for special in (-1, -2, -4, -5)]
    assert found == [(ErrorCode.NONE, offset) for offset in (2, 0, 0, -1)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_that_leaves_its_max_timestamp_at_none_is_stored_with_that_of_its_records(
    client: KafkaClient, codec: Codec
) -> None:
    """As Sarama sends them before 1.45.1, and Kafka takes them."""
    topic = f"no-max-{codec.label}"
    client.create(topic)
    times = [1_700_000_000_000 + ms for ms in (5, 9, 7)]
    whole = to_rows(read_batch(encode_batch([b"a" * 50, b"b", b"c"], timestamps_ms=times, codec=codec)))
    sent = seal_batch(read_header(whole)._replace(max_timestamp_ms=-1), whole[61:])
    assert client.produce(topic, sent).error_code == ErrorCode.NONE
    _, stored = client.fetch(topic)
    assert read_batch(stored).header.max_timestamp_ms == times[1]
    assert (stored[:12], stored[16:]) == (whole[:12], whole[16:])  # between is the leader epoch
    for timestamp in (times[1], times[1] - 1, -3):
        assert list_offset(client, topic, timestamp, 7) == (ErrorCode.NONE, 1, times[1])
    assert list_offset(client, topic, times[1] + 1, 7) == (ErrorCode.NONE, -1, -1)


def test_trap_22_a_batch_that_cannot_be_converted_is_an_error_of_its_partition_and_not_left_out(
    broker: BrokerThread, client: KafkaClient
) -> None:
    client.create("trap-22-damaged")
    for letter in (b"a", b"b", b"c"):
        put_columns(broker, "trap-22-damaged", letter * 100)
    for path in (broker.broker.services.config.data_paths[0] / "trap-22-damaged-0").glob("*.log"):
        path.write_bytes(path.read_bytes().replace(b"b" * 100, b"x" * 100))
    for offset, expected in [(0, (ErrorCode.NONE, [0])), (1, (ErrorCode.CORRUPT_MESSAGE, [])), (2, (0, [2]))]:
        part, records = client.fetch("trap-22-damaged", offset)
        assert (part.error_code, [batch.base_offset for batch in iter_batches(records)]) == expected


def test_the_end_of_a_leader_epoch_is_told(client: KafkaClient) -> None:
    client.create("epochs")
    client.produce("epochs", rows(b"a", b"b"))
    request = API["OffsetForLeaderEpoch"].request
    for version in range(2, 5):
        parts = [request.OffsetForLeaderPartition(0, -1, 0), request.OffsetForLeaderPartition(5, -1, 0)]
        fields = {"topics": [request.OffsetForLeaderTopic("epochs", parts)], "replica_id": -1}
        (topic,) = client.call("OffsetForLeaderEpoch", version, **fields).topics
        assert [(each.partition, each.error_code, each.leader_epoch, each.end_offset) for each in topic.partitions] == [
            (0, 0, 0, 2),
            (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
        ]


def test_a_consumer_with_another_leader_epoch_is_told(client: KafkaClient) -> None:
    client.create("fenced")
    request = API["Fetch"].request
    for epoch, code in [(0, ErrorCode.NONE), (7, ErrorCode.UNKNOWN_LEADER_EPOCH)]:
        partition = request.FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=1000)
        topics = [request.FetchTopic(topic="fenced", partitions=[partition])]
        told = client.call("Fetch", 12, topics=topics, max_wait_ms=0, session_epoch=-1)
        assert told.responses[0].partitions[0].error_code == code
    part, _ = client.fetch("fenced", offset=9)
    assert (part.error_code, part.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_records_are_deleted_up_to_an_offset(client: KafkaClient) -> None:
    client.create("deleted")
    client.produce("deleted", rows(b"a", b"b", b"c"))
    request = API["DeleteRecords"].request
    for version, offset, expected in [(0, 1, (0, 1)), (1, 9, (1, -1)), (2, -1, (0, 3))]:
        topics = [request.DeleteRecordsTopic("deleted", [request.DeleteRecordsPartition(0, offset)])]
        (topic,) = client.call("DeleteRecords", version, topics=topics, timeout_ms=1000).topics
        assert [(each.error_code, each.low_watermark) for each in topic.partitions] == [expected]


def list_offset(client: KafkaClient, topic: str, timestamp: int, version: int) -> tuple[int, int, int]:
    request = API["ListOffsets"].request
    partition = request.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [request.ListOffsetsTopic(topic, [partition])]
    found = client.call("ListOffsets", version, replica_id=-1, topics=topics).topics[0].partitions[0]
    return found.error_code, found.offset, found.timestamp


def test_trap_28_an_idempotent_producer_gets_its_id(client: KafkaClient) -> None:
    for version in range(6):
        given = client.call("InitProducerId", version, transactional_id=None, transaction_timeout_ms=60_000)
        assert (given.error_code, given.producer_epoch) == (ErrorCode.NONE, 0)
        assert given.producer_id > NO_PRODUCER_ID
    new = {"producer_id": 0, "producer_epoch": 0}  # as a client in JavaScript says it
    again = client.call("InitProducerId", 5, transactional_id=None, transaction_timeout_ms=1000, **new)
    assert again.producer_id > given.producer_id
    client.create("trap-28")
    more = {"producer_id": given.producer_id, "producer_epoch": 0, "base_sequence": 0}
    assert [client.produce("trap-28", rows(b"once", **more)).base_offset for _ in range(2)] == [0, 0]
    gap = client.produce("trap-28", rows(b"x", **more | {"base_sequence": 5}))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_trap_32_a_message_that_is_too_large(client: KafkaClient) -> None:
    client.create("trap-32")
    refused = client.produce("trap-32", rows(bytes(2 << 20)))
    assert (refused.error_code, refused.base_offset) == (ErrorCode.MESSAGE_TOO_LARGE, -1)


def test_trap_32_records_without_a_key_on_a_compacted_topic(broker: BrokerThread, client: KafkaClient) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("trap-32-compacted", configs={"cleanup.policy": "compact"})
    batch = rows(b"one", b"two", b"three", keys=[b"key", None, None])
    refused = client.produce("trap-32-compacted", batch)
    assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert [each.batch_index for each in refused.record_errors] == [1, 2]
    assert "each record needs a key" in refused.error_message
    many = rows(*1001 * [b"one"])
    refused = client.produce("trap-32-compacted", many)
    assert (refused.error_code, refused.record_errors) == (ErrorCode.INVALID_RECORD, [])


def test_trap_34_other_protocols_at_this_port_end_clearly(kafka_address: str) -> None:
    tls, own = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", struct.pack(">II", 64, 30)
    for begun in (b"GET / HTTP/1.1\r\n\r\n", tls, own):
        with KafkaClient(kafka_address) as client:
            client.socket.sendall(begun.ljust(68, b"\0"))
            with pytest.raises(ConnectionEnded):
                client.receive_frame()
