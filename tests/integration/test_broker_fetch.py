"""Fetch and ListOffsets, as a real broker answers them."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch, iter_batches, read_batch, to_rows
from wire_client import WireClient, batch_of

MAX_BYTES = 1 << 20
LONG_MS = 300_000
"""A Fetch that waits so long has not come when the client gives up."""


@pytest.fixture(scope="module", params=[True, False], ids=["sendfile", "pread"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(directory, fetch_sendfile_enable=request.param, fetch_max_bytes=8_000_000) as process:
        yield process


@pytest.fixture
def topic(client: WireClient) -> str:
    """A topic that keeps records of any age, as those of these tests are from the past."""
    name = f"t{uuid4().hex}"
    client.create_topic(name, partitions=3, retention_ms="-1")
    return name


def fetch_many(
    client: WireClient, wanted: list[m.FetchPartition], *, max_bytes: int = MAX_BYTES, max_wait_ms: int = 0
) -> tuple[list[m.FetchedPartition], list[bytes]]:
    """The result and the bytes of each partition."""
    response, payload = client.receive(client.send(m.FetchRequest(max_wait_ms, 1, max_bytes, wanted)))
    results = cast("m.FetchResponse", response).partitions
    parts = []
    for result in results:
        parts.append(payload[: result.size_bytes])
        payload = payload[result.size_bytes :]
    assert not payload
    return results, parts


def test_what_was_produced_is_fetched_from_any_offset(client: WireClient, topic: str) -> None:
    for number in range(30):
        client.produce(topic, batch_of([b"%d" % number] * 10))
    for offset in (0, 3, 15, 299):
        _, payload = client.fetch(topic, offset)
        batches = list(iter_batches(payload))
        assert batches[0].base_offset == offset // 10 * 10
        assert batches[-1].next_offset == 300
    result, payload = client.fetch(topic, 300)
    assert (result.size_bytes, payload, result.high_watermark) == (0, b"", 300)


def test_an_offset_that_is_not_there_is_out_of_range(client: WireClient, topic: str) -> None:
    client.produce(topic, batch_of([b"a"]))
    for offset in (2, 100, -1):
        with pytest.raises(warmlog.OffsetOutOfRange):
            client.fetch(topic, offset)


def test_a_fetch_that_waits_is_woken_by_a_produce(broker: BrokerProcess, client: WireClient, topic: str) -> None:
    correlation_id = client.send(m.FetchRequest(LONG_MS, 1, MAX_BYTES, [m.FetchPartition(topic, 0, 0, MAX_BYTES)]))
    with WireClient(broker.address) as producer:
        producer.produce(topic, batch_of([b"a"]))
    _, payload = client.fetched(correlation_id)
    assert read_batch(payload).values() == [b"a"]


def test_a_fetch_waits_until_min_bytes_are_there(broker: BrokerProcess, client: WireClient, topic: str) -> None:
    batch = batch_of([b"a" * 100])
    wanted = [m.FetchPartition(topic, number, 0, MAX_BYTES) for number in range(3)]
    correlation_id = client.send(m.FetchRequest(LONG_MS, 3 * len(batch), MAX_BYTES, wanted))
    with WireClient(broker.address) as producer:
        producer.produce(topic, batch, partition=0)
        producer.produce(topic, batch, partition=2)
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.receive(correlation_id)
        client.socket.settimeout(40)
        producer.produce(topic, batch, partition=2)
    response, payload = client.receive(correlation_id)
    sizes = [result.size_bytes for result in cast("m.FetchResponse", response).partitions]
    assert sizes == [len(batch), 0, 2 * len(batch)]
    assert len(payload) == 3 * len(batch)


def test_a_fetch_does_not_wait_longer_than_it_wants(client: WireClient, topic: str) -> None:
    begin_s = time.monotonic()
    result, _ = client.fetch(topic, 0, max_wait_ms=300)
    assert time.monotonic() - begin_s > 0.25
    assert result.size_bytes == 0


def test_a_connection_that_waits_answers_other_requests(client: WireClient, topic: str) -> None:
    waiting = client.send(m.FetchRequest(LONG_MS, 1, MAX_BYTES, [m.FetchPartition(topic, 0, 0, MAX_BYTES)]))
    assert client.offset_at(topic, m.LATEST_TIMESTAMP) == 0
    client.produce(topic, batch_of([b"a"]))
    assert client.fetched(waiting)[0].size_bytes > 0


def test_many_who_wait_are_all_woken(broker: BrokerProcess, topic: str) -> None:
    clients = [WireClient(broker.address) for _ in range(20)]
    wanted = [m.FetchPartition(topic, 0, 0, MAX_BYTES)]
    ids = [client.send(m.FetchRequest(LONG_MS, 1, MAX_BYTES, wanted)) for client in clients]
    clients[0].produce(topic, batch_of([b"a"]))
    for client, correlation_id in zip(clients, ids, strict=True):
        assert client.fetched(correlation_id)[0].size_bytes > 0
        client.close()


def test_deleting_the_topic_wakes_who_waits(broker: BrokerProcess, client: WireClient, topic: str) -> None:
    from warmlog_protocol.messages import DeleteTopicsRequest

    waiting = client.send(m.FetchRequest(LONG_MS, 1, MAX_BYTES, [m.FetchPartition(topic, 0, 0, MAX_BYTES)]))
    with WireClient(broker.address) as admin:
        admin.call(DeleteTopicsRequest([topic]))
    with pytest.raises(warmlog.UnknownTopicOrPartition):
        client.fetched(waiting)


def test_limits_of_the_request_and_of_each_partition(client: WireClient, topic: str) -> None:
    """Reference FT-01 and FT-02."""
    small, large = batch_of([b"x" * 60]), batch_of([b"x" * 400])
    for partition in range(3):
        for _ in range(10):
            client.produce(topic, small, partition=partition)
    wanted = [m.FetchPartition(topic, number, 0, 190) for number in range(3)]
    results, parts = fetch_many(client, wanted, max_bytes=800)
    assert [result.partition for result in results] == [0, 1, 2]
    assert all(0 < len(part) <= 190 for part in parts)
    assert sum(map(len, parts)) <= 800

    client.produce(topic, large, partition=1)
    first_large = m.FetchPartition(topic, 1, 10, 190)
    results, parts = fetch_many(client, [first_large, *wanted], max_bytes=800)
    assert parts[0] == parts[0][: len(large)]
    assert len(parts[0]) == len(large)
    assert sum(map(len, parts)) <= 800


def test_the_first_batch_is_whole_however_large_and_then_nothing_else_fits(client: WireClient, topic: str) -> None:
    large = batch_of([b"x" * 2000])
    client.produce(topic, large, partition=0)
    client.produce(topic, large, partition=1)
    wanted = [m.FetchPartition(topic, number, 0, 1000) for number in (2, 0, 1)]
    results, parts = fetch_many(client, wanted, max_bytes=1000)
    assert [len(part) for part in parts] == [0, len(large), 0]
    assert [result.error_code for result in results] == [0, 0, 0]
    assert read_batch(parts[1]).values() == [b"x" * 2000]


def test_an_answer_of_many_megabytes_arrives_whole(client: WireClient, topic: str) -> None:
    batch = batch_of([b"%0900d" % number for number in range(1000)])
    for _ in range(12):
        client.produce(topic, batch)
    values: list[bytes | None] = []
    offset = 0
    while offset < 12_000:
        result, payload = client.fetch(topic, offset, max_bytes=100_000_000)
        assert result.size_bytes <= 8_000_000
        for fetched in iter_batches(payload):
            values += fetched.values()
            offset = fetched.next_offset
    assert values == [b"%0900d" % number for number in range(1000)] * 12


def test_a_reader_that_does_not_read_holds_up_nobody_else(broker: BrokerProcess, topic: str) -> None:
    with WireClient(broker.address) as lazy, WireClient(broker.address) as other:
        batch = batch_of([b"x" * 900_000])
        for _ in range(8):
            other.produce(topic, batch)
        wanted = [m.FetchPartition(topic, 0, 0, 8_000_000)]
        ids = [lazy.send(m.FetchRequest(0, 1, 8_000_000, wanted)) for _ in range(50)]
        for _ in range(20):
            other.produce(topic, batch_of([b"small"]), partition=1)
            assert len(other.fetch(topic, 0, partition=1)[1])
        for correlation_id in ids:
            assert lazy.fetched(correlation_id)[0].size_bytes > 7_000_000


def test_the_leader_epoch_of_the_asker_is_checked(client: WireClient, topic: str) -> None:
    client.produce(topic, batch_of([b"a"]))
    for epoch, error in ((-1, None), (0, None), (1, warmlog.UnknownLeaderEpoch), (-2, warmlog.FencedLeaderEpoch)):
        wanted = [m.FetchPartition(topic, 0, 0, MAX_BYTES, current_leader_epoch=epoch)]
        (result,), _ = fetch_many(client, wanted)
        assert result.error_code == (error.code if error else warmlog.ErrorCode.NONE)


def test_the_topic_id_of_the_asker_is_checked(client: WireClient, topic: str) -> None:
    client.produce(topic, batch_of([b"a"]))
    (result,), _ = fetch_many(client, [m.FetchPartition(topic, 0, 0, MAX_BYTES)])
    right, wrong = result.topic_id, bytes(16)
    wanted = [
        m.FetchPartition(topic, 0, 0, MAX_BYTES, topic_id=right),
        m.FetchPartition(topic, 0, 0, MAX_BYTES, topic_id=wrong),
        m.FetchPartition("gone", 0, 0, MAX_BYTES, topic_id=wrong),
        m.FetchPartition("gone", 0, 0, MAX_BYTES),
    ]
    results, _ = fetch_many(client, wanted)
    assert [result.error_code for result in results] == [
        warmlog.ErrorCode.NONE,
        warmlog.InconsistentTopicId.code,
        warmlog.UnknownTopicId.code,
        warmlog.UnknownTopicOrPartition.code,
    ]


def test_an_error_in_one_partition_answers_at_once_with_the_others(client: WireClient, topic: str) -> None:
    wanted = [m.FetchPartition(topic, 0, 0, MAX_BYTES), m.FetchPartition(topic, 7, 0, MAX_BYTES)]
    results, _ = fetch_many(client, wanted, max_wait_ms=LONG_MS)
    assert [result.error_code for result in results] == [0, warmlog.UnknownTopicOrPartition.code]


@pytest.mark.parametrize("replica_id", [m.CONSUMER_REPLICA_ID, m.DEBUGGING_REPLICA_ID, 0, 1, 4, -99, 2**31 - 1])
def test_no_client_reads_what_is_not_flushed(broker: BrokerProcess, client: WireClient, replica_id: int) -> None:
    name = f"t{uuid4().hex}"
    client.create_topic(name, flush_ms="86400000")
    wanted = m.FetchPartition(name, 0, 0, MAX_BYTES)
    waiting = client.send(m.FetchRequest(300, 1, MAX_BYTES, [wanted], replica_id=replica_id))
    with WireClient(broker.address) as producer:
        producer.produce(name, batch_of([b"a"], timestamp_ms=1_700_000_000_000), acks=1)
    for result, payload in (client.fetched(waiting), client.fetch(name, 0, replica_id=replica_id)):
        assert (payload, result.high_watermark) == (b"", 0)
    for timestamp_ms in (1_700_000_000_000, m.MAX_TIMESTAMP):
        assert client.offset_at(name, timestamp_ms, replica_id=replica_id) == -1
    is_tool = replica_id == m.DEBUGGING_REPLICA_ID
    assert client.offset_at(name, m.LATEST_TIMESTAMP, replica_id=replica_id) == (1 if is_tool else 0)


def test_offsets_are_listed_by_name_and_by_time(client: WireClient, topic: str) -> None:
    assert client.offset_at(topic, m.EARLIEST_TIMESTAMP) == 0
    assert client.offset_at(topic, m.LATEST_TIMESTAMP) == 0
    assert client.offset_at(topic, m.MAX_TIMESTAMP) == -1
    base_ms = 1_700_000_000_000
    for number in (0, 3, 1, 2):
        client.produce(topic, batch_of([b"a", b"b"], timestamp_ms=base_ms + 1000 * number))
    assert client.offset_at(topic, m.LATEST_TIMESTAMP) == 8
    assert client.offset_at(topic, m.MAX_TIMESTAMP) == 2
    assert client.offset_at(topic, base_ms) == 0
    assert client.offset_at(topic, base_ms + 1) == 2
    assert client.offset_at(topic, base_ms + 3001) == -1
    with pytest.raises(warmlog.InvalidRequest):
        client.offset_at(topic, -7)
    with pytest.raises(warmlog.UnknownTopicOrPartition):
        client.offset_at("no-such-topic", 0)


def test_readers_and_a_writer_at_once_see_every_record_in_order(broker: BrokerProcess, topic: str) -> None:
    count = 300
    seen: list[list[bytes | None]] = [[], []]
    errors = []

    def consume(values: list[bytes | None]) -> None:
        try:
            with WireClient(broker.address) as reader:
                offset = 0
                while offset < count:
                    _, payload = reader.fetch(topic, offset, max_wait_ms=5000)
                    for batch in iter_batches(payload):
                        values += batch.values()
                        offset = batch.next_offset
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=consume, args=(values,)) for values in seen]
    for thread in threads:
        thread.start()
    with WireClient(broker.address) as writer:
        ids = [writer.send_produce(topic, batch_of([b"%d" % number])) for number in range(count)]
        for correlation_id in ids:
            writer.produced(correlation_id)
    for thread in threads:
        thread.join(40)
    assert not errors
    assert seen == [[b"%d" % number for number in range(count)]] * 2


def test_a_gap_of_kafkas_up_to_the_end_is_answered_at_once_to_whoever_knows_how_to_go_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("compacted", cleanup_policy="compact", segment_bytes="1024")
            for number in range(9):
                sealed = encode_batch([b"x" * 300], keys=[b"%d" % number], timestamps_ms=number)
                client.produce("compacted", to_rows(read_batch(sealed)))
        assert broker.terminate() == 0
        directory = broker.data_dir / "compacted-0"
        os.truncate(max(directory.glob("*.log")), 0)
        for _ in range(2):
            broker.start()
            assert broker.terminate() == 0
        broker.start()
        with WireClient(broker.address) as client:
            wanted = m.FetchPartition("compacted", 0, 8, MAX_BYTES)
            result, payload = client.fetched(
                client.send(m.FetchRequest(LONG_MS, 1, MAX_BYTES, [wanted], skips_gaps=True))
            )
            assert (result.next_offset, result.high_watermark, payload) == (9, 9, b"")
            started = time.monotonic()
            result, payload = client.fetched(client.send(m.FetchRequest(300, 1, MAX_BYTES, [wanted])))
            assert time.monotonic() - started >= 0.3, "an older client would ask again and again"
            assert (result.next_offset, payload) == (9, b"")
            waiting = client.send(m.FetchRequest(LONG_MS, 1, MAX_BYTES, [wanted]))
            client.produce("compacted", encode_batch([b"y"], keys=[b"y"], timestamps_ms=1))
            result, payload = client.fetched(waiting)
            assert [batch.values() for batch in iter_batches(payload)] == [[b"y"]]


def test_lost_offsets_are_refused_with_the_offset_at_which_to_go_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("plain", segment_bytes="1024", retention_ms="-1")
            for _ in range(9):
                client.produce("plain", batch_of([b"x" * 300]))
        assert broker.terminate() == 0
        logs = sorted((broker.data_dir / "plain-0").glob("*.log"))
        os.truncate(logs[1], 0)
        first, end = int(logs[1].stem), int(logs[2].stem)
        broker.start()
        with WireClient(broker.address) as client:
            for offset in range(first, end):
                wanted = [m.FetchPartition("plain", 0, offset, MAX_BYTES)]
                response, payload = client.receive(client.send(m.FetchRequest(LONG_MS, 1, MAX_BYTES, wanted)))
                (result,) = cast("m.FetchResponse", response).partitions
                assert (result.error_code, result.next_offset, payload) == (warmlog.ErrorCode.CORRUPT_MESSAGE, end, b"")
                assert f"offset {offset} expected, offsets {end} to {end} found" in result.error_message
            assert client.fetch("plain", end)[0].next_offset == -1
