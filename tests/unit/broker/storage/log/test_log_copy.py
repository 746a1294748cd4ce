"""A log's copy in another directory: made while the log changes, and equal to it when it takes over."""

import gc
import tempfile
import weakref
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from present import present
from truncating import truncate_fully, truncate_to
from unit.broker.storage.cleaner.compaction_room import CompactionRoom
from unit.broker.storage.log_room import QUICK, LogRoom, read_batches, read_values
from unit.broker.storage.time_lookups import record_at
from warmlog_broker.storage.directory.data_dir import CleanEnd, StoredState
from warmlog_broker.storage.directory.partition_files import GAPS_NAME, Gaps, mark_row_gaps, note_gaps, read_gaps
from warmlog_broker.storage.directory.topic_partition import parse_directory_name
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.log_copy import LogCopy, make_directory
from warmlog_protocol.errors import CorruptBatch, OutOfOrderSequence

TOPIC_ID = UUID(int=7)


def begin_copy(log: Log, data_directory: Path) -> LogCopy:
    return LogCopy.begin(log, make_directory(log, data_directory))


class Room(LogRoom):
    """A log, and another data directory."""

    def __init__(self, root: Path) -> None:
        (root / "one").mkdir()
        (root / "two").mkdir()
        self.other = root / "two"
        super().__init__(root / "one")

    def open(self, **options: object) -> Log:
        return super().open(topic_id=TOPIC_ID, **options)

    def begin(self) -> LogCopy:
        return begin_copy(self.log, self.other)

    def run(self, copy: LogCopy, max_bytes: int = 300) -> None:
        """Copies until nothing is missing."""
        while steps := copy.next_steps(max_bytes):
            for step in steps:
                step.run()
        assert copy.missing_bytes == 0
        assert copy.offset_lag == 0

    def switch(self, copy: LogCopy) -> Log:
        """The copy takes over, as in a broker."""
        old = self.log
        self.log = copy.finish(self.now_ms)
        copy.sync()
        self.log.bounds.copied_up_to(self.log.log_end_offset)
        old.local.leave("moved", sync=False)
        self.log.local.rename_directory(self.other / old.local.directory.name)
        self.directory = self.log.local.directory
        return self.log


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def state_of(log: Log) -> tuple[object, ...]:
    """All that must be the same before and after."""
    producers = {
        entry.producer_id: (entry.epoch, list(entry.batches), entry.transaction_first_offset)
        for entry in log.producers.entries
    }
    offsets = (log.log_start_offset, log.high_watermark, log.bounds.last_stable_offset, log.log_end_offset)
    return (
        offsets,
        log.epochs.entries,
        producers,
        read_values(log),
        log.local.segments.size_bytes,
        len(log.local.segments),
    )


