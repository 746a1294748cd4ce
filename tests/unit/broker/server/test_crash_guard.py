"""When a start is in safe mode, what is not opened then, and how that ends."""

from pathlib import Path

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.server.crash_guard import CrashGuard, describe, judge
from warmlog_broker.server.crash_journal import FILE_NAME, StartNote
from warmlog_protocol.errors import StorageError

HOUR_MS = 3_600_000
NOW_MS = 1_763_731_200_000


def crashes(*ages_ms: int, at: str = "") -> list[StartNote]:
    checking = dict.fromkeys(at.split())
    return [StartNote(NOW_MS - age_ms, checking=dict(checking)) for age_ms in ages_ms]


def is_safe(earlier: list[StartNote], limit: int = 3) -> bool:
    return judge(earlier, now_ms=NOW_MS, limit=limit, window_ms=HOUR_MS) is not None


def test_as_many_crashes_as_the_limit_within_the_window_are_too_many() -> None:
    assert not is_safe([])
    assert not is_safe(crashes(20, 10))
    assert is_safe(crashes(30, 20, 10))
    assert not is_safe(crashes(HOUR_MS + 1, 20, 10))
    assert is_safe(crashes(HOUR_MS, 20, 10))


def test_a_limit_of_0_turns_it_off() -> None:
    assert not is_safe(crashes(*range(20)), limit=0)


def test_a_clock_that_was_set_back_does_not_hide_crashes() -> None:
    assert is_safe(crashes(-1000, -2000, -3000))
    assert not is_safe(crashes(-2 * HOUR_MS, -2 * HOUR_MS, -2 * HOUR_MS))


def test_what_was_being_opened_at_two_crashes_is_suspected() -> None:
    earlier = [*crashes(30, at="a-0 b-0"), *crashes(20, at="a-0 c-0"), *crashes(10)]
    found = judge(earlier, now_ms=NOW_MS, limit=3, window_ms=HOUR_MS)
    assert found is not None
    assert found.suspects == {"a-0"}


def test_a_crash_is_told_with_its_time_and_its_step() -> None:
    assert describe(StartNote(NOW_MS, checking={"a-0": None})) == "begun 2025-11-21 13:20:00 UTC, while opening a-0"
    text = describe(StartNote(NOW_MS, "serving", NOW_MS + 5000))
    assert text == "begun 2025-11-21 13:20:00 UTC, while serving (since 2025-11-21 13:20:05 UTC)"
    assert "10000000000000000000 ms" in describe(StartNote(10**19, "serving", 0))
    many = StartNote(NOW_MS, checking=dict.fromkeys(f"t-{number}" for number in range(9)))
    assert describe(many).endswith("t-4 and 4 more")


class Starts:
    """Starts of a broker on one directory, and how each ends."""

    def __init__(self, directory: Path, **settings: str) -> None:
        texts = {name.replace("_", "."): text for name, text in settings.items()}
        self.directory = directory
        self.config = BrokerConfig.from_settings({"data.dir": str(directory), "crash.loop.limit": "2", **texts})
        self.now_ms = NOW_MS

    def start(self) -> CrashGuard:
        self.now_ms += 1000
        guard = CrashGuard(self.config, lambda: self.now_ms)
        guard.begin(self.directory)
        return guard

    def crash(self, at: str = "") -> None:
        guard = self.start()
        if not at:
            guard.serving()
        elif at.endswith("offline"):
            with pytest.raises(StorageError), guard.opening(at):
                raise StorageError("damaged")
        else:
            with pytest.raises(MemoryError), guard.opening(at):
                raise MemoryError
        guard.stopped(False)


def test_safe_mode_refuses_records_and_the_suspect_and_opens_the_others(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(2):
        starts.crash(at="bad-0")
    guard = starts.start()
    refusal = guard.write_refusal()
    assert refusal is not None
    assert refusal.retriable
    assert "bad-0" in str(refusal)
    with pytest.raises(StorageError, match="not opened"), guard.opening("bad-0"):
        pass
    with guard.opening("good-0"):
        pass
    guard.end_safe_mode()
    assert guard.write_refusal() is None


def test_a_partition_that_was_found_damaged_in_words_is_no_suspect(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(2):
        starts.crash(at="offline")
    guard = starts.start()
    assert guard.loop is not None
    assert not guard.loop.suspects


def test_an_orderly_stop_ends_it(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(3):
        starts.crash()
    guard = starts.start()
    assert guard.loop is not None
    guard.stopped(True)
    assert starts.start().loop is None


def test_removing_the_file_ends_it(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(3):
        starts.crash()
    (tmp_path / FILE_NAME).unlink()
    assert starts.start().loop is None


def test_a_disk_that_failed_does_not_count_as_an_orderly_stop(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(2):
        starts.start().stopped(False)
    assert starts.start().loop is not None


def test_starts_that_were_refused_in_words_are_no_crashes(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(9):
        starts.start().start_has_ended()
    assert starts.start().loop is None


def test_crashes_that_are_far_apart_are_no_loop(tmp_path: Path) -> None:
    starts = Starts(tmp_path, crash_loop_window_ms="60000")
    for _ in range(9):
        starts.crash()
        starts.now_ms += 60_000
    assert starts.start().loop is None
