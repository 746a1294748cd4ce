"""A consumer with a group, against a coordinator that does what the test says."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator, owned
from warmlog.consumer import consumer_core
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import CoordinatorLoadInProgress, GroupMaxSizeReached

ALL = owned(("t", 0), ("t", 1))
FIRST = owned(("t", 0))
PATIENCE_S = 10


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(t=2) as broker:
        for partition in (0, 1):
            fill(broker, partition, 4, 4)
        yield broker


@pytest.fixture
def coordinator(broker: FakeBroker) -> FakeCoordinator:
    return FakeCoordinator(broker, ALL)


def fill(broker: FakeBroker, partition: int, *counts: int) -> None:
    """Batches of so many records, whose values are the offsets."""
    for count in counts:
        start = broker.topics["t"][partition].next_offset
        values = [b"%d" % number for number in range(start, start + count)]
        broker.add_batch("t", partition, encode_batch(values, timestamps_ms=[1000] * count))


def consumer(broker: FakeBroker, **options: Any) -> warmlog.Consumer:
    if "partitions" not in options and "pattern" not in options:
        options.setdefault("topics", ["t"])
    quick = {"retry_backoff_ms": 5, "max_wait_ms": 20, "group": "etl", "commit_interval_ms": 60_000}
    return warmlog.Consumer(broker.address, **{**quick, **options})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what changes is in other threads
            await asyncio.sleep(0.005)


async def take(batches: AsyncIterator[warmlog.Batch], count: int) -> list[warmlog.Batch]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(batches) for _ in range(count)]


def place(batch: warmlog.Batch) -> tuple[int, int]:
    return batch.partition, batch.next_offset


class Calls:
    """Callbacks that note how they were called."""

    def __init__(self) -> None:
        self.all: list[tuple[str, list[int]]] = []

    def __getattr__(self, name: str) -> Callable[[list[tuple[str, int]]], None]:
        return lambda partitions: self.all.append((name, [partition for _, partition in partitions]))

    @property
    def options(self) -> dict[str, Any]:
        return {f"on_{name}": getattr(self, name) for name in ("assigned", "revoked", "lost")}


async def test_it_joins_with_what_it_was_given_and_reads_what_it_is_assigned(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    options = {"instance_id": "i", "assignor": "range", "session_timeout_ms": 7000, "rebalance_timeout_ms": 9000}
    async with consumer(broker, **options, client_name="me") as client:
        first = coordinator.heartbeats[0]
        assert (first.group, first.member_epoch, first.instance_id, first.topics) == ("etl", 0, "i", ["t"])
        assert (first.pattern, first.assignor, first.client_id, first.owned) == ("", "range", "me", [])
        assert (first.session_timeout_ms, first.rebalance_timeout_ms) == (7000, 9000)
        assert client.assignment == []
        batches = await take(client.batches(), 4)
        assert sorted(map(place, batches)) == [(0, 4), (0, 8), (1, 4), (1, 8)]
        assert sorted(client.assignment) == [("t", 0), ("t", 1)]
        await until(lambda: coordinator.member.owned == ALL)
        metadata = client.group_metadata()
        assert metadata == ("etl", first.member_id, 1, "i")
    assert coordinator.left == [-2]


async def test_it_starts_where_the_group_has_committed_and_elsewhere_at_start(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.offsets[next(iter(FIRST))] = (6, 0)
    async with consumer(broker, start=7) as client:
        batches = await take(client.batches(), 2)
        assert {batch.partition: batch.values for batch in batches} == {0: [b"6", b"7"], 1: [b"7"]}
        assert await client.committed() == {("t", 0): 6, ("t", 1): None}
        assert await client.committed(["t-1", ("t", 0)]) == {("t", 1): None, ("t", 0): 6}


async def test_what_the_loop_has_finished_with_is_committed_and_not_what_it_is_handling(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = FIRST
    async with consumer(broker, commit_interval_ms=10) as client:
        batches = client.batches()
        await take(batches, 1)
        await until(lambda: coordinator.committed == {("t", 0): 0})
        await asyncio.sleep(0.05)
        assert coordinator.committed == {("t", 0): 0}
        await take(batches, 1)
        await until(lambda: coordinator.committed == {("t", 0): 4})
        waiting = asyncio.ensure_future(anext(batches))
        await until(lambda: coordinator.committed == {("t", 0): 8})
        fill(broker, 0, 2)
        await waiting
    assert coordinator.committed == {("t", 0): 8}


async def test_the_record_in_hand_is_not_committed(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial = FIRST
    async with consumer(broker) as client:
        seen = []
        async for record in client:
            seen.append(record.offset)
            if record.offset == 5:
                break
        assert client.position("t", 0) == 6
    assert seen == [0, 1, 2, 3, 4, 5]
    assert coordinator.committed == {("t", 0): 5}


async def test_a_loop_that_ends_by_itself_commits_all(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker) as client:
        assert len([batch async for batch in client.batches(until="latest")]) == 4
    assert coordinator.committed == {("t", 0): 8, ("t", 1): 8}


async def test_an_error_in_the_loop_commits_what_was_finished_before(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = FIRST

    async def handle() -> None:
        async with consumer(broker) as client:
            async for batch in client.batches():
                if batch.next_offset == 8:
                    raise RuntimeError("in the handler")

    with pytest.raises(RuntimeError, match="in the handler"):
        await handle()
    assert coordinator.committed == {("t", 0): 4}


async def test_commits_by_hand_of_a_batch_a_record_a_mapping_and_everything(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = FIRST
    async with consumer(broker, commit="manual") as client:
        batches = client.batches()
        (batch,) = await take(batches, 1)
        assert coordinator.commits == []
        await client.commit(batch)
        assert coordinator.committed == {("t", 0): 4}
        assert coordinator.commits[-1].partitions[0].leader_epoch == batch.leader_epoch
        await client.commit(next(iter(batch)))
        assert coordinator.committed == {("t", 0): 1}
        await client.commit({"t-0": 3})
        assert coordinator.committed == {("t", 0): 3}
        await client.commit()
        assert coordinator.committed == {("t", 0): 4}
        sent = len(coordinator.commits)
        await client.commit()
        assert len(coordinator.commits) == sent
        await take(batches, 1)
        records = client.records()
        fill(broker, 0, 3)
        assert (await anext(records)).offset == 8
        await client.commit()
        assert coordinator.committed == {("t", 0): 9}
        with pytest.raises(warmlog.StaleMemberEpoch, match="t-1 is not assigned to this consumer"):
            await client.commit({("t", 1): 3})
        with pytest.raises(TypeError, match="a Batch, a Record or a mapping"):
            await client.commit(17)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="offset -1"):
            await client.commit({("t", 0): -1})
    assert coordinator.committed == {("t", 0): 9}


async def test_automatic_commits_never_go_back(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial = FIRST
    async with consumer(broker) as client:
        batches = client.batches()
        (batch,) = await take(batches, 1)
        await client.commit(batch)
        client.seek("t", 0, 1)
        (batch,) = await take(batches, 1)
        assert batch.values == [b"1", b"2", b"3"]
        await client.seek_to_beginning()
    assert coordinator.committed == {("t", 0): 4}


async def test_partitions_are_given_up_and_taken_between_two_batches(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial, calls = FIRST, Calls()
    async with consumer(broker, **calls.options) as client:
        batches = client.batches()
        (batch,) = await take(batches, 1)
        await until(lambda: coordinator.member.owned == FIRST)
        second = ALL - FIRST
        coordinator.assign(second)
        epoch = coordinator.member.epoch
        await until(lambda: client.group_metadata().member_epoch == epoch)
        await asyncio.sleep(0.05)
        assert client.assignment == [("t", 0)]
        assert coordinator.member.owned == FIRST
        assert coordinator.committed == {}
        (batch,) = await take(batches, 1)
        assert place(batch) == (1, 4)
        assert coordinator.committed == {("t", 0): 4}
        await until(lambda: coordinator.member.owned == second)
        coordinator.assign(ALL)
        found = await take(batches, 2)
        assert sorted(map(place, found)) == [(0, 8), (1, 8)]
        assert calls.all == [("assigned", [0]), ("revoked", [0]), ("assigned", [1]), ("assigned", [0])]
    assert calls.all[4:] == [("revoked", [0, 1])]


async def test_a_reader_that_waits_is_given_what_is_assigned_meanwhile(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = owned()
    async with consumer(broker) as client:
        waiting = asyncio.ensure_future(anext(client.batches()))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        coordinator.assign(FIRST)
        batch = await asyncio.wait_for(waiting, PATIENCE_S)
        assert batch.values == [b"0", b"1", b"2", b"3"]


async def test_records_in_hand_do_not_delay_a_revocation(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial = FIRST
    async with consumer(broker) as client:
        records = client.records()
        assert (await anext(records)).offset == 0
        assert (await anext(records)).offset == 1
        coordinator.assign(ALL - FIRST)
        await until(lambda: client.group_metadata().member_epoch == 2)
        await asyncio.sleep(0.01)
        record = await anext(records)
        assert (record.partition, record.offset) == (1, 0)
        assert coordinator.committed == {("t", 0): 2}


async def test_callbacks_may_be_coroutines_that_commit_and_seek(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = FIRST

    async def assigned(partitions: list[tuple[str, int]]) -> None:
        client.seek(*partitions[0], 5)

    async def revoked(partitions: list[tuple[str, int]]) -> None:
        await client.commit({partitions[0]: 7})

    async with consumer(broker, commit="manual", on_assigned=assigned, on_revoked=revoked) as client:
        batches = client.batches()
        (batch,) = await take(batches, 1)
        assert batch.values == [b"5", b"6", b"7"]
        await until(lambda: coordinator.member.owned == FIRST)
        coordinator.assign(owned())
        waiting = asyncio.ensure_future(anext(batches))
        await until(lambda: coordinator.member.owned == owned())
        assert coordinator.committed == {("t", 0): 7}
        waiting.cancel()


async def test_an_error_of_a_callback_reaches_the_user_and_the_partitions_are_given_up_all_the_same(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("in the callback")

    coordinator.initial = FIRST
    async with consumer(broker, on_assigned=fail) as client:
        batches = client.batches()
        with pytest.raises(RuntimeError, match="in the callback"):
            await take(batches, 1)
        assert place((await take(batches, 1))[0]) == (0, 4)
        await until(lambda: coordinator.member.owned == FIRST)


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
        waiting = asyncio.ensure_future(take(client.batches(), 9))
        await asyncio.sleep(0.4)
        assert coordinator.left == [-1]
        waiting.cancel()


async def test_a_batch_that_was_read_before_the_partition_was_given_up_takes_no_offset_back(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = FIRST
    async with consumer(broker, commit="manual") as client:
        batches = client.batches()
        (old,) = await take(batches, 1)
        coordinator.assign(ALL - FIRST)
        await until(lambda: client.group_metadata().member_epoch == 2)
        await take(batches, 1)
        coordinator.offsets[next(iter(FIRST))] = (6, 0)
        coordinator.assign(FIRST)
        await until(lambda: client.group_metadata().member_epoch == 3)
        (new,) = await take(batches, 1)
        assert new.base_offset == 6
        for stale in (old, next(iter(old))):
            with pytest.raises(warmlog.StaleMemberEpoch, match="the group has come to offset 6 since"):
                await client.commit(stale)
        await client.commit(new)
        client.seek("t", 0, 2)
        await client.commit(old)
        assert coordinator.committed == {("t", 0): 4}


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


async def test_a_committed_offset_that_is_gone_is_an_error_or_a_reset_with_a_warning(
    broker: FakeBroker, coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.initial = FIRST
    coordinator.offsets[next(iter(FIRST))] = (2, -1)
    partition = broker.topics["t"][0]
    partition.log_start_offset = 4
    async with consumer(broker) as client:
        with pytest.raises(warmlog.OffsetOutOfRange, match="offset 2 is not in the log, which goes from 4 to 8"):
            await take(client.batches(), 1)
    assert coordinator.committed == {("t", 0): 2}
    with caplog.at_level(logging.WARNING):
        async with consumer(broker, on_out_of_range="earliest") as client:
            assert place((await take(client.batches(), 1))[0]) == (0, 8)
    assert "t-0: offset 2 is not in the log; continuing at its earliest offset, 4" in caplog.text


async def test_paused_partitions_are_delivered_when_they_are_resumed(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    async with consumer(broker) as client:
        records = client.records()
        first = await anext(records)
        client.pause([("t", first.partition)])
        other = [await anext(records) for _ in range(8)]
        assert {record.partition for record in other} == {1 - first.partition}
        waiting = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        client.resume()
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).offset == 1
        with pytest.raises(ValueError, match="does not read x-0"):
            client.pause(["x-0"])


async def test_the_lag_in_records_and_in_seconds(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    def pause(partitions: list[tuple[str, int]]) -> None:
        client.pause(partitions)

    coordinator.initial = FIRST
    old_ms = time.time_ns() // 1_000_000 - 60_000
    broker.add_batch("t", 0, encode_batch([b"8", b"9"], timestamps_ms=[old_ms, old_ms + 30_000]))
    async with consumer(broker, start=9, on_assigned=pause) as client:
        reading = asyncio.ensure_future(anext(client.batches()))
        await until(lambda: client.assignment == [("t", 0)])
        lag = await client.lag()
        assert lag[("t", 0)].records == 1
        assert lag[("t", 0)].seconds == pytest.approx(30, abs=5)
        client.resume()
        await asyncio.wait_for(reading, PATIENCE_S)
        assert await client.lag() == {("t", 0): (0, 0.0)}


async def test_a_consumer_of_given_partitions_commits_from_outside(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.offsets[next(iter(FIRST))] = (4, 0)
    async with consumer(broker, partitions=["t-0"]) as client:
        assert client.position("t", 0) == 4
        assert [batch.values async for batch in client.batches(until="latest")] == [[b"4", b"5", b"6", b"7"]]
        assert client.group_metadata() == ("etl", "", -1, "")
    assert coordinator.committed == {("t", 0): 8}
    assert coordinator.heartbeats == []
    async with consumer(broker), consumer(broker, partitions=["t-0"], commit="manual") as outside:
        with pytest.raises(warmlog.NonEmptyGroup):
            await outside.commit({"t-0": 1})
        with pytest.raises(ValueError, match="does not read t-1"):
            await outside.commit({"t-1": 1})


async def test_commits_at_the_same_time_share_requests_and_keep_their_order(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    coordinator.initial = FIRST
    async with consumer(broker, commit="manual") as client:
        await take(client.batches(), 1)
        before = len(coordinator.commits)
        await asyncio.gather(*(client.commit({"t-0": offset}) for offset in range(100)))
        assert coordinator.committed == {("t", 0): 99}
        assert len(coordinator.commits) - before <= 3


async def test_a_revocation_whose_commit_was_cancelled_is_carried_out_by_the_next_call(
    broker: FakeBroker, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    async with consumer(broker, **calls.options) as client:
        batches = client.batches()
        await take(batches, 4)
        coordinator.assign(FIRST)
        epoch = coordinator.member.epoch
        await until(lambda: client.group_metadata().member_epoch == epoch)

        async def never(_partitions: object) -> None:
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(client._committing, "_commit_finished", never)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 0.05)
        assert client.assignment == [("t", 0), ("t", 1)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(batches), 0.5)
        assert client.assignment == [("t", 0)]
        assert coordinator.committed[("t", 1)] == 8
        assert calls.all == [("assigned", [0, 1]), ("revoked", [1])]


async def test_a_partition_may_be_given_up_while_another_task_asks_about_it(
    broker: FakeBroker, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consumer(broker) as client:
        await take(client.batches(), 2)
        core = client._core
        assert core is not None
        ends, look_up = core.ends, consumer_core.look_up_points

        async def ends_then_revoked(*args: Any) -> dict[tuple[str, int], int]:
            found = await ends(*args)
            core.readers.pop(("t", 1), None)
            return found

        async def look_up_then_revoked(*args: Any) -> Any:
            found = await look_up(*args)
            core.readers.pop(("t", 1), None)
            return found

        reader = core.readers["t", 1]
        monkeypatch.setattr(core, "ends", ends_then_revoked)
        assert list(await client.lag()) == [("t", 0)]
        core.readers["t", 1] = reader
        assert await client.available() == {("t", 0): range(8)}
        monkeypatch.undo()
        core.readers["t", 1] = reader
        monkeypatch.setattr(consumer_core, "look_up_points", look_up_then_revoked)
        await client.seek_to("earliest")
        assert client.positions() == {"t-0": 0}
        core.readers["t", 1] = reader


async def test_an_assignment_whose_end_cannot_be_looked_up_is_read_later(
    broker: FakeBroker, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consumer(broker) as client:
        core = client._core
        assert core is not None
        ends, errors = core.ends, [warmlog.BrokerUnavailable("no response"), asyncio.CancelledError()]

        async def fail_first(*args: Any) -> dict[tuple[str, int], int]:
            if errors:
                raise errors.pop(0)
            return await ends(*args)

        monkeypatch.setattr(core, "ends", fail_first)
        batches = client.batches(until="latest")
        with pytest.raises(warmlog.BrokerUnavailable):
            await anext(batches)
        with pytest.raises(asyncio.CancelledError):
            await anext(batches)
        async with asyncio.timeout(PATIENCE_S):
            assert sorted([place(batch) async for batch in batches]) == [(0, 4), (0, 8), (1, 4), (1, 8)]


async def test_what_needs_a_group_is_refused_without_one(broker: FakeBroker) -> None:
    async with consumer(broker, group=None) as client:
        with pytest.raises(warmlog.InvalidConfig, match="has no group"):
            await client.commit()
        with pytest.raises(warmlog.InvalidConfig, match="has no group"):
            await client.committed()
        with pytest.raises(warmlog.InvalidConfig, match="has no group"):
            client.group_metadata()


async def test_stored_batches_that_are_taken_together_and_delivered_apart_are_committed_after_the_last(
    broker: FakeBroker, coordinator: FakeCoordinator
) -> None:
    pytest.importorskip("pyarrow")
    coordinator.initial = FIRST
    for count in (900, 3500):
        broker.add_batch("t", 0, encode_batch([b"x" * 1000] * count, timestamps_ms=[1000] * count))
    async with consumer(broker, start=8, commit="manual", partition_max_bytes=8 * 1024 * 1024) as client:
        parts = client.arrow(until="latest")
        for rows, committed in ((900, 8), (3500, 8 + 4400)):
            part = await asyncio.wait_for(anext(parts), PATIENCE_S)
            assert part.num_rows == rows
            await client.commit()
            assert coordinator.committed == {("t", 0): committed}
