"""One connection: pipelining, timeouts, and the end of everything that waits when it breaks."""

import asyncio
import struct

import pytest
import uvloop

from fake_broker import FakeBroker
from warmlog.errors import BrokerUnavailable, RemoteProtocolError, WarmlogError
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_transport.address import Address
from warmlog_transport.connection import Connection, Throttle
from warmlog_transport.options import ConnectionOptions

pytestmark = pytest.mark.usefixtures("quick_clock")

OPTIONS = ConnectionOptions(connect_timeout_ms=500, request_timeout_ms=500, client_name="tester")


async def open_to(broker: FakeBroker) -> Connection:
    return await Connection(Address("127.0.0.1", broker.port), OPTIONS).open()


async def test_a_connection_begins_with_a_handshake_that_names_the_client() -> None:
    async with FakeBroker() as broker:
        connection = await open_to(broker)
        assert broker.handshakes[0].client_name == "tester"
        assert connection.broker is not None
        assert connection.broker.cluster_id == "cluster"
        await connection.close()


async def test_answers_find_their_requests() -> None:
    async with FakeBroker(a=1, b=2) as broker:
        connection = await open_to(broker)
        answers = await asyncio.gather(
            *(connection.call(m.MetadataRequest([name]), m.MetadataResponse) for name in ("a", "b", "a", "b"))
        )
        assert [len(answer.topics[0].partitions) for answer in answers] == [1, 2, 1, 2]
        await connection.close()


@pytest.mark.parametrize("value_bytes", [10, 600 * 1024])
async def test_a_fetched_payload_is_never_overwritten(value_bytes: int) -> None:
    async with FakeBroker(t=1) as broker:
        batches = [encode_batch([bytes([n]) * value_bytes], timestamps_ms=1, base_offset=n) for n in range(5)]
        for batch in batches:
            broker.add_batch("t", 0, batch)
        connection = await open_to(broker)
        answers = []
        for offset in range(5):
            request = m.FetchRequest(0, 1, 1, [m.FetchPartition("t", 0, offset, 1)])
            answers.append(await connection.ask(request))
        for offset, answer in enumerate(answers):
            assert isinstance(answer.result, m.FetchResponse)
            assert bytes(answer.payload[-value_bytes:]) == bytes([offset]) * value_bytes
        await connection.close()


async def test_what_is_asked_for_at_once_leaves_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeBroker(t=1) as broker:
        connection = await open_to(broker)
        transport = connection._transport
        assert transport is not None
        writes = []

        class Recording:
            def writelines(self, parts: list[bytes]) -> None:
                writes.append(len(parts))
                transport.writelines(parts)

            def __getattr__(self, name: str) -> object:
                return getattr(transport, name)

        monkeypatch.setattr(connection, "_transport", Recording())
        data = encode_batch([b"x"], timestamps_ms=1)
        answered: list[ReceivedResponse | WarmlogError] = []
        request = m.ProduceRequest(-1, 100, [m.ProducePartition("t", 0, len(data))])
        for _ in range(3):
            connection.request(request, [data], answered.append)
        await connection.call(m.MetadataRequest(), m.MetadataResponse)
        assert writes == [7]
        assert len(answered) == 3
        results = [answer.result for answer in answered if isinstance(answer, ReceivedResponse)]
        assert all(isinstance(result, m.ProduceResponse) for result in results)
        await connection.close()


async def test_everything_that_waits_fails_when_the_connection_breaks() -> None:
    async with FakeBroker() as broker:
        connection = await open_to(broker)
        broker.is_silent = True
        waiting = [asyncio.ensure_future(connection.call(m.MetadataRequest(), m.MetadataResponse)) for _ in range(3)]
        await asyncio.sleep(0.02)
        broker.disconnect()
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, BrokerUnavailable)
        assert not connection.is_open
        with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{broker.port} lost"):
            await connection.call(m.MetadataRequest(), m.MetadataResponse)
        await connection.close()


async def test_a_request_that_is_not_answered_in_time_ends_the_connection() -> None:
    async with FakeBroker() as broker:
        connection = await open_to(broker)
        broker.is_silent = True
        with pytest.raises(BrokerUnavailable, match=r"did not respond to MetadataRequest within 0\.05 s"):
            await connection.call(m.MetadataRequest(), m.MetadataResponse, timeout_ms=50)
        assert not connection.is_open
        await connection.close()


async def test_a_cancelled_request_leaves_the_connection_usable() -> None:
    async with FakeBroker(t=1) as broker:
        connection = await open_to(broker)
        waiting = asyncio.ensure_future(connection.call(m.MetadataRequest(), m.MetadataResponse))
        await asyncio.sleep(0)
        waiting.cancel()
        assert len((await connection.call(m.MetadataRequest(), m.MetadataResponse)).topics) == 1
        await connection.close()


async def test_a_broker_that_does_not_shake_hands_is_given_up() -> None:
    async with FakeBroker() as broker:
        broker.is_silent = True
        with pytest.raises(
            BrokerUnavailable, match=r"connected to 127\.0\.0\.1:\d+, but no response within 0\.5 s: is it"
        ):
            await open_to(broker)


