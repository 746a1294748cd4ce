"""What a power cut takes of data acknowledged from the page cache stays within its bound; and a lie is noticed."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from faults.losses.__main__ import describe, problems
from faults.losses.judging import Acknowledged, Mode, loss_of
from faults.losses.measuring import MODES, measure
from faults.power.powered import why_not
from warmlog_protocol.messages import ACKS_ALL

NEEDS_POWER = pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}")
BY_TIME = Mode("by time", {}, ACKS_ALL, flush_ms=100, flush_messages=None)
BY_COUNT = Mode("by count", {}, ACKS_ALL, flush_ms=None, flush_messages=20)
ACKNOWLEDGED = [Acknowledged(10 * number, 10, 1000, at_s=1.0 + number / 10) for number in range(10)]
"""The last of them 0.1 s before the cut."""


def test_nothing_lost_is_within_every_bound() -> None:
    loss = loss_of(ACKNOWLEDGED, 100, cut_at_s=2.0, flush_s=0.0, mode=BY_TIME)
    assert (loss.records, loss.size_bytes, loss.age_ms, loss.is_within_bound) == (0, 0, 0.0, True)


@pytest.mark.parametrize(("end_offset", "is_within"), [(90, True), (89, False)])
def test_what_is_older_than_flush_ms_and_two_flushes_must_not_be_lost(end_offset: int, is_within: bool) -> None:
    loss = loss_of(ACKNOWLEDGED, end_offset, cut_at_s=2.0, flush_s=0.02, mode=BY_TIME)
    assert loss.allowed_age_ms == pytest.approx(140)
    assert loss.is_within_bound is is_within


@pytest.mark.parametrize(("end_offset", "is_within"), [(70, True), (60, False)])
def test_no_more_than_flush_messages_and_what_came_during_two_flushes_may_be_lost(
    end_offset: int, is_within: bool
) -> None:
    loss = loss_of(ACKNOWLEDGED, end_offset, cut_at_s=2.0, flush_s=0.06, mode=BY_COUNT)
    assert loss.allowed_records == 30
    assert loss.records == 100 - end_offset
    assert loss.is_within_bound is is_within


@NEEDS_POWER
def test_a_real_broker_loses_no_more_than_stated(tmp_path: Path) -> None:
    for number, mode in enumerate(MODES):
        cuts = measure(tmp_path / str(number), mode, cuts=1, luck=Random(7 + number))
        assert problems(cuts) == [], describe(mode, cuts)
        assert cuts[0].acknowledged > 100


@NEEDS_POWER
def test_a_broker_that_flushes_later_than_stated_is_found_out(tmp_path: Path) -> None:
    lazy = replace(MODES[0], settings={"write.caching": "true", "flush.ms": "60000"}, flush_ms=1)
    cuts = measure(tmp_path, lazy, cuts=2, luck=Random(5))
    assert problems(cuts)
