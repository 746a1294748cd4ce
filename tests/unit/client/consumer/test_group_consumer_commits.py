"""Commits by hand of a consumer that also commits automatically."""

import asyncio
import time

import pytest

import warmlog
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator
from group_consumer import FIRST, consumer, take
from warmlog.consumer import offset_commits


@pytest.fixture
def coordinator(broker: FakeBroker) -> FakeCoordinator:
    return FakeCoordinator(broker, FIRST)


async def test_an_automatic_commit_takes_no_commit_by_hand_back_that_is_under_way(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    async with consumer(broker) as client:
        (batch,) = await take(client.batches(), 1)
        by_hand = asyncio.ensure_future(client.commit(batch))
        await asyncio.sleep(0)
    await by_hand
    assert coordinator.committed == {("t", 0): 4}


async def test_an_automatic_commit_takes_no_commit_by_hand_back_that_was_cancelled(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    async with consumer(broker) as client:
        (batch,) = await take(client.batches(), 1)
        by_hand = asyncio.ensure_future(client.commit(batch))
        await asyncio.sleep(0)
        assert by_hand.cancel()
    assert coordinator.committed == {("t", 0): 4}


async def test_a_seek_to_what_is_committed_waits_for_commits_that_were_cancelled(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    async with consumer(broker, commit="manual") as client:
        batches = client.batches()
        for _ in range(2):
            await take(batches, 1)
            by_hand = asyncio.ensure_future(client.commit())
            await asyncio.sleep(0)
            assert by_hand.cancel()
        await client.seek_to_committed()
        assert client.position("t", 0) == 8
        await client.commit()
    assert coordinator.committed == {("t", 0): 8}


async def test_an_automatic_commit_is_made_after_a_commit_by_hand_was_refused(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    async with consumer(broker) as client:
        batches = client.batches()
        await take(batches, 2)
        coordinator.most = 8
        with pytest.raises(warmlog.OffsetOutOfRange):
            await client.commit({"t-0": 100})
    assert coordinator.committed == {("t", 0): 4}


async def test_a_commit_that_the_close_of_the_consumer_interrupts_says_so(
    broker: FakeBroker, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_commits, "LAST_COMMIT_TIMEOUT_S", 0.1)
    async with consumer(broker, commit="manual") as client:
        (batch,) = await take(client.batches(), 1)
        broker.is_silent = True
        by_hand = asyncio.ensure_future(client.commit(batch))
        await asyncio.sleep(0)
    with pytest.raises(warmlog.ClientClosed, match="closed before the commit had a response"):
        await by_hand
    assert coordinator.committed == {}


async def test_a_cancelled_block_of_a_member_ends_within_a_second_while_the_broker_is_away(
    broker: FakeBroker, coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    read = asyncio.Event()

    async def work() -> None:
        async with consumer(broker) as client:
            async for _ in client.batches():
                broker.is_silent = client.position("t", 0) > 4
                if broker.is_silent:
                    read.set()

    working = asyncio.create_task(work())
    await read.wait()
    before = time.monotonic()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert time.monotonic() - before < 1
    assert "the last commit had no response within 0.5 s: records may be handled twice" in caplog.text


async def test_a_commit_of_on_revoked_ends_where_the_block_was_cancelled_and_the_broker_is_away(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    read = asyncio.Event()

    async def write_out(_: object) -> None:
        await client.commit()

    async def work() -> None:
        async with client:
            async for _ in client.batches():
                broker.is_silent = True
                read.set()
                await asyncio.sleep(60)

    client = consumer(broker, commit="manual", on_revoked=write_out)
    working = asyncio.create_task(work())
    await read.wait()
    before = time.monotonic()
    working.cancel()
    with pytest.raises(warmlog.ClientClosed, match="closed before the commit had a response"):
        await working
    assert time.monotonic() - before < 1


async def test_a_commit_beside_the_close_finds_the_consumer_closed_and_nothing_lost(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    lost: list[object] = []
    client = consumer(broker, on_lost=lost.append)
    await client.start()
    await take(client.batches(), 2)

    async def commit_on_and_on() -> None:
        while True:
            await client.commit()
            await asyncio.sleep(0)

    committing_task = asyncio.ensure_future(commit_on_and_on())
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(warmlog.ClientClosed):
        await committing_task
    assert lost == []


async def test_tables_count_as_reading(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, max_poll_interval_ms=1000) as client:
        await take(client.batches(), 1)
        for _ in range(4):
            await client.to_arrow()
            await asyncio.sleep(0.4)
        assert coordinator.left == []
