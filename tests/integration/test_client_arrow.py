"""Ranges as Arrow without Spark, from a real broker."""

import asyncio
import logging
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.ranges.read_settings import ReadSettings

WAIT_S = 40
START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)


@pytest.fixture
async def topic(broker: BrokerProcess) -> str:
    """Two partitions of 3,000 records in small segments; record i was sent i minutes after START."""
    name = f"t{uuid4().hex}"
    async with warmlog.Admin(broker.address) as admin:
        configs = {"segment.bytes": "20000", "index.interval.bytes": "1000", "retention.ms": "-1"}
        await admin.create_topic(name, partitions=2, configs=configs)
    async with warmlog.Producer(broker.address, batch_bytes=2000) as producer:
        for partition in range(2):
            values = [b"%d" % i for i in range(3_000)]
            times = [START_MS + i * 60_000 for i in range(3_000)]
            await producer.send_many(name, values, timestamps_ms=times, partition=partition)
    return name


async def test_a_consumer_reads_a_table_and_goes_on_behind_it(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        consumer.seek(topic, 1, 1_000)
        table = await consumer.to_arrow(2_000, columns=["partition", "offset", "value"])
        rows = [(row["partition"], row["offset"], int(row["value"])) for row in table.to_pylist()]
        assert rows == [(0, i, i) for i in range(2_000)] + [(1, i, i) for i in range(1_000, 2_000)]
        assert [consumer.position(topic, partition) for partition in (0, 1)] == [2_000, 2_000]
        rest = await consumer.to_arrow()
        assert rest.num_rows == 2_000
        assert rest.column_names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
        assert (await consumer.to_arrow()).num_rows == 0


@pytest.mark.parametrize(
    ("start", "end", "offsets"),
    [
        ("earliest", "latest", range(3_000)),
        ("-10", "latest", range(2_990, 3_000)),
        (5, 7, range(5, 7)),
        (START + timedelta(minutes=10), START + timedelta(minutes=20), range(10, 20)),
        ("earliest", START + timedelta(minutes=3), range(3)),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), START + timedelta(minutes=3), range(3)),
        (datetime(1900, 1, 1), "latest", range(3_000)),
        ("earliest", datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), range(0)),
    ],
)
async def test_a_record_batch_reader_gives_a_range(
    broker: BrokerProcess, topic: str, start: str | int | datetime, end: str | int | datetime, offsets: range
) -> None:
    columns = ["offset", "value"]
    with arrow_reader(broker.address, [topic], start=start, end=end, columns=columns, as_text=["value"]) as reader:
        rows = [(row["offset"], row["value"]) for batch in reader for row in batch.to_pylist()]
    assert rows == [(offset, str(offset)) for offset in offsets] * 2


@pytest.mark.parametrize("as_text", [["vlaue"], "value", ["key", "value"]])
def test_text_of_a_column_not_read_is_refused(broker: BrokerProcess, topic: str, as_text: Collection[str]) -> None:
    with pytest.raises(warmlog.InvalidConfig, match=r"as_text has '(vlaue|v|key)', which is no column that is read"):
        arrow_reader(broker.address, [topic], columns=["value", "offset"], as_text=as_text)


async def test_a_table_that_nobody_waits_for_any_more_is_not_read_on(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.to_arrow({(topic, 0): 3_001}), 0.5)  # one more than there are
        assert consumer.position(topic, 0) == 0
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), WAIT_S)  # its thread has ended


async def test_a_table_that_nobody_waits_for_is_not_asked_of_a_broker_that_is_gone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic("t")
        async with warmlog.Producer(broker.address) as producer:
            await producer.send_many("t", [b"v"] * 10)
        async with warmlog.Consumer(broker.address, topics=["t"]) as consumer:
            reading = asyncio.ensure_future(consumer.to_arrow({("t", 0): 11}))
            await asyncio.sleep(0.2)
            broker.kill()
            await asyncio.sleep(0.5)
            assert not reading.done()
            reading.cancel()
            await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), WAIT_S)


async def test_a_table_that_cannot_be_read_says_what_the_consumer_can_do(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer, warmlog.Admin(broker.address) as admin:
        consumer.seek(topic, 0, 5)
        await admin.delete_records({(topic, 0): 100})
        for _ in range(2):
            with pytest.raises(warmlog.OffsetOutOfRange, match=r"5 to 99 are gone, .*; seek to a later offset$"):
                await consumer.to_arrow(columns=["value"])
        consumer.seek(topic, 0, 100)
        assert (await consumer.to_arrow(columns=["value"])).num_rows == 2_900 + 3_000


async def test_offsets_that_are_gone_are_skipped_with_a_warning_where_that_is_allowed(
    broker: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with warmlog.Admin(broker.address) as admin:
        await admin.delete_records({(topic, 1): 100})
    lenient = ReadSettings(fails_on_data_loss=False)
    with arrow_reader(broker.address, [topic], start=5, columns=["partition"], settings=lenient) as reader:
        partitions = reader.read_all()["partition"].to_pylist()
    assert (partitions.count(0), partitions.count(1)) == (2_995, 2_900)
    (said,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(f"{topic}-1 offsets 5 to 100: gone: retention or DeleteRecords removed them")
    assert said.endswith("; skipped")


async def test_errors_come_out_of_the_reader_as_they_are(broker: BrokerProcess, topic: str) -> None:
    with pytest.raises(warmlog.OffsetOutOfRange, match="not there yet"):
        arrow_reader(broker.address, [topic], start=5_000, end=6_000)
    reader = arrow_reader(broker.address, [topic])
    async with warmlog.Admin(broker.address) as admin:
        await admin.delete_topic(topic)
    for _ in range(2):  # it is not at its end
        with pytest.raises(
            warmlog.UnknownTopicId, match=r"recreated after these ranges were planned: make a new reader"
        ):
            reader.read_all()
