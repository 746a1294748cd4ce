"""The system under test: a broker process, the disk below it, and the network before it."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Self

from broker_process import BrokerProcess, port_to_keep
from faults.history.members import Members
from faults.history.transactional.jobs import Jobs
from faults.power.powered import PoweredDisk

COPY_BYTES = 65_536


class Proxy:
    """Passes connections on to the broker, until they are cut. Clients dial this address only."""

    def __init__(self, host: str, port: int) -> None:
        self.port = port_to_keep()
        self.lost_answers = 0
        self.delay_s = 0.0
        """So much later everything arrives, both ways."""
        self._losing: asyncio.Event | None = None
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def cut(self) -> int:
        """Resets every connection, in the middle of whatever it carries; returns how many there were."""
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        return len(links)

    async def lose_answer(self) -> None:
        """Resets the next connection on which the broker answers, and the answer is never seen. Waits for that."""
        self._losing = lost = asyncio.Event()
        await lost.wait()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.ensure_future(self._carry(reader, writer))
        self._links.add(link)
        link.add_done_callback(lambda link: self._ended(link, writer))

    def _ended(self, link: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        """Also for one that was cut before it had begun."""
        self._links.discard(link)
        writer.transport.abort()
        if not link.cancelled() and not isinstance(link.exception(), OSError | None):
            link.result()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection(*self._target)
        directions = [
            asyncio.ensure_future(self._copy(reader, broker_writer)),
            asyncio.ensure_future(self._copy_answers(broker_reader, writer)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            broker_writer.transport.abort()  # before anything that a second cut could interrupt
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _copy_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As `_copy`, until an answer is to be lost; the first one, to the handshake, is not taken."""
        is_first = True
        while data := await reader.read(COPY_BYTES):
            if self._losing is not None and not is_first:
                self._losing.set()
                self._losing = None
                self.lost_answers += 1
                return
            is_first = False
            await self._pass_on(data, writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(COPY_BYTES):
            await self._pass_on(data, writer)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        writer.write(data)
        await writer.drain()


class Target:
    """Broker, disk and proxies: one for producers, one for clients of Kafka, one for all others.

    The broker has two data directories.

    Without `has_power_disk` they are ordinary ones.
    """

    def __init__(self, workspace: Path, luck: Random, *, has_power_disk: bool, **settings: object) -> None:
        self.disk = PoweredDisk(workspace / "power") if has_power_disk else None
        place = self.disk.path if self.disk is not None else workspace
        self.data_dirs = [place / "data", place / "more-data"]
        if has_power_disk:
            settings.setdefault("flush_syncfs_files", 1_000_000)  # FUSE does not pass syncfs on
        kafka_port = port_to_keep()
        self.kafka_proxy = Proxy("127.0.0.1", kafka_port)
        settings["kafka_listen"] = f"127.0.0.1:{kafka_port}"
        settings["advertised_listeners"] = f"kafka={self.kafka_proxy.address}"
        self.broker = BrokerProcess(*self.data_dirs, **settings)
        self.proxy = Proxy(self.broker.host, self.broker.port)
        self.producers_proxy = Proxy(self.broker.host, self.broker.port)
        self.luck = luck
        self.members: Sequence[Members] = ()
        """The groups that read, once they have begun."""
        self.pairs: Sequence[Members] = ()
        """Those that copy with transactions."""
        self.jobs: Jobs | None = None
        """The drivers of jobs."""
        self._stack = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        if self.disk is not None:
            self._stack.enter_context(self.disk)
        self._stack.enter_context(self.broker)
        for proxy in self.proxies:
            await proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in self.proxies:
            await proxy.stop()
        await asyncio.to_thread(self._stack.close)

    @property
    def proxies(self) -> tuple[Proxy, ...]:
        return self.proxy, self.producers_proxy, self.kafka_proxy

    async def restart(self) -> None:
        """Kills the broker, unless it has ended, and starts it again."""
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)
