"""A log as its partition sees it: append, read, roll, look up, offsets."""

from pathlib import Path
from uuid import uuid4

import pytest

from unit.broker.storage.log_room import KEY, START_MS, LogRoom, make_batch, read_batches, read_values
from unit.broker.storage.time_lookups import latest_record, record_at
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import LogOffsets, StoredState
from warmlog_broker.storage.directory.partition_files import Gaps, read_partition_metadata
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.segment.segment_files import run_deletions
from warmlog_protocol import errors
from warmlog_protocol.messages import HIGH_WATERMARK


def batch_bytes() -> int:
    return len(make_batch(b"v"))


class TestAppending:
    def test_offset_and_leader_epoch_are_stamped_and_the_crc_still_holds(self, room: LogRoom) -> None:
        room.append(b"a")
        room.leader_epoch = 72
        room.append(b"b")
        first, second = read_batches(room.log, 0, bound="log_end")
        assert (first.header.partition_leader_epoch, second.header.partition_leader_epoch) == (0, 72)
        assert second.base_offset == 1
        assert room.log.epochs.latest_epoch == 72
        assert room.log.epochs.entries == ((0, 0), (72, 1))

    def test_an_older_leader_than_the_log_has_seen_may_not_append(self, room: LogRoom) -> None:
        room.leader_epoch = 5
        room.append(b"a")
        room.leader_epoch = 4
        room.log.begin_epoch(4)
        assert room.log.epochs.entries == ((5, 0),)
        with pytest.raises(errors.FencedLeaderEpoch, match="4 is older than 5"):
            room.append(b"b")
        assert room.log.log_end_offset == 1

    def test_a_batch_that_no_segment_can_hold_is_refused_and_leaves_nothing(self, room: LogRoom) -> None:
        room.append(b"a")
        with pytest.raises(errors.RecordListTooLarge):
            room.append(b"x" * 400)
        assert room.log.log_end_offset == 1
        assert room.append(b"b").first_offset == 1

    def test_a_timestamp_too_far_ahead_is_refused(self, room: LogRoom) -> None:
        with pytest.raises(errors.InvalidTimestamp):
            room.append(timestamp_ms=START_MS + 3_600_001)
        assert room.log.log_end_offset == 0

    def test_a_topic_may_take_the_time_of_appending_which_never_goes_back(self, room: LogRoom) -> None:
        room.set_config(message_timestamp_type="LogAppendTime")
        assert room.append(timestamp_ms=5).append_time_ms == START_MS
        room.now_ms -= 1000
        assert room.append(timestamp_ms=6).append_time_ms == START_MS
        room.now_ms += 2000
        assert room.append(timestamp_ms=7).append_time_ms == START_MS + 1000
        timestamps = [batch.timestamps_ms() for batch in read_batches(room.log, 0, bound="log_end")]
        assert timestamps == [[START_MS], [START_MS], [START_MS + 1000]]

    @pytest.mark.parametrize("has_rolled", [False, True])
    @pytest.mark.parametrize("back_ms", [86_400_000, START_MS])
    def test_the_time_of_appending_does_not_go_back_over_a_restart(
        self, room: LogRoom, back_ms: int, has_rolled: bool
    ) -> None:
        room.set_config(message_timestamp_type="LogAppendTime")
        room.append(timestamp_ms=5)
        if has_rolled:
            room.log.local.roll(room.now_ms)
        room.now_ms -= back_ms
        room.restart()
        assert room.append(timestamp_ms=6).append_time_ms == START_MS
        room.now_ms += back_ms + 1
        assert room.append(timestamp_ms=7).append_time_ms == START_MS + 1

    def test_rows_are_kept_as_they_came(self, room: LogRoom) -> None:
        room.append(b"a", b"b", rows=True)
        room.append(b"c")
        assert [batch.header.magic for batch in read_batches(room.log, 0, bound="log_end")] == [2, 3]
        assert read_values(room.log) == [b"a", b"b", b"c"]


