"""How long a coordinator takes to load its state after a start."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.measurement import Run
from benchmarks.transport import Connection, ConnectionOptions, connect, parse_address
from broker_process import BrokerProcess
from warmlog_protocol.errors import CoordinatorLoadInProgress


async def open_connection(bootstrap: str, exits: AsyncExitStack) -> Connection:
    connection = await connect(parse_address(bootstrap), ConnectionOptions())
    exits.push_async_callback(connection.close)
    return connection


class Load:
    """A data directory that is filled once, and how long a broker takes until it lists what is in it."""

    def __init__(
        self,
        directory: Path,
        fill: Callable[[str], Awaitable[None]],
        listed: Callable[[Connection], Awaitable[int]],
        *,
        expected: int,
        records: int,
    ) -> None:
        """`fill` is given the address of a broker; `listed` must return `expected` after the load of `records`."""
        self._directory = directory
        self._fill = fill
        self._listed = listed
        self._expected = expected
        self._records = records

    async def run(self) -> Run:
        """From the start of the broker's process until everything is listed."""
        if not self._directory.exists():
            with BrokerProcess(self._directory) as broker:
                await self._fill(broker.address)
                broker.terminate()
        began_s = time.perf_counter()
        with BrokerProcess(self._directory) as broker:
            async with AsyncExitStack() as exits:
                count = await self._until_loaded(await open_connection(broker.address, exits))
                took_s = time.perf_counter() - began_s
            broker.terminate()
        assert count == self._expected
        return Run(self._records, took_s, {"load_s": took_s})

    async def _until_loaded(self, connection: Connection) -> int:
        while True:
            try:
                return await self._listed(connection)
            except CoordinatorLoadInProgress:
                await asyncio.sleep(0.02)
