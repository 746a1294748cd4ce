"""Transactions in a log: where they begin and end, what was aborted, and who may append (Kafka's UnifiedLogTest)."""

import os
from collections.abc import Callable
from errno import EIO, ENOSPC
from pathlib import Path
from unittest.mock import patch

import pytest

from present import present
from unit.broker.storage.log_room import LogRoom, make_batch, read_batches, read_values
from unit.broker.storage.transactions_room import INTERLEAVED, Producer, aborted_at, index_entries, interleaved
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.producer.verification import NO_GUARD
from warmlog_protocol.batch import ControlType, iter_batches
from warmlog_protocol.errors import (
    InvalidTxnState,
    OutOfOrderSequence,
    StorageError,
)

every_restart = pytest.mark.parametrize("restart", [LogRoom.restart, LogRoom.crash], ids=["clean", "unclean"])


# Its beginning and its end


def test_a_transaction_begins_with_its_first_batch_and_ends_with_its_marker(room: LogRoom) -> None:  # UL-08
    producer = Producer(room, 1)
    producer.send(5)
    entry = present(room.log.producers.get(1))
    assert (entry.batches[-1].last_sequence, entry.transaction_first_offset) == (4, 0)
    room.end_transaction(1, commits=True, coordinator_epoch=15)
    assert (entry.transaction_first_offset, entry.coordinator_epoch) == (-1, 15)
    room.append(b"a", b"b", b"c", producer=(2, 0, 0))
    other = present(room.log.producers.get(2))
    assert (other.batches[-1].last_sequence, other.transaction_first_offset) == (2, -1)


def test_a_marker_is_the_batch_that_kafka_writes(room: LogRoom) -> None:
    room.set_config(message_timestamp_type="LogAppendTime")
    Producer(room, 7, epoch=1).send()
    room.end_transaction(7, commits=True, epoch=2, coordinator_epoch=9)
    marker = read_batches(room.log, 1, bound="log_end")[0]
    assert marker.size_bytes == 78
    assert marker.header.magic == 2
    assert marker.control_type is ControlType.COMMIT
    assert marker.end_txn_marker().coordinator_epoch == 9
    assert (marker.header.producer_id, marker.header.producer_epoch, marker.header.base_sequence) == (7, 2, -1)
    assert marker.header.partition_leader_epoch == room.leader_epoch


# What was aborted


@pytest.mark.parametrize("segment_bytes", [400, 100_000])
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_each_read_of_committed_data_lists_what_was_aborted_in_it(
    quick_path: Path, segment_bytes: int, max_bytes: int
) -> None:
    room = LogRoom(quick_path)
    room.set_config(segment_bytes=segment_bytes)
    interleaved(room)
    room.flush()
    for offset in range(room.log.log_end_offset):
        data = room.log.reader.read(offset, max_bytes, bound="committed")
        batches = [batch for part in data.slices for batch in iter_batches(part.pread())]
        end = batches[-1].next_offset
        needed = [a for a in INTERLEAVED if a.last_offset >= offset and a.first_offset < end]
        assert [aborted for aborted in data.aborted if aborted in needed] == needed
        assert all(aborted.last_offset >= offset for aborted in data.aborted)
        assert data.aborted == tuple(a for a in INTERLEAVED if a in data.aborted)


def test_reads_of_uncommitted_data_list_nothing(room: LogRoom) -> None:
    interleaved(room)
    room.flush()
    assert room.log.reader.read(0, 1000).aborted == ()
    assert room.log.reader.read(0, 1000, bound="log_end").aborted == ()


# Who may append


def test_a_repeated_marker_is_not_appended_again(room: LogRoom) -> None:
    Producer(room, 1, epoch=3).send()
    assert room.end_transaction(1, commits=True, epoch=4) == (1, 1, -1, 0, False)
    assert room.end_transaction(1, commits=True, epoch=4) == (2, 1, -1, 0, True)
    assert room.log.log_end_offset == 2


def test_a_marker_of_the_epoch_of_the_open_transaction_cannot_end_it(room: LogRoom) -> None:
    Producer(room, 1, epoch=3).send()
    with pytest.raises(InvalidTxnState, match="of epoch 3 is open since offset 0"):
        room.end_transaction(1, commits=False, epoch=3)
    assert room.log.log_end_offset == 1
    assert 1 in room.log.producers.transactions.open


