"""A partition on a real log: who waits, who is woken, who is failed."""

import errno

import pytest

from unit.broker.conftest import NOW_MS, MakePartition
from warmlog_broker.replica.partition import Partition, read_bound
from warmlog_broker.storage.record import file_records
from warmlog_protocol.errors import (
    ApiError,
    FencedLeaderEpoch,
    InvalidRequiredAcks,
    StorageError,
    UnknownLeaderEpoch,
    UnknownProducerId,
    UnknownTopicOrPartition,
)
from warmlog_protocol.messages import ACKS_ALL, ACKS_LEADER
from wire_client import batch_of


class Waiter:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.done: list[tuple[int, ApiError | None]] = []
        self.moves = 0

    def complete(self, index: int, error: ApiError | None) -> None:
        self.done.append((index, error))

    def partition_moved(self, partition: Partition) -> None:
        self.moves += 1


def append(partition: Partition, *, acks: int = ACKS_ALL, producer: int = -1, sequence: int = -1) -> int:
    """Appends one record; returns the offset behind it."""
    epoch = -1 if producer < 0 else 0
    batch = batch_of([b"x"], timestamp_ms=NOW_MS, producer=(producer, epoch), base_sequence=sequence)
    return partition.append(batch, acks, NOW_MS, 100).last_offset + 1


def flush(partition: Partition) -> None:
    plan = partition.prepare_flush()
    assert plan is not None
    plan.run()
    partition.flushed(plan)
    partition.wake()


def test_an_append_is_durable_once_its_flush_is_over(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    end_offset = append(partition)
    assert not partition.is_durable_below(end_offset)
    partition.wait_for_flush(end_offset, waiter, 3)
    partition.wake()
    assert waiter.done == []
    flush(partition)
    assert waiter.done == [(3, None)]
    assert partition.is_durable_below(end_offset)
    assert partition.prepare_flush() is None


def test_what_was_appended_during_a_flush_waits_for_the_next(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    partition.wait_for_flush(append(partition), waiter, 0)
    plan = partition.prepare_flush()
    assert plan is not None
    partition.wait_for_flush(append(partition), waiter, 1)
    plan.run()
    partition.flushed(plan)
    partition.wake()
    assert waiter.done == [(0, None)]
    flush(partition)
    assert waiter.done == [(0, None), (1, None)]


def test_a_flush_of_the_log_that_a_partition_had_before_says_nothing_of_the_one_it_has(
    make_partition: MakePartition,
) -> None:
    partition, copy, waiter = make_partition(0), make_partition(1), Waiter()
    end_offset = append(partition)
    plan = partition.prepare_flush()
    assert plan is not None
    plan.run()
    append(copy)
    partition.wait_for_flush(end_offset, waiter, 0)
    partition.switch_to(copy.log)
    partition.flushed(plan)
    partition.wake()
    assert copy.log.recovery_point == 0
    assert partition.prepare_flush() is None, "what a crash would take back is not flushed, and not acknowledged"
    assert partition.must_wait(ACKS_LEADER)
    assert waiter.done == []
    partition.settled()
    flush(partition)
    assert waiter.done == [(0, None)]
    assert not partition.must_wait(ACKS_LEADER)


def test_a_duplicate_waits_for_its_original_only(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    first = append(partition, producer=1, sequence=0)
    partition.wait_for_flush(first, waiter, 0)
    plan = partition.prepare_flush()
    assert plan is not None
    partition.wait_for_flush(append(partition, producer=1, sequence=1), waiter, 1)
    assert append(partition, producer=1, sequence=0) == first
    partition.wait_for_flush(first, waiter, 2)
    plan.run()
    partition.flushed(plan)
    partition.wake()
    assert waiter.done == [(0, None), (2, None)]


def test_with_write_caching_an_append_counts_at_once(make_partition: MakePartition) -> None:
    partition, reader = make_partition(write_caching="true"), Waiter()
    partition.add_reader(reader, "high_watermark")
    end_offset = append(partition)
    assert partition.is_durable_below(end_offset)
    partition.wake_after_append()
    assert reader.moves == 1


def test_readers_are_woken_when_their_own_bound_moves(make_partition: MakePartition) -> None:
    partition, consumer, replica = make_partition(), Waiter(), Waiter()
    partition.add_reader(consumer, "high_watermark")
    partition.add_reader(replica, "log_end")
    append(partition)
    partition.wake_after_append()
    assert (consumer.moves, replica.moves) == (0, 1)
    assert partition.end_of("log_end").offset == 1
    assert partition.end_of("high_watermark").offset == 0
    flush(partition)
    assert consumer.moves == 1
    partition.remove_reader(consumer)
    partition.remove_reader(consumer)
    append(partition)
    flush(partition)
    assert consumer.moves == 1


def test_going_offline_fails_who_waits_and_who_comes(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    partition.wait_for_flush(append(partition), waiter, 0)
    partition.add_reader(waiter, "high_watermark")
    partition.take_offline("the disk is broken")
    ((index, error),) = waiter.done
    assert index == 0
    assert isinstance(error, StorageError)
    assert waiter.moves == 1
    assert partition.is_offline
    assert partition.prepare_flush() is None
    with pytest.raises(StorageError, match="the disk is broken"):
        append(partition)
    with pytest.raises(StorageError, match="the disk is broken"):
        partition.end_of("high_watermark")
    assert partition.offsets is not None


def test_a_write_that_fails_for_good_fails_who_waits(
    make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, waiter = make_partition(), Waiter()
    partition.wait_for_flush(append(partition), waiter, 0)

    def broken(*arguments: object) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(file_records, "_pwritev", broken)
    with pytest.raises(StorageError):
        append(partition)
    assert partition.is_offline
    assert isinstance(waiter.done[0][1], StorageError)


def test_a_log_that_could_not_be_opened_is_offline(make_partition: MakePartition) -> None:
    opened = make_partition()
    partition = Partition(opened.key, None, opened.config, 0)
    assert partition.is_offline
    assert partition.offsets is None
    with pytest.raises(StorageError, match="could not be opened"):
        append(partition)
    partition.take_offline("again")


def test_deleting_fails_who_waits(make_partition: MakePartition) -> None:
    partition, waiter = make_partition(), Waiter()
    partition.wait_for_flush(append(partition), waiter, 0)
    error = UnknownTopicOrPartition("deleted")
    partition.deleted(error)
    assert waiter.done == [(0, error)]
    assert partition.prepare_flush() is None


def test_an_idempotent_producer_needs_acks_all_and_an_id_of_ours(make_partition: MakePartition) -> None:
    partition = make_partition()
    with pytest.raises(InvalidRequiredAcks):
        append(partition, acks=ACKS_LEADER, producer=1, sequence=0)
    with pytest.raises(UnknownProducerId):
        append(partition, producer=100, sequence=0)
    assert append(partition, producer=99, sequence=0) == 1


def test_the_epoch_of_the_asker_must_be_the_one_in_force(make_partition: MakePartition) -> None:
    partition = make_partition(leader_epoch=5)
    partition.check_leader_epoch(-1)
    partition.check_leader_epoch(5)
    with pytest.raises(FencedLeaderEpoch):
        partition.check_leader_epoch(4)
    with pytest.raises(UnknownLeaderEpoch):
        partition.check_leader_epoch(6)


def test_who_reads_up_to_where() -> None:
    assert read_bound(isolation=0, is_replica=False) == "high_watermark"
    assert read_bound(isolation=1, is_replica=False) == "committed"
    assert read_bound(isolation=0, is_replica=True) == "log_end"
    assert read_bound(isolation=1, is_replica=True) == "log_end"
