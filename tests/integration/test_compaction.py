"""A compacted topic on a real broker: writing, compaction behind the writers' backs, reading with gaps, restarts."""

import asyncio
import re
import threading
import time
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from waiting import wait_until
from warmlog import Consumer, Producer
from warmlog_broker.storage.segment.segment_swap import Replacement
from warmlog_protocol.batch import encode_batch, iter_batches
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import InvalidRecord
from warmlog_protocol.messages import AlterReplicaLogDirsRequest, ReplicaLogDir
from wire_client import WireClient

KEYS = 50
ROUNDS = 40


def start(tmp_path: Path, **settings: object) -> BrokerProcess:
    return BrokerProcess(tmp_path, log_cleaner_backoff_ms=20, **settings)


def fill(client: WireClient, topic: str) -> dict[bytes, bytes]:
    """Every key many times over, and one deletion; returns what is to be known in the end."""
    state: dict[bytes, bytes] = {}
    for number in range(ROUNDS):
        keys = [b"k%d" % ((number * 7 + n) % KEYS) for n in range(25)]
        values: list[bytes | None] = [b"%d-%d" % (number, n) for n in range(25)]
        client.produce(topic, encode_batch(values, keys=keys, timestamps_ms=time.time_ns() // 1_000_000))
        state.update({key: value for key, value in zip(keys, values, strict=True) if value is not None})
    client.produce(topic, encode_batch([None], keys=[b"k3"], timestamps_ms=time.time_ns() // 1_000_000))
    del state[b"k3"]
    return state


def records_of(client: WireClient, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    found: list[tuple[int, bytes | None, bytes | None]] = []
    position = 0
    while True:
        _, payload = client.fetch(topic, position)
        if not payload:
            return found
        for batch in iter_batches(payload):
            found += [
                record
                for record in zip(batch.offsets(), batch.keys(), batch.values(), strict=True)
                if record[0] >= position
            ]
            position = batch.next_offset


def state_of(records: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for _, key, value in records:
        assert key is not None
        state.pop(key, None)
        if value is not None:
            state[key] = value
    return state


def test_a_topic_is_compacted_while_it_is_served_and_says_the_same_after_every_kind_of_restart(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("state", cleanup_policy="compact", segment_bytes="4096", min_cleanable_dirty_ratio="0")
            expected = fill(client, "state")
            wait_until(lambda: len(records_of(client, "state")) < 500)
            records = records_of(client, "state")
            assert state_of(records) == expected
            assert [offset for offset, *_ in records] == sorted({offset for offset, *_ in records})
        assert re.search(r"state-0: compacted up to offset \d+", broker.output)
        broker.restart()
        with WireClient(broker.address) as client:
            assert state_of(records_of(client, "state")) == expected
        wait_until((tmp_path / "cleaner-offset-checkpoint").exists)
        broker.kill()
        broker.start()
        with WireClient(broker.address) as client:
            assert state_of(records_of(client, "state")) == expected
            expected |= fill(client, "state")
            expected.pop(b"k3", None)
            wait_until(lambda: len(records_of(client, "state")) < 500)
            assert state_of(records_of(client, "state")) == expected


@pytest.mark.parametrize("meets", ["retention", "a move"])
def test_what_meets_new_segments_syncs_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meets: str) -> None:
    sync, threads = Replacement.sync, set[str]()
    has_begun, may_end = threading.Event(), threading.Event()

    def slow_sync(self: Replacement) -> None:
        pool = threading.current_thread().name.rpartition("_")[0]
        threads.add(pool)
        if pool == "compact":
            has_begun.set()
            assert may_end.wait(40)
        sync(self)

    monkeypatch.setattr(Replacement, "sync", slow_sync)
    disks = [tmp_path / "one", tmp_path / "two"]
    with (
        BrokerThread(*disks, log_cleaner_backoff_ms=20, log_retention_check_interval_ms=5) as broker,
        WireClient(broker.address) as client,
    ):
        client.create_topic("t", cleanup_policy="compact,delete", segment_bytes="4096", min_cleanable_dirty_ratio="0")
        expected = fill(client, "t")
        assert has_begun.wait(40)
        log = broker.broker.topics.partition("t", 0).log
        timer = threading.Timer(0.1, may_end.set)
        timer.start()
        if meets == "a move":
            target = next(disk for disk in disks if not (disk / "t-0").exists())
            client.call(AlterReplicaLogDirsRequest([ReplicaLogDir("t", 0, str(target))]))
            wait_until((target / "t-0").exists)
        else:
            wait_until(lambda: log.compaction.first_dirty_offset > 0)
        timer.join()
        assert state_of(records_of(client, "t")) == expected
    assert threads <= {"compact", "disk"}


async def test_a_consumer_steps_over_the_gaps(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        async with Producer(broker.address) as producer:
            with WireClient(broker.address) as client:
                client.create_topic(
                    "state", cleanup_policy="compact", segment_bytes="4096", min_cleanable_dirty_ratio="0"
                )
            state = {}
            for number in range(600):
                key, value = b"k%d" % (number % 20), b"v%d" % number
                state[key] = value
                await producer.send("state", value, key=key)
                if number % 50 == 0:
                    await producer.flush()
            await producer.flush()
        with WireClient(broker.address) as client:
            await asyncio.to_thread(wait_until, lambda: len(records_of(client, "state")) < 400)
            for _ in range(20):
                expected = records_of(client, "state")
                async with Consumer(broker.address, topics=["state"], start="earliest") as consumer:
                    records = [record async for record in consumer.records(until="latest")]
                found = [(record.offset, record.key, record.value) for record in records]
                assert state_of(found) == state
                if records_of(client, "state") == expected:
                    break  # it was not compacted meanwhile
            else:
                pytest.fail("it is compacted again and again")
        assert found == expected


def test_a_record_without_a_key_is_refused_by_name_and_the_rest_goes_on(tmp_path: Path) -> None:
    with start(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("state", cleanup_policy="compact")
        with pytest.raises(InvalidRecord, match=r"at index 1$"):
            client.produce("state", encode_batch([b"a", b"b"], keys=[b"k", None], timestamps_ms=1_700_000_000_000))
        assert client.produce("state", keyed(0)).base_offset == 0


def test_records_without_a_key_from_before_the_topic_was_compacted_are_dropped_and_counted(tmp_path: Path) -> None:
    with start(tmp_path, segment_bytes=1024) as broker, WireClient(broker.address) as client:
        client.create_topic("state")
        for number in range(8):
            keys = [b"k", None, None] if number % 2 else None
            client.produce("state", encode_batch([b"x" * 100] * 3, keys=keys, timestamps_ms=1_700_000_000_000))
    settings = {"segment_bytes": 1024, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0}
    with start(tmp_path, **settings) as broker, WireClient(broker.address) as client:
        wait_until(lambda: "compacted up to" in broker.output)
        (line,) = (line for line in broker.output.splitlines() if "compacted up to" in line)
        counts = re.search(r"(\d+) of (\d+) records kept, (\d+) without a key dropped", line)
        assert counts is not None
        kept, read, dropped = map(int, counts.groups())
        keyless = sum(key is None for _, key, _ in records_of(client, "state"))
        assert "WARNING" in line
        assert dropped == 20 - keyless > 0
        assert read - kept >= dropped


def keyed(number: int, producer: tuple[int, int] = (-1, -1), sequence: int = -1) -> bytes:
    return encode_batch(
        [b"%d" % number],
        keys=[b"k"],
        timestamps_ms=1_700_000_000_000,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
    )


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"compression_type": "zstd"}])
def test_pipelined_batches_keep_their_order_over_threads(tmp_path: Path, settings: dict[str, str]) -> None:
    with start(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("state", **settings)
        client.create_topic("plain")
        producer = client.producer_id()
        sent = []
        for number in range(100):
            sent.append(client.send_produce("state", keyed(number, producer, number)))
            sent.append(client.send_produce("plain", keyed(number, producer, number)))
        places = [client.produced(correlation_id).base_offset for correlation_id in sent]
        assert places[0::2] == places[1::2] == list(range(100))
        assert [value for _, _, value in records_of(client, "state")] == [b"%d" % number for number in range(100)]
        assert client.produce("state", keyed(99, producer, 99)).base_offset == 99


def test_batches_are_packed_again_by_the_topics_codec(tmp_path: Path) -> None:
    with start(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("packed", compression_type="lz4")
        sent = encode_batch([b"warm" * 1000] * 10, timestamps_ms=1_700_000_000_000, codec=Codec.GZIP)
        client.produce("packed", sent)
        _, payload = client.fetch("packed", 0)
        (batch,) = iter_batches(payload)
        assert batch.header.codec is Codec.LZ4
        assert batch.values() == [b"warm" * 1000] * 10


async def test_emptied_batches_and_gaps_read_as_records_and_as_arrow(tmp_path: Path) -> None:
    """What is left of a producer whose every record was overwritten is a header without records."""
    with start(tmp_path) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("state", cleanup_policy="compact", segment_bytes="2048", min_cleanable_dirty_ratio="0")
            first, second = client.producer_id(), client.producer_id()
            client.produce("state", keyed(0, first, 0))
            for number in range(1, 60):
                client.produce("state", keyed(number, second, number - 1))

            def left() -> list[int]:
                return [offset for offset, *_ in records_of(client, "state")]

            await asyncio.to_thread(wait_until, lambda: len(left()) < 30)
            expected = left()
            _, payload = client.fetch("state", 0)
            emptied = next(iter_batches(payload))
            assert (emptied.base_offset, emptied.record_count) == (0, 0)
        async with Consumer(broker.address, topics=["state"], start="earliest") as consumer:
            assert [record.offset async for record in consumer.records(until="latest")] == expected
        async with Consumer(broker.address, topics=["state"], start="earliest") as consumer:
            tables = [table async for table in consumer.arrow(until="latest")]
        assert [offset for table in tables for offset in table.column("offset").to_pylist()] == expected
        async with Consumer(broker.address, topics=["state"], start=5) as consumer:
            assert [record.offset async for record in consumer.records(until="latest")] == expected


def test_a_damaged_partition_is_left_alone_and_the_others_are_compacted(tmp_path: Path) -> None:
    """KAFKA-7215"""
    settings = {"cleanup_policy": "compact", "segment_bytes": "4096", "min_cleanable_dirty_ratio": "0"}
    with BrokerProcess(tmp_path, log_cleaner_threads=0) as broker:
        with WireClient(broker.address) as client:
            for topic in ("damaged", "whole"):
                client.create_topic(topic, **settings)
                expected = fill(client, topic)
        assert broker.terminate() == 0
        segment = tmp_path / "damaged-0" / f"{0:020d}.log"
        content = bytearray(segment.read_bytes())
        content[100] ^= 1
        segment.write_bytes(content)
        broker.settings |= {"log.cleaner.threads": "1", "log.cleaner.backoff.ms": "20"}
        broker.start()
        wait_until(lambda: "damaged-0 IS NOT COMPACTED UNTIL A RESTART" in broker.output)
        wait_until(lambda: "whole-0: compacted up to offset" in broker.output)
        with WireClient(broker.address) as client:
            assert state_of(records_of(client, "whole")) == expected
            last = client.offset_at("damaged", -1)
            assert client.produce("damaged", keyed(1)).base_offset == last
        assert list((tmp_path / "damaged-0").glob("*.cleaned")) == []