def test_a_transaction_is_opened_with_the_guard_that_was_given_out_for_it(room: LogRoom) -> None:  # PS-11
    log = room.log
    batch = make_batch(b"v", producer=(1, 0, 0), is_transactional=True)
    guard = log.producers.start_verification(1, 0, room.now_ms)
    assert guard is not NO_GUARD
    assert log.producers.start_verification(1, 0, room.now_ms) is guard
    for other in (NO_GUARD, log.producers.start_verification(2, 0, room.now_ms)):
        with pytest.raises(InvalidTxnState):
            room.append_bytes(batch, other)
    assert log.log_end_offset == 0
    with pytest.raises(OutOfOrderSequence):
        room.append_bytes(make_batch(b"w", producer=(1, 0, 1), is_transactional=True), guard)
    room.append_bytes(batch, guard)
    entry = present(log.producers.get(1))
    assert entry.transaction_first_offset == 0
    assert log.producers.start_verification(1, 0, room.now_ms) is NO_GUARD
    room.append_bytes(make_batch(b"w", producer=(1, 0, 1), is_transactional=True))
    room.end_transaction(1, commits=True)
    with pytest.raises(InvalidTxnState):
        room.append_bytes(make_batch(b"x", producer=(1, 0, 2), is_transactional=True), guard)
    assert log.producers.start_verification(1, 0, room.now_ms) is not guard


def test_a_marker_that_comes_in_between_takes_the_guard_away(room: LogRoom) -> None:  # PS-11
    guard = room.log.producers.start_verification(1, 0, room.now_ms)
    room.end_transaction(1, commits=False)
    with pytest.raises(InvalidTxnState):
        room.append_bytes(make_batch(b"v", producer=(1, 0, 0), is_transactional=True), guard)
    assert room.log.log_end_offset == 1


# When the disk refuses


def failing_index(error_number: int) -> object:
    error = OSError(error_number, os.strerror(error_number))
    return patch("warmlog_broker.storage.index.transaction_index.os.pwrite", side_effect=error)


def test_a_full_disk_takes_the_marker_back_and_the_next_one_may_succeed(room: LogRoom) -> None:
    producer = Producer(room, 1)
    producer.send(3)
    size_bytes = room.segment_path(0).stat().st_size
    with failing_index(ENOSPC), pytest.raises(StorageError):
        producer.abort()
    assert room.log.log_end_offset == 3
    assert room.segment_path(0).stat().st_size == size_bytes
    room.flush()
    assert room.log.bounds.last_stable_offset == 0
    assert producer.abort() == 3
    room.flush()
    assert room.log.bounds.last_stable_offset == 4
    assert index_entries(room) == [AbortedTxn(1, 0, 3, 4)]
    assert read_values(room.crash()) == [b"1/0", b"1/1", b"1/2", b"\0\0\0\0\0\0"]


def test_a_disk_that_fails_under_the_index_takes_the_log_offline_and_no_offset_is_given_twice(room: LogRoom) -> None:
    producer = Producer(room, 1)  # KAFKA-7866
    producer.send(3)
    room.flush()
    with failing_index(EIO), pytest.raises(StorageError):
        producer.abort()
    log = room.log
    assert (log.log_end_offset, log.bounds.last_stable_offset) == (4, 0)
    for use in (producer.send, producer.abort, lambda: log.reader.read(0, 1), log.flusher.prepare):
        with pytest.raises(StorageError, match="offline"):
            use()
    room.crash()
    assert room.log.log_end_offset == room.log.bounds.last_stable_offset == 4
    assert aborted_at(room, 0) == [AbortedTxn(1, 0, 3, 4)]


# After a restart


@every_restart
def test_markers_whose_coordinator_epochs_fall_are_replayed(  # RC-19
    room: LogRoom, restart: Callable[[LogRoom], object]
) -> None:
    producer = Producer(room, 1)
    producer.send()
    room.end_transaction(1, commits=True, coordinator_epoch=15)
    room.now_ms += 1000
    assert room.log.producers.expire(room.now_ms, 1000) == 1
    room.end_transaction(1, commits=True, coordinator_epoch=14)
    room.flush()
    for name in room.files(".snapshot"):
        room.path(name).unlink()
    restart(room)
    entry = present(room.log.producers.get(1))
    assert entry.coordinator_epoch == 14
    assert room.log.bounds.last_stable_offset == room.log.high_watermark == 3
