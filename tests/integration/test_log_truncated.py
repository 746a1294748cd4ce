"""Readers of a topic whose log a power cut has shortened: what a real broker tells, and what clients make of it."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import warmlog
from broker_process import BrokerProcess
from lost_end import create, lose_end, produce
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.ranges.read_settings import ReadSettings
from warmlog_protocol import messages as m
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import ErrorCode
from wire_client import WireClient, batch_of

TOPIC = "cached"
WAIT_S = 40
MAX_BYTES = 1 << 20


def values_of(name: str, count: int) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


KEPT, LOST, NEW = values_of("kept", 10), values_of("lost", 10), values_of("new", 15)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Offsets 0 to 9 are on the disk, 10 to 19 in the page cache only."""
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, TOPIC, KEPT)
        produce(broker, TOPIC, LOST)
        yield broker


@pytest.fixture(scope="module")
def cut_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that was cut at 10, and written again up to 25. Tests change nothing of it."""
    with BrokerProcess(tmp_path_factory.mktemp("cut") / "data") as broker:
        create(broker, TOPIC, KEPT)
        produce(broker, TOPIC, LOST)
        cut(broker)
        yield broker


def cut(broker: BrokerProcess, *, end_offset: int = 10, new: list[bytes] = NEW) -> None:
    lose_end(broker, TOPIC, end_offset)
    produce(broker, TOPIC, new)


async def take(consumer: warmlog.Consumer, count: int) -> list[bytes | None]:
    """The values of the next so many records."""
    records = consumer.records()
    return [(await asyncio.wait_for(anext(records), WAIT_S)).value for _ in range(count)]


# --- the broker -----------------------------------------------------------------------------------------------------


def fetch(
    client: WireClient,
    *wanted: m.FetchPartition,
    max_wait_ms: int = 0,
    isolation: int = m.IsolationLevel.READ_UNCOMMITTED,
) -> tuple[list[m.FetchedPartition], bytes]:
    request = m.FetchRequest(max_wait_ms, 1, MAX_BYTES, list(wanted), isolation)
    response, payload = client.receive(client.send(request))
    return cast("m.FetchResponse", response).partitions, payload


def at(offset: int, epoch: int) -> m.FetchPartition:
    return m.FetchPartition(TOPIC, 0, offset, MAX_BYTES, last_fetched_epoch=epoch)


def test_a_fetch_says_where_the_log_was_cut_since_its_reader_read_it(cut_broker: BrokerProcess) -> None:
    with WireClient(cut_broker.address) as client:
        for isolation in m.IsolationLevel:
            (part,), payload = fetch(client, at(20, 0), isolation=isolation)
            assert (part.error_code, part.diverging, payload) == (ErrorCode.NONE, m.DivergingEpoch(0, 10), b"")
            assert (part.high_watermark, part.log_start_offset, part.leader_epoch) == (25, 0, 1)
        (part,), _ = fetch(client, at(11, 0))
        assert part.diverging == m.DivergingEpoch(0, 10)
        (part,), _ = fetch(client, at(20, 7))
        assert part.diverging == m.DivergingEpoch(-1, -1), "an epoch that the partition never had"


def test_a_fetch_of_what_the_log_holds_is_answered_as_ever(cut_broker: BrokerProcess) -> None:
    with WireClient(cut_broker.address) as client:
        for offset, epoch in ((0, 0), (5, 0), (10, 0), (10, 1), (20, 1), (25, 1), (20, -1)):
            (part,), payload = fetch(client, at(offset, epoch))
            assert part.diverging is None
            values = [value for batch in iter_batches(payload) for value in batch.values()]
            assert values == [*KEPT, *NEW][offset:]


def test_a_log_cut_and_not_written_since_is_not_out_of_range_with_the_epoch(broker: BrokerProcess) -> None:
    cut(broker, new=[])
    with WireClient(broker.address) as client:
        assert fetch(client, at(20, 0))[0][0].diverging == m.DivergingEpoch(0, 10)
        assert fetch(client, at(20, -1))[0][0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert fetch(client, at(10, 0))[0][0].diverging is None


def test_such_a_fetch_does_not_wait_and_keeps_no_other_partition_from_being_read(cut_broker: BrokerProcess) -> None:
    with WireClient(cut_broker.address) as client:
        client.create_topic("other")
        client.produce("other", batch_of([b"a"]))
        wanted = m.FetchPartition("other", 0, 0, MAX_BYTES)
        (first, second, third), payload = fetch(
            client, m.FetchPartition("other", 0, 1, MAX_BYTES), at(20, 0), wanted, max_wait_ms=300_000
        )
        assert (first.size_bytes, second.size_bytes, third.size_bytes) == (0, 0, len(payload))
        assert [batch.values() for batch in iter_batches(payload)] == [[b"a"]]


def test_an_offset_before_the_log_start_is_out_of_range_whatever_its_epoch(broker: BrokerProcess) -> None:
    async def remove() -> None:
        async with warmlog.Admin(broker.address) as admin:
            await admin.delete_records({(TOPIC, 0): 22})

    cut(broker)
    asyncio.run(remove())
    with WireClient(broker.address) as client:
        assert fetch(client, at(20, 0))[0][0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert fetch(client, at(22, 0))[0][0].diverging is None, "what it had of the log is given up, all of it"


# --- the consumer ---------------------------------------------------------------------------------------------------


async def test_a_position_that_was_kept_with_its_epoch_is_checked_when_it_is_used_again(broker: BrokerProcess) -> None:
    async with warmlog.Consumer(broker.address, topics=[TOPIC]) as consumer:
        assert consumer.position_epoch(TOPIC, 0) == 0, "the log's, from where it starts"
        assert await take(consumer, 20) == KEPT + LOST
        kept = consumer.position(TOPIC, 0), consumer.position_epoch(TOPIC, 0)
    assert kept == (20, 0)
    await asyncio.to_thread(cut, broker)
    async with warmlog.Consumer(broker.address, topics=[TOPIC]) as consumer:
        consumer.seek(TOPIC, 0, *kept)
        with pytest.raises(warmlog.LogTruncated, match=r"cut at 10 .* Seek to 10, or set on_out_of_range") as raised:
            await take(consumer, 1)
        assert (raised.value.offset, raised.value.diverging_offset) == (20, 10)
        for _ in range(2):
            with pytest.raises(warmlog.LogTruncated) as again:
                await take(consumer, 1)
            assert str(again.value) == str(raised.value)
        consumer.seek(TOPIC, 0, kept[0])
        assert consumer.position_epoch(TOPIC, 0) == -1
        assert await take(consumer, 5) == NEW[10:], "an offset alone is taken as it is"
        assert consumer.position_epoch(TOPIC, 0) == 1
        consumer.seek(TOPIC, 0, 10)
        assert await take(consumer, 15) == NEW


async def test_a_consumer_that_has_read_none_is_told(broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    """It began at the latest offset: what comes after that was to be its first record."""
    for policy in ("error", "latest"):
        async with warmlog.Consumer(broker.address, topics=[TOPIC], start="latest", on_out_of_range=policy) as consumer:
            position = consumer.position(TOPIC, 0)
            waiting = asyncio.ensure_future(take(consumer, 15))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(cut, broker)
            if policy == "error":
                with pytest.raises(warmlog.LogTruncated) as raised:
                    await waiting
                assert (raised.value.offset, raised.value.diverging_offset) == (position, 10)
            else:
                assert await waiting == NEW
                assert "the log was cut at 10" in caplog.text


async def test_restarts_that_lose_nothing_are_not_told(broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    async with warmlog.Consumer(broker.address, topics=[TOPIC]) as consumer:
        assert await take(consumer, 20) == KEPT + LOST
        for number in range(3):
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await asyncio.to_thread(produce, broker, TOPIC, [b"after %d" % number])
            if number == 1:
                async with warmlog.Admin(broker.address) as admin:
                    await admin.delete_records({(TOPIC, 0): 21})
            assert await take(consumer, 1) == [b"after %d" % number]
        assert consumer.position_epoch(TOPIC, 0) == 3
    assert "cut" not in caplog.text


async def test_a_second_cut_is_told_too(broker: BrokerProcess) -> None:
    async with warmlog.Consumer(broker.address, topics=[TOPIC], on_out_of_range="earliest") as consumer:
        assert await take(consumer, 20) == KEPT + LOST
        await asyncio.to_thread(cut, broker)
        assert await take(consumer, 15) == NEW
        await asyncio.to_thread(cut, broker, end_offset=13, new=[b"newest"] * 20)
        assert await take(consumer, 20) == [b"newest"] * 20


# --- reading ranges -------------------------------------------------------------------------------------------------


async def test_a_table_of_what_comes_after_a_cut_is_refused_and_the_position_stays(broker: BrokerProcess) -> None:
    async with warmlog.Consumer(broker.address, topics=[TOPIC], on_out_of_range="earliest") as consumer:
        assert (await consumer.to_arrow(columns=["value"])).column("value").to_pylist() == KEPT + LOST
        await asyncio.to_thread(cut, broker)
        for _ in range(2):
            with pytest.raises(warmlog.LogTruncated, match=r"read up to 20, .*; seek to where it was cut") as raised:
                await consumer.to_arrow()
            assert (raised.value.offset, raised.value.diverging_offset) == (20, 10)
        assert consumer.position(TOPIC, 0) == 20
        consumer.seek(TOPIC, 0, 10)
        assert (await consumer.to_arrow(columns=["value"])).column("value").to_pylist() == NEW


async def test_records_after_a_table_are_checked_as_those_after_records_are(broker: BrokerProcess) -> None:
    async with warmlog.Consumer(broker.address, topics=[TOPIC], on_out_of_range="earliest") as consumer:
        await consumer.to_arrow()
        await asyncio.to_thread(cut, broker)
        assert await take(consumer, 15) == NEW


def test_an_arrow_reader_refuses_what_is_newer_than_it(broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    strict = arrow_reader(broker.address, [TOPIC], columns=["value"])
    settings = ReadSettings(fails_on_data_loss=False)
    lenient = arrow_reader(broker.address, [TOPIC], columns=["value"], settings=settings)
    cut(broker, end_offset=13)
    with pytest.raises(warmlog.LogTruncated, match="cut at 13 after these ranges were planned") as raised:
        strict.read_all()
    assert (raised.value.offset, raised.value.diverging_offset) == (20, 13)
    with caplog.at_level(logging.WARNING, logger="warmlog"):
        assert lenient.read_all().column("value").to_pylist() == (KEPT + LOST)[:13]
    assert f"{TOPIC}-0 offsets 13 to 20: gone: the log was cut at 13" in caplog.text
    with arrow_reader(broker.address, [TOPIC], columns=["value"]) as again:
        assert again.read_all().column("value").to_pylist() == (KEPT + LOST)[:13] + NEW
