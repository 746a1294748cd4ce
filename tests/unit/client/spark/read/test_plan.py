"""Plans: every offset is read once, whatever is asked for; how often and for how long planning is retried."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warmlog
from warmlog.ranges.offset_range import OffsetRange, Piece, SizedRange
from warmlog.spark.options.read_options import TASK_RECORDS, PlanLimits, Retries
from warmlog.spark.read import planning
from warmlog.spark.read.plan import MERGED_SHARE, Task, plan_tasks
from warmlog.spark.read.planning import retrying

MIB = 1024 * 1024

sizes = st.just(0) | st.integers(1, 10_000) | st.integers(1, 600 * MIB)
spans = st.integers(1, 5) | st.integers(1, 2_000) | st.integers(1, 10**7)


def of_unknown_size(whole: OffsetRange) -> SizedRange:
    return SizedRange(whole, (Piece(whole.end, 0),))


@st.composite
def sized_ranges(draw: st.DrawFn) -> list[SizedRange]:
    """Partitions of all sizes: with borders, of unknown size, empty."""
    found = []
    for partition in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, 10**12))
        pieces, end = [], start
        for span, size_bytes in draw(st.lists(st.tuples(spans, sizes), max_size=12)):
            end += span
            pieces.append(Piece(end, size_bytes))
        whole = OffsetRange("t", partition, start, end)
        is_known = draw(st.booleans())
        found.append(SizedRange(whole, tuple(pieces)) if is_known else of_unknown_size(whole))
    return found


limits = st.builds(
    PlanLimits,
    max_bytes=st.sampled_from([1, 1000, MIB, 256 * MIB]) | st.integers(1, 10**9),
    max_records=st.none() | st.integers(500_000, 10**7),
    min_partitions=st.none() | st.integers(1, 300),
)


def parts_of(tasks: list[Task]) -> list[OffsetRange]:
    return [part for task in tasks for part in task]


@settings(max_examples=50)
@given(sized_ranges(), limits)
def test_every_offset_is_read_once_and_in_order(ranges: list[SizedRange], limits: PlanLimits) -> None:
    parts = parts_of(plan_tasks(ranges, limits))
    assert all(part.span > 0 for part in parts)
    for sized in ranges:
        own = [part for part in parts if part.partition == sized.range.partition]
        assert [(part.start, part.end) for part in own] == list(
            pairwise([part.start for part in own] + [sized.range.end])
        )
        assert not own or own[0].start == sized.range.start
        assert bool(own) == bool(sized.range.span)


@settings(max_examples=50)
@given(sized_ranges(), limits)
def test_the_bounds_that_the_user_sets_are_kept(ranges: list[SizedRange], limits: PlanLimits) -> None:
    tasks = plan_tasks(ranges, limits)
    total = sum(sized.range.span for sized in ranges)
    assert len(tasks) >= min(limits.min_partitions or 0, total)
    assert all(tasks)
    if limits.max_records:
        assert all(sum(part.span for part in task) <= limits.max_records for task in tasks)


@settings(max_examples=50)
@given(sized_ranges(), limits)
def test_the_same_ranges_give_the_same_plan(ranges: list[SizedRange], limits: PlanLimits) -> None:
    assert plan_tasks(ranges, limits) == plan_tasks(list(ranges), limits)


@settings(max_examples=50)
@given(sized_ranges(), st.integers(1, 600 * MIB))
def test_cuts_lie_on_borders_where_there_are_any(ranges: list[SizedRange], max_bytes: int) -> None:
    ranges = [sized for sized in ranges if sized.size_bytes and sized.range.span < TASK_RECORDS]
    borders = {(sized.range.partition, piece.end) for sized in ranges for piece in sized.pieces}
    for part in parts_of(plan_tasks(ranges, PlanLimits(max_bytes=max_bytes))):
        assert (part.partition, part.end) in borders


@settings(max_examples=50)
@given(st.lists(st.integers(MIB // 2, MIB), min_size=1, max_size=2_000), st.integers(8, 300))
def test_tasks_are_cut_near_the_target_when_borders_are_close(piece_sizes: list[int], target_mib: int) -> None:
    pieces = tuple(Piece((i + 1) * 10, size_bytes) for i, size_bytes in enumerate(piece_sizes))
    whole = OffsetRange("t", 0, 0, pieces[-1].end)
    tasks = plan_tasks([SizedRange(whole, pieces)], PlanLimits(max_bytes=target_mib * MIB))
    bytes_of = [sum(piece_sizes[task[0].start // 10 : task[-1].end // 10]) for task in tasks]
    assert max(bytes_of) <= (target_mib + 1) * MIB
    assert len(tasks) == -(-sum(piece_sizes) // (target_mib * MIB))


def test_small_partitions_share_tasks_up_to_a_quarter_of_a_full_one() -> None:
    ranges = [SizedRange(OffsetRange("t", i, 0, 1000), (Piece(1000, 4 * MIB),)) for i in range(100)]
    tasks = plan_tasks(ranges, PlanLimits(max_bytes=256 * MIB))
    assert [len(task) for task in tasks] == [256 // MERGED_SHARE // 4] * 6 + [4]


def test_small_partitions_are_not_merged_below_min_partitions() -> None:
    ranges = [SizedRange(OffsetRange("t", i, 0, 10), (Piece(10, 1000),)) for i in range(100)]
    assert len(plan_tasks(ranges)) == 1
    assert len(plan_tasks(ranges, PlanLimits(min_partitions=7))) == 7


def test_parts_keep_what_the_reader_has_to_know() -> None:
    whole = OffsetRange("t", 5, 0, 10, "b:1", b"id", 3, 4)
    tasks = plan_tasks([of_unknown_size(whole)], PlanLimits(min_partitions=2))
    assert tasks == [(whole._replace(end=5),), (whole._replace(start=5),)]


def test_a_range_of_unknown_size_is_cut_by_records() -> None:
    whole = OffsetRange("t", 0, 0, 5 * TASK_RECORDS)
    assert [task[0].span for task in plan_tasks([of_unknown_size(whole)])] == [TASK_RECORDS] * 5


def test_nothing_to_read_makes_no_task() -> None:
    assert plan_tasks([]) == []
    assert plan_tasks([of_unknown_size(OffsetRange("t", 0, 5, 5))], PlanLimits(min_partitions=3)) == []


class FakeTime:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses_ms: list[int] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses_ms.append(round(pause_s * 1000))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(planning, "time", fake)
    return fake


def failing(error: warmlog.WarmlogError, times: int) -> Callable[[], str]:
    errors: Iterator[warmlog.WarmlogError] = iter([error] * times)

    def question() -> str:
        for each in errors:
            raise each
        return "answer"

    return question


@pytest.mark.parametrize("error", [warmlog.BrokerUnavailable("away"), warmlog.NotLeaderOrFollower("moved")])
def test_what_may_pass_is_asked_again_so_many_times(time: FakeTime, error: warmlog.WarmlogError) -> None:
    assert retrying(failing(error, 3), Retries(3, 200)) == "answer"
    assert len(time.pauses_ms) == 3
    with pytest.raises(type(error)):
        retrying(failing(error, 4), Retries(3, 200))
    assert len(time.pauses_ms) == 6
    assert all(160 <= pause_ms <= 240 for pause_ms in time.pauses_ms)
    with pytest.raises(type(error)):
        retrying(failing(error, 1), Retries(0, 200))


@pytest.mark.parametrize(
    "error",
    [
        warmlog.UnknownTopicOrPartition("none"),
        warmlog.UnknownTopicId("none"),
        warmlog.InconsistentTopicId("another"),
        warmlog.OffsetOutOfRange("lost"),
        ValueError("wrong"),
    ],
)
def test_what_does_not_pass_is_raised_at_once(time: FakeTime, error: warmlog.WarmlogError) -> None:
    with pytest.raises(type(error)):
        retrying(failing(error, 1), Retries(3, 200), patience_s=60)
    assert time.pauses_ms == []


def test_the_longer_of_retries_and_patience_decides(time: FakeTime) -> None:
    away = warmlog.BrokerUnavailable("away")
    assert retrying(failing(away, 8), Retries(3, 200), patience_s=2.1) == "answer"
    with pytest.raises(warmlog.BrokerUnavailable):
        retrying(failing(away, 15), Retries(3, 200), patience_s=2.1)
    time.pauses_ms.clear()
    assert retrying(failing(away, 20), Retries(20, 200), patience_s=2.1) == "answer"
    assert len(time.pauses_ms) == 20


def test_plans_that_failed_at_the_same_time_are_not_retried_at_the_same_time(time: FakeTime) -> None:
    retrying(failing(warmlog.BrokerUnavailable("away"), 30), Retries(30, 1_000))
    assert len(set(time.pauses_ms)) > 10
    assert 800 <= min(time.pauses_ms) < 950
    assert 1_050 < max(time.pauses_ms) <= 1_200
