"""What a follower sends to its leaders."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from unit.broker.cluster.room import Room
from waiting import until
from warmlog_broker.cluster.data_path.answers import Reply
from warmlog_broker.cluster.data_path.driver import Driver
from warmlog_broker.cluster.data_path.fetching import MUCH_BYTES, Fetching, Refill
from warmlog_broker.cluster.data_path.serving import RESPONSE_BYTES, answer_message
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.replication import events as ev
from warmlog_protocol import messages as m
from warmlog_protocol.wire.connection import ReceivedResponse


class Sent:
    """In place of a leader: what it was sent, and when."""

    def __init__(self) -> None:
        self.fetches: list[tuple[Driver, int]] = []
        self.times_s: list[float] = []

    def send(self, driver: Driver, fetch: ev.Fetch) -> None:
        self.fetches.append((driver, fetch.number))
        self.times_s.append(asyncio.get_running_loop().time())


def fetch(number: int) -> ev.Fetch:
    return ev.Fetch(1, 10, 4, number, 0, -1, 0, 0, ev.NEVER)


async def test_fetches_of_replicas_that_are_not_in_sync_go_in_turn_and_bring_no_more_than_the_bound() -> None:
    leader, drivers = Sent(), [cast("Driver", object()) for _ in range(6)]
    refill = Refill(lambda: 50 * RESPONSE_BYTES)
    for number, driver in enumerate(drivers):
        refill.send(cast("Any", leader), driver, fetch(number))
    refill.send(cast("Any", leader), drivers[5], fetch(7))
    await until(lambda: len(leader.fetches) == 6)
    assert leader.fetches == [*zip(drivers[:5], range(5), strict=True), (drivers[5], 7)], "the last one was replaced"
    assert leader.times_s[-1] - leader.times_s[0] > 4.5 / 50


async def test_an_answer_that_brings_little_lets_the_next_fetch_go_at_once() -> None:
    leader, refill = Sent(), Refill(lambda: RESPONSE_BYTES // 1000)
    for number in (1, 2):
        refill.send(cast("Any", leader), cast("Driver", object()), fetch(number))
    assert len(leader.fetches) == 1
    refill.brought(0)
    assert len(leader.fetches) == 2


class Follower:
    """In place of a driver: a replica that is filled."""

    is_in_sync = False

    def __init__(self, number: int) -> None:
        self.key = PartitionKey(bytes(16), number)
        self.replica = SimpleNamespace(fetch=fetch(number))
        self.taken_bytes: list[int] = []
        self.unanswered_count = 0

    def unanswered(self, _fetch: ev.Fetch) -> None:
        self.unanswered_count += 1

    def answered(self, _answer: ev.Answer, batches: memoryview, _flush_below: int) -> None:
        self.taken_bytes.append(len(batches))


async def test_while_much_is_taken_in_the_response_to_the_other_fetches_is_asked_for() -> None:
    requests: list[tuple[m.ReplicaFetchRequest, Any]] = []

    def request(message: m.ReplicaFetchRequest, _payload: object, on_response: Any, **_: object) -> None:
        requests.append((message, on_response))

    peers = SimpleNamespace(connection=lambda *_, **__: SimpleNamespace(request=request))
    fetching, followers = Fetching(cast("Any", peers), lambda: 0), [Follower(number) for number in (0, 1)]
    for each in followers:
        fetching.send(2, cast("Any", each), each.replica.fetch)
    await until(lambda: len(requests) == 1)
    asked, on_response = requests[0]
    assert [each.partition for each in asked.fetches] == [0, 1]
    size_bytes = MUCH_BYTES + 1
    answer = answer_message(followers[0].key, Reply(ev.Answer(0, 4, 0, ev.Verdict.AGREES)))
    message = m.ReplicaFetchResponse([replace(answer, size_bytes=size_bytes)], 1)
    on_response(ReceivedResponse(1, message, memoryview(bytes(size_bytes)), True))
    assert len(requests) == 2, "it is sent before the batches are appended"
    assert followers[0].taken_bytes == []
    await until(lambda: followers[0].taken_bytes == [size_bytes])
    assert len(requests) == 2


async def test_what_a_broker_that_is_away_does_not_answer_takes_nothing_of_the_bound() -> None:
    """Replicas of partitions without a leader ask again and again: others are filled meanwhile."""
    requests: list[m.ReplicaFetchRequest] = []
    told: list[Callable[[bool], None]] = []

    def connection(node: int, *, on_change: Callable[[bool], None]) -> Any:
        if node == 3:
            return SimpleNamespace(request=lambda message, *_, **__: requests.append(message))
        told.append(on_change)
        return None

    fetching = Fetching(cast("Any", SimpleNamespace(connection=connection)), lambda: RESPONSE_BYTES // 1000)
    without_leader, other = Follower(0), Follower(1)
    fetching.send(2, cast("Any", without_leader), without_leader.replica.fetch)
    fetching.send(3, cast("Any", other), other.replica.fetch)
    await until(lambda: len(told) == 1)
    assert (requests, without_leader.unanswered_count) == ([], 0)
    told[0](False)
    await until(lambda: len(requests) == 1)
    assert without_leader.unanswered_count == 1


async def test_a_follower_says_how_much_it_lacks(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    await room.agree(1, 2, 3)
    follower = room.driver(3)
    assert follower.is_in_sync
    assert follower.missing_records == 0
    follower.replica.leader_high_watermark = 4
    assert follower.missing_records == 3
