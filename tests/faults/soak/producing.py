"""The producing process: as fast as it goes, or at a rate, whatever the answers take.

Orders: `{"rate": R}` holds R records a second, `{"rate": null}` sends as fast as acknowledgements come. At a rate, the
latency of a record counts from when it was due, so that a stall is seen in all records that it held up.
"""

import asyncio
import sys
from collections import deque

from faults.soak.topics import STATE, STATE_EVERY, STATE_KEYS, STREAMS
from faults.soak.worker import Report, serve
from warmlog import Producer
from warmlog.errors import WarmlogError
from warmlog.producer.delivery import DeliveryFuture

TICK_S = 0.01
VALUE = bytes(range(200))
FAST_TICK_RECORDS = 500
MAX_TICKS_LATE = 200
"""Two seconds behind the open loop drops ticks, and says so: it would only measure its own queue."""


class Load:
    """The producer and its figures since the last report."""

    def __init__(self, producer: Producer) -> None:
        self.sent = self.acknowledged = self.dropped_ticks = 0
        self.errors: list[str] = []
        self._producer = producer
        self._latencies_ms: list[float] = []
        self._sampled: deque[tuple[float, int, DeliveryFuture]] = deque()
        self._has_sampled = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._tick = 0
        self._loop = asyncio.get_running_loop()

    async def run(self, orders: "asyncio.Queue[Report]") -> None:
        """Follows orders until an empty one."""
        settling = asyncio.ensure_future(self._settle())
        order: Report = {"rate": 0}
        waiting = asyncio.ensure_future(orders.get())
        while order:
            step = self._fast(waiting) if order["rate"] is None else self._at_rate(order["rate"], waiting)
            await step
            order = await waiting
            waiting = asyncio.ensure_future(orders.get())
        waiting.cancel()
        await self._producer.flush()
        await self._settled.wait()
        settling.cancel()

    async def report(self) -> Report:
        """Totals, and the latencies since the last report."""
        latencies, self._latencies_ms = sorted(self._latencies_ms), []
        return {
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "dropped_ticks": self.dropped_ticks,
            "errors": self.errors,
            "p50_ms": latencies[len(latencies) // 2] if latencies else None,
            "p99_ms": latencies[len(latencies) * 99 // 100] if latencies else None,
        }

    async def _fast(self, ordered: "asyncio.Future[Report]") -> None:
        while not ordered.done():
            self._send(FAST_TICK_RECORDS, self._loop.time())
            await self._producer.drain()
            await asyncio.sleep(0)

    async def _at_rate(self, rate: float, ordered: "asyncio.Future[Report]") -> None:
        due_s = self._loop.time()
        owed = 0.0
        while not ordered.done():
            late_ticks = int((self._loop.time() - due_s) / TICK_S)
            if late_ticks > MAX_TICKS_LATE:
                self.dropped_ticks += late_ticks
                due_s += late_ticks * TICK_S
            owed += rate * TICK_S
            count = int(owed)
            owed -= count
            if count:
                self._send(count, due_s)
            due_s += TICK_S
            await self._producer.drain()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))

    def _send(self, count: int, due_s: float) -> None:
        """One tick's records; the last of them is watched."""
        self._tick += 1
        send = self._producer.send
        try:
            if self._tick % STATE_EVERY == 0:
                for number in range(self.sent, self.sent + count):
                    sent = send(STATE, VALUE, key=b"%d" % (number % STATE_KEYS))
            else:
                topic = STREAMS[self._tick % len(STREAMS)]
                for _ in range(count):
                    sent = send(topic, VALUE)
        except WarmlogError as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            return
        self.sent += count
        self._sampled.append((due_s, count, sent))
        self._has_sampled.set()
        self._settled.clear()

    async def _settle(self) -> None:
        while True:
            await self._has_sampled.wait()
            self._has_sampled.clear()
            while self._sampled:
                due_s, count, sent = self._sampled[0]
                try:
                    await sent
                except WarmlogError as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                else:
                    self.acknowledged += count
                    self._latencies_ms.append(1000 * (self._loop.time() - due_s))
                self._sampled.popleft()
            self._settled.set()


async def main(address: str) -> None:
    async with Producer(address, linger_ms=5) as producer:
        load = Load(producer)
        await serve(load.run, load.report)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
