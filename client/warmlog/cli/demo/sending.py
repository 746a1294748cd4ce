"""Steps 2 and 3 of the demo: send every flight, and kill the broker half way."""

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from warmlog.cli.demo.broker import DemoBroker
from warmlog.cli.demo.flights import Flights

if TYPE_CHECKING:
    from warmlog import Producer, RecordMetadata
    from warmlog.producer.delivery import DeliveryFuture

ROUND_S = 0.05
"""How often acknowledgements are looked at. Awaiting a record sends its batch at once: doing so all the time would make
for small batches."""


@dataclass(slots=True)
class Outage:
    """What a kill came across."""

    acknowledged: int
    """Records whose acknowledgement had been seen."""
    in_flight: int
    """Records sent, and not seen acknowledged."""
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


class Sending:
    """Sends `flights` with one producer, and kills and restarts `broker` once half of them are on their way."""

    def __init__(
        self, producer: "Producer", topic: str, flights: Flights, broker: DemoBroker, watcher: Watcher
    ) -> None:
        self.placed: list[RecordMetadata] = []
        """Where each record lies, in the order of sending."""
        self._producer = producer
        self._topic = topic
        self._flights = flights
        self._broker = broker
        self._watcher = watcher
        self._sent: list[DeliveryFuture] = []
        self._has_acknowledgements = asyncio.Event()

    async def run(self) -> None:
        """Returns when every record is acknowledged; raises the first error of a record, or of the restart."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._acknowledge())
                await self._send_all(tasks)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _send_all(self, tasks: asyncio.TaskGroup) -> None:
        flights = self._flights
        records = zip(flights.keys, flights.values, flights.timestamps_ms, strict=True)
        for number, (key, value, timestamp_ms) in enumerate(records):
            if number == len(flights) // 2:
                await self._first_acknowledgement()
                tasks.create_task(self._break_down())
            self._sent.append(self._producer.send(self._topic, value, key=key, timestamp_ms=timestamp_ms))
            await self._producer.drain()
        await self._producer.flush()

    async def _first_acknowledgement(self) -> None:
        """There must be something to lose: a short input would otherwise be sent before anything is acknowledged."""
        if self._sent:
            await self._has_acknowledgements.wait()

    async def _acknowledge(self) -> None:
        while len(self.placed) < len(self._flights):
            for number in range(len(self.placed), len(self._sent)):
                self.placed.append(await self._sent[number])
            self._watcher.acknowledged(len(self.placed))
            if self.placed:
                self._has_acknowledgements.set()
            await asyncio.sleep(ROUND_S)

    async def _break_down(self) -> None:
        killed_at = time.perf_counter()
        self._broker.kill()
        outage = Outage(len(self.placed), len(self._sent) - len(self.placed))
        self._watcher.killed(outage)
        await asyncio.to_thread(self._broker.start)
        outage.seconds = time.perf_counter() - killed_at
        self._watcher.restarted(outage)
