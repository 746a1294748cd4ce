"""The parts of compaction: the plan, the map of offsets and the throttle."""

import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.storage.cleaner.offset_map import ENTRY_BYTES, OffsetMap
from warmlog_broker.storage.cleaner.plan import CleanableRange, cleanable_range, group_segments
from warmlog_broker.storage.cleaner.throttle import CleaningAborted, CleaningPace
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET

NOW = 1_000_000


@dataclass(frozen=True)
class Facts:
    base_offset: int
    next_base_offset: int = 0
    size_bytes: int = 100
    largest_timestamp_ms: int = NOW - 1000
    first_ms: int | None = NOW - 2000

    def first_batch_timestamp_ms(self) -> int | None:
        return self.first_ms

    def index_bytes(self, _kind: str) -> int:
        return 10


LOG = [Facts(0), Facts(10), Facts(20), Facts(30)]


def found(
    segments: list[Facts] = LOG, *, known: int = 0, start: int = 0, stable: int = 10**9, **settings: object
) -> CleanableRange:
    return cleanable_range(
        segments,
        known_dirty_offset=known,
        log_start_offset=start,
        stable_offset=stable,
        config=LogConfig(cleanup_policy="compact", **settings),  # type: ignore[arg-type]
        now_ms=NOW,
    )


@pytest.mark.parametrize(
    ("stable", "end"), [(0, 0), (9, 0), (10, 10), (19, 10), (20, 20), (29, 20), (30, 30), (35, 30), (99, 30)]
)
def test_whole_segments_below_what_is_stable_and_never_the_active_one(stable: int, end: int) -> None:
    """CL-22"""
    assert found(stable=stable).first_uncleanable_offset == end


@pytest.mark.parametrize(("lag_ms", "end"), [(0, 30), (500, 30), (1000, 30), (1001, 0)])
def test_what_is_younger_than_the_least_lag_is_left_alone(lag_ms: int, end: int) -> None:
    assert found(min_compaction_lag_ms=lag_ms).first_uncleanable_offset == end


def test_the_first_young_segment_ends_the_range() -> None:
    segments = [Facts(0), Facts(10, largest_timestamp_ms=NOW), Facts(20), Facts(30)]
    assert found(segments, min_compaction_lag_ms=500).first_uncleanable_offset == 10


@pytest.mark.parametrize(
    ("known", "start", "first_dirty", "is_reset"),
    [(0, 0, 0, False), (15, 0, 15, False), (15, 20, 20, True), (30, 0, 30, False), (31, 0, 0, True), (99, 5, 5, True)],
)
def test_an_offset_that_belongs_to_another_time_is_not_believed(
    known: int, start: int, first_dirty: int, is_reset: bool
) -> None:
    """CL-23, KAFKA-9826"""
    result = found(known=known, start=start)
    assert (result.first_dirty_offset, result.was_reset) == (first_dirty, is_reset)


@pytest.mark.parametrize(
    ("known", "clean", "dirty"), [(0, 0, 300), (10, 100, 200), (15, 100, 200), (20, 200, 100), (30, 300, 0)]
)
def test_bytes_are_counted_by_whole_segments(known: int, clean: int, dirty: int) -> None:
    result = found(known=known)
    assert (result.clean_bytes, result.dirty_bytes) == (clean, dirty)
    assert result.dirty_ratio == pytest.approx(dirty / 300)
    assert result.is_due(0.5) == (dirty / 300 > 0.5)


def test_a_ratio_must_be_passed_and_not_only_met() -> None:
    segments = [Facts(0), Facts(10), Facts(20)]
    assert found(segments, known=10).dirty_ratio == 0.5
    assert not found(segments, known=10).is_due(0.5)
    assert found(segments, known=10).is_due(0.49)


def test_what_has_waited_too_long_is_due_and_comes_first() -> None:
    overdue = found(known=20, max_compaction_lag_ms=1999)
    assert overdue.is_overdue
    assert overdue.is_due(1.0)
    assert overdue.urgency > found(known=0).urgency
    assert not found(known=20, max_compaction_lag_ms=2000).is_overdue
    assert not found(known=30, max_compaction_lag_ms=1).is_due(0.0)


def test_an_empty_log_is_not_due() -> None:
    result = found([Facts(0, size_bytes=0)])
    assert (result.first_uncleanable_offset, result.dirty_ratio, result.is_due(0.0)) == (0, 0.0, False)


def chain(sizes: list[int], step: int = 10) -> list[Facts]:
    return [Facts(step * n, step * n + step, size) for n, size in enumerate(sizes)]


def bases(groups: list[list[Facts]]) -> list[list[int]]:
    return [[each.base_offset for each in group] for group in groups]


def test_segments_are_grouped_by_each_limit() -> None:
    """CL-14"""
    six = chain([100] * 6)
    assert bases(group_segments(six, max_bytes=10**9, max_index_bytes=10**9)) == [[0, 10, 20, 30, 40, 50]]
    assert len(group_segments(six, max_bytes=1, max_index_bytes=10**9)) == 6
    assert len(group_segments(six, max_bytes=10**9, max_index_bytes=1)) == 6
    assert bases(group_segments(six, max_bytes=300, max_index_bytes=10**9)) == [[0, 10, 20], [30, 40, 50]]
    assert bases(group_segments(six, max_bytes=10**9, max_index_bytes=30)) == [[0, 10, 20], [30, 40, 50]]


