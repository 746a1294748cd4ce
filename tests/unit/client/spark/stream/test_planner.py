"""How far each micro-batch of a stream goes, and what it reads, against a broker that is a list."""

import time
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmlog.errors import BrokerUnavailable, InconsistentTopicId, LogTruncated, OffsetOutOfRange, UnknownTopicId
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import OffsetRange, PartitionOffsets
from warmlog.spark.options.read_options import Admission, parse_stream_options
from warmlog.spark.stream.planner import StreamPlanner
from warmlog_protocol.errors import InvalidConfig
from warmlog_protocol.messages import FoundSplit
from warmlog_transport.responses import TopicPartition

RECORD_BYTES = 100
BATCH_RECORDS = 50


class FakeDiscovery:
    """Partitions of topic t: [earliest, latest), under one topic id; batches of 50 records of 100 bytes."""

    def __init__(self, **partitions: tuple[int, int]) -> None:
        self.logs = {int(name[1:]): bounds for name, bounds in partitions.items()}
        self.topic_id = b"first"
        self.failures = 0
        self.high_watermark: int | None = None
        self.splits_asked: list[OffsetRange] = []
        self.first_batch = 0
        self.offset_of_time = 15
        self.epoch_starts = [0]
        """Where each leader epoch began, in all partitions."""

    def cut(self, partition: int, end: int, latest: int) -> None:
        """An unclean start that lost what lay from `end` on; since then others were written, up to `latest`."""
        self.epoch_starts.append(end)
        self.logs[partition] = (self.logs[partition][0], latest)

    def topics(self, names: Sequence[str], optional: Collection[str]) -> dict[str, Any]:
        return dict.fromkeys(names, SimpleNamespace(partitions=list(self.logs)))

    def states(self, topics: Mapping[str, Any], includes: Any) -> list[PartitionOffsets]:
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailable("gone for a moment")
        return [
            PartitionOffsets(
                "t", number, self.topic_id, "b:1", earliest, latest, self.high_watermark, len(self.epoch_starts) - 1
            )
            for number, (earliest, latest) in self.logs.items()
        ]

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        assert len(self.epoch_starts) - 1 not in epochs.values(), "the one in force needs no question"
        ends = [*self.epoch_starts[1:], -1]
        return {place: ends[min(epoch, len(ends) - 1)] for place, epoch in epochs.items()}

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return dict.fromkeys(times, self.offset_of_time)

    def splits(self, ranges: Sequence[OffsetRange], target_bytes: int, **_: Any) -> list[list[FoundSplit]]:
        self.splits_asked += ranges
        step = max(1, target_bytes // (RECORD_BYTES * BATCH_RECORDS)) * BATCH_RECORDS
        found = []
        for whole in ranges:
            planned = whole._replace(start=max(whole.start, self.first_batch))
            if planned.span <= 0:
                found.append([])
                continue
            borders = [*range(planned.start + step, planned.end, step), planned.end]
            begins = [planned.start, *borders[:-1]]
            found.append(
                [FoundSplit(end, (end - begin) * RECORD_BYTES) for begin, end in zip(begins, borders, strict=True)]
            )
        return found


def planner_of(broker: FakeDiscovery, *, now: list[float] | None = None, **options: str) -> StreamPlanner:
    given = {"bootstrap.servers": "b:1", "subscribe": "t", "fetchOffset.retryIntervalMs": "1", **options}
    times = now or [0.0]
    return StreamPlanner(parse_stream_options(given, 0), lambda: times[0], cast("Discovery", broker))


def offsets(*numbers: int) -> dict[TopicPartition, int]:
    return {("t", partition): offset for partition, offset in enumerate(numbers)}


def read_by(
    planner: StreamPlanner, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[str]:
    return [str(planned) for task in planner.tasks(start, end) for planned in task]


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, (100, 20)),
        ({"startingOffsets": "earliest"}, (10, 0)),
        ({"startingOffsets": "-7"}, (93, 13)),
        ({"startingOffsets": '{"t": {"0": 55, "1": -1}}'}, (55, 20)),
        ({"startingTimestamp": "1000"}, (15, 15)),
    ],
)
def test_a_stream_decides_once_where_it_starts(options: dict[str, str], start: tuple[int, int]) -> None:
    broker = FakeDiscovery(p0=(10, 100), p1=(0, 20))
    planner = planner_of(broker, **options)
    assert planner.initial() == offsets(*start)
    broker.logs[0] = (10, 500)
    assert planner.initial() == offsets(*start)


