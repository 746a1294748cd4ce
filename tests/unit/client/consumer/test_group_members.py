"""A consumer that is refused by its group, loses its place, or is silent, against a coordinator in memory."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator
from group_consumer import ALL, FIRST, PATIENCE_S, Calls, consumer, fill, place, take, until
from warmlog.consumer import starting as group_start
from warmlog_protocol.errors import CoordinatorLoadInProgress, GroupMaxSizeReached, UnknownMemberId
from warmlog_protocol.messages import GroupHeartbeatRequest, Message, OffsetFetchRequest
from warmlog_transport.cluster import Cluster


@pytest.mark.parametrize("notices_by", ["heartbeat", "commit"])
async def test_a_member_that_lost_its_place_is_told_once_and_joins_again(
    broker: FakeBroker, coordinator: FakeCoordinator, notices_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.initial, calls = FIRST, Calls()
    async with consumer(broker, **calls.options) as client:
        batches = client.batches()
        await take(batches, 1)
        await client.commit()
        (batch,) = await take(batches, 1)
        await until(lambda: coordinator.member.owned == FIRST)
        coordinator.expire()
        call: Callable[[], Awaitable[object]] = lambda: client.commit(batch)  # noqa: E731
        if notices_by == "heartbeat":
            await until(lambda: "no longer a member of the group" in caplog.text)
            call = lambda: anext(batches)  # noqa: E731
        with pytest.raises(warmlog.MembershipLost, match=r"its session has expired; not committed.*t-0 from 4 to 7"):
            await asyncio.wait_for(call(), PATIENCE_S)
        assert calls.all == [("assigned", [0]), ("lost", [0])]
        assert client.assignment == []
        await asyncio.sleep(0.1)
        assert coordinator.members == {}
        (again,) = await take(batches, 1)
        assert place(again) == (0, 8)
        assert coordinator.member.first.member_epoch == 0
    assert coordinator.committed == {("t", 0): 4}


@pytest.mark.parametrize("notices_by", ["heartbeat", "commit"])
async def test_a_fenced_instance_raises_at_every_call(
    broker: FakeBroker, coordinator: FakeCoordinator, notices_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    async with consumer(broker, instance_id="i", **calls.options) as client:
        batches = client.batches()
        (batch,) = await take(batches, 1)
        coordinator.fence()
        if notices_by == "commit":
            with pytest.raises(warmlog.FencedInstanceId, match="another process"):
                await client.commit(batch)
        await until(lambda: "another process has this instance id" in caplog.text)
        for _ in range(2):
            with pytest.raises(warmlog.FencedInstanceId, match="another process"):
                await take(batches, 1)
        with pytest.raises(warmlog.FencedInstanceId, match="another process"):
            client.positions()
        with pytest.raises(warmlog.FencedInstanceId, match="another process"):
            await client.commit()
        assert calls.all == [("assigned", [0, 1]), ("lost", [0, 1])]
        sent = len(coordinator.heartbeats)
        await asyncio.sleep(0.1)
        assert len(coordinator.heartbeats) == sent
    assert coordinator.left == []


async def test_a_member_that_is_closed_after_it_was_lost_tells_what_is_lost(
    broker: FakeBroker, coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    async with consumer(broker, **calls.options) as client:
        await take(client.batches(), 1)
        coordinator.expire()
        await until(lambda: "no longer a member of the group" in caplog.text)
    assert calls.all == [("assigned", [0, 1]), ("lost", [0, 1])]
    assert coordinator.committed == {}


async def test_a_member_that_goes_back_is_told_of_its_loss_and_may_go_back_after_it(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    calls = Calls()
    async with consumer(broker, commit="manual", **calls.options) as client:
        await take(client.batches(), 1)
        coordinator.expire()
        with pytest.raises(warmlog.MembershipLost):
            await client.seek_to_committed()
        await client.seek_to_committed()
        assert calls.all == [("assigned", [0, 1]), ("lost", [0, 1])]
        assert place((await take(client.batches(), 1))[0]) in {(0, 4), (1, 4)}


async def test_what_is_lost_while_its_start_is_looked_up_is_not_assigned(
    broker: FakeBroker, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    async with consumer(broker, **calls.options) as client:
        look_up = group_start.look_up_points

        async def look_up_then_lose(*args: Any) -> Any:
            found = await look_up(*args)
            coordinator.expire()
            await until(lambda: "no longer a member of the group" in caplog.text)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(group_start, "look_up_points", look_up_then_lose)
            with pytest.raises(warmlog.MembershipLost):
                await take(client.batches(), 1)
        assert (calls.all, client.assignment) == ([], [])
        await take(client.batches(), 1)
        assert calls.all == [("assigned", [0, 1])]


async def test_a_refused_join_is_raised_by_start(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.refuses = lambda _: GroupMaxSizeReached("the group is full")
    with pytest.raises(warmlog.GroupMaxSizeReached, match="full"):
        await consumer(broker).start()
    await until(lambda: broker.connections == 0)


async def test_a_refused_rejoin_is_raised_and_tried_again_by_the_next_call(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = FIRST
    async with consumer(broker) as client:
        batches = client.batches()
        await take(batches, 1)
        coordinator.expire()
        coordinator.refuses = lambda beat: None if beat.member_epoch else GroupMaxSizeReached("the group is full")
        await until(lambda: client.group_metadata().member_epoch == 1 and not coordinator.members)
        await asyncio.sleep(0.1)
        with pytest.raises(warmlog.MembershipLost):
            await take(batches, 1)
        for _ in range(2):
            with pytest.raises(warmlog.GroupMaxSizeReached):
                await take(batches, 1)
        coordinator.refuses = lambda _: None
        assert place((await take(batches, 1))[0])[0] == 0


async def test_a_close_while_partitions_are_taken_is_no_loss_of_the_membership(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    def refuse(message: Message) -> warmlog.ApiError | None:
        if not isinstance(message, OffsetFetchRequest):
            return None
        closing.append(asyncio.create_task(client.close()))
        return UnknownMemberId("it has left") if len(closing) > 1 else CoordinatorLoadInProgress("loading")

    closing: list[asyncio.Task[None]] = []
    coordinator.refuses = lambda beat: CoordinatorLoadInProgress("loading") if len(closing) == 1 else None
    client, broker.refusal = consumer(broker), refuse
    await client.start()
    with pytest.raises(warmlog.ClientClosed):
        await take(client.batches(), 1)
    await asyncio.gather(*closing)


async def test_heartbeats_outlast_a_coordinator_that_loads_and_a_lost_connection(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    refusals = iter([CoordinatorLoadInProgress("loading")] * 3)
    coordinator.refuses = lambda _: next(refusals, None)
    async with consumer(broker) as client:
        batches = client.batches()
        await take(batches, 2)
        broker.disconnect()
        sent = len(coordinator.heartbeats)
        await until(lambda: len(coordinator.heartbeats) > sent + 2)
        fill(broker, 0, 1)
        await take(batches, 3)
        assert len([beat for beat in coordinator.heartbeats if beat.member_epoch == 0]) == 4


async def test_a_member_that_has_confirmed_what_it_owns_waits_for_news_at_once(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.interval_ms = 600_000
    async with consumer(broker) as client:
        await take(client.batches(), 1)
        await until(lambda: coordinator.member.owned == ALL and coordinator.heartbeats[-1].max_wait_ms > 0)


async def test_heartbeats_go_on_while_the_event_loop_is_blocked(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    ready, done = threading.Event(), threading.Event()

    def block() -> None:
        async def run() -> None:
            async with consumer(broker) as client:
                await take(client.batches(), 1)
                ready.set()
                done.wait(PATIENCE_S)

        asyncio.run(run())

    thread = threading.Thread(target=block)
    thread.start()
    try:
        await until(ready.is_set)
        sent = len(coordinator.heartbeats)
        await until(lambda: len(coordinator.heartbeats) >= sent + 5)
    finally:
        done.set()
        await asyncio.to_thread(thread.join)


async def test_a_user_that_reads_nothing_for_too_long_leaves_the_group_and_is_told(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = FIRST
    async with consumer(broker, max_poll_interval_ms=150) as client:
        records = client.records()
        for _ in range(4):
            await anext(records)
            await asyncio.sleep(0.08)
        assert coordinator.left == []
        await until(lambda: coordinator.left == [-1])
        with pytest.raises(warmlog.MembershipLost, match=r"nothing was read for 0.15 s, which is max_poll_interval_ms"):
            await anext(records)
        assert (await anext(records)).offset == 0
        await records.aclose()
        waiting = asyncio.ensure_future(take(client.batches(), 9))
        await asyncio.sleep(0.4)
        assert coordinator.left == [-1]
        waiting.cancel()


@pytest.mark.filterwarnings("ignore:Exception ignored in")
async def test_a_consumer_whose_event_loop_has_ended_leaves_the_group(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    async def abandon() -> None:
        client = await consumer(broker).start()
        await take(client.batches(), 1)

    await asyncio.to_thread(asyncio.run, abandon())
    await until(lambda: coordinator.left == [-1])
    await until(lambda: "warmlog heartbeats" not in {thread.name for thread in threading.enumerate()})
    gc.collect()  # the connection of the consumer was not closed, which a warning says


async def test_a_heartbeat_that_cannot_be_sent_is_repeated_with_pauses_and_the_member_goes_on(
    broker: FakeBroker, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = Cluster.call, 0

    async def call(self: Cluster, message: Message, *arguments: Any, **options: Any) -> Any:
        nonlocal failures
        if isinstance(message, GroupHeartbeatRequest) and failures < 4:
            failures += 1
            raise RuntimeError("broken on purpose")
        return await real(self, message, *arguments, **options)

    monkeypatch.setattr(Cluster, "call", call)
    began_s = time.monotonic()
    async with consumer(broker, retry_backoff_ms=100) as client:
        assert len(await take(client.batches(), 1)) == 1
    assert time.monotonic() - began_s > 0.1 * 0.5 * (1 + 2 + 4 + 8)
    assert caplog.text.count("a heartbeat could not be sent") == failures == 4
