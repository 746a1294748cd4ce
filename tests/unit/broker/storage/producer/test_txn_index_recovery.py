"""Transaction indexes after a crash, and ones that are missing, damaged or not those of their segment."""

import os
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from unittest.mock import patch

import pytest

from truncating import truncate_to
from unit.broker.storage.log_room import LogRoom
from unit.broker.storage.transactions_room import (
    INTERLEAVED,
    Producer,
    aborted_at,
    index_entries,
    interleaved,
    plain,
    read_committed,
)
from warmlog_broker.storage.index.transaction_index import ENTRY_BYTES, AbortedTxn, pack_entry
from warmlog_protocol.batch import (
    ControlType,
    EndTxnMarker,
    columns_of,
    encode_end_txn_marker,
    read_batch,
    seal_rows,
)
from warmlog_protocol.codec import compression
from warmlog_protocol.codec.compression import Codec

Restart = Callable[[LogRoom], object]
every_restart = pytest.mark.parametrize("restart", [LogRoom.restart, LogRoom.crash], ids=["clean", "unclean"])
every_segment_size = pytest.mark.parametrize("segment_bytes", [400, 100_000])


def crash_with_nothing_checkpointed(room: LogRoom) -> object:
    return room.crash(recovery_point=0)


def committed_values(room: LogRoom) -> list[bytes | None]:
    room.flush()
    return read_committed(room, room.log.log_start_offset)


@every_segment_size
@pytest.mark.parametrize("restart", [LogRoom.restart, LogRoom.crash, crash_with_nothing_checkpointed])
@pytest.mark.parametrize("are_snapshots_lost", [False, True])
@pytest.mark.parametrize("is_last_segment_only", [False, True])
def test_what_was_aborted_is_known_when_the_index_files_are_gone(  # RC-14
    quick_path: Path, segment_bytes: int, restart: Restart, are_snapshots_lost: bool, is_last_segment_only: bool
) -> None:
    room = LogRoom(quick_path)
    room.set_config(segment_bytes=segment_bytes)
    interleaved(room)
    expected = committed_values(room)
    end = room.close()
    last = room.files(".log")[-1][:20]
    for name in room.files():
        is_chosen = name.startswith(last) or not is_last_segment_only
        if (is_chosen and name.endswith((".index", ".txnindex"))) or (
            are_snapshots_lost and name.endswith(".snapshot")
        ):
            room.path(name).unlink()
    room.open()
    if restart is not LogRoom.restart:
        restart(room)
    assert room.log.log_end_offset == end.end_offset
    assert committed_values(room) == expected
    assert sorted({aborted for offset in (0, 30, 60) for aborted in aborted_at(room, offset)}) == INTERLEAVED


@every_segment_size
def test_recovery_makes_the_indexes_of_what_it_checks_anew(quick_path: Path, segment_bytes: int) -> None:
    room = LogRoom(quick_path)
    room.set_config(segment_bytes=segment_bytes)
    interleaved(room)
    expected = committed_values(room)
    for name in room.files(".txnindex"):
        room.path(name).write_bytes(pack_entry(AbortedTxn(9, 0, int(name[:20]) + 1, 1)))
    room.crash(recovery_point=0)
    assert index_entries(room) == INTERLEAVED
    assert committed_values(room) == expected


def test_recovery_takes_away_the_index_of_a_segment_in_which_nothing_was_aborted(room: LogRoom) -> None:
    producer = Producer(room, 1)
    producer.send()
    producer.commit()
    room.flush()
    room.segment_path(0, ".txnindex").write_bytes(pack_entry(AbortedTxn(1, 0, 1, 2)))
    room.crash()
    assert room.files(".txnindex") == []
    assert len(committed_values(room)) == 1


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _torn(path: Path) -> None:
    os.truncate(path, ENTRY_BYTES // 2)


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 5)


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _of_another_segment(path: Path) -> None:
    path.write_bytes(pack_entry(AbortedTxn(1, 0, 5, 6)))


def _of_another_producer(path: Path) -> None:
    entry = path.read_bytes()
    path.write_bytes(entry[:9] + b"\x77" + entry[10:])


def _of_the_next_version(path: Path) -> None:
    path.write_bytes(b"\0\1" + path.read_bytes()[2:])


def _of_what_was_never_there(path: Path) -> None:
    path.write_bytes(path.read_bytes() + pack_entry(AbortedTxn(1, 90, 95, 96)))


DAMAGES = [
    _empty,
    _torn,
    _longer,
    _zeroed,
    _of_another_segment,
    _of_another_producer,
    _of_the_next_version,
    _of_what_was_never_there,
]


