"""One shard on a real log: what is decided when, what is appended together, and what becomes of it after errors."""

import asyncio
import random
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from unit.broker.conftest import NOW_MS, MakePartition, flush
from unit.broker.coordinator.framework.toy import Events, Numbers, add, closing, get, make_shard, put, turn
from unit.broker.topics.test_topics import Room
from waiting import until
from warmlog_broker.coordinator.framework import shard as shard_module
from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.framework.key_order import KeyOrder
from warmlog_broker.coordinator.framework.loading import RECORDS_A_TURN
from warmlog_broker.coordinator.framework.shard import Coordinator, Shard, ShardStatus, ShardSurroundings
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.segment import file_records
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
    RecordListTooLarge,
)
from warmlog_protocol.messages import ACKS_ALL
from wire_client import batch_of


async def loaded(shard: Shard[Numbers]) -> Shard[Numbers]:
    shard.load()
    await active(shard)
    return shard


async def active(shard: Shard[Numbers]) -> None:
    """Return when the log was read."""
    async with asyncio.timeout(25):
        await shard.wait_until_loaded()
    assert shard.status is ShardStatus.ACTIVE


@pytest.fixture
def partition(make_partition: MakePartition) -> Partition:
    return make_partition(cleanup_policy="compact")


@pytest.fixture
async def shard(partition: Partition, threads: Executor) -> AsyncIterator[Shard[Numbers]]:
    with closing(make_shard(partition, threads)) as made:
        yield await loaded(made)


def future_of(outcome: object) -> "asyncio.Future[Any]":
    assert isinstance(outcome, asyncio.Future)
    return outcome


def batches_in(partition: Partition) -> list[list[tuple[bytes | None, bytes | None]]]:
    """The keys and values of each batch."""
    data = partition.log.reader.read(0, 1 << 20, bound="log_end")
    return [
        list(zip(batch.keys(), batch.values(), strict=True))
        for piece in data.slices
        for batch in iter_batches(piece.pread())
    ]


async def test_a_decision_without_records_returns_at_once_and_writes_nothing(
    partition: Partition, shard: Shard[Numbers]
) -> None:
    assert shard.run("a", get("a")) is None
    await turn()
    assert partition.log.log_end_offset == 0


async def test_a_result_is_returned_once_its_records_are_durable_and_replayed(
    partition: Partition, shard: Shard[Numbers]
) -> None:
    outcome = future_of(shard.run("a", put("a", 7)))
    await turn()
    assert partition.log.log_end_offset == 1
    await turn()
    assert not outcome.done()
    assert shard.state.by_name == {}
    flush(partition)
    assert outcome.result() is None
    assert shard.state.by_name == {"a": 7}


async def test_decisions_of_one_turn_are_one_batch_in_their_order(partition: Partition, shard: Shard[Numbers]) -> None:
    outcomes = [future_of(shard.run(name, put(name, 1))) for name in "cab"]
    await turn()
    outcomes.append(future_of(shard.run("d", put("d", None))))
    await turn()
    assert batches_in(partition) == [[(b"c", b"1"), (b"a", b"1"), (b"b", b"1")], [(b"d", None)]]
    flush(partition)
    assert all(each.done() for each in outcomes)


