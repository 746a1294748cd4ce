"""New connections: TCP, TLS if the listener has it, Handshake, and SCRAM with keys that the client has derived."""

import asyncio
import time
from dataclasses import replace

from benchmarks.measurement import Run
from warmlog_transport.address import parse_address
from warmlog_transport.connection import Connection
from warmlog_transport.options import ConnectionOptions

USER = PASSWORD = "bench"
AT_ONCE = 8
"""Connections that are being opened at the same time."""


async def handshakes(address: str, count: int, options: ConnectionOptions) -> Run:
    """Open and close `count` connections; a record is one of them."""
    where = parse_address(address)
    login = replace(options, username=USER, password=PASSWORD)

    async def one() -> None:
        connection = await Connection.open(where, login)
        await connection.close()

    async def many(number: int) -> None:
        for _ in range(number):
            await one()

    await one()  # derives the keys
    began_s = time.perf_counter()
    await asyncio.gather(*(many(count // AT_ONCE) for _ in range(AT_ONCE)))
    return Run(count // AT_ONCE * AT_ONCE, time.perf_counter() - began_s)
