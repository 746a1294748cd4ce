"""Who raises the high watermark of a partition, and to what: flushes, appends, starts, moves, and followers to come."""

import asyncio
from collections.abc import Callable

import pytest

from unit.broker.conftest import NOW_MS, MakePartition, flush
from warmlog_broker.replica.commitment import PendingAppends
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.producer.verification import NO_GUARD
from warmlog_protocol.batch import ControlType
from warmlog_protocol.errors import ApiError, StorageError
from warmlog_protocol.messages import ACKS_ALL
from wire_client import batch_of


def append(partition: Partition, *values: bytes, done: list[ApiError | None] | None = None) -> None:
    partition.append(
        batch_of(values, timestamp_ms=NOW_MS), ACKS_ALL, None if done is None else done.append, now_ms=NOW_MS
    )


def watermarks(partition: Partition) -> tuple[int, int, int]:
    """High watermark, flushed and log end offset."""
    log = partition.log
    return log.high_watermark, log.recovery_point, log.log_end_offset


def test_with_one_replica_it_is_the_flushed_offset(make_partition: MakePartition) -> None:
    partition = make_partition()
    append(partition, b"a", b"b")
    assert watermarks(partition) == (0, 0, 2)
    flush(partition)
    append(partition, b"c")
    assert watermarks(partition) == (2, 2, 3)


def test_with_write_caching_it_is_the_log_end(make_partition: MakePartition) -> None:
    partition = make_partition(write_caching="true")
    append(partition, b"a", b"b")
    assert watermarks(partition) == (2, 0, 2)
    append(partition, b"c")
    plan = partition.prepare_flush()
    assert plan is not None
    append(partition, b"d")
    plan.run()
    partition.flushed(plan)
    assert watermarks(partition) == (4, 3, 4)


async def test_with_write_caching_a_marker_makes_its_transaction_stable_at_once_and_is_durable_when_flushed(
    make_partition: MakePartition,
) -> None:
    partition, done = make_partition(write_caching="true"), list[ApiError | None]()
    batch = batch_of([b"a", b"b"], timestamp_ms=NOW_MS, producer=(1, 0), base_sequence=0, is_transactional=True)
    guard = partition.log.producers.start_verification(1, 0, NOW_MS)
    partition.append(batch, ACKS_ALL, None, now_ms=NOW_MS, next_producer_id=2, guard=guard)
    assert (partition.log.high_watermark, partition.log.bounds.last_stable_offset) == (2, 0)
    partition.append_end_transaction(1, 1, ControlType.COMMIT, 0, done.append, now_ms=NOW_MS)
    assert partition.log.bounds.last_stable_offset == 3
    assert guard is not NO_GUARD
    await asyncio.sleep(0)
    assert done == [], "a power cut could leave the transaction open, and no coordinator knows it any more"
    flush(partition)
    assert done == [None]


def test_a_start_raises_it_to_what_is_on_disk_and_a_rule_may_hold_it_back(make_partition: MakePartition) -> None:
    partition = make_partition()
    append(partition, b"a", b"b")
    partition.close(sync=True)
    assert watermarks(make_partition()) == (2, 2, 2)
    make_partition().close(sync=True)
    assert watermarks(make_partition(commit_rule=lambda: 1)) == (1, 2, 2)


class FakeFollower:
    """A replica on another broker, which has flushed up to `flushed_offset`, and the rule of the partition's leader."""

    def __init__(self) -> None:
        self.leader: Partition | None = None
        self.flushed_offset = 0
        self.is_in_sync = True

    def committed(self) -> int:
        if self.leader is None:
            return 0
        is_cached, (_, flushed_offset, end_offset) = self.leader.config.write_caching, watermarks(self.leader)
        held_offset = end_offset if is_cached else flushed_offset
        return min(held_offset, self.flushed_offset) if self.is_in_sync else held_offset


def test_with_a_follower_it_is_the_smallest_flushed_offset_of_the_in_sync_set(make_partition: MakePartition) -> None:
    follower, done = FakeFollower(), list[ApiError | None]()
    partition = follower.leader = make_partition(commit_rule=follower.committed)
    append(partition, b"a", done=done)
    flush(partition)
    assert (watermarks(partition), done) == ((0, 1, 1), []), "the follower has not flushed it"
    follower.flushed_offset = 1
    partition.advance()
    assert (watermarks(partition), done) == ((1, 1, 1), [None])
    append(partition, b"b", done=done)
    follower.flushed_offset = 2
    partition.advance()
    assert (watermarks(partition), done) == ((1, 1, 2), [None]), "the leader has not flushed it"
    flush(partition)
    assert (watermarks(partition), done) == ((2, 2, 2), [None, None])
    append(partition, b"c", done=done)
    flush(partition)
    follower.is_in_sync = False
    partition.advance()
    assert (watermarks(partition), done) == ((3, 3, 3), [None, None, None])


def test_with_write_caching_a_follower_holds_it_back_as_well(make_partition: MakePartition) -> None:
    follower = FakeFollower()
    partition = follower.leader = make_partition(commit_rule=follower.committed, write_caching="true")
    append(partition, b"a")
    assert watermarks(partition) == (0, 0, 1)
    follower.flushed_offset = 1
    partition.advance()
    assert watermarks(partition) == (1, 0, 1)


@pytest.mark.parametrize("write_caching", ["false", "true"])
def test_while_a_move_settles_it_stands_still(make_partition: MakePartition, write_caching: str) -> None:
    partition, copy = make_partition(0, write_caching=write_caching), make_partition(1)
    done = list[ApiError | None]()
    append(copy, b"a")
    copy.log.update_config(partition.config)
    partition.begin_move()
    partition.switch_to(copy.log)
    append(partition, b"b", done=done)
    copy.log.bounds.copied_up_to(1)
    partition.advance()
    assert (watermarks(partition), done) == ((0, 1, 2), [])
    partition.complete_switch()
    assert partition.log.high_watermark == (2 if write_caching == "true" else 1)
    flush(partition)
    assert (watermarks(partition), done) == ((2, 2, 2), [None])


def test_pending_appends_complete_in_the_order_of_their_ends_and_all_of_them_though_one_fails() -> None:
    pending, done = PendingAppends(), list[tuple[str, ApiError | None]]()

    def call(name: str) -> Callable[[ApiError | None], None]:
        def note(error: ApiError | None) -> None:
            done.append((name, error))
            if name == "bad":
                raise ValueError(name)

        return note

    for end_offset, name in ((1, "a"), (3, "bad"), (5, "c"), (3, "duplicate"), (7, "d")):
        pending.add(end_offset, call(name))
    pending.complete(0)
    assert done == []
    pending.complete(4)
    assert done == [("a", None), ("bad", None), ("duplicate", None)]
    error = StorageError("broken")
    pending.fail(error)
    assert done[3:] == [("c", error), ("d", error)]
    pending.fail(error)
    assert len(done) == 5