async def test_large_turns_are_divided_between_decisions(
    partition: Partition, shard: Shard[Numbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "BATCH_BYTES", 4)
    both = Decision([Record(b"a", b"1"), Record(b"b", b"22")], "both")
    outcomes = [future_of(shard.run(name, lambda _: both)) for name in "xy"]
    await turn()
    assert [len(batch) for batch in batches_in(partition)] == [2, 2]
    flush(partition)
    assert [each.result() for each in outcomes] == ["both", "both"]


async def test_a_bug_in_an_append_has_the_log_read_again_and_nothing_more_of_its_turn_is_appended(
    partition: Partition, shard: Shard[Numbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "BATCH_BYTES", 2)
    tried: list[object] = []

    def fail(batch: object, *_: object, **__: object) -> None:
        tried.append(batch)
        raise RuntimeError("a bug")

    monkeypatch.setattr(partition, "append", fail)
    outcomes = [future_of(shard.run(name, put(name, 1))) for name in "abc"]
    await turn()
    assert len(tried) == 1
    assert all(isinstance(each.exception(), CoordinatorNotAvailable) for each in outcomes)
    await active(shard)
    assert shard.state.replayed == []


async def test_a_decision_that_no_segment_can_hold_fails_alone_and_for_good(
    make_partition: MakePartition, threads: Executor
) -> None:
    partition = make_partition(segment_bytes="2000000")
    with closing(make_shard(partition, threads)) as shard:
        await loaded(shard)
        small = future_of(shard.run("a", put("a", 1)))
        huge = future_of(shard.run("b", lambda _: Decision([Record(b"b", b"1" * 3_000_000)], None)))
        after = future_of(shard.run("c", put("c", 1)))
        await turn()
        flush(partition)
        assert isinstance(huge.exception(), RecordListTooLarge)
        assert (small.exception(), after.exception()) == (None, None)
        assert shard.state.by_name == {"a": 1, "c": 1}


async def test_exclusive_operations_on_a_key_see_each_other_and_others_do_not_wait(
    partition: Partition, shard: Shard[Numbers]
) -> None:
    sums = [future_of(shard.run("a", add("a", 1))) for _ in range(3)]
    other = future_of(shard.run("b", add("b", 5)))
    await turn()
    flush(partition)
    assert [each.done() for each in [*sums, other]] == [True, False, False, True]
    for _ in range(2):
        await turn()
        flush(partition)
    assert [each.result() for each in sums] == [1, 2, 3]


async def test_shared_operations_run_side_by_side_and_wait_for_an_exclusive_one_before_them(
    partition: Partition, shard: Shard[Numbers]
) -> None:
    first = [future_of(shard.run("k", put(f"s{n}", n), is_shared=True)) for n in range(3)]
    change = future_of(shard.run("k", add("k", 1)))
    late = future_of(shard.run("k", get("k"), is_shared=True))
    await turn()
    assert len(batches_in(partition)[0]) == 3
    flush(partition)
    assert all(each.done() for each in first)
    assert not change.done()
    await turn()
    flush(partition)
    assert (change.result(), late.result()) == (1, 1)


async def test_what_a_decision_raises_is_raised_at_once_or_by_the_future(
    partition: Partition, shard: Shard[Numbers]
) -> None:
    def refuse(_: Numbers) -> Decision[None]:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        shard.run("a", refuse)
    done = future_of(shard.run("a", put("a", 1)))
    refused = future_of(shard.run("a", refuse))
    after = future_of(shard.run("a", get("a")))
    await turn()
    flush(partition)
    assert done.result() is None
    assert isinstance(refused.exception(), InvalidRequest)
    assert after.result() == 1


async def test_a_cancelled_operation_is_carried_out(partition: Partition, shard: Shard[Numbers]) -> None:
    done, waiting = (future_of(shard.run("a", add("a", 1))) for _ in range(2))
    done.cancel()
    waiting.cancel()
    for _ in range(2):
        await turn()
        flush(partition)
    assert shard.state.by_name == {"a": 2}


async def test_while_it_loads_it_refuses_and_a_load_gives_the_state_of_the_log(
    partition: Partition, shard: Shard[Numbers], threads: Executor
) -> None:
    for number in range(500):
        shard.run(f"n{number}", put(f"n{number}", number))
    await turn()
    flush(partition)
    future_of(shard.run("n3", put("n3", None)))
    await turn()
    flush(partition)
    with closing(make_shard(partition, threads)) as second:
        with pytest.raises(CoordinatorLoadInProgress):
            second.run("a", get("a"))
        with pytest.raises(CoordinatorLoadInProgress):
            _ = second.state
        await loaded(second)
        assert second.state.by_name == shard.state.by_name
        assert second.state.replayed == shard.state.replayed
        assert len(second.state.by_name) == 499


async def test_a_load_waits_for_what_is_not_durable_yet(
    partition: Partition, shard: Shard[Numbers], threads: Executor
) -> None:
    future_of(shard.run("a", put("a", 1)))
    await turn()
    with closing(make_shard(partition, threads)) as second:
        second.load()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert second.status is ShardStatus.LOADING
        flush(partition)
        await active(second)
        assert second.state.by_name == {"a": 1}


async def test_a_load_skips_what_is_not_a_record_of_a_coordinator(
    make_partition: MakePartition, threads: Executor
) -> None:
    partition = make_partition()
    partition.append(batch_of([b"without a key"]), ACKS_ALL, lambda _: None, now_ms=NOW_MS)
    flush(partition)
    with closing(make_shard(partition, threads)) as shard:
        await loaded(shard)
        assert shard.state.replayed == []


async def test_a_log_that_cannot_be_read_is_read_again(
    partition: Partition, shard: Shard[Numbers], threads: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    future_of(shard.run("a", put("a", 1)))
    await turn()
    flush(partition)
    monkeypatch.setattr(shard_module, "RELOAD_DELAY_S", 1.0)
    path = partition.log.local.active.path
    content = path.read_bytes()
    path.write_bytes(content[:-3] + b"xyz")
    with closing(make_shard(partition, threads)) as second:
        second.load()
        await until(lambda: bool(second._problem))
        with pytest.raises(CoordinatorNotAvailable, match="t-0 cannot be read"):
            second.run("a", get("a"))
        path.write_bytes(content)
        await active(second)
        assert second.state.by_name == {"a": 1}


async def test_an_append_that_is_refused_fails_its_operations_and_changes_nothing(
    partition: Partition, threads: Executor
) -> None:
    assert partition.disk is not None
    partition.disk.room.is_short = True
    with closing(make_shard(partition, threads)) as shard:
        await loaded(shard)
        failed = future_of(shard.run("a", add("a", 1)))
        waiting = future_of(shard.run("a", add("a", 10)))
        await turn()
        error = failed.exception()
        assert isinstance(error, CoordinatorNotAvailable)
        assert "takes no records" in str(error)
        partition.disk.room.is_short = False
        await turn()
        flush(partition)
        assert waiting.result() == 10
        assert shard.status is ShardStatus.ACTIVE


async def test_after_an_error_of_the_disk_everything_fails_and_nothing_is_accepted(
    make_partition: MakePartition, threads: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards: list[Shard[Numbers]] = []
    partition = make_partition(on_unloaded=lambda gone: shards[0].close(str(gone.refusal())))
    events = Events()
    with closing(make_shard(partition, threads, events)) as shard:
        shards.append(await loaded(shard))
        undurable = future_of(shard.run("a", put("a", 1)))
        await turn()

        def fail(*_: object) -> int:
            raise OSError(5, "EIO")

        monkeypatch.setattr(file_records, "_pwritev", fail)
        refused = future_of(shard.run("b", put("b", 1)))
        waiting = future_of(shard.run("b", put("b", 2)))
        await turn()
        for each in (undurable, refused, waiting):
            assert isinstance(each.exception(), CoordinatorNotAvailable)
        with pytest.raises(CoordinatorNotAvailable, match="offline"):
            shard.run("a", get("a"))
        assert events.seen == ["loaded", "unloaded"]


async def test_a_batch_that_may_be_in_the_log_or_not_has_the_log_read_again(
    partition: Partition, threads: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events()
    with closing(make_shard(partition, threads, events)) as shard:
        await loaded(shard)
        outcome = future_of(shard.run("a", put("a", 1)))
        waiting = future_of(shard.run("a", add("a", 1)))
        await turn()
        partition._pending.fail(InvalidRequest("as a leader does that was replaced"))
        assert isinstance(outcome.exception(), CoordinatorNotAvailable)
        assert isinstance(waiting.exception(), CoordinatorNotAvailable)
        with pytest.raises(CoordinatorLoadInProgress):
            shard.run("a", get("a"))
        flush(partition)
        await active(shard)
        assert shard.state.by_name == {"a": 1}
        assert events.seen == ["loaded", "unloaded", "loaded"]


async def test_a_state_that_cannot_replay_a_record_is_loaded_again(
    partition: Partition, shard: Shard[Numbers], caplog: pytest.LogCaptureFixture
) -> None:
    outcome = future_of(shard.run("a", lambda _: Decision([Record(b"a", b"not a number")], None)))
    await turn()
    flush(partition)
    assert isinstance(outcome.exception(), CoordinatorNotAvailable)
    assert shard.status is ShardStatus.LOADING
    assert "could not be replayed: a bug" in caplog.text


async def test_operations_that_wait_have_a_bound(
    partition: Partition, shard: Shard[Numbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "MAX_PENDING", 3)
    outcomes = [future_of(shard.run("a", add("a", 1))) for _ in range(3)]
    for key in "ab":
        with pytest.raises(CoordinatorNotAvailable, match="3 requests wait"):
            shard.run(key, add(key, 1))
    assert shard.run("b", get("b")) is None
    for _ in range(3):
        await turn()
        flush(partition)
    assert outcomes[-1].result() == 3


async def test_a_watcher_is_told_of_exclusive_changes(partition: Partition, threads: Executor) -> None:
    events = Events()
    with closing(make_shard(partition, threads, events)) as shard:
        await loaded(shard)
        shard.run("a", put("a", 1))
        shard.run("b", put("b", 1), is_shared=True)
        shard.run("c", get("c"))
        await turn()
        flush(partition)
    assert events.seen == ["loaded", "changed a", "unloaded"]


@pytest.mark.parametrize("seed", range(20))
async def test_the_state_is_always_a_replay_of_the_log(
    make_partition: MakePartition, threads: Executor, seed: int
) -> None:
    """Operations of any kind, at any time, with loads in between: each result is by the state before its record."""
    rng = random.Random(seed)
    partition = make_partition(segment_bytes="2000")
    shard = await loaded(make_shard(partition, threads))
    outcomes: list[asyncio.Future[int]] = []
    for _ in range(150):
        chance = rng.random()
        if chance < 0.7:
            name = rng.choice("abc")
            outcomes.append(future_of(shard.run(name, add(name, 1))))
        elif chance < 0.85:
            await turn()
        elif chance < 0.98:
            flush(partition)
        else:
            shard.close("a new leader")
            shard = make_shard(partition, threads)
            shard.load()
            flush(partition)
            await active(shard)
    for _ in outcomes:
        await turn()
        flush(partition)
    with closing(await loaded(make_shard(partition, threads))) as fresh:
        assert fresh.state.replayed == shard.state.replayed
        acknowledged = [each.result() for each in outcomes if each.exception() is None]
        assert len(acknowledged) <= sum(fresh.state.by_name.values()) <= len(outcomes)
        assert [number for _, number in fresh.state.replayed] == [
            sum(1 for other, _ in fresh.state.replayed[: position + 1] if other == name)
            for position, (name, _) in enumerate(fresh.state.replayed)
        ]
    shard.close("the test is over")


async def test_a_load_takes_many_turns_of_the_event_loop(make_partition: MakePartition, threads: Executor) -> None:
    partition = make_partition()
    with closing(await loaded(make_shard(partition, threads))) as shard:
        for number in range(10_000):
            shard.run(f"n{number}", put(f"n{number}", number))
        await turn()
        flush(partition)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    with closing(await loaded(make_shard(partition, threads))) as shard:
        counting.cancel()
        assert len(shard.state.by_name) == 10_000
        assert turns >= 10_000 / RECORDS_A_TURN


async def test_shards_with_one_lock_read_their_logs_one_after_another(
    make_partition: MakePartition, threads: Executor
) -> None:
    lock = asyncio.Lock()
    shards = [make_shard(make_partition(number), threads, reading=lock) for number in range(3)]
    async with lock:
        for shard in shards:
            shard.load()
        await asyncio.sleep(0.02)
        assert {shard.status for shard in shards} == {ShardStatus.LOADING}
    for shard in shards:
        await active(shard)
        shard.close("the test is over")


async def test_a_shard_that_waits_for_its_high_watermark_keeps_no_other_from_loading(
    make_partition: MakePartition, threads: Executor
) -> None:
    lock = asyncio.Lock()
    waiting, other = (make_shard(make_partition(number), threads, reading=lock) for number in range(2))
    waiting.partition.append(batch_of([b"not committed"]), ACKS_ALL, lambda _: None, now_ms=NOW_MS)
    waiting.load()
    for _ in range(3):
        await asyncio.sleep(0.01)
    with closing(other):
        await loaded(other)
        assert waiting.status is ShardStatus.LOADING
    flush(waiting.partition)
    with closing(waiting):
        await active(waiting)


# Fair turns by key, against a model that keeps every arrival in a list


class Model:
    """All arrivals of one key that have not left, in order; the first `entered` of them have entered."""

    def __init__(self) -> None:
        self.present: list[tuple[bool, int]] = []
        self.entered: set[int] = set()

    def may_enter(self) -> list[int]:
        """The numbers of those that may be inside: the first if it is exclusive, else the shared ones before one."""
        if not self.present:
            return []
        if not self.present[0][0]:
            return [self.present[0][1]]
        allowed = []
        for is_shared, number in self.present:
            if not is_shared:
                break
            allowed.append(number)
        return allowed


@pytest.mark.parametrize("seed", range(50))
def test_turns_are_those_of_a_model_in_any_sequence(seed: int) -> None:
    rng = random.Random(seed)
    order: KeyOrder[int] = KeyOrder()
    models = {key: Model() for key in "abc"}
    inside: dict[str, set[int]] = {key: set() for key in models}
    for number in range(600):
        key = rng.choice("abc")
        model = models[key]
        if inside[key] and rng.random() < 0.55:
            leaving = rng.choice(sorted(inside[key]))
            inside[key].remove(leaving)
            model.present = [each for each in model.present if each[1] != leaving]
            entered = order.leave(key)
            assert entered == sorted(entered)
            inside[key].update(entered)
        else:
            is_shared = rng.random() < 0.6
            model.present.append((is_shared, number))
            is_free = order.is_free(key, is_shared=is_shared)
            assert is_free == (number in model.may_enter())
            if is_free:
                order.enter(key, is_shared=is_shared)
                inside[key].add(number)
            else:
                order.wait(key, number, is_shared=is_shared)
        assert inside[key] == set(model.may_enter())
        waiting = sum(len(each.present) for each in models.values()) - sum(map(len, inside.values()))
        assert order.waiting_count == waiting


def test_a_key_at_rest_takes_no_memory_and_a_cleared_order_returns_what_waited() -> None:
    order: KeyOrder[str] = KeyOrder()
    order.enter("a", is_shared=False)
    assert order.leave("a") == []
    assert order._turns == {}
    order.enter("a", is_shared=True)
    order.wait("a", "x", is_shared=False)
    order.wait("a", "y", is_shared=True)
    assert order.clear() == ["x", "y"]
    assert (order.waiting_count, order._turns) == (0, {})


async def test_keys_of_partitions_that_another_broker_leads_are_not_answered_for(
    tmp_path: Path, threads: Executor
) -> None:
    room = Room(tmp_path / "data")
    around = ShardSurroundings(Numbers, Events(), threads, lambda: NOW_MS, asyncio.Lock())
    coordinator = Coordinator("__numbers", 2, room.topics, around)
    coordinator.start()
    entry = TopicCreated("__numbers", bytes([7]) * 16, 2, {"cleanup.policy": "compact"}, is_internal=True)
    await room.cluster.commit([entry])
    await room.topics.assigned(entry, [0])
    keys = {crc32(key.encode()) % 2: key for key in ("a", "b", "c", "d")}
    mine = coordinator.find(keys[0])
    assert mine is not None
    await active(mine)
    with pytest.raises(NotCoordinator, match=r"__numbers-1, .* is not on this broker"):
        coordinator.find(keys[1])
    assert not coordinator.is_whole
    await room.topics.assigned(entry, [1])
    assert coordinator.is_whole
    mine.partition.become_follower(1, lambda: 0)
    with pytest.raises(NotCoordinator, match="does not lead"):
        coordinator.find(keys[0])
    assert not coordinator.is_whole
    assert mine.status is ShardStatus.CLOSED
    mine.partition.become_leader(2)
    again = coordinator.find(keys[0])
    assert again is not None
    await active(again)
    assert again is not mine
    assert len(list(coordinator.states())) == 2
    coordinator.close()
    await room.close()
