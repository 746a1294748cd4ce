"""Members of a group that copy exactly once, and come and go all the time."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from broker_process import BrokerProcess
from faults.history.transactional.ways import ALL, Ways
from warmlog import Admin, Consumer, Producer
from warmlog.errors import WarmlogError

VALUES = 5000
MEMBERS = 6
PARTITIONS = 6
LONGEST_LIFE_S = 1.5
DEADLINE_S = 300.0


class Whim(Exception):
    """A transaction is aborted."""


async def copy(address: str, transactional_id: str, luck: Random, kinds: Sequence[str]) -> None:
    """Copy as one member for a short time: several reads and commits of offsets a transaction."""
    async with (
        Producer(address, transactional_id=transactional_id, linger_ms=0) as producer,
        Consumer(
            address, topics=["in"], group="g", start="earliest", commit="manual", session_timeout_ms=4000
        ) as consumer,
    ):
        ways = Ways(consumer, luck, kinds)
        async with asyncio.timeout(luck.uniform(0.2, LONGEST_LIFE_S)):
            while True:
                with suppress(Whim):
                    async with producer.transaction() as transaction:
                        for _ in range(luck.randint(2, 6)):
                            for _, value in await ways.read():
                                producer.send("out", value)
                            if luck.random() < 0.4:
                                await transaction.commit_offsets(consumer)
                            if luck.random() < 0.4:
                                await asyncio.sleep(luck.uniform(0, 0.3))
                        await transaction.commit_offsets(consumer)
                        if luck.random() < 0.1:
                            raise Whim
                    continue
                await consumer.seek_to_committed()


async def churn(address: str, number: int, luck: Random, kinds: Sequence[str]) -> None:
    """Copy as one member after another."""
    while True:
        with suppress(TimeoutError, WarmlogError):
            await copy(address, f"id-{number}", luck, kinds)
        await asyncio.sleep(luck.uniform(0, 0.3))


async def feed(address: str, luck: Random) -> None:
    """Produce all values, a few at a time."""
    async with Producer(address) as producer:
        for start in range(0, VALUES, 20):
            values = [b"%d" % number for number in range(start, start + 20)]
            await producer.send_many("in", values, partition=luck.randrange(PARTITIONS))
            await asyncio.sleep(luck.uniform(0, 0.04))


async def all_is_committed(address: str) -> None:
    """Return when the group has committed the end of each partition."""
    async with Admin(address) as admin:
        while True:
            committed = {number: each.offset for (_, number), each in (await admin.committed_offsets("g")).items()}
            if committed == {number: end.offset for number, end in (await admin.list_offsets("in", "latest")).items()}:
                return
            await asyncio.sleep(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("records",), ALL], ids=["records", "all"])
async def test_each_value_is_copied_once_however_it_is_read(tmp_path: Path, kinds: Sequence[str]) -> None:
    luck = Random(1)
    with BrokerProcess(tmp_path / "data", group_heartbeat_interval_ms=300) as broker:
        address = broker.address
        async with Admin(address) as admin:
            await admin.create_topic("in", partitions=PARTITIONS)
            await admin.create_topic("out", partitions=2)
        copying = [asyncio.create_task(churn(address, number, Random(number), kinds)) for number in range(MEMBERS)]
        try:
            async with asyncio.timeout(DEADLINE_S):
                await feed(address, luck)
                await all_is_committed(address)
        finally:
            for task in copying:
                task.cancel()
            await asyncio.wait(copying)
        async with Consumer(address, topics=["out"], isolation="read_committed") as consumer:
            copied = [record.value async for record in consumer.records(until="latest")]
    assert sorted(map(int, filter(None, copied))) == list(range(VALUES))
