"""Steps 2 and 3 of the demo: send every flight, and do something to the broker halfway."""

import asyncio
from collections.abc import Awaitable, Callable

from demo.flights import Flights
from warmlog import DeliveryFuture, Producer, RecordMetadata

ROUND_S = 0.05
"""How often to await acknowledgements. Awaiting a record sends its batch at once, so doing it all the time would make
small batches."""


class Sending:
    """Sends `flights` with one producer, and starts `halfway` once half of them are sent."""

    def __init__(
        self,
        topic: str,
        flights: Flights,
        halfway: Callable[[int, int], Awaitable[None]],
        on_acknowledged: Callable[[int], None],
    ) -> None:
        """`halfway` gets the numbers of flights that are acknowledged and in flight, `on_acknowledged` the first."""
        self.placed: list[RecordMetadata] = []
        """The metadata of each record, in the order of sending."""
        self._topic = topic
        self._flights = flights
        self._halfway = halfway
        self._on_acknowledged = on_acknowledged
        self._sent: list[DeliveryFuture] = []
        self._has_acknowledgements = asyncio.Event()

    async def run(self, producer: Producer) -> None:
        """Return when every record is acknowledged; raise the first error of a record, or of `halfway`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._acknowledge())
                await self._send_all(producer, tasks)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _send_all(self, producer: Producer, tasks: asyncio.TaskGroup) -> None:
        flights = self._flights
        records = zip(flights.keys, flights.values, flights.timestamps_ms, strict=True)
        for number, (key, value, timestamp_ms) in enumerate(records):
            if number == len(flights) // 2:
                if self._sent:  # a short input would otherwise be sent before anything is acknowledged
                    await self._has_acknowledgements.wait()
                tasks.create_task(self._run_halfway())
            self._sent.append(producer.send(self._topic, value, key=key, timestamp_ms=timestamp_ms))
            await producer.drain()
        await producer.flush()

    async def _run_halfway(self) -> None:
        await self._halfway(len(self.placed), len(self._sent) - len(self.placed))

    async def _acknowledge(self) -> None:
        while len(self.placed) < len(self._flights):
            for number in range(len(self.placed), len(self._sent)):
                self.placed.append(await self._sent[number])
            self._on_acknowledged(len(self.placed))
            if self.placed:
                self._has_acknowledgements.set()
            await asyncio.sleep(ROUND_S)
