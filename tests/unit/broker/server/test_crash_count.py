"""Which starts count as crashes, and when the next one is refused."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.server.crash_count import FILE_NAME, CrashCount, CrashLoop
from warmlog_broker.server.log_lines import TextLines
from warmlog_broker.server.process import STOP_SIGNALS, _ended_by_signals

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


DEADLINE_S = 25


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_right_behind_loading_is_a_stop_and_no_crash(number: signal.Signals) -> None:
    async def load_and_be_told_to_stop() -> None:
        loop = asyncio.get_running_loop()
        told_to_stop = asyncio.Event()
        with _ended_by_signals(loop, lambda: None, then=told_to_stop.set):
            await asyncio.sleep(0)
        try:
            os.kill(os.getpid(), number)
            async with asyncio.timeout(DEADLINE_S):
                await told_to_stop.wait()
        finally:
            for each in STOP_SIGNALS:
                loop.remove_signal_handler(each)

    asyncio.run(load_and_be_told_to_stop())


def test_what_a_peer_has_chosen_cannot_begin_a_line_of_text_or_steer_the_terminal() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 1, "topic %s", ("a\n2026 CRITICAL b\x1b[2J\x9b",), None)
    assert TextLines().format(record).endswith(r"INFO topic a\x0a2026 CRITICAL b\x1b[2J\x9b")


def test_nor_can_it_in_a_traceback() -> None:
    error = ValueError("x\x1b[2J")
    record = logging.LogRecord("x", logging.ERROR, "", 1, "failed", (), (ValueError, error, None))
    assert TextLines().format(record).endswith("ERROR failed\nValueError: x\\x1b[2J")
