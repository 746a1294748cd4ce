"""What is asked of a broker for a plan, where it is too much for one request or one answer."""

from collections.abc import Callable, Iterator

import pytest

from unit.client.ranges.scripted_broker import TOPIC_ID, ScriptedBroker
from warmlog.errors import InvalidRequest, NotLeaderOrFollower
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import OffsetRange
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    FindSplitsRequest,
    FindSplitsResponse,
    FoundSplit,
    FoundSplits,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Message,
)
from warmlog_protocol.wire.connection import DEFAULT_MAX_ITEMS

PARTITIONS = DEFAULT_MAX_ITEMS + 500
MIB = 1 << 20


class SizedBroker(ScriptedBroker):
    """Leads every partition of t, and cuts ranges of offsets that are bytes, a record each."""

    def __init__(self) -> None:
        super().__init__([])
        self.topics["t"] = [self.log] * PARTITIONS
        self.further_handlers[FindSplitsRequest] = self._splits
        self.asked: list[tuple[type[Message], int]] = []
        """Requests about partitions, and about how many."""
        self.targets: list[int] = []
        self.error_code = 0
        """Of each range that it is to cut."""

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        self.asked.append((ListOffsetsRequest, len(request.partitions)))
        return super()._list_offsets(request)

    def _splits(self, request: FindSplitsRequest) -> FindSplitsResponse:
        self.asked.append((FindSplitsRequest, len(request.partitions)))
        self.targets.append(request.target_bytes)
        step = request.target_bytes
        found = []
        for wanted in request.partitions:
            ends = [*range(wanted.start_offset + step, wanted.end_offset, step), wanted.end_offset]
            begins = [wanted.start_offset, *ends[:-1]]
            splits = [FoundSplit(end, end - begin) for begin, end in zip(begins, ends, strict=True)]
            found.append(FoundSplits(wanted.topic, wanted.partition, self.error_code, "", splits))
        return FindSplitsResponse(found)


@pytest.fixture
def broker() -> Iterator[SizedBroker]:
    with SizedBroker() as running:
        yield running


def ranges_of(broker: SizedBroker, count: int, size_bytes: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 0, size_bytes, broker.address, TOPIC_ID) for number in range(count)]


def test_more_partitions_than_one_request_may_name_are_asked_in_several(broker: SizedBroker) -> None:
    with Discovery([broker.address]) as discovery:
        states = discovery.states(discovery.topics(["t"]))
        ranges = ranges_of(broker, PARTITIONS, 5)
        splits = discovery.splits(ranges, 10)
    assert [state.partition for state in states] == list(range(PARTITIONS))
    assert splits == [[FoundSplit(5, 5)]] * PARTITIONS
    for api, times in ((ListOffsetsRequest, 2), (FindSplitsRequest, 1)):
        counts = [count for asked, count in broker.asked if asked is api]
        assert sum(counts) == times * PARTITIONS
        assert max(counts) <= 2_000


def test_more_splits_than_one_answer_has_room_for_are_asked_in_halves_and_less_finely(broker: SizedBroker) -> None:
    """As of 900 GB, where the user wants many tasks and pieces are of 1 MiB."""
    ranges = ranges_of(broker, 14, 64 * 1024 * MIB)
    with Discovery([broker.address]) as discovery:
        discovery.topics(["t"])
        splits = discovery.splits(ranges, MIB)
    assert broker.asked == [(FindSplitsRequest, 14), (FindSplitsRequest, 7), (FindSplitsRequest, 7)]
    assert broker.targets == [MIB, 2 * MIB, 2 * MIB]
    for planned, found in zip(ranges, splits, strict=True):
        assert sum(split.size_bytes for split in found) == planned.span
        assert found[-1].end_offset == planned.end


def test_a_range_that_cannot_be_cut_alone_is_the_brokers_error(broker: SizedBroker) -> None:
    with Discovery([broker.address]) as discovery:
        discovery.topics(["t"])
        with pytest.raises(InvalidRequest, match="the response would have a header of"):
            discovery.splits(ranges_of(broker, 1, 1024 * 1024 * MIB), MIB)


@pytest.mark.parametrize(
    "ask",
    [
        lambda discovery: discovery.offsets({("t", 0): EARLIEST_TIMESTAMP}),
        lambda discovery: discovery.splits([OffsetRange("t", 0, 0, 5, "", TOPIC_ID)], 10),
    ],
    ids=["offsets", "splits"],
)
def test_a_leader_that_cannot_be_reached_any_more_is_looked_up_again(
    broker: SizedBroker, ask: Callable[[Discovery], object]
) -> None:
    with Discovery([broker.address]) as discovery:
        broker.leader = "127.0.0.1:1"
        discovery.topics(["t"])
        broker.leader = broker.address
        ask(discovery)
    assert [count for _, count in broker.asked] == [1]


def test_a_broker_that_does_not_lead_any_more_is_not_asked_again(broker: SizedBroker) -> None:
    with SizedBroker() as other, Discovery([broker.address]) as discovery:
        discovery.topics(["t"])
        broker.leader, broker.error_code = other.address, NotLeaderOrFollower.code
        ranges = ranges_of(broker, 1, 5)
        assert discovery.splits(ranges, 10) == [[FoundSplit(5, 5)]]
        assert other.asked == [(FindSplitsRequest, 1)]
