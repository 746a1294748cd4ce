"""Flush plans: what they sync, and what counts as flushed afterwards."""

import errno
import os
from pathlib import Path

import pytest

from unit.broker.storage.log_room import LogRoom
from warmlog_broker.storage.directory.leader_epochs import read_epochs
from warmlog_broker.storage.io import durable_files
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.segment.segment import LogSegment, Unflushed


@pytest.fixture
def room(tmp_path: Path) -> LogRoom:
    return LogRoom(tmp_path)


class Syncs:
    """Notes which files and directories were synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        fdatasync, sync_directory = os.fdatasync, durable_files.sync_directory

        def note_file(descriptor: int) -> None:
            self.names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            fdatasync(descriptor)

        def note_directory(directory: Path | str) -> None:
            self.names.append(f"{Path(directory).name}/")
            sync_directory(directory)

        monkeypatch.setattr(os, "fdatasync", note_file)
        monkeypatch.setattr("warmlog_broker.storage.log.flush_plan.sync_directory", note_directory)


def plan_of(room: LogRoom) -> FlushPlan:
    plan = room.log.flusher.prepare()
    assert plan is not None
    return plan


def test_the_first_flush_syncs_the_file_and_the_names_of_file_and_directory(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    room.append()
    syncs = Syncs(monkeypatch)
    room.flush()
    assert syncs.names[0] == f"{0:020d}.log"
    assert sorted(syncs.names[1:]) == sorted(["flights-0/", f"{tmp_path.name}/"])
    assert read_epochs(room.path("leader-epoch-checkpoint")) == [(0, 0)]


def test_later_flushes_sync_the_active_file_alone(room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.fill(1)
    syncs = Syncs(monkeypatch)
    room.append()
    assert room.flush() == 2
    assert syncs.names == [f"{0:020d}.log"]


def test_nothing_appended_means_nothing_to_flush(room: LogRoom) -> None:
    room.fill(1)
    assert room.log.flusher.prepare() is None


def test_a_plan_covers_what_was_appended_before_it_was_made(room: LogRoom) -> None:
    room.append()
    plan = plan_of(room)
    room.append()
    plan.run()
    assert plan.end.offset == 1
    assert room.log.flusher.mark_flushed(plan) == 1
    assert room.log.bounds.raise_high_watermark(1) == 1
    assert room.log.bounds.end_of("high_watermark") == plan.end
    assert plan_of(room).end.offset == 2


def test_after_a_roll_the_old_segment_its_indexes_and_the_snapshot_are_synced(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.fill(4)
    room.log.local.roll(room.now_ms)
    room.append()
    syncs = Syncs(monkeypatch)
    assert room.flush() == 5
    old, new = f"{0:020d}", f"{4:020d}"
    assert {f"{old}.index", f"{old}.timeindex", f"{new}.log", f"{new}.snapshot", "flights-0/"} <= set(syncs.names)
    assert syncs.names[-1] == "flights-0/"
    assert len(room.log.local.unsynced._segments) == 0


def test_a_segment_rolled_while_its_flush_runs_is_synced_by_the_next(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        room.append()
    plan = plan_of(room)
    room.log.local.roll(room.now_ms)
    room.append()
    plan.run()
    assert room.log.flusher.mark_flushed(plan) == 4
    syncs = Syncs(monkeypatch)
    assert room.flush() == 5
    assert f"{0:020d}.index" in syncs.names


def test_a_plan_that_could_not_be_made_leaves_the_leader_epochs_to_the_next(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.append()
    with monkeypatch.context() as patch:

        def refuse() -> Unflushed | None:
            raise OSError(errno.EMFILE, "Too many open files")

        patch.setattr(LogSegment, "unflushed", lambda _: refuse())
        with pytest.raises(OSError, match="Too many open files"):
            room.log.flusher.prepare()
    assert plan_of(room).epochs == ((0, 0),)


def test_a_failed_snapshot_sync_keeps_the_recovery_point(room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.append()
    room.log.local.roll(room.now_ms)
    plan = plan_of(room)

    def refuse(_: Path) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("warmlog_broker.storage.log.flush_plan.sync_file_if_there", refuse)
    with pytest.raises(OSError, match="the disk is gone"):
        plan.run()
    assert room.log.recovery_point == 0


def test_a_log_that_is_deleted_while_its_flush_runs_does_no_harm(room: LogRoom) -> None:
    room.append()
    plan = plan_of(room)
    room.log.delete()
    plan.run()
    assert not room.directory.exists()


def test_the_parts_of_a_plan_can_be_run_around_one_sync_of_the_file_system(room: LogRoom) -> None:
    room.append()
    plan = plan_of(room)
    assert [file.path for _, unflushed in plan.segments for file in unflushed.files] == [str(room.segment_path(0))]
    plan.stage_side_files()
    plan.place_side_files()
    assert room.log.flusher.mark_flushed(plan) == 1


def test_flush_is_due_after_so_many_records(room: LogRoom) -> None:
    room.set_config(flush_messages=3)
    room.append(b"a", b"b")
    assert not room.log.flusher.is_due
    room.append(b"c")
    assert room.log.flusher.is_due
    room.now_ms += 5
    room.flush()
    assert not room.log.flusher.is_due