def test_a_stream_starts_at_the_first_record_of_its_time_also_when_that_came_in_the_middle_of_planning() -> None:
    """The record at 15 was appended after the end was asked for: nothing is lost, and what is older is not read."""
    broker = FakeDiscovery(p0=(0, 10))
    planner = planner_of(broker, startingTimestamp="1000")
    assert planner.initial() == offsets(15)
    broker.logs[0] = (0, 30)
    assert planner.next_end(offsets(15), Admission()) == offsets(15), "the first micro-batch, from the end of the log"
    assert planner.next_end(offsets(15), Admission()) == offsets(30)


def test_an_error_about_points_names_the_option_that_gives_them() -> None:
    broker = FakeDiscovery(p0=(0, 10), p1=(0, 20))
    for option in ("startingOffsetsByTimestamp", "startingOffsets"):
        with pytest.raises(InvalidConfig, match=f"option {option} leaves out t-1"):
            planner_of(broker, **{option: '{"t": {"0": 1}}'}).initial()


def test_a_micro_batch_reads_what_lies_between_its_offsets_also_when_it_is_run_again() -> None:
    broker = FakeDiscovery(p0=(0, 100), p1=(0, 20))
    planner = planner_of(broker)
    end = planner.next_end(offsets(50, 20), Admission())
    assert end == offsets(100, 20)
    assert read_by(planner, offsets(50, 20), end) == ["t-0 offsets 50 to 100"]
    assert read_by(planner, end, end) == []
    assert planner.next_end(end, Admission()) == end
    again = planner_of(FakeDiscovery(p0=(0, 900), p1=(0, 900)))
    assert read_by(again, offsets(50, 20), end) == ["t-0 offsets 50 to 100"]
    assert planner.latest() == offsets(100, 20)


def test_the_first_micro_batch_of_a_stream_from_the_latest_is_empty_and_run_again_it_still_is() -> None:
    broker = FakeDiscovery(p0=(0, 100), p1=(0, 20))
    planner = planner_of(broker)
    start = planner.initial()
    broker.logs[0] = (0, 130)
    first = planner.next_end(start, Admission())
    assert (first, read_by(planner, start, first)) == (offsets(100, 20), [])
    assert planner.next_end(first, Admission()) == offsets(130, 20)

    broker.logs = {0: (0, 900), 1: (0, 10)}
    again = planner_of(broker)
    assert read_by(again, first, first) == [], "what Spark 4.0 and 4.1 ask first"
    assert read_by(again, again.initial(), first) == [], "neither from 0 on nor what has been deleted since"
    broker.logs[1] = (0, 25)
    following = again.next_end(first, Admission())
    assert following == offsets(900, 25)
    assert read_by(again, first, following) == ["t-0 offsets 100 to 900", "t-1 offsets 20 to 25"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, ["t-0 offsets 10 to 100", "t-1 offsets 0 to 12"]),
        ({"startingOffsets": '{"t": {"0": 55, "1": -1}}'}, ["t-0 offsets 55 to 100"]),
        ({"startingTimestamp": "1000"}, ["t-0 offsets 15 to 100"]),
    ],
)
def test_a_first_micro_batch_that_is_repeated_starts_there(options: dict[str, str], expected: list[str]) -> None:
    again = planner_of(FakeDiscovery(p0=(10, 500), p1=(0, 80)), **options)
    assert read_by(again, again.initial(), offsets(100, 12)) == expected