class TestReading:
    def test_a_read_begins_with_the_batch_that_holds_the_offset(self, room: LogRoom) -> None:
        room.append(b"a", b"b")
        room.append(b"c", b"d")
        for offset, base in ((0, 0), (1, 0), (2, 2), (3, 2)):
            assert read_batches(room.log, offset, bound="log_end")[0].base_offset == base
            assert room.log.reader.read(offset, 1000, bound="log_end").start.offset == offset

    def test_limits_of_size_are_kept_but_for_the_first_batch(self, room: LogRoom) -> None:
        size = batch_bytes()
        room.fill(4)
        assert room.log.reader.read(0, 1).size_bytes == size
        assert room.log.reader.read(0, 2 * size + 5).size_bytes == 2 * size + 5
        without = room.log.reader.read(0, 1, min_one_batch=False)
        assert (without.size_bytes, without.is_first_batch_incomplete) == (1, True)
        assert room.log.reader.read(0, 0, min_one_batch=False).slices == []

    def test_slices_stay_readable_after_their_segment_is_gone(self, room: LogRoom) -> None:
        room.fill(10)
        data = room.log.reader.read(0, 1000)
        expected = data.slices[0].pread()
        room.log.bounds.raise_log_start(8)
        room.log.retention.delete_old_segments(room.now_ms)
        assert room.log.local.take_due_deletions(0) == []
        run_deletions(room.log.local.take_due_deletions(room.config.file_delete_delay_ms))
        assert room.files(".deleted") == []
        room.log.delete()
        assert data.slices[0].pread() == expected


class TestOffsets:
    @pytest.mark.parametrize("write_caching", [False, True])
    def test_nothing_but_its_owner_raises_the_high_watermark(self, room: LogRoom, write_caching: bool) -> None:
        room.set_config(write_caching=write_caching)
        room.append(b"a", b"b")
        room.log.local.roll(room.now_ms)
        room.append(b"c")
        plan = room.log.flusher.prepare()
        assert plan is not None
        plan.run()
        assert room.log.flusher.mark_flushed(plan) == 3
        assert room.log.high_watermark == 0
        room.log.bounds.raise_high_watermark(2)
        again = Log.open(
            room.directory,
            key=room.log.key,
            config=room.config,
            open_files=room.open_files,
            now_ms=room.now_ms,
            stored=StoredState(room.log.offsets, None),
        )
        assert (again.recovery_point, again.high_watermark) == (3, 2)

    def test_the_start_can_be_raised_to_the_high_watermark(self, room: LogRoom) -> None:
        room.append(b"a", b"b", b"c")
        room.log.bounds.raise_high_watermark(2)
        with pytest.raises(errors.OffsetOutOfRange, match="3 is above the high watermark 2"):
            room.log.bounds.raise_log_start(3)
        assert room.log.bounds.raise_log_start(2)
        assert not room.log.bounds.raise_log_start(2)
        assert not room.log.bounds.raise_log_start(1)
        assert room.log.log_start_offset == 2
        with pytest.raises(errors.OffsetOutOfRange):
            room.log.reader.read(1, 100)
        assert room.log.reader.earliest() == (-1, 2, 0)

    def test_a_log_without_files_begins_where_its_checkpoint_says(self, quick_path: Path) -> None:
        room = LogRoom(quick_path)
        room.log.delete()
        room.stored = StoredState(LogOffsets(0, 500, 0), None)
        log = room.open()
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (500, 500, 500)
        assert log.bounds.end_of("committed") == log.bounds.end_of("log_end") == (500, 500, 0)
        assert room.append(b"a").first_offset == 500


class TestTimes:
    def test_the_largest_timestamp_is_found_where_it_first_lies(self, room: LogRoom) -> None:
        assert latest_record(room.log) is None
        for number in (0, 1, 2, 3, 4, 6, 5, 6):
            room.append(timestamp_ms=START_MS + number)
        assert latest_record(room.log) == (START_MS + 6, 5, 0)

    def test_earliest_and_latest_come_with_their_epochs(self, room: LogRoom) -> None:
        room.append(b"a")
        room.leader_epoch = 1
        room.append(b"b")
        room.flush()
        assert room.log.reader.earliest() == (-1, 0, 0)
        assert room.log.reader.latest() == (-1, 2, 1)
        room.append(b"c")
        assert room.log.reader.latest().offset == 2
        assert room.log.reader.latest("log_end").offset == 3
        room.log.begin_epoch(2)
        assert room.log.reader.latest().leader_epoch == 2


