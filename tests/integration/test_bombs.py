"""Small batches that become huge: refused by the broker where it opens them, and by readers, who go on behind them."""

import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self, cast

import pytest

import warmlog
from broker_process import BrokerProcess
from faults.fuzzing.bodies import bomb, row_bomb
from faults.process_use import use_of
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch, read_header, seal_batch
from warmlog_protocol.codec.compression import Codec, compress
from warmlog_protocol.errors import CorruptBatch, ErrorCode, InvalidRecord
from wire_client import WireClient, batch_of

LIMIT_BYTES = 4 << 20
TIME_MS = 1_700_000_000_000
BOMBS = [(codec, is_rows) for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD) for is_rows in (False, True)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory: Path = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(directory, batch_max_decompressed_bytes=LIMIT_BYTES) as process:
        yield process


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"compression_type": "uncompressed"}])
def test_the_broker_refuses_bombs_where_it_opens_batches_and_its_memory_stays(
    broker: BrokerProcess, settings: dict[str, str]
) -> None:
    topic = next(iter(settings)).replace("_", "-")
    with WireClient(broker.address) as client:
        client.create_topic(topic, **settings)
        client.produce(topic, bomb_that_fits())
        before_bytes = use_of(broker.pid).memory_bytes
        for _ in range(3):
            for codec, is_rows in BOMBS:
                with pytest.raises(InvalidRecord, match=re.compile("limit", re.IGNORECASE)):
                    client.produce(topic, bomb(codec, is_rows=is_rows))
            with pytest.raises(InvalidRecord, match="100000 records: too many"):
                client.produce(topic, row_bomb())
        assert use_of(broker.pid).memory_bytes - before_bytes < 48 << 20
        client.produce(topic, bomb_that_fits())
    assert "a bug" not in broker.output


