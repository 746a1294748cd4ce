"""Compaction of logs with transactions: aborted data is removed at once, markers once no reader needs them."""

import pytest

from unit.broker.storage.cleaner.compaction_room import CompactionRoom, Pair, pair
from unit.broker.storage.log_room import read_batches
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_protocol.batch import ControlType


def markers(room: CompactionRoom) -> list[tuple[int, ControlType | None]]:
    found, position = [], 0
    while batches := read_batches(room.log, position, bound="log_end"):
        found += [(batch.base_offset, batch.control_type) for batch in batches if batch.header.is_control]
        position = batches[-1].next_offset
    return found


def aborted(room: CompactionRoom) -> list[AbortedTxn]:
    return [entry for segment in room.log.local.segments for entry in segment.transactions]


def again(room: CompactionRoom) -> None:
    room.forget_compaction()
    room.compact()


@pytest.mark.parametrize("rows", [False, True])
def test_aborted_data_goes_first_then_the_entry_then_the_marker(room: CompactionRoom, rows: bool) -> None:
    """CL-05"""
    room.put(pair(1, 0), pair(9, 0))
    room.put_in_transaction(pair(1, 1), pair(2, 1), producer=(1, 0, 0), rows=rows)  # 2, 3
    room.put_in_transaction(pair(1, 2), producer=(2, 0, 0), rows=rows)  # 4
    room.copy_marker(1, commits=False)  # 5
    room.copy_marker(2, commits=True)  # 6
    room.put_each([pair(3, 1)])  # 7
    room.put(pair(8, 8), producer=(1, 0, 2))  # 8: the producer's last batch, on which its sequence hangs
    room.flush()
    expected = {b"k9": b"v0", b"k1": b"v2", b"k3": b"v1", b"k8": b"v8"}
    assert room.committed_state() == expected
    room.compact()
    assert room.offsets() == [1, 4, 7, 8]
    assert markers(room) == [(5, ControlType.ABORT), (6, ControlType.COMMIT)]
    assert aborted(room) == [AbortedTxn(1, 2, 5, 4)]
    again(room)
    assert markers(room) == [(5, ControlType.ABORT), (6, ControlType.COMMIT)]
    assert aborted(room) == []
    assert room.files(".txnindex") == []
    room.now_ms += 1000
    again(room)
    assert markers(room) == [(6, ControlType.COMMIT)]
    assert room.committed_state() == expected
    room.crash(recovery_point=0)
    assert room.committed_state() == expected


def test_the_last_batch_of_a_producer_keeps_its_transactions_marker(room: CompactionRoom) -> None:
    """Emptied, its header still begins a transaction for a start that reads the state of producers from the log."""
    room.put_in_transaction(pair(1, 1), producer=(1, 0, 0))
    room.copy_marker(1, commits=False)
    room.put_each([pair(2, 1)])
    for _ in range(3):
        room.now_ms += 1000
        again(room)
    assert markers(room) == [(1, ControlType.ABORT)]
    for name in room.files(".snapshot"):
        room.path(name).unlink()
    room.crash(recovery_point=0)
    assert (room.log.bounds.last_stable_offset, room.committed_state()) == (3, {b"k2": b"v1"})


def test_the_marker_of_a_commit_goes_once_its_data_was_overwritten(room: CompactionRoom) -> None:
    room.put_in_transaction(pair(1, 1), producer=(1, 0, 0))
    room.copy_marker(1, commits=True)
    room.put_each([pair(1, 2)])
    room.put(pair(1, 2), producer=(1, 0, 1))
    room.flush()
    room.compact()
    assert markers(room) == [(1, ControlType.COMMIT)]
    again(room)
    assert markers(room) == [(1, ControlType.COMMIT)]
    room.now_ms += 1000
    again(room)
    assert markers(room) == []
    assert room.committed_state() == {b"k1": b"v2"}


def test_what_a_transaction_has_not_decided_is_left_alone(room: CompactionRoom) -> None:
    """CL-22"""
    room.put_in_transaction(pair(1, 1), producer=(1, 0, 0))
    room.put_each([pair(1, 2), pair(1, 3)])
    found = room.log.compaction.range(room.now_ms)
    assert (found.first_dirty_offset, found.first_uncleanable_offset, found.dirty_bytes) == (0, 0, 0)
    room.copy_marker(1, commits=False)
    room.roll()
    assert room.log.compaction.range(room.now_ms).first_uncleanable_offset == 4
    room.compact()
    assert room.offsets() == [2]


def put_in_same_epoch(room: CompactionRoom, *pairs: Pair, producer: tuple[int, int, int]) -> None:
    """Appends one batch of another transaction of the same epoch, as a log that Kafka wrote may have them."""
    room.log.producers.verifications.is_required = False
    room.put_in_transaction(*pairs, producer=producer)


def test_the_last_sequence_survives_where_the_transaction_was_aborted(room: CompactionRoom) -> None:
    """CL-11"""
    room.put_in_transaction(pair(1, 1), pair(2, 1), pair(3, 1), producer=(1, 0, 0))
    room.copy_marker(1, commits=False)
    room.put_each([pair(4, 1)])
    room.compact()
    assert room.last_offsets_of_batches() == [2, 3, 4]
    for name in room.files(".snapshot"):
        room.path(name).unlink()
    room.crash(recovery_point=0)
    put_in_same_epoch(room, pair(1, 2), pair(2, 2), producer=(1, 0, 3))
    room.copy_marker(1, commits=False)
    room.put_each([pair(5, 1)])
    room.compact()
    room.crash(recovery_point=0)
    put_in_same_epoch(room, pair(1, 5), producer=(1, 0, 5))
    room.copy_marker(1, commits=True)
    room.flush()
    assert room.committed_state() == {b"k4": b"v1", b"k5": b"v1", b"k1": b"v5"}


def test_a_producer_that_has_only_written_markers_keeps_the_last_one(room: CompactionRoom) -> None:
    room.end_transaction(5, commits=False, epoch=3)
    room.put_each([pair(1, 1)])
    for _ in range(3):
        room.now_ms += 1000
        again(room)
    assert room.last_offsets_of_batches() == [0, 1]
    assert markers(room) == [(0, None)]


def test_what_a_producer_commits_counts_although_it_had_aborted_before(room: CompactionRoom) -> None:
    """The aborted transaction is below what the second pass reads; its entry is still in an index."""
    room.put((b"k", b"old"))
    room.put_in_transaction((b"x", b"1"), producer=(7, 0, 0))
    room.copy_marker(7, commits=False)
    room.roll()
    room.compact()
    put_in_same_epoch(room, (b"k", None), producer=(7, 0, 1))
    room.copy_marker(7, commits=True)
    room.roll()
    room.compact()
    assert [(key, value) for _, _, key, value in room.records()] == [(b"k", None)]
