"""The reading process: one consumer at the tail, and one that begins again and again. Its only order is to end."""

import asyncio
import sys

from faults.soak.topics import STATE, STREAMS
from faults.soak.worker import Report, serve, until_ordered
from warmlog import Consumer
from warmlog.errors import WarmlogError

REREAD_RECORDS_PER_S = 40_000
"""As fast as a steady second reader: without a bound it would take whatever the processors have."""


class Readers:
    """Both consumers and what they have read."""

    def __init__(self, address: str) -> None:
        self.tail_records = self.reread_records = self.rounds = self.gaps = 0
        self.errors: list[str] = []
        self._address = address
        self._loop = asyncio.get_running_loop()

    async def run(self, orders: "asyncio.Queue[Report]") -> None:
        """Reads until an order comes."""
        await until_ordered(orders, self._tail(), self._reread())

    async def report(self) -> Report:
        """Totals."""
        return {
            "tail_records": self.tail_records,
            "reread_records": self.reread_records,
            "rounds": self.rounds,
            "gaps": self.gaps,
            "errors": self.errors,
        }

    async def _tail(self) -> None:
        next_offsets: dict[tuple[str, int], int] = {}
        try:
            async with Consumer(self._address, topics=[*STREAMS, STATE], on_out_of_range="earliest") as consumer:
                async for batch in consumer.batches():
                    place = (batch.topic, batch.partition)
                    is_dense = batch.topic != STATE
                    if is_dense and next_offsets.get(place, batch.base_offset) != batch.base_offset:
                        self.gaps += 1
                    next_offsets[place] = batch.next_offset
                    self.tail_records += len(batch)
        except WarmlogError as error:
            self.errors.append(f"tail: {type(error).__name__}: {error}")

    async def _reread(self) -> None:
        try:
            while True:
                async with Consumer(
                    self._address, topics=STREAMS, on_out_of_range="earliest", prefetch_bytes=4 * 1024 * 1024
                ) as consumer:
                    due_s = self._loop.time()
                    async for batch in consumer.batches(until="latest"):
                        self.reread_records += len(batch)
                        due_s = max(due_s, self._loop.time() - 0.1) + len(batch) / REREAD_RECORDS_PER_S
                        await asyncio.sleep(max(0.0, due_s - self._loop.time()))
                self.rounds += 1
        except WarmlogError as error:
            self.errors.append(f"reread: {type(error).__name__}: {error}")


async def main(address: str) -> None:
    readers = Readers(address)
    await serve(readers.run, readers.report)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
