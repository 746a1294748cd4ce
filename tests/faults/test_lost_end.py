"""Readers of a topic with write.caching are told when a power cut has taken records that they had read."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

import warmlog
from broker_process import BrokerProcess
from faults.power.powered import PoweredDisk, lose_power, why_not
from lost_end import create, produce
from warmlog_protocol.messages import LATEST_TIMESTAMP
from wire_client import WireClient

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}")

TOPIC = "cached"
KEPT, LOST, NEW = (
    [b"kept %d" % number for number in range(10)],
    [b"lost %d " % number * 2000 for number in range(10)],
    [b"new %d" % number for number in range(15)],
)
"""The lost ones take several blocks of the disk: that all of them survive is unlikely."""
NO_SYNCFS = 1_000_000
WAIT_S = 40


@pytest.fixture
def broker(disk: PoweredDisk) -> Iterator[BrokerProcess]:
    with BrokerProcess(disk.path / "data", flush_syncfs_files=NO_SYNCFS) as broker:
        create(broker, TOPIC, KEPT)
        yield broker


def end_offset(broker: BrokerProcess) -> int:
    with WireClient(broker.address) as client:
        return client.offset_at(TOPIC, LATEST_TIMESTAMP)


async def take(consumer: warmlog.Consumer, count: int) -> list[bytes | None]:
    """The values of the next so many records."""
    records = consumer.records()
    return [(await asyncio.wait_for(anext(records), WAIT_S)).value for _ in range(count)]


@pytest.mark.parametrize(("policy", "seed"), [("error", 0), ("earliest", 1), ("latest", 2)])
async def test_a_consumer_is_told_and_misses_none_of_the_new_records(
    disk: PoweredDisk, broker: BrokerProcess, policy: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with warmlog.Consumer(broker.address, topics=[TOPIC], on_out_of_range=policy) as consumer:
        await take(consumer, len(KEPT))
        await asyncio.to_thread(produce, broker, TOPIC, LOST)
        assert await take(consumer, len(LOST)) == LOST
        await asyncio.to_thread(lose_power, disk, broker, seed)
        cut_at = await asyncio.to_thread(end_offset, broker)
        await asyncio.to_thread(produce, broker, TOPIC, NEW)
        assert len(KEPT) <= cut_at < consumer.position(TOPIC, 0) < cut_at + len(NEW)
        if policy == "error":
            for _ in range(2):
                with pytest.raises(warmlog.LogTruncated) as raised:
                    await take(consumer, 1)
            error = raised.value
            assert (error.topic, error.partition, error.offset, error.diverging_offset) == (TOPIC, 0, 20, cut_at)
            consumer.seek(TOPIC, 0, cut_at)
            assert await take(consumer, len(NEW)) == NEW
            return
        with caplog.at_level(logging.WARNING, logger="warmlog"):
            assert await take(consumer, len(NEW)) == NEW
        told = [text for text in caplog.messages if "cut" in text]
        assert len(told) == 1
        assert f"{TOPIC}-0: " in told[0]
        assert "20" in told[0]
        assert f"continuing at {cut_at}" in told[0]


async def test_a_log_that_was_cut_and_not_written_since_is_told_of_too(
    disk: PoweredDisk, broker: BrokerProcess
) -> None:
    async with warmlog.Consumer(broker.address, topics=[TOPIC]) as consumer:
        await asyncio.to_thread(produce, broker, TOPIC, LOST)
        await take(consumer, len(KEPT + LOST))
        waiting = asyncio.ensure_future(take(consumer, 1))
        await asyncio.to_thread(lose_power, disk, broker, 3)
        with pytest.raises(warmlog.LogTruncated) as raised:
            await waiting
        assert raised.value.diverging_offset == await asyncio.to_thread(end_offset, broker)


async def test_after_a_disk_that_failed_a_clean_stop_does_not_hide_what_was_lost(
    disk: PoweredDisk, broker: BrokerProcess
) -> None:
    """The stop cannot close the partition, and the next start cuts it as after a crash."""
    async with warmlog.Consumer(broker.address, topics=[TOPIC]) as consumer:
        await asyncio.to_thread(produce, broker, TOPIC, LOST)
        assert await take(consumer, 20) == KEPT + LOST
        disk.fail_syncs(1)
        assert await asyncio.to_thread(broker.terminate) == 1, "not all logs could be closed"
        await asyncio.to_thread(broker.start)
        assert "not closed by the last clean stop, 1 logs are checked: cached-0" in broker.output
        await asyncio.to_thread(produce, broker, TOPIC, NEW)
        with pytest.raises(warmlog.LogTruncated) as raised:
            await take(consumer, 1)
        assert raised.value.diverging_offset == 10
        consumer.seek(TOPIC, 0, 10)
        assert await take(consumer, len(NEW)) == NEW