def test_a_partition_that_comes_before_the_first_end_is_read_whole_whether_or_not_that_is_run_again() -> None:
    for options in ({}, {"startingOffsets": "earliest"}, {"startingTimestamp": "1000"}):
        broker = FakeDiscovery(p0=(0, 100))
        planner = planner_of(broker, **options)
        start = planner.initial()
        broker.logs[1] = (0, 50)
        first = planner.next_end(start, Admission())
        assert ("t", 1) not in first
        again = planner_of(broker, **options)
        for each in (planner, again):
            assert not any("t-1" in planned for planned in read_by(each, each.initial(), first))
            following = each.next_end(first, Admission())
            assert "t-1 offsets 0 to 50" in read_by(each, first, following)


def test_a_stream_from_an_offset_behind_the_end_begins_at_the_end_also_when_it_is_run_again() -> None:
    options = {"startingOffsets": '{"t": {"0": 1000}}', "failOnDataLoss": "false"}
    broker = FakeDiscovery(p0=(0, 300))
    planner = planner_of(broker, **options)
    start = planner.initial()
    broker.logs[0] = (0, 400)
    first = planner.next_end(start, Admission())
    assert (start, first, read_by(planner, start, first)) == (offsets(300), offsets(300), [])
    for latest in (500, 5000):
        broker.logs[0] = (0, latest)
        again = planner_of(broker, **options)
        assert read_by(again, again.initial(), first) == []
        assert read_by(again, first, again.next_end(first, Admission())) == [f"t-0 offsets 300 to {latest}"]


def test_a_stream_from_a_time_that_no_record_has_yet_begins_at_the_end_also_when_it_is_run_again() -> None:
    options = {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}
    broker = FakeDiscovery(p0=(0, 10))
    broker.offset_of_time = -1
    planner = planner_of(broker, **options)
    start = planner.initial()
    broker.logs[0] = (0, 30)
    first = planner.next_end(start, Admission())
    assert first == offsets(10)
    broker.offset_of_time = 15
    again = planner_of(broker, **options)
    assert read_by(again, again.initial(), first) == []
    assert read_by(again, first, again.next_end(first, Admission())) == ["t-0 offsets 10 to 30"]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "-7"},
        {"startingTimestamp": "-10m"},
        {"startingOffsetsByTimestamp": '{"t": {"0": 5, "1": "-1h"}}'},
    ],
)
def test_a_first_micro_batch_whose_start_was_counted_back_cannot_be_run_again(options: dict[str, str]) -> None:
    broker = FakeDiscovery(p0=(0, 100), p1=(0, 20))
    planner = planner_of(broker, **options)
    first = planner.next_end(planner.initial(), Admission())
    assert first == offsets(100, 20)
    assert read_by(planner, planner.initial(), first)
    again = planner_of(broker, **options)
    with pytest.raises(
        OffsetOutOfRange, match="was relative to the time when it was planned: start the query with a new checkpoint"
    ):
        again.tasks(again.initial(), first)
    assert read_by(planner_of(broker, **options), first, offsets(100, 20)) == []


def test_a_new_partition_is_read_from_its_first_record() -> None:
    broker = FakeDiscovery(p0=(0, 10))
    planner = planner_of(broker)
    assert planner.next_end(offsets(10), Admission()) == offsets(10)
    broker.logs[1] = (0, 5)
    end = planner.next_end(offsets(10), Admission())
    assert end == offsets(10, 5)
    assert read_by(planner, offsets(10), end) == ["t-1 offsets 0 to 5"]


def test_offsets_are_bounded_and_shared() -> None:
    planner = planner_of(FakeDiscovery(p0=(0, 900), p1=(0, 100)))
    assert planner.next_end(offsets(0, 0), Admission(max_offsets=100)) == offsets(90, 10)


def test_bytes_are_bounded_at_the_borders_of_batches_and_asked_for_no_further_than_needed() -> None:
    broker = FakeDiscovery(p0=(0, 10_000_000), p1=(0, 1_000))
    planner = planner_of(broker)
    end = planner.next_end(offsets(0, 0), Admission(max_bytes=10_000_000))
    taken_bytes = sum(end.values()) * RECORD_BYTES
    assert 5_000_000 < taken_bytes <= 10_100_000
    assert all(offset % BATCH_RECORDS == 0 for offset in end.values())
    assert max(planned.end for planned in broker.splits_asked) < 10_000_000


