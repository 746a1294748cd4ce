"""Producer snapshots: Kafka's bytes, which file is loaded, and which are removed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_sample import SAMPLE
from present import present
from warmlog_broker.storage.producer.producer_state import ProducerEntry, ProducerStates, RememberedBatch
from warmlog_broker.storage.producer.snapshots import ProducerSnapshots, pack_snapshot, unpack_snapshot
from warmlog_protocol.errors import StorageError

ONE_PRODUCER = bytes.fromhex(
    "00010851e0f900000001000000000000000700010000000c000000000000006b0000000200000000000003ed00000009ffffffffffffffff"
)
EMPTY = bytes.fromhex("000148674bc700000000")


def states_of(*entries: ProducerEntry, end_offset: int = 0) -> ProducerStates:
    states = ProducerStates(end_offset)
    for entry in entries:
        states.restore(entry)
    return states


def entry_of(producer_id: int, last_sequence: int, last_offset: int) -> ProducerEntry:
    entry = ProducerEntry(producer_id, 0, last_seen_ms=0)
    entry.remember(RememberedBatch(last_sequence, last_offset, 0, 1000))
    return entry


def test_one_producer_has_kafkas_bytes() -> None:
    entry = ProducerEntry(7, 1, last_seen_ms=0)
    entry.remember(RememberedBatch(12, 107, 2, 1005))
    entry.coordinator_epoch = 9
    assert pack_snapshot(states_of(entry)) == ONE_PRODUCER
    (read,) = unpack_snapshot(ONE_PRODUCER, now_ms=55)
    assert list(read.batches) == [RememberedBatch(12, 107, 2, 1005)]
    assert (read.epoch, read.coordinator_epoch, read.transaction_first_offset) == (1, 9, -1)
    assert (read.last_timestamp_ms, read.last_seen_ms, read.next_sequence) == (1005, 55, 13)


def test_no_producer_has_kafkas_bytes() -> None:
    assert pack_snapshot(ProducerStates()) == EMPTY
    assert unpack_snapshot(EMPTY, 0) == []


@pytest.mark.parametrize("path", sorted(SAMPLE.glob("*/*.snapshot")), ids=lambda path: path.name)
def test_kafkas_own_snapshots_come_back_byte_for_byte(path: Path) -> None:
    content = path.read_bytes()
    entries = unpack_snapshot(content, 0)
    dump = path.with_name(path.name + ".dump").read_text()
    for entry in entries:
        last = entry.batches[-1]
        assert f"producerId: {entry.producer_id} producerEpoch: {entry.epoch} " in dump
        assert f"firstSequence: {last.first_sequence} lastSequence: {last.last_sequence} " in dump
        assert f"lastOffset: {last.last_offset} offsetDelta: {last.offset_delta} " in dump
    assert pack_snapshot(states_of(*entries)) == content


def test_a_producer_known_by_markers_alone_and_an_open_transaction_come_back() -> None:
    marker_only = ProducerEntry(1, 3, last_seen_ms=0)
    marker_only.coordinator_epoch, marker_only.last_timestamp_ms = 4, 77
    in_transaction = entry_of(2, 0, 99)
    in_transaction.transaction_first_offset = 99
    states = states_of(*unpack_snapshot(pack_snapshot(states_of(marker_only, in_transaction)), 0))
    first, second = states.get(1), states.get(2)
    assert first is not None
    assert second is not None
    assert (len(first.batches), first.coordinator_epoch, first.last_timestamp_ms) == (0, 4, 77)
    assert states.transactions.first_unstable_offset(0) == 99


@given(st.data())
def test_damage_anywhere_is_noticed(data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(ONE_PRODUCER) - 1))
    bit = data.draw(st.integers(0, 7))
    damaged = bytearray(ONE_PRODUCER)
    damaged[position] ^= 1 << bit
    with pytest.raises(StorageError):
        unpack_snapshot(bytes(damaged), 0)
    with pytest.raises(StorageError):
        unpack_snapshot(ONE_PRODUCER[:position], 0)
    with pytest.raises(StorageError):
        unpack_snapshot(ONE_PRODUCER + bytes(position + 1), 0)


def take(directory: Path, *offsets: int) -> ProducerSnapshots:
    snapshots = ProducerSnapshots(directory, [])
    for offset in offsets:
        snapshots.take(states_of(entry_of(1, offset - 1, offset - 1), end_offset=offset))
    return snapshots


def names(directory: Path) -> list[int]:
    return sorted(int(path.name[:20]) for path in directory.iterdir() if path.suffix == ".snapshot")


def test_the_newest_snapshot_that_is_not_too_new_is_loaded(tmp_path: Path) -> None:
    snapshots = take(tmp_path, 1, 2, 3)
    states = ProducerStates()
    assert snapshots.load_newest(states, first_offset=0, at_most=2, now_ms=5)
    entry = present(states.get(1))
    assert (states.end_offset, entry.next_sequence, entry.last_seen_ms) == (2, 2, 5)


@pytest.mark.parametrize("damage", [b"", ONE_PRODUCER[:28], bytes(37) + ONE_PRODUCER, None])
def test_a_damaged_snapshot_is_removed_and_an_older_one_loaded(tmp_path: Path, damage: bytes | None) -> None:
    snapshots = take(tmp_path, 1, 2, 3)
    if damage is None:
        snapshots.path(3).unlink()
    else:
        snapshots.path(3).write_bytes(damage)
    states = ProducerStates()
    assert snapshots.load_newest(states, first_offset=0, at_most=3, now_ms=0)
    assert states.end_offset == 2
    assert names(tmp_path) == [1, 2] == snapshots.offsets


def test_without_a_snapshot_the_state_is_that_of_an_empty_log(tmp_path: Path) -> None:
    states = states_of(entry_of(1, 0, 0), end_offset=9)
    assert not take(tmp_path, 1).load_newest(states, first_offset=4, at_most=9, now_ms=0)
    assert (len(states), states.end_offset) == (0, 4)


def test_producers_with_nothing_left_in_the_log_are_not_taken_over(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(tmp_path, [])
    snapshots.take(states_of(entry_of(1, 0, 39), entry_of(2, 0, 40), end_offset=50))
    states = ProducerStates()
    snapshots.load_newest(states, first_offset=40, at_most=50, now_ms=0)
    assert [entry.producer_id for entry in states.entries] == [2]


@pytest.mark.parametrize(
    ("bases", "kept"), [({5}, [5, 42]), ({42}, [42]), ({0}, [42]), ({2, 42}, [2, 42]), ({50}, []), (set(), [42])]
)
def test_snapshots_of_no_segment_are_removed_except_the_newest_above_all(
    tmp_path: Path, bases: set[int], kept: list[int]
) -> None:
    snapshots = take(tmp_path, 2, 5, 42)
    snapshots.remove_strays(bases)
    assert names(tmp_path) == kept == snapshots.offsets


def test_snapshots_outside_the_log_are_removed(tmp_path: Path) -> None:
    snapshots = take(tmp_path, 1, 3, 5)
    snapshots.remove_outside(3, 4)
    assert names(tmp_path) == [3] == snapshots.offsets


def test_a_snapshot_goes_with_its_segment(tmp_path: Path) -> None:
    snapshots = take(tmp_path, 3, 5)
    marked = present(snapshots.mark_deleted(3, ".deleted"))
    assert marked.name == f"{3:020d}.snapshot.deleted"
    assert marked.exists()
    assert snapshots.offsets == [5]
    snapshots.path(5).unlink()
    assert snapshots.mark_deleted(5, ".deleted") is None
    assert snapshots.mark_deleted(5, ".deleted") is None
    assert snapshots.offsets == []
