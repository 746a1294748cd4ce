"""One producer for many threads, as in a web server without asyncio: `python threads.py [HOST:PORT]`."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import warmlog

TOPIC = "clicks"
T = TypeVar("T")


class Clicks:
    """A producer with an event loop in a thread of its own; `send` may be called in any thread."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._producer = self._wait_for(self._connect(address))

    def send(self, value: bytes) -> int:
        """Return the record's offset once it is on disk."""
        return self._wait_for(self._send(value))

    def close(self) -> None:
        self._wait_for(self._producer.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self, address: str) -> warmlog.Producer:
        async with warmlog.Admin(address) as admin:
            await admin.create_topic(TOPIC, exist_ok=True)
        return await warmlog.Producer(address).start()

    async def _send(self, value: bytes) -> int:
        return (await self._producer.send(TOPIC, value)).offset

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)


def main(address: str) -> None:
    clicks = Clicks(address)
    with ThreadPoolExecutor(8) as threads:
        offsets = {*threads.map(clicks.send, [b"click %d" % number for number in range(200)])}
    clicks.close()
    print(f"{len(offsets)} clicks are in the log")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
