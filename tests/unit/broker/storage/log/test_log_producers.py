"""Idempotent producers in a log: a retried batch is appended once, before and after every kind of restart."""

from collections.abc import Callable

import pytest

from unit.broker.storage.log_room import LogRoom, read_batches, read_values
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.producer import duplicates
from warmlog_protocol.errors import DuplicateSequence, InvalidProducerEpoch, OutOfOrderSequence

PID = 7
every_restart = pytest.mark.parametrize("restart", [LogRoom.restart, LogRoom.crash], ids=["clean", "unclean"])


def send(room: LogRoom, sequence: int, count: int = 1, *, epoch: int = 0, pid: int = PID) -> tuple[int, int, bool]:
    info = room.append(*[b"%d" % (sequence + n) for n in range(count)], producer=(pid, epoch, sequence))
    return info.first_offset, info.last_offset, info.is_duplicate


def test_an_older_batch_is_looked_up_in_the_log(room: LogRoom) -> None:
    for sequence in range(0, 300, 3):
        send(room, sequence, 3)
    assert len(room.log.local.segments) > 10
    for sequence in range(0, 300, 3):
        assert send(room, sequence, 3) == (sequence, sequence + 2, True)
    assert room.log.log_end_offset == 300


def test_an_older_batch_is_found_between_those_of_other_producers(room: LogRoom) -> None:
    offsets = {}
    for sequence in range(40):
        for pid in (1, 2, 3):
            offsets[pid, sequence], _, _ = send(room, sequence, pid=pid)
        room.append(b"x", b"y")
    for (pid, sequence), offset in offsets.items():
        assert send(room, sequence, pid=pid) == (offset, offset, True)


def test_an_older_batch_with_other_boundaries_was_never_sent(room: LogRoom) -> None:
    for sequence in range(0, 30, 3):
        send(room, sequence, 3)
    with pytest.raises(OutOfOrderSequence):
        send(room, 1, 2)


def test_a_batch_that_retention_may_have_removed_counts_as_sent(room: LogRoom) -> None:
    for sequence in range(20):
        send(room, sequence)
    room.flush()
    room.log.bounds.raise_log_start(12)
    room.log.retention.delete_old_segments(room.now_ms)
    with pytest.raises(DuplicateSequence, match="expected sequence 20, found 0 to 0"):
        send(room, 0)
    assert send(room, 13) == (13, 13, True)


def test_a_batch_from_before_the_producers_first_is_not_taken_for_sent(room: LogRoom) -> None:
    room.append(*[b"other"] * 10)
    room.flush()
    room.log.bounds.raise_log_start(5)
    send(room, 4)
    with pytest.raises(OutOfOrderSequence):
        send(room, 3)
    send(room, 5)


def test_the_search_gives_up_after_a_while(room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "SEARCH_LIMIT_BATCHES", 5)
    monkeypatch.setattr(duplicates, "_FIRST_STEP_OFFSETS", 4)
    send(room, 0)
    for _ in range(100):
        room.append(b"x")
    for sequence in range(1, 7):
        send(room, sequence)
    with pytest.raises(DuplicateSequence):
        send(room, 0)
    assert send(room, 1) == (101, 101, True)


def test_gaps_and_old_epochs_are_refused_and_leave_nothing(room: LogRoom) -> None:
    send(room, 0)
    with pytest.raises(OutOfOrderSequence):
        send(room, 2)
    send(room, 0, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        send(room, 1)
    assert room.log.log_end_offset == 2
    assert len(read_batches(room.log, 0, bound="log_end")) == 2


@every_restart
def test_records_of_the_distant_past_do_not_make_their_producer_forgotten(
    room: LogRoom, restart: Callable[[LogRoom], Log]
) -> None:
    room.append(b"flight of 2013", timestamp_ms=1_357_000_000_000, producer=(PID, 0, 0))
    restart(room)
    assert room.log.producers.expire(room.now_ms, 86_400_000) == 0
    assert send(room, 0) == (0, 0, True)
    room.now_ms += 86_400_000
    assert room.log.producers.expire(room.now_ms, 86_400_000) == 1


def test_a_snapshot_is_taken_at_each_roll_and_at_the_end(room: LogRoom) -> None:
    for sequence in range(20):
        send(room, sequence)
    bases = [segment.base_offset for segment in room.log.local.segments]
    room.close()
    expected = [f"{offset:020d}.snapshot" for offset in [*bases[1:], 20]]
    assert room.files(".snapshot") == expected
    room.open()
    assert room.files(".snapshot") == expected


def test_an_empty_segment_that_another_replaces_leaves_the_snapshot(room: LogRoom) -> None:
    send(room, 0)
    for _ in range(2):
        room.log.local.roll(room.now_ms)
        assert room.files(".snapshot") == [f"{1:020d}.snapshot"]


def test_snapshots_of_what_was_cut_off_are_not_believed(room: LogRoom) -> None:
    for sequence in range(6):
        send(room, sequence)
    room.flush()
    for sequence in range(6, 14):
        send(room, sequence)
    path = room.segment_path(room.log.local.segments.floor(6).base_offset)  # type: ignore[union-attr]
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    room.crash()
    end = room.log.log_end_offset
    assert 6 <= end < 14
    assert max(int(name[:20]) for name in room.files(".snapshot")) == end
    assert send(room, end) == (end, end, False)
    assert read_values(room.log) == [b"%d" % n for n in range(end + 1)]


def test_producer_state_survives_retention(room: LogRoom) -> None:
    send(room, 0)
    for _ in range(20):
        room.append(b"x")
    room.flush()
    room.set_config(retention_ms=100)
    room.now_ms += 101
    room.log.retention.delete_old_segments(room.now_ms)
    assert len(room.log.local.segments) == 1
    assert send(room, 0) == (0, 0, True)
    assert send(room, 1)[2] is False