def test_bytes_are_bounded_also_where_a_compacted_log_has_a_gap_before_its_first_batch() -> None:
    broker = FakeDiscovery(p0=(0, 10_000_000))
    broker.first_batch = 9_000_000
    planner = planner_of(broker)
    end = planner.next_end(offsets(0), Admission(max_bytes=1_000_000))
    assert 9_000_000 < end["t", 0] <= 9_000_000 + 1_000_000 // RECORD_BYTES


def test_a_micro_batch_of_few_large_records_is_several_tasks() -> None:
    planner = planner_of(FakeDiscovery(p0=(0, 5_000)), maxBytesPerPartition="100k")
    assert [task[0].span for task in planner.tasks(offsets(0), offsets(5_000))] == [1_000] * 5


def test_little_is_held_back_until_it_is_enough_or_has_waited_for_long_enough() -> None:
    broker = FakeDiscovery(p0=(0, 5))
    now = [0.0]
    planner = planner_of(broker, now=now)
    admission = Admission(min_offsets=10, max_delay_ms=1_000)
    assert planner.next_end(offsets(0), admission) == offsets(5), "the first never waits"
    broker.logs[0] = (0, 9)
    assert planner.next_end(offsets(5), admission) == offsets(5)
    now[0] = 1_000.0
    assert planner.next_end(offsets(5), admission) == offsets(9)
    broker.logs[0] = (0, 18)
    assert planner.next_end(offsets(9), admission) == offsets(9)
    broker.logs[0] = (0, 19)
    assert planner.next_end(offsets(9), admission) == offsets(19)


def test_with_a_target_nothing_that_comes_later_is_read_and_the_end_is_reached() -> None:
    broker = FakeDiscovery(p0=(0, 100))
    planner = planner_of(broker)
    planner.set_target()
    broker.logs = {0: (0, 500), 1: (0, 7)}
    position = offsets(0)
    ends = []
    while (end := planner.next_end(position, Admission(max_offsets=40, min_offsets=1_000))) != position:
        ends.append(end)
        position = end
    assert ends == [offsets(40), offsets(80), offsets(100)]
    assert planner.next_end(offsets(300), Admission()) == offsets(300), "further than the target already"


def test_a_broker_that_is_gone_for_a_moment_is_asked_again_and_for_longer_by_a_stream_that_has_planned() -> None:
    broker = FakeDiscovery(p0=(0, 10))
    planner = planner_of(broker)
    broker.failures = 4
    with pytest.raises(BrokerUnavailable):
        planner.next_end(offsets(0), Admission())
    broker.failures = 3
    assert planner.next_end(offsets(0), Admission()) == offsets(10)
    broker.failures = 100
    broker.logs[0] = (0, 20)
    assert planner.next_end(offsets(10), Admission()) == offsets(20)


def test_a_stream_whose_broker_stays_away_ends_after_as_long_as_its_tasks_would_try() -> None:
    broker = FakeDiscovery(p0=(0, 10))
    planner = planner_of(broker, **{"fetchOffset.numRetries": "0", "fetch.timeoutMs": "200ms"})
    planner.next_end(offsets(0), Admission())
    broker.failures = 1_000_000
    began_at = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        planner.next_end(offsets(10), Admission())
    assert 0.15 < time.monotonic() - began_at < 10


# --- data loss ------------------------------------------------------------------------------------------------------


def test_records_that_are_gone_are_an_error_or_skipped() -> None:
    broker = FakeDiscovery(p0=(30, 100))
    planner = planner_of(broker)
    with pytest.raises(OffsetOutOfRange, match=r"t-0 offsets 20 to 30: gone: .*set failOnDataLoss to false"):
        planner.tasks(offsets(20), offsets(100))
    lenient = planner_of(broker, failOnDataLoss="false")
    assert read_by(lenient, offsets(20), offsets(100)) == ["t-0 offsets 30 to 100"]
    assert read_by(lenient, offsets(10), offsets(20)) == []


def test_a_new_partition_that_has_lost_records_already_is_an_error() -> None:
    planner = planner_of(FakeDiscovery(p0=(0, 10), p1=(5, 10)))
    with pytest.raises(OffsetOutOfRange, match="t-1 offsets 0 to 5: gone"):
        planner.tasks(offsets(10), offsets(10, 10))


