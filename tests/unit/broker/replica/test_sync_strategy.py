"""Group commits on a real disk, by each of the ways, and what becomes of a failure."""

import ctypes
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME, EpochStart, read_epochs
from warmlog_broker.storage.io.os_errors import SyncNotBegun
from warmlog_broker.storage.log import flush_plan as disk_flush
from warmlog_broker.storage.log.flush_plan import FlushPlan, Outcome, is_synced_at_once, run_plans, sync_file_system
from warmlog_broker.storage.segment.segments import LogOffsetMetadata


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def plans_of(directory: Path, count: int) -> list[FlushPlan]:
    """Plans that sync a file each."""
    plans = []
    for number in range(count):
        path = directory / f"{number}.snapshot"
        path.write_bytes(b"x")
        plans.append(FlushPlan(directory, LogOffsetMetadata(number), (), (path,), (directory,)))
    return plans


def run(plans: list[FlushPlan], directory: Path, threads: ThreadPoolExecutor, syncfs_files: int) -> list[Outcome]:
    return run_plans(plans, data_dir=directory, syncfs_files=syncfs_files, threads=threads, thread_count=4)


@pytest.mark.parametrize(
    ("file_count", "syncfs_files", "expected"),
    [(1, 24, False), (2, 24, False), (23, 24, False), (24, 24, True), (1000, 0, False)],
)
def test_the_file_system_is_synced_for_many_files(file_count: int, syncfs_files: int, expected: bool) -> None:
    assert is_synced_at_once(file_count, syncfs_files) is expected


@pytest.mark.parametrize("syncfs_files", [0, 4], ids=["threads", "syncfs"])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_every_plan_has_its_outcome(tmp_path: Path, threads: ThreadPoolExecutor, count: int, syncfs_files: int) -> None:
    assert run(plans_of(tmp_path, count), tmp_path, threads, syncfs_files) == [None] * count


@pytest.mark.parametrize("count", [2, 9])
def test_a_file_that_fails_fails_its_own_plan_alone(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    plans = plans_of(tmp_path, count)
    bad = (tmp_path / "1.snapshot").stat().st_ino
    real = os.fdatasync

    def fail(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(errno.EIO, "broken")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fail)
    outcomes = run(plans, tmp_path, threads, 0)
    assert [outcome is not None for outcome in outcomes] == [number == 1 for number in range(count)]


def fail_syncfs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "the file system is broken")

    monkeypatch.setattr(disk_flush, "sync_file_system", fail)


def test_when_syncfs_fails_a_file_that_could_not_be_asked_says_nothing_of_the_others(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_syncfs(monkeypatch)
    plans = plans_of(tmp_path, 9)

    def refuse() -> None:
        raise SyncNotBegun(errno.EMFILE, "too many open files")

    monkeypatch.setattr(FlushPlan, "run", lambda plan: refuse() if plan is plans[4] else None)
    outcomes = run(plans, tmp_path, threads, 4)
    assert all(outcome is not None and not isinstance(outcome, SyncNotBegun) for outcome in outcomes)


class FailingLibrary:
    """Has `syncfs` fail with these errors, and then succeed."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def syncfs(self, descriptor: int) -> int:
        if not self.errors:
            return 0
        ctypes.set_errno(self.errors.pop(0))
        return -1


def test_what_syncfs_reports_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_flush, "_libc", FailingLibrary(errno.EIO))
    with pytest.raises(OSError, match=tmp_path.name) as raised:
        sync_file_system(tmp_path)
    assert raised.value.errno == errno.EIO


def test_a_syncfs_that_a_signal_interrupts_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = FailingLibrary(errno.EINTR, errno.EINTR)
    monkeypatch.setattr(disk_flush, "_libc", library)
    sync_file_system(tmp_path)
    assert library.errors == []


def test_syncing_a_file_system_that_is_not_there_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_file_system(tmp_path / "nowhere")


def with_epochs(plans: list[FlushPlan]) -> list[Path]:
    """Gives each plan a directory of its own, and leader epochs to write there; returns their files."""
    for number, plan in enumerate(plans):
        plan.directory = plan.directory / f"t-{number}"
        plan.directory.mkdir()
        plan.epochs = (EpochStart(number, 0),)
    return [plan.directory / EPOCHS_NAME for plan in plans]


def test_leader_epochs_of_many_logs_get_their_names_between_two_syncs(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = plans_of(tmp_path, 9)
    paths = with_epochs(plans)
    seen: list[tuple[int, int]] = []

    def note(path: Path) -> None:
        seen.append((len(list(path.glob("*/*.tmp"))), sum(each.exists() for each in paths)))

    monkeypatch.setattr(disk_flush, "sync_file_system", note)
    assert run(plans, tmp_path, threads, 4) == [None] * 9
    assert seen == [(9, 0), (0, 9)]
    assert [read_epochs(path) for path in paths] == [[(number, 0)] for number in range(9)]


def test_when_the_second_syncfs_fails_each_file_is_synced(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = plans_of(tmp_path, 9)
    with_epochs(plans)
    calls = 0

    def fail_later(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.EIO, "the file system is broken")

    monkeypatch.setattr(disk_flush, "sync_file_system", fail_later)
    assert all(outcome is not None for outcome in run(plans, tmp_path, threads, 4))


def test_a_log_that_is_gone_does_not_need_its_leader_epochs(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    plans = plans_of(tmp_path, 9)
    with_epochs(plans)
    plans[3].directory.rmdir()
    assert run(plans, tmp_path, threads, 4) == [None] * 9
