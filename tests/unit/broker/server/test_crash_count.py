"""Which starts count as crashes, and when the next one is refused."""

from pathlib import Path

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.server.crash_count import FILE_NAME, CrashCount, CrashLoop

HOUR_MS = 3_600_000
NOW_MS = 1_763_731_200_000
LIMIT = 3


class Starts:
    """Starts of a broker on one directory, and how each ends."""

    def __init__(self, directory: Path, limit: int = LIMIT) -> None:
        self.config = BrokerConfig.from_settings({"data.dir": str(directory), "crash.loop.limit": str(limit)})
        self.path = directory / FILE_NAME
        self.now_ms = NOW_MS

    def begin(self) -> CrashCount:
        """What a start that crashes before it serves leaves."""
        self.now_ms += 1000
        count = CrashCount(self.config, lambda: self.now_ms)
        count.begin()
        return count

    def is_refused(self) -> bool:
        try:
            self.begin().begun_in_vain()
        except CrashLoop:
            return True
        return False


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path)


def test_as_many_crashes_as_the_limit_prevent_the_next_start_again_and_again(starts: Starts) -> None:
    for _ in range(LIMIT):
        assert not starts.is_refused()
        starts.begin()
    for _ in range(3):
        assert starts.is_refused()


def test_a_refusal_says_when_the_crashes_were_and_how_to_start_again(starts: Starts) -> None:
    for _ in range(LIMIT):
        starts.begin()
    with pytest.raises(CrashLoop) as refused:
        starts.begin()
    text = str(refused.value)
    assert "at 2025-11-21 13:20:01 UTC, 2025-11-21 13:20:02 UTC, 2025-11-21 13:20:03 UTC:" in text
    assert f"remove {starts.path}" in text
    assert "crash.loop.limit=0" in text


def test_a_start_that_serves_forgets_all_crashes(starts: Starts) -> None:
    for _ in range(LIMIT - 1):
        starts.begin()
    starts.begin().served()
    assert not starts.path.exists()
    for _ in range(LIMIT):
        assert not starts.is_refused()
        starts.begin()


def test_a_start_that_ends_in_order_does_not_count_and_earlier_ones_do(starts: Starts) -> None:
    for _ in range(9):
        starts.begin().begun_in_vain()
    assert not starts.path.exists()
    for _ in range(LIMIT):
        starts.begin()
        if not starts.is_refused():
            starts.begin().begun_in_vain()
    assert starts.is_refused()


def test_removing_the_file_allows_the_next_start(starts: Starts) -> None:
    for _ in range(LIMIT):
        starts.begin()
    starts.path.unlink()
    assert not starts.is_refused()


def test_a_start_without_a_limit_ignores_crashes_and_forgets_them_once_it_serves(starts: Starts) -> None:
    for _ in range(LIMIT):
        starts.begin()
    unlimited = Starts(starts.path.parent, limit=0)
    for _ in range(9):
        unlimited.begin()
    assert starts.is_refused()
    unlimited.begin().served()
    assert not starts.is_refused()


@pytest.mark.parametrize(("age_ms", "counts"), [(HOUR_MS, True), (HOUR_MS + 1, False), (-HOUR_MS, True)])
def test_a_crash_counts_within_the_window_and_also_if_the_clock_was_set_back(
    starts: Starts, age_ms: int, counts: bool
) -> None:
    for _ in range(LIMIT):
        starts.path.write_text(f"{NOW_MS + 1000 - age_ms}\n" * LIMIT)
    assert starts.is_refused() == counts


def test_lines_of_other_versions_and_damage_count_for_nothing(starts: Starts) -> None:
    starts.path.write_bytes(b'9a0b1c2d {"start": 1763731200000}\n\xff\x00\n-5\n' + f"{NOW_MS}\n".encode() * (LIMIT - 1))
    assert not starts.is_refused()
    starts.begin()
    assert starts.is_refused()


def test_a_directory_that_cannot_be_written_does_not_prevent_a_start(tmp_path: Path) -> None:
    starts = Starts(tmp_path / "missing")
    count = starts.begin()
    count.served()
    count.begun_in_vain()