def test_a_partition_that_is_gone_is_an_error_or_left_out() -> None:
    broker = FakeDiscovery(p0=(0, 10))
    with pytest.raises(OffsetOutOfRange, match="t-1 offsets 7 to 7: the partition is gone"):
        planner_of(broker).next_end(offsets(10, 7), Admission())
    lenient = planner_of(broker, failOnDataLoss="false")
    assert lenient.next_end(offsets(10, 7), Admission()) == offsets(10)
    assert read_by(lenient, offsets(10, 7), offsets(10, 9)) == []


def test_a_topic_made_anew_is_an_error_or_read_from_its_first_record() -> None:
    for new_latest in (5, 500):
        broker = FakeDiscovery(p0=(0, 100))
        strict, lenient = planner_of(broker), planner_of(broker, failOnDataLoss="false")
        for planner in (strict, lenient):
            assert planner.next_end(offsets(100), Admission()) == offsets(100)
        broker.logs[0], broker.topic_id = (0, new_latest), b"second"
        with pytest.raises(OffsetOutOfRange, match=r"t-0 .*the topic was recreated, or lost its end"):
            strict.next_end(offsets(100), Admission())
        end = lenient.next_end(offsets(100), Admission())
        assert (end, read_by(lenient, offsets(100), end)) == (offsets(0), [])
        following = lenient.next_end(end, Admission())
        assert following == offsets(new_latest)
        assert read_by(lenient, end, following) == [f"t-0 offsets 0 to {new_latest}"]


def test_a_topic_made_anew_is_read_whole_also_where_few_offsets_are_to_be_waited_for() -> None:
    broker = FakeDiscovery(p0=(0, 50))
    planner = planner_of(broker, failOnDataLoss="false")
    waits = Admission(min_offsets=20, max_delay_ms=1e9)
    assert planner.next_end(offsets(0), waits) == offsets(50)
    broker.logs[0], broker.topic_id = (0, 55), b"second"
    assert planner.next_end(offsets(50), waits) == offsets(0)
    assert planner.next_end(offsets(0), waits) == offsets(55)


