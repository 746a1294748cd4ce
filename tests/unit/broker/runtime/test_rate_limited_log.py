"""Lines that peers bring about: some as they are, the rest counted; nothing is lost without a word."""

import logging

import pytest

from warmlog_broker.runtime.rate_limited_log import RepeatedLines


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> RepeatedLines:
    caplog.set_level(logging.INFO)
    return RepeatedLines(logging.getLogger("repeated"), lines=3, period_s=10.0)


def test_the_first_are_written_as_they_are_and_the_rest_is_summed_up(
    lines: RepeatedLines, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        lines.write(logging.INFO, "closed", f"connection {number} closed", 100.0 + number / 1000)
    assert caplog.messages == [f"connection {number} closed" for number in range(3)]
    lines.tick(109.0)
    assert len(caplog.messages) == 3
    lines.tick(110.0)
    assert caplog.messages[3:] == ["closed: 997 more in 10 s, the last: connection 999 closed"]
    lines.tick(130.0)
    assert len(caplog.messages) == 4


def test_each_kind_has_lines_of_its_own_and_a_new_period_has_new_ones(
    lines: RepeatedLines, caplog: pytest.LogCaptureFixture
) -> None:
    for now_s in (0.0, 20.0):
        for _ in range(3):
            lines.write(logging.INFO, "closed", "one", now_s)
            lines.write(logging.WARNING, "refused", "another", now_s)
        lines.tick(now_s + 10)
    assert caplog.messages.count("one") == caplog.messages.count("another") == 6
    assert len(caplog.messages) == 12
    assert {record.levelname for record in caplog.records} == {"INFO", "WARNING"}


def test_what_was_counted_is_said_at_the_end(lines: RepeatedLines, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        lines.write(logging.INFO, "closed", "100% closed", 0.0)
    lines.finish(2.0)
    assert caplog.messages[-1] == "closed: 2 more in 2 s, the last: 100% closed"
