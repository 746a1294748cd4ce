"""Steps 2 and 3 of the demo: send every flight, and kill the broker halfway."""

import asyncio
import time
from typing import TYPE_CHECKING

from warmlog.cli.demo.broker import DemoBroker
from warmlog.cli.demo.flights import Flights
from warmlog.cli.demo.screen import ProgressBar, Screen

if TYPE_CHECKING:
    from warmlog import Producer, RecordMetadata
    from warmlog.producer.delivery import DeliveryFuture

ROUND_S = 0.05
"""How often to await acknowledgements. Awaiting a record sends its batch at once, so doing it all the time would make
small batches."""


class Sending:
    """Sends `flights` with one producer, and kills and restarts `broker` once half of them are sent."""

    def __init__(
        self, producer: "Producer", topic: str, flights: Flights, broker: DemoBroker, screen: Screen, bar: ProgressBar
    ) -> None:
        self.placed: list[RecordMetadata] = []
        """The metadata of each record, in the order of sending."""
        self._producer = producer
        self._topic = topic
        self._flights = flights
        self._broker = broker
        self._screen = screen
        self._bar = bar
        self._sent: list[DeliveryFuture] = []
        self._has_acknowledgements = asyncio.Event()

    async def run(self) -> None:
        """Return when every record is acknowledged; raise the first error of a record, or of the restart."""
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
                if self._sent:  # a short input would otherwise be sent before anything is acknowledged
                    await self._has_acknowledgements.wait()
                tasks.create_task(self._kill_and_restart())
            self._sent.append(self._producer.send(self._topic, value, key=key, timestamp_ms=timestamp_ms))
            await self._producer.drain()
        await self._producer.flush()

    async def _acknowledge(self) -> None:
        while len(self.placed) < len(self._flights):
            for number in range(len(self.placed), len(self._sent)):
                self.placed.append(await self._sent[number])
            self._bar.advance_to(len(self.placed))
            if self.placed:
                self._has_acknowledgements.set()
            await asyncio.sleep(ROUND_S)

    async def _kill_and_restart(self) -> None:
        killed_at = time.perf_counter()
        self._broker.kill()
        acknowledged, in_flight = len(self.placed), len(self._sent) - len(self.placed)
        self._screen.step(3, "Halfway: kill the broker with SIGKILL, start it again and continue")
        self._screen.say(f"killed after {acknowledged:,} acknowledgements, with {in_flight:,} flights in flight")
        await asyncio.to_thread(self._broker.start)
        outage_s = time.perf_counter() - killed_at
        self._screen.checked(f"the broker listens again {outage_s:.2f} s after the kill; the producer continues")