@every_restart
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_below_the_recovery_point_is_made_anew(
    room: LogRoom, damage: Callable[[Path], None], restart: Restart
) -> None:
    interleaved(room)
    expected = committed_values(room)
    room.close()
    for name in room.files(".txnindex"):
        damage(room.path(name))
    room.open()
    assert committed_values(room) == expected
    assert index_entries(room) == INTERLEAVED
    restart(room)
    assert index_entries(room) == INTERLEAVED
    Producer(room, 1, epoch=1).send(1)
    assert room.end_transaction(1, commits=False).first_offset == 91
    room.flush()
    assert committed_values(room) == expected
    assert index_entries(room) == [*INTERLEAVED, AbortedTxn(1, 90, 91, 92)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_of_the_active_segment_is_made_anew_before_it_gets_another_entry(
    quick_path: Path, damage: Callable[[Path], None]
) -> None:
    room = LogRoom(quick_path)
    room.set_config(segment_bytes=100_000)
    interleaved(room)
    room.close()
    damage(room.segment_path(0, ".txnindex"))
    room.open()
    Producer(room, 5).send(1)
    room.end_transaction(5, commits=False)
    assert index_entries(room) == [*INTERLEAVED, AbortedTxn(5, 90, 91, 92)]


def test_an_index_of_a_log_without_data_goes(room: LogRoom) -> None:
    room.close()
    room.segment_path(0, ".txnindex").write_bytes(pack_entry(INTERLEAVED[0]))
    room.open()
    producer = Producer(room, 1)
    producer.send()
    producer.commit()
    assert len(committed_values(room)) == 1


def test_truncation_of_a_damaged_index_makes_it_anew(quick_path: Path) -> None:
    room = LogRoom(quick_path)
    room.set_config(segment_bytes=100_000)
    interleaved(room)
    room.close()
    _of_the_next_version(room.segment_path(0, ".txnindex"))
    room.open()
    truncate_to(room.log, 60, room.now_ms)
    assert index_entries(room) == INTERLEAVED[:1]


def test_a_disk_too_full_for_an_index_leaves_a_sign_and_no_reader_gets_what_was_aborted(room: LogRoom) -> None:
    interleaved(room)
    expected = committed_values(room)
    no_room = patch(
        "warmlog_broker.storage.index.transaction_index.replace_file",
        side_effect=OSError(ENOSPC, "No space left on device"),
    )
    with no_room:
        room.crash(recovery_point=0)
        room.flush()
        with pytest.raises(OSError, match="No space"):
            aborted_at(room, 0)
        assert room.log.reader.read(0, 1000).size_bytes > 0
        room.restart()
        with pytest.raises(OSError, match="No space"):
            aborted_at(room, 0)
    assert committed_values(room) == expected
    assert index_entries(room) == INTERLEAVED


def test_an_index_that_was_being_replaced_when_the_broker_died_is_the_old_one(room: LogRoom) -> None:
    interleaved(room)
    room.close()
    leftover = room.files(".txnindex")[0] + ".tmp"
    room.path(leftover).write_bytes(b"half")
    room.open()
    assert leftover not in room.files()
    assert index_entries(room) == INTERLEAVED


def test_the_indexes_of_a_clean_start_are_not_opened_before_somebody_reads_committed_data(room: LogRoom) -> None:
    interleaved(room)
    plain(room, 1)
    room.flush()
    room.restart()
    assert not any(segment.transactions.is_verified for segment in room.log.local.segments if segment.size_bytes)
    read_committed(room)
    assert all(segment.transactions.is_verified for segment in room.log.local.segments if segment.size_bytes)


@pytest.mark.parametrize("damage", [Path.unlink, _of_the_next_version, _empty])
def test_an_index_that_is_lost_while_it_is_in_use_is_made_anew(room: LogRoom, damage: Callable[[Path], None]) -> None:
    interleaved(room)
    expected = committed_values(room)
    for segment in room.log.local.segments:
        if segment.transactions.entries:
            segment.transactions.close()
            damage(segment.transactions.path)
    assert committed_values(room) == expected
    assert index_entries(room) == INTERLEAVED


@pytest.mark.parametrize("size_bytes", [100_000, 50_000_000])
def test_a_control_batch_that_is_too_large_for_a_marker_is_not_opened(
    room: LogRoom, size_bytes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker looks at markers in the thread that serves everybody."""
    opened: list[int] = []
    decompress = compression.decompress_rows

    def noting(codec: Codec, data: memoryview, *, limit_bytes: int) -> memoryview:
        opened.append(limit_bytes)
        return decompress(codec, data, limit_bytes=limit_bytes)

    marker = read_batch(
        encode_end_txn_marker(EndTxnMarker(ControlType.ABORT, 0), timestamp_ms=1, producer_id=1, producer_epoch=0)
    )
    columns = columns_of([bytes(size_bytes)], keys=marker.keys(), timestamps_ms=1)
    codec = Codec.NONE if size_bytes == 100_000 else Codec.ZSTD
    large = seal_rows(marker.header._replace(attributes=marker.header.attributes | codec), columns)
    monkeypatch.setattr("warmlog_protocol.batch.batch.decompress_rows", noting)
    room.log.follower.append(large, now_ms=room.now_ms)
    assert room.log.log_end_offset == 1
    assert "skipped a malformed control batch" in caplog.text
    assert all(limit_bytes <= 64 * 1024 for limit_bytes in opened)
    producer = Producer(room, 1)
    producer.send(2)
    producer.abort()
    assert committed_values(room) == []
