"""Which segments may go, and when files are unlinked."""

from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.log.retention import deletable_segments
from warmlog_broker.storage.segment.segment_files import DelayedDeletions, run_deletions

KEEP = replace(LogConfig(), retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
NOW = 10_000


@dataclass(frozen=True)
class Facts:
    base_offset: int
    size_bytes: int = 100
    largest_timestamp_ms: int = NOW
    modified_ms: int = NOW


def goes(
    segments: list[Facts], config: LogConfig = KEEP, *, start: int = 0, end: int | None = None, hw: int | None = None
) -> list[tuple[int, str]]:
    log_end = segments[-1].base_offset + 5 if end is None else end
    deletable = deletable_segments(
        segments,
        log_start_offset=start,
        log_end_offset=log_end,
        high_watermark=log_end if hw is None else hw,
        config=config,
        now_ms=NOW,
    )
    return [(segment.base_offset, reason) for segment, _, reason in deletable]


THREE = [Facts(0), Facts(5), Facts(10)]


@pytest.mark.parametrize(("start", "gone"), [(0, []), (1, []), (4, []), (5, [0]), (6, [0]), (10, [0, 5]), (15, [0, 5])])
def test_segments_below_the_log_start_go(start: int, gone: list[int]) -> None:
    assert goes(THREE, start=start) == [(base, "log start") for base in gone]


@pytest.mark.parametrize(
    ("limit", "gone"), [(300, []), (299, []), (201, []), (200, [0]), (150, [0]), (100, [0, 5]), (0, [0, 5, 10])]
)
def test_segments_go_while_the_rest_still_holds_enough(limit: int, gone: list[int]) -> None:
    config = replace(KEEP, retention_bytes=limit)
    assert goes(THREE, config) == [(base, "retention.bytes") for base in gone]


def test_segments_go_when_their_newest_record_is_older_than_the_limit() -> None:
    config = replace(KEEP, retention_ms=900)
    segments = [Facts(0, largest_timestamp_ms=NOW - 901), Facts(5, largest_timestamp_ms=NOW - 900), Facts(10)]
    assert goes(segments, config) == [(0, "retention.ms")]


def test_an_active_segment_with_data_may_go_and_an_empty_one_never() -> None:
    config = replace(KEEP, retention_ms=0)
    old = [Facts(base, largest_timestamp_ms=0) for base in (0, 5, 10)]
    assert [base for base, _ in goes(old, config)] == [0, 5, 10]
    empty = [*old[:2], Facts(10, size_bytes=0, largest_timestamp_ms=0)]
    assert [base for base, _ in goes(empty, config, end=10)] == [0, 5]
    assert goes([Facts(0, size_bytes=0, largest_timestamp_ms=0)], config, end=0) == []


@pytest.mark.parametrize(
    ("hw", "gone"), [(0, []), (4, []), (5, [0]), (9, [0]), (10, [0, 5]), (14, [0, 5]), (15, [0, 5, 10])]
)
def test_nothing_goes_above_the_high_watermark(hw: int, gone: list[int]) -> None:
    old = [Facts(base, largest_timestamp_ms=0) for base in (0, 5, 10)]
    assert [base for base, _ in goes(old, replace(KEEP, retention_ms=0), hw=hw)] == gone


def test_each_reason_goes_on_where_the_one_before_stopped() -> None:
    segments = [Facts(base, largest_timestamp_ms=ts) for base, ts in ((0, NOW), (5, NOW), (10, 0), (15, NOW))]
    config = replace(KEEP, retention_bytes=250, retention_ms=900)
    assert goes(segments, config, start=6) == [(0, "log start")]  # 5 is young, and the rest too small
    assert goes(segments, config, start=10) == [(0, "log start"), (5, "log start"), (10, "retention.ms")]


FUTURE = NOW + 10**9


@pytest.mark.parametrize(
    ("written_ms", "later_written_ms", "gone"),
    [
        (NOW - 901, NOW, [0, 5]),
        (NOW - 900, NOW, []),
        (FUTURE, NOW - 901, [0, 5]),
        (FUTURE, NOW - 900, []),
        (FUTURE, FUTURE, []),
    ],
    ids=["written long ago", "written lately", "wrong clock, long ago", "wrong clock, lately", "wrong clock until now"],
)
def test_a_record_in_the_future_is_as_old_as_the_writing_of_its_file(
    written_ms: int, later_written_ms: int, gone: list[int]
) -> None:
    """KAFKA-14991: the time of a record ahead of the clock does not keep its segment, and what follows, for ever."""
    segments = [
        Facts(0, largest_timestamp_ms=FUTURE, modified_ms=written_ms),
        Facts(5, largest_timestamp_ms=0, modified_ms=later_written_ms),
        Facts(10, largest_timestamp_ms=FUTURE, modified_ms=FUTURE),
    ]
    assert [base for base, _ in goes(segments, replace(KEEP, retention_ms=900))] == gone


def test_files_that_look_old_do_not_make_records_older() -> None:
    """A restore from a backup may leave any time at the files."""
    segments = [Facts(0, largest_timestamp_ms=NOW - 5, modified_ms=0), Facts(5, modified_ms=0)]
    assert goes(segments, replace(KEEP, retention_ms=900)) == []


@pytest.mark.parametrize(("policy", "gone"), [("compact", [0]), ("compact,delete", [0, 5]), ("delete", [0, 5])])
def test_a_compacted_log_gives_up_what_lies_below_its_start_and_nothing_by_time(policy: str, gone: list[int]) -> None:
    """RT-04, KAFKA-7400"""
    segments = [Facts(base, largest_timestamp_ms=0) for base in (0, 5)] + [Facts(10)]
    config = replace(KEEP, retention_ms=900, cleanup_policy=policy)
    assert [base for base, _ in goes(segments, config, start=5)] == gone


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 300), st.integers(0, NOW + 500)), min_size=1, max_size=8),
    st.integers(-1, 1000),
    st.integers(-1, NOW),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_what_goes_is_always_a_beginning_below_the_high_watermark(
    shapes: list[tuple[int, int, int]], retention_bytes: int, retention_ms: int, start: int, hw: int
) -> None:
    segments, base = [], 0
    for count, size_bytes, timestamp_ms in shapes:
        segments.append(Facts(base, size_bytes, timestamp_ms))
        base += count
    config = replace(KEEP, retention_bytes=retention_bytes, retention_ms=retention_ms)
    gone = goes(segments, config, start=min(start, base), end=base, hw=min(hw, base))
    assert [offset for offset, _ in gone] == [segment.base_offset for segment in segments[: len(gone)]]
    ends = [segment.base_offset for segment in segments[1:]] + [base]
    assert all(end <= hw for end in ends[: len(gone)])
    left = segments[len(gone) :]
    if retention_bytes >= 0 and gone and gone[-1][1] == "retention.bytes":
        assert sum(segment.size_bytes for segment in left) >= retention_bytes


