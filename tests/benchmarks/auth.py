"""New connections: TCP, TLS if the listener has it, Handshake, and SCRAM with keys that the client has derived."""

import asyncio
import ssl
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

from benchmarks.measurement import Run
from benchmarks.rows import PASSWORD, USER, Bench, Benchmark
from benchmarks.transport import ConnectionOptions, connect, parse_address

AT_ONCE = 8
"""Connections that are being opened at the same time."""


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    count = bench.scale.handshakes
    settings = bench.settings(**bench.client, at_once=AT_ONCE)

    def with_tls() -> Coroutine[Any, Any, Run]:
        # Given files, a client reads them for each connection: another 0.4 ms.
        context = ssl.create_default_context(cafile=bench.secured.certificates.ca)
        return handshakes(bench.secured.sasl_tls_address, count, ConnectionOptions(ssl=context))

    yield Benchmark(
        "auth.handshakes",
        settings | {"record": "a new connection with SCRAM-SHA-256"},
        lambda: handshakes(bench.secured.sasl_address, count, ConnectionOptions()),
        is_secured=True,
    )
    yield Benchmark(
        "auth.handshakes_tls",
        settings | {"record": "a new connection with TLS and SCRAM-SHA-256"},
        with_tls,
        is_secured=True,
    )


async def handshakes(address: str, count: int, options: ConnectionOptions) -> Run:
    """Open and close `count` connections; a record is one of them."""
    where = parse_address(address)
    login = replace(options, username=USER, password=PASSWORD)

    async def one() -> None:
        connection = await connect(where, login)
        await connection.close()

    async def many(number: int) -> None:
        for _ in range(number):
            await one()

    await one()  # derives the keys
    began_s = time.perf_counter()
    await asyncio.gather(*(many(count // AT_ONCE) for _ in range(AT_ONCE)))
    return Run(count // AT_ONCE * AT_ONCE, time.perf_counter() - began_s)
