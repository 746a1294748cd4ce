"""Streams and batches that use a consumer group: where they start, what they commit, and what refuses them."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fake_groups import FakeGroups, member
from unit.client.spark.stream.test_planner import FakeDiscovery, offsets, planner_of, read_by
from unit.client.spark.stream_readers import reader_of
from warmlog.errors import NonEmptyGroup, OffsetOutOfRange, StaleMemberEpoch, UnstableOffsetCommit
from warmlog.points import EARLIEST, LATEST, Point, PointKind
from warmlog.ranges.resolve import ReadBounds
from warmlog.spark.options.read_options import Admission, GroupUse
from warmlog.spark.read.group_offsets import started_where_committed
from warmlog_protocol.errors import ErrorCode

COMMITTED = {"group": "etl", "startingOffsets": "committed"}
COMMITS = {"group": "etl", "commitOffsets": "true", "startingOffsets": "earliest"}


class GroupDiscovery(FakeDiscovery):
    """Topic t, and a coordinator."""

    def __init__(self, **partitions: tuple[int, int]) -> None:
        super().__init__(**partitions)
        self.coordinator = FakeGroups(lambda _: self.topic_id)
        self.call = self.coordinator.call


def committed(broker: GroupDiscovery) -> Sequence[int]:
    return [offset for _, offset in sorted(broker.coordinator.committed("etl").items())]


def test_a_start_is_what_the_group_has_committed_and_the_earliest_elsewhere() -> None:
    broker = GroupDiscovery(p0=(10, 100), p1=(5, 20))
    broker.coordinator.commit("etl", "t", 0, 55)
    broker.coordinator.commit("etl", "t", 1, 17, topic_id=b"an earlier topic of this name")
    bounds = ReadBounds(EARLIEST, LATEST)
    states = broker.states({}, None)
    started = started_where_committed(bounds, GroupUse("etl", is_start=True, commits=False), broker, states)
    assert started == replace(bounds, starting={("t", 0): Point(PointKind.OFFSET, 55), ("t", 1): EARLIEST})
    only_commits = GroupUse("etl", is_start=False, commits=True)
    assert started_where_committed(bounds, only_commits, broker, states) is bounds
    assert planner_of(broker, **COMMITTED).initial() == offsets(55, 5)


def test_a_start_waits_for_the_end_of_a_transaction_that_commits_an_offset() -> None:
    broker = GroupDiscovery(p0=(0, 100))
    broker.coordinator.is_unstable = True
    planner = planner_of(broker, **COMMITTED, **{"fetchOffset.numRetries": "0", "fetch.timeoutMs": "50ms"})
    with pytest.raises(UnstableOffsetCommit):
        planner.initial()


def test_a_first_micro_batch_is_read_again_from_what_is_committed_then() -> None:
    broker = GroupDiscovery(p0=(0, 100))
    broker.coordinator.commit("etl", "t", 0, 55)
    planner = planner_of(broker, **COMMITTED)
    end = planner.next_end(planner.initial(), Admission())
    assert read_by(planner, offsets(55), end) == ["t-0 offsets 55 to 100"]
    again = planner_of(broker, **COMMITTED)
    assert read_by(again, again.initial(), end) == ["t-0 offsets 55 to 100"]
    broker.coordinator.commit("etl", "t", 0, 300)
    broker.logs[0] = (0, 300)
    moved = planner_of(broker, **COMMITTED)
    assert read_by(moved, moved.initial(), end) == [], "not from 0: the group has got further meanwhile"


def test_a_committed_offset_that_retention_has_overtaken_is_data_loss() -> None:
    broker = GroupDiscovery(p0=(60, 100))
    broker.coordinator.commit("etl", "t", 0, 55)
    with pytest.raises(OffsetOutOfRange, match="t-0 offsets 55 to 100: gone before 60"):
        planner_of(broker, **COMMITTED).initial()
    assert planner_of(broker, **COMMITTED, failOnDataLoss="false").initial() == offsets(60)


def test_a_micro_batch_is_committed_when_spark_says_that_it_is_done_and_once() -> None:
    broker = GroupDiscovery(p0=(0, 100), p1=(5, 5))
    reader = reader_of(broker, **COMMITS, maxOffsetsPerTrigger="40")
    start = reader.initialOffset()
    first = reader.latestOffset(start, None)
    assert committed(broker) == [], "nothing is done where the stream starts"
    reader.partitions(start, first)
    reader.commit(first)
    assert committed(broker) == [40, 5], "a partition without new records, too: a reader must not begin before it"
    second = reader.latestOffset(first, None)
    assert len(broker.coordinator.commits) == 1, "the start of a micro-batch is the end of the one before"
    reader.partitions(first, second)
    reader.latestOffset(second, None)
    assert committed(broker) == [80, 5], "Spark has finished with it, as it asks for more"
    assert [each.partition for each in broker.coordinator.commits[1].partitions] == [0]


def test_a_stream_that_starts_again_commits_what_its_checkpoint_has() -> None:
    broker = GroupDiscovery(p0=(0, 100))
    reader = reader_of(broker, **COMMITS)
    assert reader.latestOffset({"t": {"0": 70}}, None) == {"t": {"0": 100}}
    assert committed(broker) == [70]


def test_spark_4_0_says_only_by_a_commit_what_it_has_finished_with() -> None:
    broker = GroupDiscovery(p0=(0, 100))
    reader = reader_of(broker, **COMMITS, maxOffsetsPerTrigger="40")
    reader.initialOffset()
    assert [reader.latestOffset()["t"]["0"] for _ in range(2)] == [40, 80]
    assert committed(broker) == []
    reader.commit({"t": {"0": 40}})
    assert committed(broker) == [40]


def test_without_the_option_nothing_is_committed() -> None:
    broker = GroupDiscovery(p0=(0, 100))
    reader = reader_of(broker, **COMMITTED)
    reader.commit({"t": {"0": 70}})
    reader_of(broker).commit({"t": {"0": 70}})
    assert broker.coordinator.commits == []


def test_a_group_with_members_is_refused_at_once_and_when_they_come_later() -> None:
    broker = GroupDiscovery(p0=(0, 100))
    reader = reader_of(broker, **COMMITS)
    broker.coordinator.members["etl"] = [member("m-1", instance_id="worker-1"), member("m-2")]
    with pytest.raises(NonEmptyGroup, match=r"'etl' has 2 members: worker-1 \(app at 10.0.0.7\), m-2 .*; or leave out"):
        reader.latestOffset(reader.initialOffset(), None)
    broker.coordinator.members["etl"] = []
    reader.latestOffset(reader.initialOffset(), None)
    broker.coordinator.joins_before_commit = member("m-3")
    with pytest.raises(NonEmptyGroup, match=r"group 'etl' has 1 member: m-3 .*; or leave out the option commitOffsets"):
        reader.commit({"t": {"0": 100}})


def test_an_offset_that_is_gone_is_a_warning_and_other_refusals_are_errors(caplog: pytest.LogCaptureFixture) -> None:
    broker = GroupDiscovery(p0=(0, 100), p1=(0, 20))
    reader = reader_of(broker, **COMMITS)
    reader.latestOffset(reader.initialOffset(), None)
    broker.coordinator.refused["t", 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    with caplog.at_level(logging.WARNING, "warmlog.spark"):
        reader.commit({"t": {"0": 100, "1": 20}})
    assert caplog.messages == ["t-0 was not committed for group 'etl': as ordered"]
    assert committed(broker) == [20]
    broker.coordinator.refused["t", 1] = ErrorCode.STALE_MEMBER_EPOCH
    with pytest.raises(StaleMemberEpoch):
        reader.commit({"t": {"0": 100, "1": 21}})
