"""What metrics cost: `send_many` to a broker scraped each second, and to one without an admin port, in turns."""

import asyncio
import http.client
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from benchmarks import pairs
from benchmarks.measurement import Run
from benchmarks.rows import Bench, Benchmark
from broker_process import BrokerProcess, port_to_keep

SCRAPE_S = 1.0


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    yield Benchmark(
        "metrics.cost",
        bench.settings(**bench.producer, scrape_s=SCRAPE_S, pairs_in_a_run=pairs.PAIRS),
        lambda: cost(bench.directory / "metrics", bench.scale.metrics_records),
    )


async def cost(directory: Path, records: int) -> Run:
    """Return the runs with metrics, compared with those without."""
    port = port_to_keep()
    with (
        BrokerProcess(directory / "plain") as plain,
        BrokerProcess(directory / "watched", admin_listen=f"127.0.0.1:{port}") as watched,
    ):
        return await pairs.cost(plain, watched, records, lambda: _scraped(port))


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