class TestRolling:
    def test_a_new_segment_may_begin_further_on(self, room: LogRoom) -> None:
        room.append(b"a")
        assert room.log.local.roll(room.now_ms, expected_next_offset=5).base_offset == 5
        room.log.local.gaps = Gaps(rows_up_to=5)
        assert room.append(b"b", rows=True).first_offset == 5
        assert [batch.base_offset for batch in read_batches(room.log, 3, bound="log_end")] == [5]

    def test_columns_behind_a_gap_are_damage_as_only_compaction_makes_gaps(self, room: LogRoom) -> None:
        room.append(b"a")
        room.log.local.roll(room.now_ms, expected_next_offset=5)
        room.append(b"b")
        with pytest.raises(errors.CorruptBatch, match=r"position 0: offset 3 expected, offsets 5 to 5 found"):
            room.log.reader.read(3, 100, bound="log_end")
        assert read_values(room.log, 5) == [b"b"]

    def test_an_empty_active_segment_is_replaced(self, room: LogRoom) -> None:
        old = room.log.local.active
        new = room.log.local.roll(room.now_ms)
        assert new is not old
        assert len(room.log.local.segments) == 1
        assert room.files(".log") == [f"{0:020d}.log"]
        assert room.files(".deleted") == [f"{0:020d}.log.deleted"]
        room.append(b"a")
        assert read_values(room.log) == [b"a"]

    def test_an_old_attempt_to_roll_does_not_get_in_the_way(self, room: LogRoom) -> None:
        room.append(b"a")
        room.segment_path(1).write_bytes(b"left over")
        room.segment_path(1, ".index").write_bytes(b"left over")
        room.log.local.roll(room.now_ms)
        room.append(b"b")
        assert read_values(room.log) == [b"a", b"b"]

    def test_no_segment_begins_before_the_active_one(self, room: LogRoom) -> None:
        room.append(b"a")
        room.log.local.roll(room.now_ms, expected_next_offset=3)
        room.log.local.log_end_offset = 1
        with pytest.raises(errors.StorageError, match="no segment can begin at 1"):
            room.log.local.roll(room.now_ms)

    def test_an_idle_segment_rolls_by_the_clock(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, LogConfig(segment_ms=3600))
        room.now_ms += 3601
        assert not room.log.local.roll_if_overdue(room.now_ms)
        room.append()
        assert room.log.local.roll_if_overdue(room.now_ms)
        assert not room.log.local.roll_if_overdue(room.now_ms + 10**9)
        assert len(room.log.local.segments) == 2

    def test_old_records_do_not_make_a_segment_roll_early(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, LogConfig(segment_ms=3600))
        room.append(timestamp_ms=5)
        room.now_ms += 3600
        assert not room.log.local.roll_if_overdue(room.now_ms)
        assert room.log.local.roll_if_overdue(room.now_ms + 1)

    def test_jitter_is_drawn_for_each_segment(self, quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        room = LogRoom(quick_path, LogConfig(segment_ms=1000, segment_jitter_ms=600))
        room.log.close()
        drawn: list[int] = []

        def random_below(limit: int) -> int:
            drawn.append(limit)
            return 400

        monkeypatch.setattr("warmlog_broker.storage.recovery.loader.randrange", random_below)
        room.open()
        room.append()
        room.append(timestamp_ms=START_MS + 600)
        assert len(room.log.local.segments) == 1
        room.append(timestamp_ms=START_MS + 601)
        assert len(room.log.local.segments) == 2
        assert drawn == [600, 600]

    def test_changed_settings_hold_from_the_next_append_on(self, room: LogRoom) -> None:
        room.append()
        room.set_config(segment_bytes=batch_bytes())
        room.append()
        assert len(room.log.local.segments) == 2


class TestTopicId:
    def open(self, room: LogRoom, **options: object) -> Log:
        room.log.close()
        return room.open(**options)

    def test_the_topics_id_is_kept_in_the_directory(self, room: LogRoom) -> None:
        topic_id = uuid4()
        assert room.log.topic_id is None
        assert self.open(room, topic_id=topic_id).topic_id == topic_id
        assert read_partition_metadata(room.path("partition.metadata")) == topic_id
        assert self.open(room).topic_id == topic_id

    def test_another_topics_directory_is_refused(self, room: LogRoom) -> None:
        self.open(room, topic_id=uuid4())
        with pytest.raises(errors.InconsistentTopicId, match="belongs to the topic with id"):
            self.open(room, topic_id=uuid4())

    def test_a_damaged_file_is_written_again(self, room: LogRoom) -> None:
        room.path("partition.metadata").write_bytes(b"\0\0\0")
        topic_id = uuid4()
        assert self.open(room, topic_id=topic_id).topic_id == topic_id
        assert read_partition_metadata(room.path("partition.metadata")) == topic_id


def test_a_directory_that_cannot_be_made_is_a_storage_error(quick_path: Path) -> None:
    (quick_path / "file").touch()
    with pytest.raises(errors.StorageError, match="the log cannot be opened"):
        LogRoom(quick_path / "file")


def test_a_deleted_log_is_found_no_more(room: LogRoom) -> None:
    room.fill(3)
    path = room.log.delete()
    assert not room.directory.exists()
    assert path.name.startswith(f"{KEY.directory_name}.")
    assert path.name.endswith("-delete")
    for use in (lambda: room.log.reader.read(0, 10), lambda: room.append(b"x"), room.log.flusher.prepare):
        with pytest.raises(errors.ApiError, match="deleted"):
            use()


class TestDeletingRecords:
    def test_the_log_start_is_raised_to_the_offset_or_to_the_high_watermark(self, room: LogRoom) -> None:
        room.fill(5)
        room.append(b"not durable")
        assert room.log.retention.delete_records(3) == 3
        assert room.log.retention.delete_records(1) == 3
        assert room.log.retention.delete_records(HIGH_WATERMARK) == 5
        assert room.log.retention.delete_records(HIGH_WATERMARK) == 5
        assert room.log.log_start_offset == 5

    @pytest.mark.parametrize("offset", [6, -2])
    def test_an_offset_that_is_not_durable_or_does_not_exist_is_refused(self, room: LogRoom, offset: int) -> None:
        room.fill(5)
        room.append(b"not durable")
        with pytest.raises(errors.OffsetOutOfRange):
            room.log.retention.delete_records(offset)
        assert room.log.log_start_offset == 0

    def test_a_topic_that_is_compacted_only_keeps_its_records(self, room: LogRoom) -> None:
        room.fill(5)
        room.set_config(cleanup_policy="compact")
        with pytest.raises(errors.PolicyViolation, match=r"cleanup\.policy is compact"):
            room.log.retention.delete_records(3)
        room.set_config(cleanup_policy="compact,delete")
        assert room.log.retention.delete_records(3) == 3


class TestEpochEnds:
    def test_an_epoch_ends_where_the_next_began_and_the_latest_at_the_log_end(self, room: LogRoom) -> None:
        for epoch, batches in ((1, 2), (4, 3)):
            room.leader_epoch = epoch
            room.fill(batches)
        ends = {epoch: room.log.reader.end_offset_for_epoch(epoch) for epoch in (-1, 0, 1, 2, 4, 5)}
        assert ends == {-1: (-1, -1), 0: (0, 0), 1: (1, 2), 2: (1, 2), 4: (4, 5), 5: (-1, -1)}

    def test_ec_10_after_a_start_they_are_known_as_before(self, room: LogRoom) -> None:
        for epoch in (1, 4):
            room.leader_epoch = epoch
            room.fill(2)
        room.restart()
        assert room.log.reader.end_offset_for_epoch(1) == (1, 2)
        room.crash()
        assert room.log.reader.end_offset_for_epoch(4) == (4, 4)


def test_timestamps_of_segments_are_learnt_one_at_a_time_and_once(tmp_path: Path) -> None:
    room = LogRoom(tmp_path)
    room.fill(40)
    room.restart()
    found = record_at(room.log, room.now_ms)
    room.restart()
    assert len(list(room.log.reader.learn_timestamps())) >= len(room.log.local.segments) - 1
    assert list(room.log.reader.learn_timestamps()) == []
    assert record_at(room.log, room.now_ms) == found
