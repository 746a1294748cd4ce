"""A close that is cancelled, by a timeout for instance, leaves no connection behind."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import warmlog
from broker_process import BrokerProcess

PATIENCE_S = 10
Client = warmlog.Producer | warmlog.Consumer | warmlog.Admin

CLIENTS: dict[str, Callable[[str, str], Client]] = {
    "producer": lambda address, _: warmlog.Producer(address),
    "consumer": lambda address, topic: warmlog.Consumer(address, topics=[topic]),
    "member": lambda address, topic: warmlog.Consumer(address, topics=[topic], group=topic),
    "admin": lambda address, _: warmlog.Admin(address),
}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_cancelled_close_disconnects_all_the_same(broker: BrokerProcess, topic: str, name: str) -> None:
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(topic)
    before = open_files()
    for turns in range(1, 9):
        client = await CLIENTS[name](broker.address, topic).start()
        closing = asyncio.create_task(client.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        async with asyncio.timeout(PATIENCE_S):
            while open_files() > before:  # noqa: ASYNC110 - what is waited for is in the kernel
                await asyncio.sleep(0.01)
