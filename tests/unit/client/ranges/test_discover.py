"""What is asked of a broker for a plan, where it is too much for one request or one answer."""

import socket
from collections.abc import Callable, Iterator

import pytest

from unit.client.ranges.fake_broker import TOPIC_ID, FakeBroker
from warmlog.errors import InvalidRequest, NotLeaderOrFollower
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import OffsetRange
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    BrokerMetadata,
    FindSplitsRequest,
    FindSplitsResponse,
    FoundSplit,
    FoundSplits,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from warmlog_protocol.wire.connection import DEFAULT_MAX_ITEMS, ResponseTooLarge, ServerConnection

PARTITIONS = DEFAULT_MAX_ITEMS + 500
MIB = 1 << 20


class SizedBroker(FakeBroker):
    """Leads every partition of any topic, and cuts ranges of offsets that are bytes, a record each."""

    def __init__(self) -> None:
        super().__init__([])
        self.asked: list[tuple[type[Message], int]] = []
        """Requests about partitions, and about how many."""
        self.targets: list[int] = []
        self.error_code = 0
        """Of each range that it is to cut."""

    def _handle(self, sock: socket.socket, core: ServerConnection, correlation_id: int, message: Message) -> bool:
        if isinstance(message, ListOffsetsRequest | FindSplitsRequest):
            self.asked.append((type(message), len(message.partitions)))
        if not isinstance(message, FindSplitsRequest):
            return super()._handle(sock, core, correlation_id, message)
        self.targets.append(message.target_bytes)
        try:
            answer = core.respond(correlation_id, self._splits(message))
        except ResponseTooLarge as error:
            answer = core.refuse(correlation_id, error)
        sock.sendall(answer)
        return True

    def _splits(self, message: FindSplitsRequest) -> FindSplitsResponse:
        step = message.target_bytes
        found = []
        for wanted in message.partitions:
            ends = [*range(wanted.start_offset + step, wanted.end_offset, step), wanted.end_offset]
            begins = [wanted.start_offset, *ends[:-1]]
            splits = [FoundSplit(end, end - begin) for begin, end in zip(begins, ends, strict=True)]
            found.append(FoundSplits(wanted.topic, wanted.partition, self.error_code, "", splits))
        return FindSplitsResponse(found)

    def _metadata(self, message: MetadataRequest) -> MetadataResponse:
        host, port = self.leader.rsplit(":", 1)
        partitions = [PartitionMetadata(0, number, 1, 0, [1], [1]) for number in range(PARTITIONS)]
        topics = [TopicMetadata(0, name, TOPIC_ID, partitions) for name in message.topics or ()]
        return MetadataResponse("cluster", 1, [BrokerMetadata(1, host, int(port))], topics)


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
