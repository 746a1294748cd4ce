"""What metrics cost: `send_many` to a broker scraped each second, and to one without an admin port, in turns."""

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from statistics import median

from benchmarks import produce
from benchmarks.measurement import Run
from broker_process import BrokerProcess, port_to_keep
from processor_time import processor_time

PAIRS = 4
SCRAPE_S = 1.0


async def cost(directory: Path, records: int) -> Run:
    """Return the runs with metrics, and by how much more time and processor time they take than those without.

    These are the medians of PAIRS pairs in alternating order. On a busy machine the processor time says more.
    """
    port = port_to_keep()
    with (
        BrokerProcess(directory / "plain") as plain,
        BrokerProcess(directory / "watched", admin_listen=f"127.0.0.1:{port}") as watched,
    ):
        slower, costlier, seconds = [], [], 0.0
        for pair in range(PAIRS):
            took: dict[BrokerProcess, tuple[float, float]] = {}
            for broker in (plain, watched) if pair % 2 else (watched, plain):
                async with _scraped(port) if broker is watched else nullcontext():
                    took[broker] = await _send(broker, f"pair-{pair}", records)
            (plain_s, plain_cpu_s), (watched_s, watched_cpu_s) = took[plain], took[watched]
            slower.append(watched_s / plain_s)
            costlier.append(watched_cpu_s / plain_cpu_s)
            seconds += watched_s
        figures = {"cost": slower, "broker_cpu": costlier}
        percent = {f"{name}_percent": (median(ratios) - 1) * 100 for name, ratios in figures.items()}
        return Run(records * PAIRS, seconds, percent)


async def _send(broker: BrokerProcess, topic: str, records: int) -> tuple[float, float]:
    """Return the seconds of `records`, and the broker's processor time; their topic is deleted."""
    await produce.create_topic(broker.address, topic)
    cpu_s = processor_time(broker.pid).own_s
    run = await produce.send_many(broker.address, topic, records)
    cpu_s = processor_time(broker.pid).own_s - cpu_s
    await produce.delete_topic(broker.address, topic)
    return run.seconds, cpu_s


@asynccontextmanager
async def _scraped(port: int) -> AsyncIterator[None]:
    """Read /metrics each second."""

    async def scrape() -> None:
        while True:
            await asyncio.to_thread(_read, port)
            await asyncio.sleep(SCRAPE_S)

    task = asyncio.create_task(scrape())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _read(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    assert connection.getresponse().read()
    connection.close()
