"""Replicas on real logs under faults by chance: what is acknowledged is there in the end, on all of them, once."""

import asyncio
import contextlib
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from unit.broker.cluster.room import Room
from warmlog_protocol.errors import ApiError

NODES = (1, 2, 3)


class Writer:
    """Sends numbered values to the leader, and notes which were acknowledged, and where."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.acknowledged: dict[bytes, int] = {}

    async def write(self) -> None:
        number = 0
        while True:
            value = b"value-%d;" % number
            number += 1
            with contextlib.suppress(ApiError, TimeoutError):
                leader = self.room.leader()
                if leader is not None:
                    async with asyncio.timeout(2):
                        self.acknowledged[value] = await self.room.produce(value, at=leader)
            await asyncio.sleep(0.005)


async def kill(room: Room, luck: Random) -> None:
    node = luck.choice(NODES)
    await room.stop(node, keeps_lease=luck.random() < 0.3)
    await asyncio.sleep(luck.choice((0.0, 0.2, 0.5)))
    await room.start(node)


async def cut(room: Room, luck: Random) -> None:
    room.cut |= {frozenset(pair) for pair in luck.sample(list(combinations(NODES, 2)), luck.choice((1, 2)))}
    await asyncio.sleep(luck.choice((0.1, 0.5)))
    room.cut.clear()


async def end_lease(room: Room, luck: Random) -> None:
    node = luck.choice(NODES)
    room.unregister(node)
    await asyncio.sleep(luck.choice((0.0, 0.3)))
    await room.register(node)


async def lose_outcomes(room: Room, luck: Random) -> None:
    room.etcd.lose_outcomes = luck.randint(1, 4)
    await end_lease(room, luck)


async def etcd_away(room: Room, luck: Random) -> None:
    room.etcd.is_away = True
    await cut(room, luck)
    room.etcd.is_away = False


async def hand_over(room: Room, luck: Random) -> None:
    await room.brokers[luck.choice(NODES)].hand_over(0.5)


FAULTS = (kill, cut, end_lease, lose_outcomes, etcd_away, hand_over)


@pytest.mark.parametrize("seed", range(1, 4))
async def test_what_is_acknowledged_is_there_in_the_end(tmp_path: Path, seed: int) -> None:
    luck, room = Random(seed), Room(tmp_path)
    await room.create(*NODES)
    writer = Writer(room)
    writing = asyncio.create_task(writer.write())
    for _ in range(12):
        await asyncio.sleep(luck.uniform(0.02, 0.2))
        await luck.choice(FAULTS)(room, luck)
    await room.led()
    await room.until(lambda: len(room.partitions) == 3)
    before = len(writer.acknowledged)
    await room.until(lambda: len(writer.acknowledged) > before)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await room.agree(*NODES)
    content = room.content(1)
    for value, offset in writer.acknowledged.items():
        assert content.count(value) >= 1, f"{value!r} was acknowledged at {offset}"
    at = sorted(writer.acknowledged.values())
    assert at == sorted(set(at)), "two were acknowledged at one offset"
    await room.close()