def test_a_deletion_that_fails_is_not_tried_again_and_the_others_go_on() -> None:
    def fails() -> None:
        raise OSError("the disk is gone")

    deletions = DelayedDeletions()
    done: list[int] = []
    deletions.add(fails)
    deletions.add(lambda: done.append(1))
    with pytest.raises(OSError, match="the disk is gone"):
        run_deletions(deletions.take_due(5, 0))
    assert done == [1]
    assert deletions.take_due(5, 0) == []


@given(steps=st.lists(st.none() | st.tuples(st.integers(0, 50), st.integers(0, 100)), max_size=40))
def test_nothing_waits_less_than_the_delay_and_all_in_order(steps: list[tuple[int, int] | None]) -> None:
    """A step adds a deletion, or lets time pass and looks with a delay."""
    deletions = DelayedDeletions()
    looked_ms: list[int | None] = []  # when each was first looked at
    done: list[int] = []
    now_ms = 0
    for step in steps:
        if step is None:
            deletions.add(partial(done.append, len(looked_ms)))
            looked_ms.append(None)
            continue
        passed_ms, delay_ms = step
        now_ms += passed_ms
        looked_ms = [now_ms if each is None else each for each in looked_ms]
        due = sum(each + delay_ms <= now_ms for each in looked_ms)
        expected = max(len(done), due)
        run_deletions(deletions.take_due(now_ms, delay_ms))
        assert done == list(range(expected))
    assert len(deletions) == len(looked_ms) - len(done)
