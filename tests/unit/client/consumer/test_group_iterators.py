"""What is committed while a loop waits, and when iterators of one consumer follow each other."""

import asyncio
import time
from collections.abc import AsyncIterator
from operator import length_hint
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator
from group_consumer import ALL, FIRST, PATIENCE_S, consumer, fill, place
from waiting import until
from warmlog.consumer import member
from warmlog.consumer.group.membership import Owned
from warmlog.ranges import range_reader
from warmlog_protocol.batch import encode_batch

pytestmark = pytest.mark.usefixtures("coordinator")


@pytest.fixture
def coordinator(broker: FakeBroker) -> FakeCoordinator:
    return FakeCoordinator(broker, FIRST)


async def test_all_records_are_finished_when_the_loop_waits(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, commit_interval_ms=10) as client, asyncio.timeout(PATIENCE_S):
        records = client.records()
        assert [(await anext(records)).offset for _ in range(8)] == list(range(8))
        waiting = asyncio.create_task(anext(records))
        await until(lambda: coordinator.committed == {("t", 0): 8})
        waiting.cancel()


async def test_a_partition_given_up_meanwhile_is_committed(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker) as client, asyncio.timeout(PATIENCE_S):
        records = client.records()
        assert [(await anext(records)).offset for _ in range(8)] == list(range(8))
        waiting = asyncio.create_task(anext(records))
        await asyncio.sleep(0)
        coordinator.assign(ALL - FIRST)
        assert (await waiting).partition == 1
        assert coordinator.committed[("t", 0)] == 8


async def test_iterators_continue_each_other(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, commit_interval_ms=10) as client, asyncio.timeout(PATIENCE_S):
        assert place(await anext(client.batches())) == (0, 4)
        records = client.records()
        assert (await anext(records)).offset == 4
        assert (await anext(records)).offset == 5
        await records.aclose()
        batch = await anext(client.batches())
        assert (batch.base_offset, batch.next_offset) == (6, 8)
        await until(lambda: coordinator.committed == {("t", 0): 6})
        fill(broker, 0, 3)
        assert (await anext(client.records())).offset == 8
        fill(broker, 0, 3)
        await until(lambda: coordinator.committed == {("t", 0): 8})
        assert place(await anext(client.batches())) == (0, 11)
        records = client.records()
        assert [(await anext(records)).offset for _ in range(3)] == [11, 12, 13]


@pytest.mark.parametrize("reads_on", ["records", "batches", "arrow", "to_arrow"])
async def test_an_arrow_loop_left_skips_none(broker: FakeBroker, coordinator: FakeCoordinator, reads_on: str) -> None:
    """A stored batch of 6 MB is delivered in parts."""
    pytest.importorskip("pyarrow")
    count = 6000
    broker.add_batch("t", 0, encode_batch([b"x" * 1000] * count, timestamps_ms=[1000] * count))
    options = {"start": 8, "commit_interval_ms": 10, "partition_max_bytes": 16 * 1024 * 1024}
    async with consumer(broker, **options) as client, asyncio.timeout(PATIENCE_S):
        first = await anext(client.arrow())
        next_offset = 8 + first.num_rows
        assert next_offset < 8 + count
        assert client.position("t", 0) == next_offset
        match reads_on:
            case "records":
                assert (await anext(client.records())).offset == next_offset
            case "batches":
                assert (await anext(client.batches())).base_offset == next_offset
            case "arrow":
                assert (await anext(client.arrow()))["offset"][0].as_py() == next_offset
            case "to_arrow":
                assert (await client.to_arrow())["offset"].to_pylist() == list(range(next_offset, 8 + count))
        await until(lambda: coordinator.committed == {("t", 0): next_offset})


