"""Connections that exceed a quota: they are not read for a time, and nothing else is delayed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from memory_quotas import quota
from unit.broker.network.conftest import Run, Tls
from unit.broker.network.test_session import Client, Server, connected, serving
from waiting import until
from warmlog_broker.network.request import RequestContext
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch

LARGE_BYTES = 3 << 20
"""More than the buffer of a connection holds."""


async def limit(server: Server, **limits: int) -> None:
    await server.context.quotas.alter(quota("ANONYMOUS", None, **limits), "test")


def produce_frame(client: Client, size_bytes: int) -> bytes:
    data = encode_batch([bytes(size_bytes)], timestamps_ms=1)
    return client.core.request(m.ProduceRequest(-1, 1, [m.ProducePartition("t", 0, len(data))]), len(data))[1] + data


def takes_anything(_: RequestContext, __: Any) -> m.ProduceResponse:
    return m.ProduceResponse([])


def test_a_throttled_connection_is_not_read_and_others_are(
    run: Run, tls: Tls, cold_readers: ThreadPoolExecutor
) -> None:
    async def work() -> None:
        async with (
            serving(cold_readers, tls=tls[0]) as (server, port),
            connected(port, tls[1]) as client,
            connected(port, tls[1]) as other,
        ):
            loop = asyncio.get_running_loop()
            for each in (client, other):
                await each.call(m.HandshakeRequest("test", "1"))
            await limit(server, request_rate=1)
            for _ in range(2):
                await client.call(m.MetadataRequest())
            throttled = server.sessions[0]
            began_s, delay_ms = loop.time(), throttled.throttled_ms
            assert 400 < delay_ms <= 1010
            sent = asyncio.create_task(client.call(m.MetadataRequest()))
            await limit(server, request_rate=0)
            await other.call(m.MetadataRequest())
            assert not sent.done()
            await sent
            assert loop.time() - began_s >= delay_ms / 1000 - 0.01
            assert throttled.throttled_ms == 0

    run(work())


def test_the_rest_of_a_large_request_is_read_while_the_connection_is_throttled(
    run: Run, cold_readers: ThreadPoolExecutor
) -> None:
    """Otherwise it would keep the memory that is claimed for all of it."""

    async def work() -> None:
        async with serving(cold_readers) as (server, port), connected(port) as client:
            server.handlers[m.ApiKey.PRODUCE] = takes_anything
            await client.call(m.HandshakeRequest("test", "1"))
            await limit(server, producer_byte_rate=1)
            session = server.sessions[0]
            frame = produce_frame(client, LARGE_BYTES)
            client.writer.write(frame[: LARGE_BYTES // 2])
            await until(lambda: session._codec.oversize_bytes > 0)
            session.throttle(60.0)
            client.writer.write(frame[LARGE_BYTES // 2 :])
            async with asyncio.timeout(25):
                response = await client.receive()
            assert response.result.throttle_ms > 50_000
            assert server.context.memory.claimed_bytes < LARGE_BYTES // 2
            received_bytes = session._received_bytes
            client.writer.write(produce_frame(client, 10))
            await asyncio.sleep(0.1)
            assert session._received_bytes == received_bytes

    run(work())


def test_a_throttled_connection_can_be_lost_closed_and_stopped(run: Run, cold_readers: ThreadPoolExecutor) -> None:
    async def work() -> None:
        async with serving(cold_readers) as (server, port), connected(port) as client, connected(port) as other:
            for each in (client, other):
                await each.call(m.HandshakeRequest("test", "1"))
            for session in server.sessions:
                session.throttle(0.2)
            server.sessions[0].close("the test wants it")
            server.sessions[1].stop()
            assert await other.receive() is None
            await server.context.connections.wait_until_gone(5)
            assert len(server.context.connections) == 0
            await asyncio.sleep(0.3)

    run(work())
