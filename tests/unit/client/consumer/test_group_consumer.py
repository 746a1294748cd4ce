"""A consumer with a group, against a coordinator that does what the test says."""

import asyncio
import time
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator, owned
from group_consumer import ALL, FIRST, PATIENCE_S, Calls, consumer, place, take
from waiting import until
from warmlog.consumer import consumer_core
from warmlog.ranges import range_reader
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import StaleMemberEpoch, UnstableOffsetCommit
from warmlog_protocol.messages import Message, OffsetFetchRequest

pytestmark = pytest.mark.usefixtures("coordinator")


async def test_it_joins_as_it_was_told_and_reads_its_share(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
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


async def test_partitions_come_and_go_between_two_batches(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
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


async def test_a_partition_is_given_up_after_on_assigned_ends(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial, calls, second = FIRST, Calls(), ALL - FIRST
    runs, may_end = asyncio.Event(), asyncio.Event()

    async def assigned(partitions: list[tuple[str, int]]) -> None:
        calls.assigned(partitions)
        if partitions == [("t", 1)]:
            runs.set()
            await may_end.wait()

    async with consumer(broker, **{**calls.options, "on_assigned": assigned}) as client, asyncio.timeout(PATIENCE_S):
        batches = client.batches()
        await anext(batches)
        await until(lambda: coordinator.member.owned == FIRST)
        coordinator.assign(ALL)
        await until(lambda: client.group_metadata().member_epoch == 2)
        reading = asyncio.create_task(anext(batches))
        await runs.wait()
        coordinator.assign(FIRST)
        await until(lambda: client.group_metadata().member_epoch == 3)
        await until(lambda: coordinator.heartbeats[-2].member_epoch == 3)
        assert coordinator.member.revoking == second
        may_end.set()
        assert place(await reading) == (0, 8)
        await until(lambda: not coordinator.member.revoking)
    assert calls.all[:3] == [("assigned", [0]), ("assigned", [1]), ("revoked", [1])]


async def test_a_partition_that_was_not_taken_is_given_up(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial, calls = FIRST, Calls()
    fetches: list[Message] = []

    def refuse(request: Message) -> Message:
        fetches.append(request)
        raise StaleMemberEpoch("the epoch has changed")

    broker.further_handlers[OffsetFetchRequest] = refuse
    async with consumer(broker, **calls.options) as client, asyncio.timeout(PATIENCE_S):
        reading = asyncio.create_task(anext(client.batches()))
        await until(lambda: len(fetches) > 0)
        coordinator.assign(owned())
        await until(lambda: not coordinator.member.revoking)
        assert not reading.done()
        reading.cancel()
    assert calls.all == []


async def test_a_partition_is_taken_after_its_transaction(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial, calls = ALL, Calls()
    fetch, refused = broker.further_handlers[OffsetFetchRequest], []

    def refuse_second(request: Any) -> Any:
        if any(1 in part.partitions for part in request.partitions):
            refused.append(request)
            raise UnstableOffsetCommit("an open transaction commits the offset")
        return fetch(request)

    broker.further_handlers[OffsetFetchRequest] = refuse_second
    async with consumer(broker, **calls.options) as client, asyncio.timeout(PATIENCE_S):
        batches = client.batches()
        assert [place(await anext(batches)), place(await anext(batches))] == [(0, 4), (0, 8)]
        reading = asyncio.create_task(anext(batches))
        await until(lambda: len(refused) > 3)
        assert calls.all == [("assigned", [0])]
        broker.further_handlers[OffsetFetchRequest] = fetch
        assert place(await reading) == (1, 4)
    assert calls.all[:2] == [("assigned", [0]), ("assigned", [1])]


async def test_a_member_that_does_not_read_yet_keeps_nothing(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker) as client, asyncio.timeout(PATIENCE_S):
        await until(lambda: len(coordinator.heartbeats) > 2)
        coordinator.assign(FIRST)
        await until(lambda: not coordinator.member.revoking)
        assert place(await anext(client.batches())) == (0, 4)


async def test_a_reader_that_waits_gets_a_new_assignment(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
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


async def test_callbacks_may_be_coroutines_that_commit(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
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


async def test_errors_of_callbacks_reach_the_user(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("in the callback")

    coordinator.initial = FIRST
    async with consumer(broker, on_assigned=fail) as client:
        batches = client.batches()
        with pytest.raises(RuntimeError, match="in the callback"):
            await take(batches, 1)
        assert place((await take(batches, 1))[0]) == (0, 4)
        await until(lambda: coordinator.member.owned == FIRST)


async def test_callbacks_run_to_their_end_beside_a_cancel(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        has_begun.set()
        await may_end.wait()

    async def assigned(partitions: list[tuple[str, int]]) -> None:
        await wait()
        client.seek(*partitions[0], 6)

    async def revoked(partitions: list[tuple[str, int]]) -> None:
        await wait()
        await client.commit({partitions[0]: 7})

    async def cancel_within_it() -> None:
        has_begun.clear()
        may_end.clear()
        reading = asyncio.ensure_future(anext(batches))
        await has_begun.wait()
        reading.cancel()
        await asyncio.sleep(0.05)
        assert not reading.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await reading

    coordinator.initial = FIRST
    async with consumer(broker, commit="manual", on_assigned=assigned, on_revoked=revoked) as client:
        batches = client.batches()
        await cancel_within_it()
        assert client.position("t", 0) == 6
        (batch,) = await take(batches, 1)
        assert batch.values == [b"6", b"7"]
        await until(lambda: coordinator.member.owned == FIRST)
        coordinator.assign(owned())
        await until(lambda: client.group_metadata().member_epoch == 2)
        await cancel_within_it()
        assert client.assignment == []
        assert coordinator.committed == {("t", 0): 7}


async def test_paused_partitions_are_delivered_when_they_are_resumed(broker: FakeBroker) -> None:
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


async def test_the_lag_does_not_count_what_the_log_no_longer_has(broker: FakeBroker) -> None:
    async with consumer(broker, partitions=["t-0"]) as client:
        broker.topics["t"][0].log_start_offset = 5
        assert client.position("t", 0) == 0
        assert (await client.lag())["t", 0].records == 3


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
            patch.setattr(client._offset_commits, "_commit_finished", never)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 0.05)
        assert client.assignment == [("t", 0), ("t", 1)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(batches), 0.5)
        assert client.assignment == [("t", 0)]
        assert coordinator.committed[("t", 1)] == 8
        assert calls.all == [("assigned", [0, 1]), ("revoked", [1])]


async def test_a_partition_may_go_while_it_is_asked_about(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("when", ["its end is looked up", "it is read"])
async def test_a_partition_may_be_given_up_while_a_table_is_read(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    pytest.importorskip("pyarrow")
    async with consumer(broker, commit="manual") as client:
        await take(client.batches(), 1)
        await client.seek_to("earliest")
        core = client._core
        assert core is not None
        given_up = core.readers["t", 1]
        ends, read = core.ends, range_reader.read_all

        async def ends_then_revoked(*args: Any) -> dict[tuple[str, int], int]:
            found = await ends(*args)
            del core.readers["t", 1]
            return found

        async def read_then_revoked(*args: Any) -> Any:
            batches = await read(*args)
            del core.readers["t", 1]
            return batches

        if when == "it is read":
            monkeypatch.setattr(range_reader, "read_all", read_then_revoked)
        else:
            monkeypatch.setattr(core, "ends", ends_then_revoked)
        table = await client.to_arrow()
        assert table.num_rows == (16 if when == "it is read" else 8)
        assert client.positions() == {"t-0": 8}
        core.readers["t", 1] = given_up
        assert client.positions() == {"t-0": 8, "t-1": 0}


async def test_an_assignment_without_its_end_is_read_later(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_read_with_an_end_waits_for_an_offset_that_an_open_transaction_commits(broker: FakeBroker) -> None:
    fetch, refused = broker.further_handlers[OffsetFetchRequest], []

    def refuse(request: OffsetFetchRequest) -> Message:
        numbers = [number for part in request.partitions or () for number in part.partitions]
        if 1 in numbers and len(refused) < 3:
            refused.append(numbers)
            raise warmlog.UnstableOffsetCommit("a transaction is open")
        return fetch(request)

    broker.further_handlers[OffsetFetchRequest] = refuse
    async with consumer(broker) as client, asyncio.timeout(PATIENCE_S):
        found = [place(batch) async for batch in client.batches(until="latest")]
    assert sorted(found) == [(0, 4), (0, 8), (1, 4), (1, 8)]