async def test_parts_of_large_batches_are_committed_singly(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    """A stored batch of 12 MB is delivered in three parts."""
    pytest.importorskip("pyarrow")
    count = 12_000
    broker.add_batch("t", 0, encode_batch([b"x" * 1000] * count, timestamps_ms=[1000] * count))
    options = {"start": 8, "commit_interval_ms": 10, "partition_max_bytes": 16 * 1024 * 1024}
    async with consumer(broker, **options) as client, asyncio.timeout(PATIENCE_S):
        parts = client.arrow()
        ends = [8 + (await anext(parts)).num_rows]
        ends.append(ends[0] + (await anext(parts)).num_rows)
        await until(lambda: coordinator.committed == {("t", 0): ends[0]})
        client.pause(["t-0"])
        assert client.position("t", 0) == ends[1] < 8 + count
        coordinator.assign(ALL - FIRST)
        fill(broker, 1, 4)
        assert (await anext(parts))["partition"].to_pylist() == [1] * 4
        assert coordinator.committed["t", 0] == ends[1]


async def test_an_arrow_iterator_within_a_large_batch_goes_where_it_is_sent(broker: FakeBroker) -> None:
    pytest.importorskip("pyarrow")
    count = 6000
    broker.add_batch("t", 0, encode_batch([b"x" * 1000] * count, timestamps_ms=[1000] * count))
    options = {"start": 8, "partition_max_bytes": 16 * 1024 * 1024}
    async with consumer(broker, **options) as client, asyncio.timeout(PATIENCE_S):
        next_offset = 8 + (await anext(client.arrow())).num_rows
        records = client.records()
        assert [(await anext(records)).offset for _ in range(2)] == [next_offset, next_offset + 1]
        await records.aclose()
        batches = client.arrow()
        assert (await anext(batches))["offset"][0].as_py() == next_offset + 2
        client.seek("t", 0, 0)
        assert (await anext(batches))["offset"][0].as_py() == 0


async def test_an_arrow_loop_that_cannot_hold_a_timestamp_skips_nothing(broker: FakeBroker) -> None:
    pytest.importorskip("pyarrow")
    broker.add_batch("t", 0, encode_batch([b"8"], timestamps_ms=[2**60]))
    fill(broker, 0, 4)
    async with consumer(broker, start=8) as client, asyncio.timeout(PATIENCE_S):
        batches = client.arrow(until="latest")
        for _ in range(2):
            with pytest.raises(warmlog.InvalidTimestamp, match=r"offset 8: .*leave out the column timestamp"):
                await anext(batches)
            assert client.position("t", 0) == 8
        parts = [part["offset"] async for part in client.arrow(until="latest", columns=["offset"])]
    assert [offset.as_py() for part in parts for offset in part] == [8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("steps", "is_given_up"),
    [("read", True), ("read seek", True), ("read commit", False), ("read commit read", True)],
)
async def test_a_partition_is_given_up_with_what_was_delivered_since_the_last_commit(
    broker: FakeBroker, coordinator: FakeCoordinator, steps: str, *, is_given_up: bool
) -> None:
    """A batch has four records: the rest is in hand."""
    async with consumer(broker, commit="manual") as client, asyncio.timeout(PATIENCE_S):
        records = client.records()
        for step in steps.split():
            match step:
                case "read":
                    await anext(records)
                case "seek":
                    client.seek("t", 0, 0)
                case "commit":
                    await client.commit()
        core = client._core
        assert core is not None
        coordinator.assign(ALL - FIRST)
        await until(lambda: client.group_metadata().member_epoch == 2 and not length_hint(core.items))
        assert (await anext(records)).partition == 1
        assert core.given_up == ({("t", 0)} if is_given_up else set())


async def test_nothing_else_is_read_while_a_table_is(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    begun, may_end = asyncio.Event(), asyncio.Event()
    read_all = range_reader.read_all

    async def slowly(*arguments: Any) -> list[Any]:
        begun.set()
        await may_end.wait()
        return await read_all(*arguments)

    monkeypatch.setattr(range_reader, "read_all", slowly)
    async with consumer(broker) as client, asyncio.timeout(PATIENCE_S):
        table = asyncio.create_task(client.to_arrow())
        await until(begun.is_set)
        with pytest.raises(warmlog.ConsumerBusy):
            await anext(client.records())
        may_end.set()
        assert (await table)["offset"].to_pylist() == list(range(8))
        fill(broker, 0, 1)
        assert (await anext(client.records())).offset == 8


@pytest.mark.parametrize("options", [{}, {"topics": None, "partitions": ["t-0"]}])
@pytest.mark.parametrize("sizes", [[400], [1] * 40])
async def test_handlers_that_block_the_event_loop_are_committed_in_time(
    broker: FakeBroker, coordinator: FakeCoordinator, sizes: list[int], options: dict[str, Any]
) -> None:
    fill(broker, 0, *sizes)
    async with consumer(broker, commit_interval_ms=20, start=8, **options) as client, asyncio.timeout(PATIENCE_S):
        records = client.records()
        for _ in range(40):
            last = (await anext(records)).offset
            time.sleep(0.02)  # noqa: ASYNC251 - as a handler does that is a plain function
        assert coordinator.committed["t", 0] > last - 10


async def test_handlers_that_block_are_told_within_a_batch(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    fill(broker, 0, 10_000)
    handled = 0

    async def handle(records: AsyncIterator[warmlog.Record]) -> None:
        nonlocal handled
        async for _ in records:
            handled += 1
            time.sleep(0.002)  # noqa: ASYNC251 - as above

    async with consumer(broker, start=8) as client, asyncio.timeout(PATIENCE_S):
        records = client.records()
        await anext(records)
        coordinator.expire()
        with pytest.raises(warmlog.MembershipLost):
            await handle(records)
        assert handled < 9_000


async def test_a_seek_within_a_batch_takes_effect_at_the_next_record(broker: FakeBroker) -> None:
    fill(broker, 0, 100)
    async with consumer(broker, start=8) as client, asyncio.timeout(PATIENCE_S):
        records = client.records()
        assert [(await anext(records)).offset for _ in range(6)] == list(range(8, 14))
        client.seek("t", 0, 50)
        assert (await anext(records)).offset == 50


@pytest.mark.parametrize("at_first", [frozenset(), FIRST], ids=["none", "one"])
@pytest.mark.parametrize("reads", ["batches", "to_arrow"])
async def test_a_read_with_an_end_waits_for_partitions_that_others_have_not_given_up_yet(
    broker: FakeBroker,
    coordinator: FakeCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reads: str,
    at_first: frozenset[Owned],
) -> None:
    monkeypatch.setattr(member, "FIRST_ASSIGNMENT_S", 0.05)
    coordinator.initial, coordinator.is_settled = at_first, False

    async def count(client: warmlog.Consumer) -> int:
        if reads == "to_arrow":
            return (await client.to_arrow()).num_rows
        return sum([len(batch) async for batch in client.batches(until="latest")])

    async with consumer(broker) as client, asyncio.timeout(PATIENCE_S):
        reading = asyncio.create_task(count(client))
        if reads == "to_arrow" or not at_first:
            await until(lambda: "waiting for partitions that other members hold" in caplog.text)
        await asyncio.sleep(0.3)
        assert not reading.done()
        assert caplog.text.count("waiting for partitions that other members hold") <= 1
        coordinator.is_settled = True
        coordinator.assign(ALL)
        assert await reading == 16