async def test_a_consumer_refuses_bombs_and_goes_on_behind_them(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("plain")
        for codec, is_rows in BOMBS:
            client.produce("plain", bomb(codec, is_rows=is_rows))
            client.produce("plain", batch_of([b"honest"]))
    honest = refused = 0
    async with warmlog.Consumer(broker.address, topics=["plain"], max_decompressed_bytes=LIMIT_BYTES) as consumer:
        tracemalloc.start()
        async for batch in consumer.batches(until="latest"):
            try:
                honest += batch.values == [b"honest"]
            except warmlog.UnreadableBatch as error:
                refused += "limit" in str(error)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (honest, refused) == (len(BOMBS), len(BOMBS))
    assert peak_bytes < 40 << 20


def test_a_lookup_by_time_refuses_bombs_and_the_brokers_memory_stays(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("looked-up", len(BOMBS) + 1, retention_ms="-1")
        for partition, (codec, is_rows) in enumerate(BOMBS):
            client.produce("looked-up", bomb(codec, is_rows=is_rows), partition=partition)
        client.produce("looked-up", bomb_that_fits(), partition=len(BOMBS))
        before_bytes = use_of(broker.pid).memory_bytes
        for timestamp_ms in (TIME_MS, m.MAX_TIMESTAMP):
            for partition in range(len(BOMBS)):
                with pytest.raises(CorruptBatch, match=re.compile("limit", re.IGNORECASE)):
                    client.offset_at("looked-up", timestamp_ms, partition=partition)
            assert client.offset_at("looked-up", timestamp_ms, partition=len(BOMBS)) == 0
        assert use_of(broker.pid).memory_bytes - before_bytes < 24 << 20
    assert "a bug" not in broker.output


@pytest.mark.parametrize("kind", ["values", "records"])
def test_many_who_look_up_times_in_large_batches_stop_nobody_and_take_the_memory_of_one(
    tmp_path: Path, kind: str
) -> None:
    """A batch of less than 1 MiB that becomes 100 MiB, or 16 million records."""
    lookups = 12 if kind == "values" else 6
    batch, timestamp_ms, offset = many_values() if kind == "values" else many_records()
    with Crowd(tmp_path / "data", lookups) as crowd:
        crowd.honest.create_topic("large", retention_ms="-1")
        crowd.honest.produce("large", batch)
        wanted = m.ListOffsetsRequest([m.ListOffsetsPartition("large", 0, timestamp_ms)])
        answers = crowd.ask(lambda client: client.send(wanted))
    found = [cast("m.ListOffsetsResponse", answer).partitions[0] for answer in answers]
    assert [(each.error_code, each.timestamp_ms, each.offset) for each in found] == [
        (0, timestamp_ms, offset)
    ] * lookups


@pytest.mark.parametrize("kind", ["uncompressed", "lz4"])
def test_many_who_have_large_batches_packed_stop_nobody_and_take_the_memory_of_one(tmp_path: Path, kind: str) -> None:
    """Also where they are refused: an error must not keep what was decompressed before it."""
    batch, _, _ = many_values()
    with Crowd(tmp_path / "data", 12) as crowd:
        crowd.honest.create_topic("packed", compression_type=kind, retention_ms="-1")
        answers = crowd.ask(lambda client: client.send_produce("packed", batch, timeout_ms=100_000))
    found = [cast("m.ProduceResponse", answer).partitions[0].error_code for answer in answers]
    assert found == [ErrorCode.MESSAGE_TOO_LARGE if kind == "uncompressed" else ErrorCode.NONE] * 12


class Crowd:
    """A broker, many clients who ask it for the same at once, and one who sees to it that this hurts nobody."""

    def __init__(self, data_dir: Path, count: int) -> None:
        self._count = count
        self._held = ExitStack()
        self._broker = BrokerProcess(data_dir)

    def __enter__(self) -> Self:
        self._held.enter_context(self._broker)
        self._clients = [
            self._held.enter_context(WireClient(self._broker.address, timeout_s=120)) for _ in range(self._count)
        ]
        self.honest = self._held.enter_context(WireClient(self._broker.address))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def ask(self, send: Callable[[WireClient], int]) -> list[m.Message]:
        """What all are answered. Meanwhile the broker is as quick as ever, and takes little memory."""
        honest = self.honest
        honest.create_topic("small", retention_ms="-1")
        honest.produce("small", batch_of([b"a"], timestamp_ms=TIME_MS))
        before_bytes, largest_bytes = use_of(self._broker.pid).memory_bytes, 0
        longest_s, rounds, begin_s = 0.0, 0, time.monotonic()
        sent = [(client, send(client)) for client in self._clients]
        with ThreadPoolExecutor(1) as waiting:
            answers = waiting.submit(lambda: [client.receive(correlation_id)[0] for client, correlation_id in sent])
            while not answers.done():
                round_s = time.monotonic()
                assert honest.offset_at("small", m.LATEST_TIMESTAMP) == 1
                longest_s = max(longest_s, time.monotonic() - round_s)
                largest_bytes = max(largest_bytes, use_of(self._broker.pid).memory_bytes)
                rounds += 1
                if rounds % 10 == 0:
                    assert honest.offset_at("small", TIME_MS) == 0, "small batches are opened beside large ones"
        took_s = time.monotonic() - begin_s
        assert largest_bytes - before_bytes < 180 << 20
        assert rounds > 10
        assert longest_s < max(0.3, took_s / 4)
        return answers.result()


def many_values() -> tuple[bytes, int, int]:
    """A batch, the time of its last record, and that one's offset."""
    times = [TIME_MS + number for number in range(100)]
    return encode_batch([bytes(1 << 20)] * 100, timestamps_ms=times, codec=Codec.ZSTD), times[-1], 99


def many_records() -> tuple[bytes, int, int]:
    """The same of records of one byte, which are so many that no list of them should be made."""
    count = 2**24 - 1
    times = b"\x04" + bytes(4 * (count - 1)) + (1000).to_bytes(4, "little")
    plain = times + b"\x00" + (1).to_bytes(8, "little")
    header = read_header(encode_batch([b"a"], timestamps_ms=TIME_MS, codec=Codec.ZSTD))
    header = header._replace(
        record_count=count, last_offset_delta=count - 1, base_timestamp_ms=TIME_MS, max_timestamp_ms=TIME_MS + 1000
    )
    body = b"\x00" + len(plain).to_bytes(4, "little") + compress(Codec.ZSTD, plain)
    return seal_batch(header, body), TIME_MS + 1000, count - 1


def bomb_that_fits() -> bytes:
    """A batch with a key that becomes a hundred times as large."""
    return encode_batch([bytes(500_000)], keys=[b"k"], timestamps_ms=TIME_MS, codec=Codec.ZSTD)