async def test_nobody_listening_is_named() -> None:
    with pytest.raises(BrokerUnavailable, match=r"no connection to broker 127\.0\.0\.1:1: ") as refused:
        await Connection(Address("127.0.0.1", 1), OPTIONS).open()
    assert str(refused.value).endswith(": connection refused: is the broker running there?")


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer speaks HTTP, not warmlog's protocol"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "the peer speaks TLS"),
        (b"-ERR unknown command\r\n", r"the peer sends text \('-ERR unk'\)"),
    ],
)
async def test_a_server_of_another_protocol_is_named(reply: bytes, named: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(reply + bytes(1))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(RemoteProtocolError, match=f"connection to broker 127.0.0.1:{port} lost: a frame of .*{named}"):
        await Connection(Address("127.0.0.1", port), OPTIONS).open()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", struct.pack(">II", 8, 4) + b"\x00" * 4])
async def test_a_peer_that_is_no_broker_is_told_as_what_it_is(reply: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(RemoteProtocolError):
        await Connection(Address("127.0.0.1", port), OPTIONS).open()
    server.close()
    await server.wait_closed()


# --- quotas ---------------------------------------------------------------------------------------------------------


class Arrivals:
    """When requests for metadata arrived; each response tells the next of `delays_ms`, if there is one."""

    def __init__(self, broker: FakeBroker, *delays_ms: int) -> None:
        self.times_s: list[float] = []
        self._delays_ms = list(delays_ms)
        broker.further_handlers[m.MetadataRequest] = self._respond

    def _respond(self, _: m.MetadataRequest) -> m.MetadataResponse:
        self.times_s.append(asyncio.get_running_loop().time())
        return m.MetadataResponse("cluster", 0, [], [], self._delays_ms.pop(0) if self._delays_ms else 0)


async def test_nothing_is_sent_before_the_delay_that_a_response_tells_is_over() -> None:
    async with FakeBroker() as broker:
        changes: list[float] = []
        loop = asyncio.get_running_loop()
        throttle = Throttle()
        connection = await Connection(
            Address("127.0.0.1", broker.port), OPTIONS, lambda: changes.append(loop.time()), throttle
        ).open()
        arrivals = Arrivals(broker, 3000)
        await connection.call(m.MetadataRequest(), m.MetadataResponse)
        until_s = throttle.until_s
        assert until_s == pytest.approx(arrivals.times_s[0] + 3, abs=0.2)
        assert not connection.is_writable
        await asyncio.gather(*(connection.call(m.MetadataRequest(), m.MetadataResponse) for _ in range(2)))
        assert connection.is_writable
        assert min(arrivals.times_s[1:]) >= until_s, "also far beyond the request timeout"
        assert changes
        assert min(changes) >= until_s
        assert throttle.elapsed_s(loop.time()) == pytest.approx(3)
        await connection.close()


async def test_a_request_in_flight_may_take_as_much_longer_as_the_broker_does_not_read() -> None:
    async with FakeBroker(t=1) as broker:
        connection = await open_to(broker)
        Arrivals(broker, 2000)
        fetch = m.FetchRequest(1500, 1, 1, [m.FetchPartition("t", 0, 0, 1)])
        waiting = asyncio.ensure_future(connection.call(fetch, m.FetchResponse))
        await asyncio.sleep(0.05)
        await connection.call(m.MetadataRequest(), m.MetadataResponse)
        await waiting
        broker.is_silent = True
        with pytest.raises(BrokerUnavailable, match="did not respond"):
            await connection.call(m.MetadataRequest(), m.MetadataResponse)
        await connection.close()


async def test_a_connection_that_is_closed_while_it_is_throttled_sends_what_it_has() -> None:
    async with FakeBroker(t=1) as broker:
        connection = await open_to(broker)
        Arrivals(broker, 60_000)
        await connection.call(m.MetadataRequest(), m.MetadataResponse)
        data = encode_batch([b"x"], timestamps_ms=1)
        connection.request(m.ProduceRequest(0, 100, [m.ProducePartition("t", 0, len(data))]), [data], None)
        await connection.close()
        for _ in range(500):
            await asyncio.sleep(0.01)
            if broker.topics["t"][0].batches:
                break
        assert broker.topics["t"][0].values() == [b"x"]


def test_delays_that_overlap_are_counted_once() -> None:
    throttle = Throttle()
    assert not throttle.note(m.MetadataResponse("c", 0, [], []), 10.0)
    assert throttle.note(m.MetadataResponse("c", 0, [], [], 2000), 10.0)
    assert not throttle.note(m.MetadataResponse("c", 0, [], [], 500), 11.0)
    assert throttle.note(m.MetadataResponse("c", 0, [], [], 3000), 11.0)
    assert [throttle.elapsed_s(now_s) for now_s in (10.0, 11.0, 14.0, 20.0)] == [0.0, 1.0, 4.0, 4.0]
    assert throttle.note(m.MetadataResponse("c", 0, [], [], 3000), 20.0)
    throttle.reset(21.0)
    assert throttle.elapsed_s(30.0) == 5.0


def test_an_attempt_that_is_cancelled_as_it_gets_its_socket_ends() -> None:
    """uvloop closes the socket then, and calls no `connection_lost`."""

    async def cancelled() -> None:
        class Made(Connection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                asyncio.get_running_loop().call_soon(attempt.cancel)

        async with FakeBroker() as broker:
            attempt = asyncio.create_task(Made(Address("127.0.0.1", broker.port), OPTIONS).open())
            await asyncio.wait([attempt], timeout=3)
            assert attempt.cancelled()

    uvloop.run(cancelled())