def test_a_topic_made_anew_is_noticed_also_where_planning_has_to_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeDiscovery(p0=(0, 100))
    planner = planner_of(broker, failOnDataLoss="false")
    admission = Admission(max_bytes=1 << 30)
    assert planner.next_end(offsets(0), admission) == offsets(100)
    broker.logs[0], broker.topic_id = (0, 500), b"second"
    splits = broker.splits

    def gone_once(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(broker, "splits", splits)
        raise UnknownTopicId("another topic of the stream is gone")

    monkeypatch.setattr(broker, "splits", gone_once)
    assert planner.next_end(offsets(100), admission) == offsets(0)
    assert broker.splits == splits


def test_a_topic_made_anew_before_the_tasks_is_an_error_or_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The micro-batch has offsets of the topic before it: they are not read of the one that has its name now."""
    for options in ({}, {"failOnDataLoss": "false"}):
        broker = FakeDiscovery(p0=(0, 200))
        planner = planner_of(broker, **options)
        end = planner.next_end(offsets(100), Admission())
        broker.logs[0], broker.topic_id = (0, 500), b"second"
        splits = broker.splits

        def gone_once(*_: Any, splits: Any = splits, broker: FakeDiscovery = broker, **__: Any) -> Any:
            monkeypatch.setattr(broker, "splits", splits)
            raise InconsistentTopicId("t has another id")

        monkeypatch.setattr(broker, "splits", gone_once)
        if not options:
            with pytest.raises(
                OffsetOutOfRange, match="t-0 offsets 100 to 200: the partition is gone, or its topic was recreated"
            ):
                planner.tasks(offsets(100), end)
            continue
        assert read_by(planner, offsets(100), end) == []
        following = planner.next_end(end, Admission())
        assert (following, read_by(planner, end, following)) == (offsets(0), [])
        last = planner.next_end(following, Admission())
        assert read_by(planner, following, last) == ["t-0 offsets 0 to 500"]


def test_a_topic_made_anew_is_noticed_after_a_repeated_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeDiscovery(p0=(0, 200))
    planner = planner_of(broker)
    assert read_by(planner, offsets(100), offsets(200)) == ["t-0 offsets 100 to 200"]
    broker.logs[0], broker.topic_id = (0, 500), b"second"
    with pytest.raises(OffsetOutOfRange, match=r"t-0 .* the topic was recreated"):
        planner.next_end(offsets(200), Admission())

    planner = planner_of(broker)

    def made_anew(*_: Any, **__: Any) -> Any:
        broker.topic_id = b"third"
        raise InconsistentTopicId("t has another id")

    monkeypatch.setattr(broker, "splits", made_anew)
    with pytest.raises(OffsetOutOfRange, match=r"t-0 offsets 100 to 200: .* its topic was recreated"):
        planner.tasks(offsets(100), offsets(200))


def test_a_topic_made_anew_before_the_first_end_is_read_from_its_first_record() -> None:
    for options in ({}, {"startingOffsets": '{"t": {"0": 1000}}'}):
        broker = FakeDiscovery(p0=(0, 300))
        planner = planner_of(broker, failOnDataLoss="false", **options)
        start = planner.initial()
        broker.logs[0], broker.topic_id = (0, 20), b"second"
        first = planner.next_end(start, Admission())
        assert (first, read_by(planner, start, first)) == (offsets(0), [])
        broker.logs[0] = (0, 500)
        assert read_by(planner, first, planner.next_end(first, Admission())) == ["t-0 offsets 0 to 500"]


def test_an_end_that_was_asked_for_more_than_once_is_not_taken_for_that_of_another_process() -> None:
    broker = FakeDiscovery(p0=(0, 100))
    planner = planner_of(broker, startingOffsets="-7")
    start = planner.initial()
    first = planner.next_end(start, Admission())
    broker.logs[0] = (0, 120)
    planner.next_end(start, Admission())
    assert read_by(planner, start, first) == ["t-0 offsets 93 to 100"]
    assert read_by(planner, start, first) == ["t-0 offsets 93 to 100"]


def test_a_stream_of_committed_records_waits_where_it_is_when_a_transaction_is_open_before_it() -> None:
    for options in ({}, {"failOnDataLoss": "false"}):
        broker = FakeDiscovery(p0=(0, 30))
        broker.high_watermark = 60
        planner = planner_of(broker, **options)
        assert planner.next_end(offsets(50), Admission()) == offsets(50)
        broker.logs[0] = (0, 60)
        assert planner.next_end(offsets(50), Admission()) == offsets(60)


def test_a_topic_made_anew_while_the_stream_was_down_is_noticed_when_it_is_shorter() -> None:
    broker = FakeDiscovery(p0=(0, 5))
    with pytest.raises(OffsetOutOfRange, match=r"after this stream had read to 100"):
        planner_of(broker).next_end(offsets(100), Admission())
    lenient = planner_of(broker, failOnDataLoss="false")
    end = lenient.next_end(offsets(100), Admission())
    assert read_by(lenient, offsets(100), end) == ["t-0 offsets 0 to 5"]


# --- a log that is cut ----------------------------------------------------------------------------------------------


def test_a_log_that_was_cut_below_the_stream_is_an_error_that_says_where() -> None:
    broker = FakeDiscovery(p0=(0, 20))
    planner = planner_of(broker)
    assert planner.next_end(offsets(5), Admission()) == offsets(20)
    broker.cut(0, 12, 35)
    for _ in range(2):
        with pytest.raises(
            LogTruncated, match=r"t-0: the log was cut at 12 .* read up to 20, .* a new checkpoint"
        ) as raised:
            planner.next_end(offsets(20), Admission())
        assert (raised.value.offset, raised.value.diverging_offset) == (20, 12)


@pytest.mark.parametrize("latest", [12, 15, 20, 35])
@pytest.mark.parametrize("admission", [Admission(), Admission(min_offsets=1000), Admission(max_offsets=3)])
def test_a_lenient_stream_goes_on_at_a_cut(latest: int, admission: Admission, caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeDiscovery(p0=(0, 20), p1=(0, 4))
    planner = planner_of(broker, failOnDataLoss="false")
    assert planner.next_end(offsets(5, 4), Admission()) == offsets(20, 4)
    broker.cut(0, 12, latest)
    for _ in range(2):  # also asked twice it is the same
        back = planner.next_end(offsets(20, 4), admission)
        assert (back, read_by(planner, offsets(20, 4), back)) == (offsets(12, 4), [])
    assert "t-0: the log was cut at 12 after it had been read up to 20" in caplog.text
    assert "t-1" not in caplog.text
    following = planner.next_end(back, Admission())
    assert following == offsets(latest, 4)
    assert read_by(planner, back, following) == ([f"t-0 offsets 12 to {latest}"] if latest > 12 else [])
    if latest == 20:  # the same offsets as before, and this time they are read
        broker.logs[0] = (0, 30)
        assert read_by(planner, following, planner.next_end(following, Admission())) == ["t-0 offsets 20 to 30"]


def test_a_restart_of_the_broker_and_a_cut_above_the_stream_are_no_loss() -> None:
    broker = FakeDiscovery(p0=(0, 100))
    planner = planner_of(broker)
    assert planner.next_end(offsets(0), Admission(max_offsets=40)) == offsets(40)
    broker.cut(0, 100, 100)
    assert planner.next_end(offsets(40), Admission(max_offsets=20)) == offsets(60)
    broker.cut(0, 60, 80)
    assert planner.next_end(offsets(60), Admission()) == offsets(80)
    broker.cut(0, 79, 90)
    with pytest.raises(LogTruncated, match="cut at 79"):
        planner.next_end(offsets(80), Admission())


def test_a_process_that_begins_with_a_checkpoint_notices_the_cuts_that_come_then() -> None:
    """The checkpoint holds offsets alone: of an earlier cut only a log that is too short tells."""
    broker = FakeDiscovery(p0=(0, 20))
    broker.cut(0, 12, 35)
    planner = planner_of(broker)
    assert planner.next_end(offsets(20), Admission()) == offsets(35)
    broker.cut(0, 30, 50)
    with pytest.raises(LogTruncated, match="cut at 30 after it had been read up to 35"):
        planner.next_end(offsets(35), Admission())


def test_tasks_know_the_leader_epoch_that_was_in_force_when_they_were_planned() -> None:
    broker = FakeDiscovery(p0=(0, 20))
    planner = planner_of(broker)
    end = planner.next_end(offsets(5), Admission())
    broker.cut(0, 12, 35)
    assert [planned.leader_epoch for task in planner.tasks(offsets(5), end) for planned in task] == [0]


def test_a_topic_made_anew_has_epochs_of_its_own() -> None:
    broker = FakeDiscovery(p0=(0, 100))
    broker.cut(0, 100, 100)
    planner = planner_of(broker, failOnDataLoss="false")
    assert planner.next_end(offsets(50), Admission()) == offsets(100)
    broker.logs[0], broker.topic_id, broker.epoch_starts = (0, 500), b"second", [0]
    assert planner.next_end(offsets(100), Admission()) == offsets(0)
    assert planner.next_end(offsets(0), Admission()) == offsets(500)


def test_a_broker_that_was_put_back_to_an_older_state_is_an_error_or_read_from_the_offset_on() -> None:
    broker = FakeDiscovery(p0=(0, 20))
    broker.cut(0, 20, 20)
    strict, lenient = planner_of(broker), planner_of(broker, failOnDataLoss="false")
    for planner in (strict, lenient):
        assert planner.next_end(offsets(5), Admission()) == offsets(20)
    broker.epoch_starts, broker.logs[0] = [0], (0, 30)
    with pytest.raises(LogTruncated, match="cut at an unknown offset after it had been read up to 20"):
        strict.next_end(offsets(20), Admission())
    end = lenient.next_end(offsets(20), Admission())
    assert (end, read_by(lenient, offsets(20), end)) == (offsets(30), ["t-0 offsets 20 to 30"])
