"""Sessions over real sockets, with handlers of the test: in plain text and TLS, and with a second wire protocol."""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from struct import pack, unpack_from
from typing import Any, NamedTuple

import pytest
import trustme
from msgspec.structs import replace

from memory_quotas import memory_quotas
from unit.broker.network.conftest import FILE_BYTES, TIMEOUT_S, Run, Tls
from waiting import until
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.handlers import TRAITS
from warmlog_broker.network.codec import SMALL_BUFFER_BYTES, Pieces, ProtocolCodec, WarmlogCodec
from warmlog_broker.network.connections import Connections
from warmlog_broker.network.memory_pool import MemoryPool, ResponseMemory
from warmlog_broker.network.request import (
    BatchSource,
    ConnectionEnds,
    Deferred,
    Endpoint,
    MessageWithSlices,
    RequestContext,
    Response,
    Slices,
    StartedRequest,
)
from warmlog_broker.network.request_scheduler import State
from warmlog_broker.network.session import Outbox, Session, SessionContext
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.timer_wheel import Timer, TimerWheel
from warmlog_broker.storage.io.open_files import OpenFile
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, InvalidRequest, TooManyConnections
from warmlog_protocol.wire.connection import ClientConnection, ReceivedBatch
from warmlog_protocol.wire.frames import pack_frame

NO_TOPICS = m.MetadataResponse("cluster", 0, [], [])


MakeCodec = Callable[[BrokerConfig, Mapping[int, Endpoint]], ProtocolCodec]


class CountingWheel(TimerWheel):
    scheduled = 0

    def schedule(self, due_s: float, action: Callable[[], None]) -> Timer:
        self.scheduled += 1
        return super().schedule(due_s, action)


class Server:
    """Sessions whose handlers are the test's, by the key of their API."""

    def __init__(self, cold_readers: ThreadPoolExecutor, make_codec: MakeCodec) -> None:
        config = BrokerConfig(data_dir="unused", max_connections=2)
        self.handlers: dict[int, Callable[..., Response]] = {
            m.ApiKey.HANDSHAKE: lambda context, request: m.HandshakeResponse(
                "test", "cluster", 0, config.socket_request_max_bytes, _api_versions()
            ),
            m.ApiKey.METADATA: lambda context, request: NO_TOPICS,
        }
        endpoints = {
            key: Endpoint(api.name, partial(self._handle, key), **TRAITS.get(api.request, {}))
            for key, api in m.APIS.items()
        }
        self.sessions: list[Session] = []
        self.timers = CountingWheel(0.05)
        lines = RepeatedLines(logging.getLogger("warmlog_broker.network.session"))
        self.context = SessionContext(
            config=config,
            listener=config.all_listeners[0],
            connections=Connections(config.max_connections, config.max_connections_per_ip),
            memory=MemoryPool(config.queued_max_request_bytes, config.socket_request_max_bytes),
            response_memory=ResponseMemory(config.queued_max_response_bytes),
            lines=lines,
            outbox=Outbox(),
            tasks=Tasks(),
            timers=self.timers,
            counters=Counters(),
            quotas=memory_quotas(asyncio.get_running_loop().time),
            make_authentication=lambda: None,
            make_codec=lambda: make_codec(config, endpoints),
            cold_readers=cold_readers,
        )

    def _handle(self, key: int, context: RequestContext, message: m.Message, *_: BatchSource) -> Response:
        return self.handlers[key](context, message)

    def make_session(self) -> Session:
        self.sessions.append(Session(self.context))
        return self.sessions[-1]


def _api_versions() -> list[Any]:
    versions = m.HandshakeResponse.__annotations__["apis"].__args__[0]
    return [versions(key, api.min_version, api.max_version) for key, api in m.APIS.items()]


@asynccontextmanager
async def serving(
    cold_readers: ThreadPoolExecutor,
    make_codec: MakeCodec = WarmlogCodec,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[Server, int]]:
    """A server and its port. Its timers run."""
    loop = asyncio.get_running_loop()
    server = Server(cold_readers, make_codec)

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.05)
            server.timers.advance(loop.time())

    ticking = loop.create_task(tick())
    listener = await loop.create_server(server.make_session, "127.0.0.1", 0, ssl=tls)
    try:
        yield server, listener.sockets[0].getsockname()[1]
    finally:
        for session in server.context.connections:
            session.close("the test ends")
        await server.context.connections.wait_until_gone(TIMEOUT_S)
        await server.context.tasks.finish(TIMEOUT_S)
        listener.close()
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking


class Client:
    """warmlog's protocol on asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.core = ClientConnection()
        self.reader = reader
        self.writer = writer

    async def receive(self) -> Any:
        """The next response; None at the end of the connection."""
        while True:
            received = await self.reader.read(len(self.core.get_buffer()))
            if not received:
                return None
            self.core.get_buffer()[: len(received)] = received
            for response in self.core.received(len(received)):
                return response

    async def call(self, message: m.Message) -> Any:
        self.writer.write(self.core.request(message)[1])
        return await self.receive()


@asynccontextmanager
async def connected(port: int, authority: trustme.CA | None = None) -> AsyncIterator[Client]:
    tls = None
    if authority is not None:
        tls = ssl.create_default_context()
        authority.configure_trust(tls)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


# --- plain text and TLS ----------------------------------------------------------------------------------------------


def test_responses_with_file_ranges_come_whole(
    run: Run, tls: Tls, cold_readers: ThreadPoolExecutor, file: OpenFile, data: bytes
) -> None:
    def fetch(context: RequestContext, request: object) -> Response:
        return MessageWithSlices(
            m.FetchResponse([]), [[FileSlice(file, 0, 100)], [FileSlice(file, 100, FILE_BYTES - 100)]]
        )

    async def work() -> None:
        async with serving(cold_readers, tls=tls[0]) as (server, port), connected(port, tls[1]) as client:
            server.handlers[m.ApiKey.FETCH] = fetch
            await client.call(m.HandshakeRequest("test", "1"))
            for _ in range(3):
                assert bytes((await client.call(m.FetchRequest(0, 1, 1, []))).payload) == data

    run(work())


def test_a_refused_peer_reads_the_reason_and_then_the_end_although_it_has_sent_more(
    run: Run, tls: Tls, cold_readers: ThreadPoolExecutor
) -> None:
    async def work() -> None:
        async with serving(cold_readers, tls=tls[0]) as (_, port), connected(port, tls[1]) as client:
            await client.call(m.HandshakeRequest("test", "1"))
            client.core.request(m.MetadataRequest())
            more = pack_frame((m.ApiKey.METADATA, 0, 2), m.MetadataRequest()) * 50_000
            client.writer.write(pack_frame((999, 0, 1), m.MetadataRequest()) + more)
            await asyncio.sleep(0.1)
            response = await client.receive()
            assert "API 999 version 0: it is not known" in str(response.result)
            client.writer.write(bytes(1000))
            assert await client.receive() is None

    run(work())


def test_a_peer_beyond_the_limit_is_told_so(run: Run, tls: Tls, cold_readers: ThreadPoolExecutor) -> None:
    async def work() -> None:
        async with (
            serving(cold_readers, tls=tls[0]) as (_, port),
            connected(port, tls[1]) as first,
            connected(port, tls[1]) as second,
            connected(port, tls[1]) as third,
        ):
            for client in (first, second):
                assert isinstance((await client.call(m.HandshakeRequest("test", "1"))).result, m.HandshakeResponse)
            response = await third.call(m.HandshakeRequest("test", "1"))
            assert isinstance(response.result, TooManyConnections)
            assert "2 connections are open" in str(response.result)

    run(work())


def test_a_stopped_session_ends_when_requests_under_way_have_ended(
    run: Run, tls: Tls, cold_readers: ThreadPoolExecutor
) -> None:
    deferred: list[Deferred] = []

    def defer(context: RequestContext, request: object) -> Response:
        deferred.append(Deferred())
        return deferred[-1]

    async def work() -> None:
        async with serving(cold_readers, tls=tls[0]) as (server, port), connected(port, tls[1]) as client:
            server.handlers[m.ApiKey.FETCH] = defer
            await client.call(m.HandshakeRequest("test", "1"))
            for _ in range(2):
                client.writer.write(client.core.request(m.FetchRequest(0, 1, 1, []))[1])
            await until(lambda: len(deferred) == 2)
            server.sessions[0].stop()
            client.writer.write(client.core.request(m.MetadataRequest())[1])
            for each in deferred:
                each.complete(m.FetchResponse([]))
            assert isinstance((await client.receive()).result, m.FetchResponse)
            await server.context.connections.wait_until_gone(5)
            assert len(server.context.connections) == 0

    run(work())


class Stranger:
    """An authentication that has not happened yet, of a client that may send anything before it."""

    user = ""

    def check(self, *, comes_first: bool) -> None: ...


def test_a_large_frame_of_a_stranger_ends_the_connection_also_if_a_request_before_it_had_to_wait(
    run: Run, cold_readers: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def work() -> None:
        async with serving(cold_readers) as (server, port):
            # The second request waits until the response to the first is sent.
            server.context = replace(
                server.context, make_authentication=Stranger, response_memory=ResponseMemory(limit_bytes=0)
            )
            async with connected(port) as client, asyncio.timeout(5):
                client.core.request(m.HandshakeRequest("test", "1"))
                client.writer.write(
                    pack_frame((m.ApiKey.HANDSHAKE, 0, 0), m.HandshakeRequest("test", "1"))
                    + pack_frame((m.ApiKey.METADATA, 0, 1), m.MetadataRequest())
                    + pack_frame((m.ApiKey.PRODUCE, 0, 2), m.ProduceRequest(-1, 1000, []), 1 << 20)
                )
                assert isinstance((await client.receive()).result, m.HandshakeResponse)
                assert await client.receive() is None
        assert "before the authentication" in caplog.text

    run(work())


@asynccontextmanager
async def slow_reader(cold_readers: ThreadPoolExecutor, text: str) -> AsyncIterator[tuple[socket.socket, Session]]:
    """A peer with small buffers that was sent `text` and has read nothing of it, and its session."""
    loop = asyncio.get_running_loop()
    async with serving(cold_readers) as (server, port):
        server.handlers[m.ApiKey.HANDSHAKE] = lambda context, request: m.ErrorResponse(text)
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.setblocking(False)
            await loop.sock_connect(reader, ("127.0.0.1", port))
            await until(lambda: len(server.context.connections) == 1)
            session = server.sessions[0]
            session._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            await loop.sock_sendall(reader, pack_frame((m.ApiKey.HANDSHAKE, 0, 0), m.HandshakeRequest("test", "1")))
            yield reader, session


@pytest.mark.parametrize("ending", ["stop", "half-close"])
def test_a_session_without_requests_ends_when_the_peer_has_taken_what_the_transport_holds(
    run: Run, cold_readers: ThreadPoolExecutor, ending: str
) -> None:
    """It holds less than what it calls back for."""
    text = "x" * 100_000

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with slow_reader(cold_readers, text) as (reader, session):
            await until(lambda: 0 < session._transport.get_write_buffer_size() < len(text))
            if ending == "stop":
                session.stop()
            else:
                reader.shutdown(socket.SHUT_WR)
                await until(lambda: session._scheduler.state is not State.OPEN)
            received = 0
            while piece := await loop.sock_recv(reader, 100_000):
                received += len(piece)
            assert received > len(text)

    run(work())


def test_a_refused_peer_that_sends_no_more_reads_all_that_was_queued(
    run: Run, cold_readers: ThreadPoolExecutor
) -> None:
    text = "x" * 400_000

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with slow_reader(cold_readers, text) as (reader, session):
            await until(lambda: session._transport.get_write_buffer_size() > 0)
            await loop.sock_sendall(reader, pack_frame((m.ApiKey.HANDSHAKE, 99, 1), m.HandshakeRequest("test", "1")))
            await until(lambda: session._scheduler.state is State.DISCARDING)
            assert not session._sending.is_handed_over
            reader.shutdown(socket.SHUT_WR)
            received = b""
            while piece := await loop.sock_recv(reader, 100_000):
                received += piece
            assert len(received) > len(text)
            assert b"version 99" in received[len(text) :]

    run(work())


def test_a_peer_that_has_sent_all_reads_what_is_under_way(run: Run, cold_readers: ThreadPoolExecutor) -> None:
    pending = Deferred()

    async def work() -> None:
        async with serving(cold_readers) as (server, port), connected(port) as client:
            server.handlers[m.ApiKey.PRODUCE] = lambda context, request: pending
            await client.call(m.HandshakeRequest("test", "1"))
            client.writer.write(client.core.request(m.ProduceRequest(-1, 1000, []))[1])
            client.writer.write_eof()
            await asyncio.sleep(0.05)
            pending.complete(m.ProduceResponse([]))
            assert (await client.receive()).result == m.ProduceResponse([])
            assert await client.receive() is None

    run(work())


def test_no_request_starts_after_one_that_closes_the_connection(run: Run, cold_readers: ThreadPoolExecutor) -> None:
    """A Produce with acks=0 is refused: the batches after it must not be appended."""
    started: list[object] = []

    def refuse(context: RequestContext, request: object) -> Response:
        started.append(request)
        raise ConnectionEnds("refused")

    async def work() -> None:
        async with serving(cold_readers) as (server, port), connected(port) as client:
            server.handlers[m.ApiKey.PRODUCE] = refuse
            await client.call(m.HandshakeRequest("test", "1"))
            client.writer.write(pack_frame((m.ApiKey.PRODUCE, 0, 1), m.ProduceRequest(0, 1000, [])) * 3)
            await until(lambda: not len(server.context.connections))
            assert len(started) == 1

    run(work())


def test_a_peer_that_is_being_refused_is_cut_when_the_broker_closes_all(
    run: Run, cold_readers: ThreadPoolExecutor
) -> None:
    """No timer would end it after a stop."""

    async def work() -> None:
        async with (
            serving(cold_readers) as (server, port),
            connected(port),
            connected(port),
            connected(port) as third,
        ):
            await until(lambda: len(server.sessions) == 3)
            server.timers.advance = lambda now_s: None  # type: ignore[method-assign]
            for session in server.context.connections:
                session.close("the broker stops")
            with suppress(ConnectionError):
                assert await third.receive() is None

    run(work())


# --- order, rest, and deferred responses -----------------------------------------------------------------------------


def test_a_deferred_response_holds_the_next_request_unless_its_api_is_pipelined(
    run: Run, cold_readers: ThreadPoolExecutor
) -> None:
    deferred: list[Deferred] = []

    def defer(context: RequestContext, request: object) -> Response:
        deferred.append(Deferred())
        return deferred[-1]

    async def work() -> None:
        async with serving(cold_readers) as (server, port), connected(port) as client:
            server.handlers[m.ApiKey.METADATA] = server.handlers[m.ApiKey.FETCH] = defer
            await client.call(m.HandshakeRequest("test", "1"))
            for message in (m.FetchRequest(0, 1, 1, []), m.MetadataRequest(), m.MetadataRequest(), m.MetadataRequest()):
                client.writer.write(client.core.request(message)[1])
            for count in (2, 3, 4):
                await until(lambda count=count: len(deferred) >= count)
                await asyncio.sleep(0.05)
                assert len(deferred) == count
                deferred[-1].complete(NO_TOPICS)
                await client.receive()

    run(work())


def test_connections_at_rest_are_not_looked_at(run: Run, cold_readers: ThreadPoolExecutor) -> None:
    async def work() -> None:
        async with serving(cold_readers) as (server, port), connected(port) as first, connected(port) as second:
            for client in (first, second):
                await client.call(m.HandshakeRequest("test", "1"))
            await asyncio.sleep(0.3)
            scheduled = server.timers.scheduled
            await asyncio.sleep(0.3)
            assert server.timers.scheduled == scheduled
            assert len(server.timers) == 2
            await first.call(m.MetadataRequest())
            await asyncio.sleep(0.3)
            assert scheduled + 2 <= server.timers.scheduled <= scheduled + 3
            assert len(server.timers) == 2
            idle_ms = server.context.config.connections_max_idle_ms
            server.timers.advance(asyncio.get_running_loop().time() + idle_ms / 1000 - 5)
            assert server.timers.scheduled <= scheduled + 3

    run(work())


# --- another protocol ------------------------------------------------------------------------------------------------


class TinyRequest(NamedTuple):
    api: m.Api
    correlation_id: int
    message: m.Message
    payload_bytes: int = 0

    def batches(self) -> list[ReceivedBatch]:
        return []


class TinyCodec:
    """Responses in the order of requests, batches in brackets inside them.

    request  := u32 size | u8 api_key | u8 correlation_id
    response := u32 size | u8 correlation_id | '<' | ('[' batches of one partition ']')… | '>'
    error    := u32 size | u8 correlation_id | '!' | text
    """

    keeps_order = True
    is_open = True
    buffer_bytes = SMALL_BUFFER_BYTES
    oversize_bytes = 0

    def __init__(self, _: BrokerConfig, endpoints: Mapping[int, Endpoint]) -> None:
        self._endpoints = endpoints
        self._room = memoryview(bytearray(1000))
        self._received = b""

    @property
    def pending_bytes(self) -> int:
        return len(self._received)

    def get_buffer(self) -> memoryview:
        return self._room

    def received(self, count: int) -> Sequence[TinyRequest]:
        self._received += bytes(self._room[:count])
        requests = []
        while len(self._received) >= 6:
            _, key, correlation_id = unpack_from(">IBB", self._received)
            self._received = self._received[6:]
            requests.append(TinyRequest(m.APIS[key], correlation_id, m.MetadataRequest()))
        return requests

    def begin(self, request: TinyRequest) -> StartedRequest:
        return StartedRequest(self._endpoints[request.api.key], request.correlation_id)

    def allow(self, frame_bytes: int) -> None: ...

    def use_buffer(self, buffer_bytes: int) -> None: ...

    def release(self) -> None: ...

    def encode(
        self, request: StartedRequest, message: m.Message, slices: Slices
    ) -> Pieces | Coroutine[Any, Any, Pieces]:
        if request.endpoint.name == "Fetch":
            return self._convert(request, slices)
        pieces: list[bytes | FileSlice] = [b"<"]
        for of_partition in slices:
            pieces += [b"[", *of_partition, b"]"]
        return self._framed(request, [*pieces, b">"])

    async def _convert(self, request: StartedRequest, slices: Slices) -> Pieces:
        def convert() -> bytes:
            return b"".join(piece.pread().upper() for of_partition in slices for piece in of_partition)

        return self._framed(request, [b"<", await asyncio.to_thread(convert), b">"])

    def encode_error(self, request: StartedRequest, error: ApiError) -> Pieces:
        return self._framed(request, [b"!" + str(error).encode()])

    def _framed(self, request: StartedRequest, pieces: list[bytes | FileSlice]) -> Pieces:
        size_bytes = sum(len(piece) if isinstance(piece, bytes) else piece.size_bytes for piece in pieces)
        return [pack(">IB", 1 + size_bytes, request.correlation_id), *pieces]


def test_a_protocol_that_keeps_order_and_has_batches_inside_its_messages_plugs_in(
    run: Run, cold_readers: ThreadPoolExecutor, tmp_path: Path
) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"abcdefghij" * 10_000)
    file = OpenFile(str(path), os.O_RDWR)
    slices = [[FileSlice(file, 0, 3)], [], [FileSlice(file, 3, 2), FileSlice(file, 7, 60_000)]]
    pending = Deferred()

    def refuse(context: RequestContext, request: object) -> Response:
        raise InvalidRequest("no")

    async def receive(reader: asyncio.StreamReader) -> tuple[int, bytes]:
        (size_bytes,) = unpack_from(">I", await reader.readexactly(4))
        response = await reader.readexactly(size_bytes)
        return response[0], response[1:]

    async def work() -> None:
        async with serving(cold_readers, TinyCodec) as (server, port), connected(port) as client:
            server.handlers[m.ApiKey.PRODUCE] = lambda context, request: pending
            server.handlers[m.ApiKey.FETCH] = lambda context, request: MessageWithSlices(NO_TOPICS, slices)
            server.handlers[m.ApiKey.LIST_OFFSETS] = lambda context, request: MessageWithSlices(NO_TOPICS, slices)
            server.handlers[m.ApiKey.METADATA] = refuse
            keys = [m.ApiKey.PRODUCE, m.ApiKey.FETCH, m.ApiKey.LIST_OFFSETS, m.ApiKey.METADATA]
            frames = [pack(">IBB", 2, key, number) for number, key in enumerate(keys)]
            client.writer.write(b"".join(frames)[:-1])
            await until(lambda: any(each._sending.waiting_bytes > 2 * 60_000 for each in server.sessions))
            (session,) = server.sessions
            assert session._scheduler.in_flight == 3
            held_bytes = server.context.response_memory.held_bytes
            assert 2 * 60_000 > held_bytes > 60_000, "of the two, one was converted in memory"
            pending.complete(m.ErrorResponse("done"))
            client.writer.write(frames[-1][-1:])
            inside = b"[abc][][de" + (b"hijabcdefg" * 6000) + b"]"
            converted = b"<ABCDE" + (b"HIJABCDEFG" * 6000) + b">"
            responses = [await receive(client.reader) for _ in keys]
            assert responses == [(0, b"<>"), (1, converted), (2, b"<" + inside + b">"), (3, b"!no")]
            assert session._sending.waiting_bytes == server.context.response_memory.held_bytes == 0

    run(work())