def test_the_index_files_of_a_segment_are_looked_at_once() -> None:
    looked_at: list[int] = []

    class Noted(Facts):
        def index_bytes(self, _kind: str) -> int:
            looked_at.append(self.base_offset)
            return 10

    segments = [Noted(10 * number, 10 * number + 10) for number in range(100)]
    assert len(group_segments(segments, max_bytes=10**9, max_index_bytes=10**9)) == 1
    assert len(looked_at) == 200


@pytest.mark.parametrize(("span", "count"), [(MAX_RELATIVE_OFFSET, 1), (MAX_RELATIVE_OFFSET + 1, 2)])
def test_offsets_in_a_group_are_never_too_far_apart(span: int, count: int) -> None:
    """CL-14, KAFKA-5413"""
    segments = [Facts(0, 10), Facts(10, span + 1)]
    assert len(group_segments(segments, max_bytes=10**9, max_index_bytes=10**9)) == count


def test_an_empty_segment_goes_into_any_group() -> None:
    segments = [Facts(0, 10), Facts(10, 2**40, size_bytes=0)]
    assert len(group_segments(segments, max_bytes=10**9, max_index_bytes=10**9)) == 1


@given(st.lists(st.integers(0, 500), min_size=1, max_size=20), st.integers(1, 1000))
def test_every_segment_is_in_one_group_and_in_order(sizes: list[int], max_bytes: int) -> None:
    segments = chain(sizes)
    groups = group_segments(segments, max_bytes=max_bytes, max_index_bytes=10**9)
    assert [each for group in groups for each in group] == segments
    assert all(sum(each.size_bytes for each in group) <= max_bytes or len(group) == 1 for group in groups)


# The last offset of each key, within a bound on memory


KEYS = st.binary(max_size=3) | st.binary(min_size=30, max_size=34) | st.sampled_from([b"x" * 100, b"x" * 101])


def test_a_full_map_knows_what_it_has_and_how_full_it_is() -> None:
    """OM-03"""
    offsets = OffsetMap(4 * ENTRY_BYTES + 7)
    assert offsets.capacity == 4
    for number in range(4):
        assert offsets.has_room_for(1)
        offsets.put_all([b"%d" % number], [number])
    assert not offsets.has_room_for(1)
    assert (offsets.offsets_of([b"missing", b"3"]), offsets.latest_offset) == ([-1, 3], 3)
    assert len(offsets) == offsets.capacity
    offsets.latest_offset = 40
    assert offsets.latest_offset == 40


def test_an_empty_map_takes_a_first_batch_of_any_size() -> None:
    offsets = OffsetMap(ENTRY_BYTES)
    assert offsets.has_room_for(1000)
    offsets.put_all([b"a", b"b"], [0, 1])
    assert not offsets.has_room_for(1)


@given(st.lists(st.tuples(KEYS, st.integers(1, 3)), max_size=60), st.lists(KEYS, min_size=1, max_size=20))
def test_it_is_a_dictionary(steps: list[tuple[bytes, int]], asked: list[bytes]) -> None:
    offsets, model, offset = OffsetMap(1 << 20), {}, 0
    for key, step in steps:
        offset += step
        offsets.put_all([key], [offset])
        model[key] = offset
    assert offsets.offsets_of(asked) == [model.get(key, -1) for key in asked]
    assert len(offsets) == len(model)


def test_a_key_that_looks_like_anothers_digest_is_another_key() -> None:
    offsets = OffsetMap(1 << 20)
    offsets.put_all([b"long " * 20], [1])
    (digest,) = offsets._offsets
    assert offsets.offsets_of([digest]) == [-1]


def test_the_memory_that_was_given_is_not_passed() -> None:
    memory_bytes = 4_000_000
    offsets = OffsetMap(memory_bytes)
    tracemalloc.start()
    try:
        for number in range(offsets.capacity):
            offsets.put_all([b"a key of 31 bytes %013d" % number], [10**12 + number])
            if number % 64 == 0:
                assert tracemalloc.get_traced_memory()[1] <= memory_bytes
        assert tracemalloc.get_traced_memory()[1] <= memory_bytes
    finally:
        tracemalloc.stop()


def test_no_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="hold no key"):
        OffsetMap(10)


# Work that is held back, by a clock that the test moves


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.sleeps: list[float] = []

    def sleep(self, duration_s: float) -> None:
        self.sleeps.append(duration_s)
        self.now_s += duration_s


def pace_by(clock: Clock, rate: int) -> CleaningPace:
    return CleaningPace(rate, now_s=lambda: clock.now_s, sleep=clock.sleep)


def test_so_many_bytes_take_so_many_seconds() -> None:
    clock = Clock()
    held_back = pace_by(clock, 1000)
    for _ in range(10):
        held_back.after(250)
    assert clock.now_s == pytest.approx(102.5)


def test_time_that_passes_meanwhile_counts_but_is_no_credit() -> None:
    clock = Clock()
    held_back = pace_by(clock, 1000)
    held_back.after(1000)
    clock.now_s += 50.0
    before_s = clock.now_s
    held_back.after(1000)
    assert clock.now_s - before_s == pytest.approx(1.0)


def test_without_a_limit_nobody_sleeps() -> None:
    clock = Clock()
    pace_by(clock, UNLIMITED).after(1 << 40)
    assert clock.sleeps == []


def test_who_is_held_back_can_be_stopped_soon() -> None:
    clock = Clock()
    held_back = pace_by(clock, 1)

    def sleep(duration_s: float) -> None:
        clock.sleep(duration_s)
        held_back.stop()

    held_back._sleep = sleep
    with pytest.raises(CleaningAborted):
        held_back.after(1_000_000)
    assert clock.now_s - 100.0 <= 0.1
