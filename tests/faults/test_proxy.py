"""The proxy of the history checker closes every connection, whenever it is cut."""

import asyncio
import gc

from faults.history.target import Proxy


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(100):
            writer.write(data)
    finally:
        writer.transport.abort()


async def test_a_connection_that_is_cut_while_it_ends_is_closed_on_both_sides() -> None:
    """One that is left open is a ResourceWarning when it is collected, and fails the test."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    proxy = Proxy(*server.sockets[0].getsockname())
    await proxy.start()
    for steps in [*range(8)] * 10:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        writer.transport.abort()
        for _ in range(steps):
            await asyncio.sleep(0)
        await proxy.cut()
        gc.collect()
    await proxy.stop()
    server.close()
    await server.wait_closed()
