"""New segments in old ones' place, with a crash before every single step: the log says the same afterwards."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.broker.storage.cleaner.compaction_room import CompactionRoom
from unit.broker.storage.crash_points import crash_at
from unit.broker.storage.log_files import append, open_segment
from unit.broker.storage.log_room import LogRoom
from warmlog_broker.storage.directory.data_dir import StoredState

MOST_STEPS = 500


@pytest.fixture
def room(quick_path: Path) -> Iterator[CompactionRoom]:
    room = CompactionRoom(quick_path)
    yield room
    room.log.fail("the test is over")


def fill(room: CompactionRoom) -> None:
    """Three segments that become one, with tombstones and a producer; a fourth that is active."""
    for value in range(3):
        for key in range(4):
            room.put((b"k%d" % key, None if key == value else b"v%d" % value), producer=(7, 0, 4 * value + key))
        room.roll()
    room.put((b"k9", b"last"))
    room.flush()


def check_nothing_is_left(room: LogRoom) -> None:
    endings = (".swap", ".cleaned", ".deleted")
    assert [name for name in room.files() if name.endswith(endings)] == []


def crash_during_compaction(root: Path, number: int) -> bool:
    """Builds a log, dies before that step of its compaction, opens it again and checks it; False past the last step."""
    root.mkdir()
    room = CompactionRoom(root)
    room.set_config(segment_bytes=4096)
    fill(room)
    expected, state, end_offset = room.records(), room.state(), room.log.log_end_offset
    with crash_at(number) as point:
        room.compact()
    room.log.fail("dead")
    room.crash()
    check_nothing_is_left(room)
    assert room.state() == state, point.steps
    assert set(room.records()) <= set(expected), point.steps
    assert room.log.log_end_offset == end_offset
    assert room.log.recovery_report.damage == []
    assert room.put((b"k9", b"again"), producer=(7, 0, 11)).is_duplicate
    room.put((b"k1", b"after"), producer=(7, 0, 12))
    room.roll()
    room.compact()
    assert room.state() == state | {b"k1": b"after"}
    room.log.fail("the end")
    return point.has_died


def test_a_crash_before_every_step_of_a_compaction_keeps_every_keys_last_value(quick_path: Path) -> None:
    """.cleaned, .swap and .deleted, each rename, unlink and sync"""
    number = 0
    while crash_during_compaction(quick_path / str(number), number):
        number += 1
        assert number < MOST_STEPS
    assert number > 15


def crash_twice(root: Path, first: int, second: int) -> tuple[bool, bool]:
    """Dies during the compaction, and again during the start that follows."""
    root.mkdir()
    room = CompactionRoom(root)
    room.set_config(segment_bytes=4096)
    fill(room)
    state = room.state()
    with crash_at(first) as point:
        room.compact()
    room.log.fail("dead")
    offsets = room.log.offsets
    room.stored = StoredState(offsets, None)
    with crash_at(second) as again:
        room.open()
    room.stored = StoredState(offsets, None)
    room.open()
    check_nothing_is_left(room)
    assert room.state() == state, (point.steps, again.steps)
    room.log.fail("the end")
    return point.has_died, again.has_died


def test_a_crash_during_the_start_after_a_crash_changes_nothing(quick_path: Path) -> None:
    """Every step of the compaction, and with each some of the steps of the start."""
    first, died = 0, True
    while died:
        second, died_again = first % 5, True
        while died_again:
            died, died_again = crash_twice(quick_path / f"{first}-{second}", first, second)
            second += 5
        first += 1
        assert first < MOST_STEPS


def test_an_unfinished_set_means_nothing(room: CompactionRoom) -> None:
    """As long as one file ends in .cleaned, what ends in .swap from its base offset on is not complete."""
    fill(room)
    expected = room.records()
    room.close()
    for name in (
        "00000000000000000004.log.cleaned",
        "00000000000000000008.log.swap",
        "00000000000000000008.index.swap",
    ):
        room.path(name).write_bytes(b"half")
    room.crash()
    assert room.records() == expected
    check_nothing_is_left(room)


def test_a_set_below_the_unfinished_one_is_completed(room: CompactionRoom) -> None:
    fill(room)
    room.close()
    shutil.copy(room.segment_path(0), room.path("00000000000000000000.log.swap"))
    room.segment_path(0).write_bytes(b"")
    room.path("00000000000000000004.log.cleaned").write_bytes(b"half")
    room.crash()
    assert room.offsets() == list(range(13))
    check_nothing_is_left(room)


def test_only_index_files_that_were_not_renamed_yet_get_their_name(room: CompactionRoom) -> None:
    fill(room)
    room.compact()
    expected = room.records()
    room.close()
    index = room.segment_path(8, ".timeindex")
    content = index.read_bytes()
    index.rename(index.with_name(index.name + ".swap"))
    room.crash()
    assert index.read_bytes() == content
    assert room.records() == expected


def test_segments_of_another_log_are_refused(room: CompactionRoom, tmp_path: Path) -> None:
    fill(room)
    stranger = open_segment(tmp_path, 0)
    append(stranger, 0)
    new = open_segment(tmp_path, 4)
    with pytest.raises(ValueError, match="are not segments of this log"):
        room.log.local.begin_replacement([new], [stranger])
