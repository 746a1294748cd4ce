"""What is asked of a broker for a plan, if it is too much for one request, and if the leader is lost."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from unit.client.ranges.scripted_broker import TOPIC_ID, ScriptedBroker, hang_up, log_of
from unit.client.ranges.test_range_reader import read_offsets
from warmlog.errors import InvalidRequest, NotLeaderOrFollower
from warmlog.ranges import range_reader
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import OffsetRange
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.wire.connection import DEFAULT_MAX_ITEMS
from warmlog_transport import retries
from warmlog_transport.options import ConnectionOptions

PARTITIONS = DEFAULT_MAX_ITEMS + 500
MIB = 1 << 20


class SizedBroker(ScriptedBroker):
    """Leads every partition of t, and cuts ranges of offsets that are bytes, a record each."""

    def __init__(self) -> None:
        super().__init__([])
        self.topics["t"] = [self.log] * PARTITIONS
        self.further_handlers[m.FindSplitsRequest] = self._splits
        self.asked: list[tuple[type[m.Message], int]] = []
        """Requests about partitions, and about how many."""
        self.targets: list[int] = []
        self.error_code = 0
        """Of each range that it is to cut."""

    def _list_offsets(self, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        self.asked.append((m.ListOffsetsRequest, len(request.partitions)))
        return super()._list_offsets(request)

    def _splits(self, request: m.FindSplitsRequest) -> m.FindSplitsResponse:
        self.asked.append((m.FindSplitsRequest, len(request.partitions)))
        self.targets.append(request.target_bytes)
        step = request.target_bytes
        found = []
        for wanted in request.partitions:
            ends = [*range(wanted.start_offset + step, wanted.end_offset, step), wanted.end_offset]
            begins = [wanted.start_offset, *ends[:-1]]
            splits = [m.FoundSplit(end, end - begin) for begin, end in zip(begins, ends, strict=True)]
            found.append(m.FoundSplits(wanted.topic, wanted.partition, self.error_code, "", splits))
        return m.FindSplitsResponse(found)


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
    assert splits == [[m.FoundSplit(5, 5)]] * PARTITIONS
    for api, times in ((m.ListOffsetsRequest, 2), (m.FindSplitsRequest, 1)):
        counts = [count for asked, count in broker.asked if asked is api]
        assert sum(counts) == times * PARTITIONS
        assert max(counts) <= 2_000


def test_more_splits_than_one_answer_has_room_for_are_asked_in_halves_and_less_finely(broker: SizedBroker) -> None:
    """As of 900 GB, where the user wants many tasks and pieces are of 1 MiB."""
    ranges = ranges_of(broker, 14, 64 * 1024 * MIB)
    with Discovery([broker.address]) as discovery:
        discovery.topics(["t"])
        splits = discovery.splits(ranges, MIB)
    assert broker.asked == [(m.FindSplitsRequest, 14), (m.FindSplitsRequest, 7), (m.FindSplitsRequest, 7)]
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
        lambda discovery: discovery.offsets({("t", 0): m.EARLIEST_TIMESTAMP}),
        lambda discovery: discovery.splits([OffsetRange("t", 0, 0, 5, "", TOPIC_ID)], 10),
    ],
    ids=["offsets", "splits"],
)
def test_a_leader_that_is_away_is_looked_up_again(broker: SizedBroker, ask: Callable[[Discovery], object]) -> None:
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
        assert discovery.splits(ranges, 10) == [[m.FoundSplit(5, 5)]]
        assert other.asked == [(m.FindSplitsRequest, 1)]


async def test_a_table_is_read_from_the_new_leader_after_one_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    read_all = range_reader.read_all
    async with FakeBroker(t=1) as leader, FakeBroker(t=1) as other:
        for broker in (leader, other):
            broker.add_batch("t", 0, encode_batch([b"a", b"b"], timestamps_ms=0))

        async def read_without_leader(*arguments: Any) -> list[Any]:
            await leader.stop()
            return await read_all(*arguments)

        monkeypatch.setattr(range_reader, "read_all", read_without_leader)
        addresses = [leader.address, other.address]
        async with warmlog.Consumer(addresses, topics=["t"], unavailable_timeout_ms=2_000) as consumer:
            table = await consumer.to_arrow(columns=["value"])
        await leader.start()
    assert table["value"].to_pylist() == [b"a", b"b"]


def test_readers_that_lose_a_broker_together_do_not_come_back_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []
    pause_s = retries.pause_s

    def noted(failures: int, options: ConnectionOptions) -> float:
        pauses_s.append(pause_s(failures, options))
        return pauses_s[-1]

    monkeypatch.setattr(retries, "pause_s", noted)
    for _ in range(20):
        with ScriptedBroker(log_of(20), [hang_up]) as broker:
            assert read_offsets(broker, (0, 20)) == list(range(20))
    assert len(pauses_s) == 20
    assert len(set(pauses_s)) > 10
