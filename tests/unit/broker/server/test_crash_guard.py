"""When a start is in safe mode, what is not opened then, and how that ends."""

from pathlib import Path

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.server.crash_guard import CrashGuard, CrashLoop, describe, judge
from warmlog_broker.server.crash_journal import FILE_NAME, FIRST_SECONDS, OPENING, SAFE_MODE, SERVING, Start
from warmlog_protocol.errors import StorageError

HOUR_MS = 3_600_000
NOW_MS = 1_763_731_200_000


def crashes(*ages_ms: int, step: str = OPENING, at: str = "") -> list[Start]:
    checking = dict.fromkeys(at.split())
    return [Start(NOW_MS - age_ms, step, dict(checking)) for age_ms in ages_ms]


def judged(earlier: list[Start], limit: int = 3) -> CrashLoop | None:
    return judge(earlier, now_ms=NOW_MS, limit=limit, window_ms=HOUR_MS)


def is_safe(earlier: list[Start], limit: int = 3) -> bool:
    return judged(earlier, limit) is not None


@pytest.mark.parametrize(
    ("step", "at", "counts", "clears"),
    [
        (OPENING, "", True, False),
        (OPENING, "a-0 b-0", True, False),
        (FIRST_SECONDS, "a-0", True, False),
        (FIRST_SECONDS, "", False, True),
        (SERVING, "", False, True),
        (SERVING, "a-0", False, True),
        (SAFE_MODE, "", False, False),
    ],
)
def test_a_crash_counts_if_the_start_or_its_first_seconds_may_be_the_cause(
    step: str, at: str, counts: bool, clears: bool
) -> None:
    assert is_safe(crashes(*range(20), step=step, at=at)) == counts
    two_before = crashes(30, 20)
    then = crashes(10, step=step, at=at)
    assert is_safe([*two_before, *then]) == counts
    assert is_safe([*two_before, *then, *crashes(5)]) != clears
    assert is_safe([*then, *crashes(9, 8, 7)])


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
    found = judged([*crashes(30, at="a-0 b-0"), *crashes(20, at="a-0 c-0"), *crashes(10)])
    assert found is not None
    assert found.suspects == {"a-0"}


def test_what_was_being_compacted_is_not_compacted_in_safe_mode_and_therefore_opened() -> None:
    found = judged(crashes(30, 20, 10, step=FIRST_SECONDS, at="a-0"))
    assert found is not None
    assert not found.suspects


def test_a_crash_is_told_with_its_time_and_what_the_broker_was_doing() -> None:
    begun = "begun 2025-11-21 13:20:00 UTC, while"
    assert describe(Start(NOW_MS, checking={"a-0": None})) == f"{begun} opening a-0"
    assert describe(Start(NOW_MS)) == f"{begun} opening partitions"
    assert describe(Start(NOW_MS, SERVING)) == f"{begun} serving"
    compacting = Start(NOW_MS, FIRST_SECONDS, {"a-0": None, "b-0": None})
    assert describe(compacting) == f"{begun} in its first seconds of serving, compacting a-0, b-0"
    many = Start(NOW_MS, checking=dict.fromkeys(f"t-{number}" for number in range(9)))
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
        guard.begin()
        return guard

    def crash(self, at: str = "t-0") -> None:
        guard = self.start()
        if at.endswith("offline"):
            with pytest.raises(StorageError), guard.working_on(at):
                raise StorageError("damaged")
        else:
            with pytest.raises(MemoryError), guard.working_on(at):
                raise MemoryError
        guard.journal.close()

    def crash_while_serving(self, *, compacting: str = "", after_s: float = 0) -> None:
        guard = self.start()
        recovered_after_s = guard.serving()
        if after_s >= recovered_after_s:
            guard.recovered()
        if compacting:
            with pytest.raises(MemoryError), guard.working_on(compacting):
                raise MemoryError
        guard.journal.close()


@pytest.mark.parametrize("after_s", [0, 10, 3600])
def test_a_broker_that_served_may_be_killed_as_often_as_one_likes(tmp_path: Path, after_s: float) -> None:
    starts = Starts(tmp_path)
    for _ in range(9):
        starts.crash_while_serving(after_s=after_s)
    assert starts.start().loop is None


def test_a_broker_that_served_has_recovered_from_the_crashes_before(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(9):
        starts.crash()
        starts.crash_while_serving()
    assert starts.start().loop is None


def test_crashes_in_the_compaction_of_the_first_seconds_count_and_later_ones_do_not(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(9):
        starts.crash_while_serving(compacting="t-0", after_s=10)
    assert starts.start().loop is None
    starts = Starts(tmp_path / "other")
    starts.directory.mkdir()
    for _ in range(2):
        starts.crash_while_serving(compacting="t-0", after_s=9)
    guard = starts.start()
    assert guard.loop is not None
    assert "compacting t-0" in str(guard.loop)
    with guard.working_on("t-0"):
        pass


def test_a_kill_in_safe_mode_neither_ends_nor_prolongs_it(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(2):
        starts.crash()
    for _ in range(5):
        starts.crash_while_serving()
    guard = starts.start()
    assert guard.loop is not None
    assert len(guard.loop.crashes) == 2
    guard.serving()
    guard.recovered()
    guard.journal.close()
    assert starts.start().loop is None


def test_safe_mode_refuses_records_and_the_suspect_and_opens_the_others(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(2):
        starts.crash(at="bad-0")
    guard = starts.start()
    refusal = guard.write_refusal()
    assert refusal is not None
    assert not refusal.retriable
    assert "bad-0" in str(refusal)
    with pytest.raises(StorageError, match="not opened"), guard.working_on("bad-0"):
        pass
    with guard.working_on("good-0"):
        pass
    guard.recovered()
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
    for _ in range(2):
        starts.crash()
    guard = starts.start()
    assert guard.loop is not None
    guard.journal.forget(is_all=True)
    assert starts.start().loop is None


def test_removing_the_file_ends_it(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(2):
        starts.crash()
    (tmp_path / FILE_NAME).unlink()
    assert starts.start().loop is None


def test_a_disk_that_failed_does_not_count_as_an_orderly_stop(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(2):
        starts.start().journal.close()
    assert starts.start().loop is not None


def test_starts_that_were_refused_in_words_are_no_crashes(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    for _ in range(9):
        starts.start().journal.forget(is_all=False)
    assert starts.start().loop is None


def test_crashes_that_are_far_apart_are_no_loop(tmp_path: Path) -> None:
    starts = Starts(tmp_path, crash_loop_window_ms="60000")
    for _ in range(9):
        starts.crash()
        starts.now_ms += 60_000
    assert starts.start().loop is None
