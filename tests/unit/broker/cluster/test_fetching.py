"""What a follower sends to its leaders."""

import asyncio
from typing import Any, cast

from unit.broker.cluster.room import Room
from waiting import until
from warmlog_broker.cluster.data_path.driver import Driver
from warmlog_broker.cluster.data_path.fetching import Refill
from warmlog_broker.cluster.data_path.serving import PARTITION_BYTES
from warmlog_broker.replication import events as ev


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
    refill = Refill(lambda: 50 * PARTITION_BYTES)
    for number, driver in enumerate(drivers):
        refill.send(cast("Any", leader), driver, fetch(number))
    refill.send(cast("Any", leader), drivers[5], fetch(7))
    await until(lambda: len(leader.fetches) == 6)
    assert leader.fetches == [*zip(drivers[:5], range(5), strict=True), (drivers[5], 7)], "the last one was replaced"
    assert leader.times_s[-1] - leader.times_s[0] > 4.5 / 50


async def test_an_answer_that_brings_little_lets_the_next_fetch_go_at_once() -> None:
    leader, refill = Sent(), Refill(lambda: PARTITION_BYTES // 1000)
    for number in (1, 2):
        refill.send(cast("Any", leader), cast("Driver", object()), fetch(number))
    assert len(leader.fetches) == 1
    refill.brought(0)
    assert len(leader.fetches) == 2


async def test_a_follower_says_how_much_it_lacks(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    await room.agree(1, 2, 3)
    follower = room.driver(3)
    assert follower.is_in_sync
    assert follower.missing_records == 0
    follower.replica.leader_high_watermark = 4
    assert follower.missing_records == 3