def test_a_copy_is_equal_and_goes_on(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(30):
        room.leader_epoch = number // 10
        room.append(b"%d" % number, producer=(5, 0, number))
    room.flush()
    room.log.bounds.raise_log_start(7)
    copy = room.begin()
    name = present(parse_directory_name(copy.directory.name))
    assert (name.topic_partition, name.mark) == (room.log.key, "future")
    room.run(copy)
    before = state_of(room.log)
    log = room.switch(copy)
    assert state_of(log) == before
    assert room.append(b"again", producer=(5, 0, 29)).is_duplicate
    with pytest.raises(OutOfOrderSequence):
        room.append(b"gap", producer=(5, 0, 40))
    assert room.append(b"next", producer=(5, 0, 30)).first_offset == 30
    room.flush()
    assert log.recovery_point == log.high_watermark == 31
    values, offsets = read_values(log), log.offsets
    assert room.restart().offsets == offsets
    assert room.crash().offsets == offsets
    assert read_values(room.log) == values
    assert room.append(b"again", producer=(5, 0, 30)).is_duplicate
    assert "rebuil" not in caplog.text


def test_indexes_come_along_and_nothing_is_made_anew(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.fill(40)
    copy = room.begin()
    room.run(copy)
    old = {path.name: path.read_bytes() for path in room.directory.glob("*.*index")}
    log = room.switch(copy)
    for offset in range(0, 40, 3):
        assert log.reader.read(offset, 1).slices
    assert record_at(log, room.now_ms) is not None
    room.fill(1)
    assert "rebuil" not in caplog.text
    new = {path.name: path.read_bytes() for path in room.directory.glob("*.*index")}
    assert new.keys() >= old.keys()
    assert sum(new[name].rstrip(b"\0") == content.rstrip(b"\0") for name, content in old.items()) >= len(old) - 2


def test_the_original_is_freed_after_the_copy_has_taken_over(room: Room) -> None:
    room.fill(12)
    originals = [weakref.ref(room.log), weakref.ref(room.log.local.segments)]
    room.switch(room.begin())
    gc.collect()
    assert [original() for original in originals] == [None, None]


def test_compaction_of_the_copy_updates_the_positions_of_the_copy(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    room = CompactionRoom(tmp_path)
    room.open(topic_id=TOPIC_ID)
    for number in range(5):
        room.put((b"key", b"%d" % number))
    room.flush()
    room.log = log = begin_copy(room.log, tmp_path / "two").finish(room.now_ms)
    room.put((b"key", b"5"))
    plan = present(log.flusher.prepare())
    log.local.roll(room.now_ms)
    room.put((b"other key", b"6"))
    plan.run()
    log.bounds.raise_high_watermark(log.flusher.mark_flushed(plan))
    position = log.local.segments.size_bytes - log.local.active.size_bytes
    assert log.bounds.end_of("high_watermark") == log.bounds.flushed == (6, 0, position)
    room.compact()
    assert log.local.segments.size_bytes - log.local.active.size_bytes < position
    assert log.bounds.flushed.is_message_only
    assert log.bounds.end_of("high_watermark") == (6, 6, 0)
    assert [batch.last_offset for batch in read_batches(log, 0)] == [5]


def test_a_directory_that_cannot_be_made_leaves_nothing_behind(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise OSError(5, "the disk is broken", str(path))

    monkeypatch.setattr("warmlog_broker.storage.log.log_copy.sync_directory", broken)
    with pytest.raises(OSError, match="the disk is broken"):
        make_directory(room.log, room.other)
    assert list(room.other.iterdir()) == []


def test_an_empty_log_can_be_copied(room: Room) -> None:
    log = room.switch(room.begin())
    assert log.log_end_offset == 0
    room.fill(3)
    assert len(read_values(log)) == 3
    room.switch(begin_copy(room.log, room.other.parent / "one"))
    assert len(read_values(room.restart())) == 3


def test_an_empty_log_that_does_not_begin_at_0_can_be_copied(room: Room) -> None:
    truncate_fully(room.log, 17, room.now_ms)
    log = room.switch(room.begin())
    assert (log.log_start_offset, log.log_end_offset) == (17, 17)
    room.fill(1)
    assert room.restart().log_end_offset == 18


def test_what_lies_above_the_high_watermark_comes_along_and_stays_above_it(room: Room) -> None:
    room.fill(5)
    copy = room.begin()
    room.append(b"not flushed")
    log = copy.finish(room.now_ms)
    assert (log.high_watermark, log.recovery_point, log.log_end_offset) == (5, 5, 6)
    assert read_values(log)[-1] == b"not flushed"


def test_retention_that_took_segments_meanwhile_takes_them_from_the_copy(room: Room) -> None:
    room.fill(40)
    copy = room.begin()
    room.run(copy)
    room.set_config(retention_bytes=1000)
    assert room.log.retention.delete_old_segments(room.now_ms)
    room.fill(3)
    before = state_of(room.log)
    bases = sorted(path.name for path in room.directory.glob("*.log"))
    assert state_of(room.switch(copy)) == before
    assert sorted(path.name for path in room.directory.glob("*.log")) == bases


def test_a_log_that_was_cut_meanwhile_is_copied_as_it_is_then(room: Room) -> None:
    room.fill(40, b"old")
    copy = room.begin()
    room.run(copy)
    truncate_to(room.log, 11, room.now_ms)
    room.fill(40, b"new")
    room.run(copy)
    before = state_of(room.log)
    log = room.switch(copy)
    assert state_of(log) == before
    assert read_values(log) == [b"old"] * 11 + [b"new"] * 40


def test_a_copy_may_have_the_gaps_that_the_original_may_have(room: Room) -> None:
    room.fill(3)
    note_gaps(room.directory)
    room.restart()
    room.switch(room.begin())
    assert room.path(GAPS_NAME).exists()
    assert not room.log.reader.are_offsets_dense_from(0)


def test_a_copy_has_the_mark_of_the_original(room: Room) -> None:
    room.fill(3)
    mark_row_gaps(room.directory, 2)
    room.restart()
    room.switch(room.begin())
    assert room.log.local.gaps == read_gaps(room.directory) == Gaps(rows_up_to=2)


def test_what_recovery_has_kept_aside_comes_along(room: Room) -> None:
    room.fill(12)
    room.path("00000000000000000000.log.tail.cut").write_bytes(b"for a person to look at")
    room.path("00000000000000000009.log.cut.2").write_bytes(b"a whole segment")
    copy = room.begin()
    copy.copy_kept_aside()
    room.switch(copy)
    assert room.path("00000000000000000000.log.tail.cut").read_bytes() == b"for a person to look at"
    assert room.path("00000000000000000009.log.cut.2").read_bytes() == b"a whole segment"
    assert room.log.log_end_offset == 12


def test_damage_stays_where_it_was(room: Room) -> None:
    room.fill(12)
    path = room.segment_path(0)
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    room.switch(room.begin())
    assert room.segment_path(0).read_bytes() == bytes(content)
    assert room.log.log_end_offset == 12


def test_damage_that_is_known_is_reported_with_the_path_of_the_copy(room: Room) -> None:
    room.fill(12)
    base_offset = room.log.local.active.base_offset
    path = room.segment_path(base_offset)
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    room.crash()
    room.switch(room.begin())
    with pytest.raises(CorruptBatch, match=str(room.segment_path(base_offset))):
        room.log.reader.read(base_offset, 1000)


def test_a_log_that_starts_above_its_end_can_be_copied(room: Room) -> None:
    truncate_fully(room.log, 17, room.now_ms, 20)
    log = room.switch(room.begin())
    assert (log.log_start_offset, log.log_end_offset) == (20, 17)
    log = room.crash()
    assert (log.log_start_offset, log.log_end_offset) == (20, 17)


def test_the_name_of_a_long_topic_is_cut(tmp_path: Path) -> None:
    from warmlog_broker.storage.directory.topic_partition import TopicPartition, marked_directory_name

    name = marked_directory_name(TopicPartition("x" * 249, 999), "future")
    assert len(name) == 255
    parsed = present(parse_directory_name(name))
    assert (parsed.topic_partition.partition, parsed.mark) == (999, "future")


ACTIONS = st.lists(
    st.sampled_from(["append", "append", "append", "flush", "copy", "copy", "roll", "retain", "truncate", "start"]),
    max_size=40,
)


@given(actions=ACTIONS)
def test_whatever_happens_meanwhile_the_copy_is_equal(actions: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=QUICK) as root:
        room = Room(Path(root))
        room.fill(10)
        copy = room.begin()
        for number, action in enumerate(actions):
            log = room.log
            match action:
                case "append":
                    room.append(b"%d" % number * 20)
                case "flush":
                    room.flush()
                case "copy":
                    for step in copy.next_steps(200):
                        step.run()
                case "roll":
                    if log.local.active.size_bytes:
                        log.local.roll(room.now_ms)
                case "retain":
                    room.flush()
                    room.set_config(retention_bytes=600)
                    log.retention.delete_old_segments(room.now_ms)
                case "truncate":
                    truncate_to(log, max(log.log_start_offset, log.log_end_offset - 4), room.now_ms)
                case "start":
                    log.bounds.raise_log_start(min(log.high_watermark, log.log_start_offset + 2))
        before = state_of(room.log)
        log = room.switch(copy)
        assert state_of(log) == before
        room.append(b"more")
        room.flush()
        end = log.close()
        assert isinstance(end, CleanEnd)
        room.stored = StoredState(log.offsets, end)
        values = [*before[3], b"more"]  # type: ignore[misc]
        assert read_values(room.open()) == values
