"""Steps 2 and 3 of the demo: send every flight, and kill the broker half way."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from warmlog.cli.demo.broker import DemoBroker
from warmlog.cli.demo.flights import Flights

if TYPE_CHECKING:
    from warmlog import Placed, Producer
    from warmlog.outgoing import Sent

TELL_EVERY = 512
CATCH_UP_S = 0.002
"""How long the acknowledgements are left alone when all that was sent is acknowledged."""


@dataclass(slots=True)
class Outage:
    """What a kill came across."""

    acknowledged: int
    """Records whose acknowledgement had come."""
    in_flight: int
    """Records sent, and not acknowledged."""
    seconds: float = 0.0
    """From the kill until the broker listened again."""


class Watcher(Protocol):
    """Who is told how it goes."""

    def acknowledged(self, count: int) -> None:
        """So many records are acknowledged by now."""

    def killed(self, outage: Outage) -> None:
        """The broker was just killed."""

    def restarted(self, outage: Outage) -> None:
        """The broker listens again."""


@dataclass(slots=True)
class Sending:
    """Sends `flights` with one producer, and kills and restarts `broker` once half of them are on their way."""

    producer: "Producer"
    topic: str
    flights: Flights
    broker: DemoBroker
    watcher: Watcher
    sent: "list[Sent]" = field(default_factory=list)
    placed: "list[Placed]" = field(default_factory=list)
    """Where each record lies, in the order of sending."""

    async def run(self) -> None:
        """Returns when every record is acknowledged; raises the first error of a record, or of the restart."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._acknowledge())
                await self._send_all(tasks)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _send_all(self, tasks: asyncio.TaskGroup) -> None:
        flights = self.flights
        records = zip(flights.keys, flights.values, flights.timestamps_ms, strict=True)
        for number, (key, value, timestamp_ms) in enumerate(records):
            if number == len(flights) // 2:
                await self._first_acknowledgement()
                tasks.create_task(self._break_down())
            self.sent.append(self.producer.send(self.topic, value, key=key, timestamp_ms=timestamp_ms))
            await self.producer.drain()
        await self.producer.flush()

    async def _first_acknowledgement(self) -> None:
        """There must be something to lose: a short input would otherwise be sent before anything is acknowledged."""
        if self.sent:
            await self.sent[0]
            await asyncio.sleep(CATCH_UP_S)

    async def _acknowledge(self) -> None:
        while len(self.placed) < len(self.flights):
            if len(self.placed) == len(self.sent):
                await asyncio.sleep(CATCH_UP_S)
            for number in range(len(self.placed), len(self.sent)):
                self.placed.append(await self.sent[number])
                if number % TELL_EVERY == 0:
                    self.watcher.acknowledged(number + 1)
        self.watcher.acknowledged(len(self.placed))

    async def _break_down(self) -> None:
        killed_at = time.perf_counter()
        self.broker.kill()
        outage = Outage(len(self.placed), len(self.sent) - len(self.placed))
        self.watcher.killed(outage)
        await asyncio.to_thread(self.broker.start)
        outage.seconds = time.perf_counter() - killed_at
        self.watcher.restarted(outage)
