"""Listeners that authenticate: what they refuse, sessions, and what happens to the users of open connections."""

import asyncio
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import warmlog
import warmlog.blocking
from broker_thread import BrokerThread
from certificates import Certificates
from warmlog.admin.access.user_changes import creation
from warmlog.arrow_write.producer import ArrowProducer
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.ranges.discover import Discovery
from warmlog.spark.options.read_options import parse_read_options
from warmlog.spark.options.write_options import parse_write_options
from warmlog.spark.read.planning import plan_batch
from warmlog.spark.write.task import write_batches
from warmlog_broker.tools.access import respond
from warmlog_protocol import messages as m
from warmlog_protocol.sasl.scram import ClientExchange
from warmlog_transport.connection import Connection
from warmlog_transport.loop_thread import LoopThread
from warmlog_transport.options import ConnectionOptions
from wire_client import ConnectionEnded, WireClient, batch_of

LISTENERS = "main=sasl_plaintext://127.0.0.1:0"
LOGIN: Any = {"username": "alice", "password": "geheim"}
SHA_256 = "SCRAM-SHA-256"
ALWAYS = {m.ApiKey.HANDSHAKE, m.ApiKey.AUTHENTICATE, m.ApiKey.PEER_HELLO}
"""The last one is how a broker authenticates, and is refused by its content."""


@pytest.fixture
def make_broker(tmp_path: Path) -> Callable[..., BrokerThread]:
    def make(**settings: object) -> BrokerThread:
        directory = tmp_path / "data"
        respond(directory, m.AlterUsersRequest([creation("alice", "geheim")]))
        return BrokerThread(directory, **{"listeners": LISTENERS, "sasl_failure_delay_ms": 200, **settings})

    return make


@pytest.fixture
def broker(make_broker: Callable[..., BrokerThread]) -> Iterator[BrokerThread]:
    with make_broker() as running:
        yield running


def authenticate(client: WireClient, username: str = "alice", password: str = "geheim") -> m.AuthenticateResponse:
    exchange = ClientExchange(SHA_256, username, password)
    first = client.call(m.AuthenticateRequest(SHA_256, exchange.first()))
    last = client.call(m.AuthenticateRequest(SHA_256, exchange.final(cast("m.AuthenticateResponse", first).data)))
    return cast("m.AuthenticateResponse", last)


def refusal(address: str, **options: Any) -> warmlog.WarmlogError:
    with pytest.raises(warmlog.WarmlogError) as found, warmlog.blocking.Admin(address, **options):
        pass
    return found.value


# --- who is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_right_password_lets_a_client_in(broker: BrokerThread, mechanism: str) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN, sasl_mechanism=mechanism) as admin:
        admin.create_topic("t")
        assert [user.name for user in admin.list_users()] == ["alice"]


def test_a_wrong_password_and_an_unknown_user_are_told_alike_and_as_late(broker: BrokerThread) -> None:
    told, took = set(), []
    for name, password in (("alice", "wrong"), ("mallory", "wrong"), ("mallory", "geheim")):
        begun = time.monotonic()
        error = refusal(broker.address, username=name, password=password)
        took.append(time.monotonic() - begun)
        assert type(error) is warmlog.SaslAuthenticationFailed
        told.add(str(error))
    assert len(told) == 1
    assert min(took) > 0.2
    errors = broker.in_loop(lambda running: dict(running.services.counters.errors))
    assert errors["warmlog", "Authenticate", "SaslAuthenticationFailed"] == 3


def test_an_unknown_user_has_the_same_salt_again_and_after_a_restart(make_broker: Callable[..., BrokerThread]) -> None:
    def told(address: str) -> list[bytes]:
        with WireClient(address) as client:
            first = client.call(m.AuthenticateRequest(SHA_256, b"n,,n=mallory,r=nonce"))
            return cast("m.AuthenticateResponse", first).data.split(b",")[1:]

    with make_broker() as broker:
        before = told(broker.address)
        assert told(broker.address) == before
    with BrokerThread(broker.config.data_paths[0], listeners=LISTENERS) as broker:
        assert told(broker.address) == before


def test_a_message_that_is_sent_again_is_refused(broker: BrokerThread) -> None:
    exchange = ClientExchange(SHA_256, "alice", "geheim")
    with WireClient(broker.address) as client:
        first = cast("m.AuthenticateResponse", client.call(m.AuthenticateRequest(SHA_256, exchange.first())))
        heard = exchange.final(first.data)
        assert cast("m.AuthenticateResponse", client.call(m.AuthenticateRequest(SHA_256, heard))).done
    with WireClient(broker.address) as thief:
        thief.call(m.AuthenticateRequest(SHA_256, exchange.first()))
        with pytest.raises(warmlog.SaslAuthenticationFailed):
            thief.call(m.AuthenticateRequest(SHA_256, heard))
        thief.wait_for_end()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-1", "", "scram-sha-256", "X" * 200])
def test_another_mechanism_is_refused(broker: BrokerThread, mechanism: str) -> None:
    with WireClient(broker.address) as client:
        with pytest.raises(warmlog.UnsupportedSaslMechanism):
            client.call(m.AuthenticateRequest(mechanism, b"n,,n=alice,r=nonce"))
        client.wait_for_end()


def test_a_listener_offers_only_the_mechanisms_that_it_is_set_to(make_broker: Callable[..., BrokerThread]) -> None:
    with make_broker(sasl_mechanisms="SCRAM-SHA-512") as broker:
        with WireClient(broker.address, handshake=False) as client:
            hello = cast("m.HandshakeResponse", client.call(m.HandshakeRequest("c", "1")))
            assert hello.mechanisms == ["SCRAM-SHA-512"]
            with pytest.raises(warmlog.UnsupportedSaslMechanism):
                client.call(m.AuthenticateRequest(SHA_256, b"n,,n=alice,r=nonce"))
        error = refusal(broker.address, **LOGIN)
        assert type(error) is warmlog.UnsupportedSaslMechanism
        assert "sasl_mechanism" in str(error)


def test_an_exchange_cannot_change_its_mechanism(broker: BrokerThread) -> None:
    with WireClient(broker.address) as client:
        client.call(m.AuthenticateRequest("SCRAM-SHA-512", b"n,,n=alice,r=nonce"))
        with pytest.raises(warmlog.IllegalSaslState):
            client.call(m.AuthenticateRequest(SHA_256, b"c=biws,r=nonce,p=AAAA"))
        client.wait_for_end()


def test_a_client_with_a_password_refuses_a_broker_that_does_not_ask_for_it(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as open_to_all:
        error = refusal(open_to_all.address, **LOGIN)
        assert type(error) is warmlog.UnsupportedSaslMechanism
        with WireClient(open_to_all.address) as client, pytest.raises(warmlog.IllegalSaslState):
            client.call(m.AuthenticateRequest(SHA_256, b"n,,n=alice,r=nonce"))


def test_a_client_without_a_password_is_told_what_to_give(broker: BrokerThread) -> None:
    error = refusal(broker.address)
    assert "`username` and `password`" in str(error)


@pytest.mark.parametrize("key", sorted(m.APIS.keys() - ALWAYS))
@pytest.mark.parametrize("is_exchanging", [False, True])
def test_no_request_is_served_before_the_authentication(broker: BrokerThread, key: int, is_exchanging: bool) -> None:
    with WireClient(broker.address) as client:
        if is_exchanging:
            client.call(m.AuthenticateRequest(SHA_256, b"n,,n=alice,r=nonce"))
        header = b"\x94\xcd" + key.to_bytes(2, "big") + b"\x00\x07\x90"  # no body that fits it is needed
        client.socket.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        size = int.from_bytes(_received(client, 4), "big")
        assert _received(client, size)[5:7] == bytes([7, warmlog.ErrorCode.ILLEGAL_SASL_STATE])
        client.wait_for_end()


def _received(client: WireClient, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = client.socket.recv(count - len(data))
        assert piece, "the connection ended before the response"
        data += piece
    return data


@pytest.mark.parametrize("size", [9_000, 1 << 20, 90 << 20])
def test_a_large_frame_before_the_authentication_ends_the_connection(broker: BrokerThread, size: int) -> None:
    with WireClient(broker.address) as client:
        client.socket.sendall(struct.pack(">II", size, size - 4) + b"\x94\x24\x00\x01")
        client.wait_for_end()
    with WireClient(broker.address) as client:
        authenticate(client)
        client.create_topic("t")
        client.produce("t", batch_of([b"v" * 100_000]))


def test_a_client_that_does_not_authenticate_in_time_is_cut(make_broker: Callable[..., BrokerThread]) -> None:
    with make_broker(handshake_timeout_ms=300) as broker, WireClient(broker.address) as client:
        client.wait_for_end()


def test_another_user_cannot_take_over_a_connection(broker: BrokerThread) -> None:
    with WireClient(broker.address) as client, warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        admin.create_user("bob", "password")
        authenticate(client)
        with pytest.raises(warmlog.SaslAuthenticationFailed, match="alice"):
            authenticate(client, "bob", "password")
        client.wait_for_end()


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_that_is_not_renewed_ends_with_the_next_request(make_broker: Callable[..., BrokerThread]) -> None:
    with make_broker(sasl_session_lifetime_ms=1500) as broker, WireClient(broker.address) as client:
        assert authenticate(client).session_lifetime_ms == 1500
        client.call(m.MetadataRequest([]))
        time.sleep(1.6)
        with pytest.raises((ConnectionEnded, ConnectionError)):
            client.call(m.MetadataRequest([]))


def test_an_expired_session_can_be_renewed(make_broker: Callable[..., BrokerThread]) -> None:
    with make_broker(sasl_session_lifetime_ms=1500) as broker, WireClient(broker.address) as client:
        authenticate(client)
        time.sleep(1.6)
        authenticate(client)
        client.call(m.MetadataRequest([]))


async def test_clients_renew_sessions_under_load_and_no_request_fails(make_broker: Callable[..., BrokerThread]) -> None:
    with make_broker(sasl_session_lifetime_ms=2_500) as broker:

        def sessions() -> int:
            counters = broker.in_loop(lambda running: running.services.counters)
            return sum(counters.request_seconds["warmlog", "Authenticate"].counts) // 2

        async with (
            warmlog.Producer(broker.address, **LOGIN, delivery_timeout_ms=30_000) as producer,
            warmlog.Admin(broker.address, **LOGIN) as admin,
        ):
            await admin.create_topic("t")
            count = 0
            while sessions() < 2 * 2:  # each of the two connections has renewed its session, of two messages
                await asyncio.gather(*(producer.send("t", b"%d" % (count + each)) for each in range(50)))
                count += 50
                await admin.topic_names()
            async with warmlog.Consumer(broker.address, topics=["t"], **LOGIN) as consumer:
                values = [bytes(record.value or b"") async for record in consumer.records(until="latest")]
        assert values == [b"%d" % number for number in range(count)]
        assert not broker.in_loop(lambda running: dict(running.services.counters.errors))
        assert broker.in_loop(lambda running: running._connections.gone_count) <= 3, "no connection was replaced"


async def test_a_producer_whose_password_is_no_longer_valid_says_so(make_broker: Callable[..., BrokerThread]) -> None:
    with make_broker(sasl_session_lifetime_ms=1_000) as broker:
        async with warmlog.Admin(broker.address, **LOGIN) as admin:
            await admin.create_topic("t")
            await admin.create_user("bob", "one")
            login: Any = {"username": "bob", "password": "one"}
            async with warmlog.Producer(broker.address, **login, delivery_timeout_ms=2_000) as producer:
                await producer.send("t", b"first")
                await admin.rotate_user("bob", "two", grace_ms=0)

                async def send_on() -> None:
                    while True:
                        await producer.send("t", b"later")

                with pytest.raises(warmlog.WarmlogError, match="authentication failed"):
                    await send_on()


# --- users come and go ---------------------------------------------------------------------------------------------


def test_the_connections_of_a_deleted_user_end(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        admin.create_user("bob", "password")
        with WireClient(broker.address) as of_bob, WireClient(broker.address) as of_alice:
            authenticate(of_bob, "bob", "password")
            authenticate(of_alice)
            admin.delete_user("bob")
            of_bob.wait_for_end()
            of_alice.call(m.MetadataRequest([]))
        assert type(refusal(broker.address, username="bob", password="password")) is warmlog.SaslAuthenticationFailed
        with pytest.raises(warmlog.ResourceNotFound):
            admin.delete_user("bob")


def test_a_waiting_request_of_a_deleted_user_is_cut_after_a_while(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin, WireClient(broker.address) as of_bob:
        admin.create_user("bob", "password")
        admin.create_topic("t")
        authenticate(of_bob, "bob", "password")
        of_bob.send(m.FetchRequest(300_000, 1, 1 << 20, [m.FetchPartition("t", 0, 0, 1 << 20)]))
        of_bob.call(m.MetadataRequest([]))
        admin.delete_user("bob")
        of_bob.wait_for_end()


def test_a_user_that_deletes_itself_gets_the_response(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        admin.create_user("bob", "password")
    with warmlog.blocking.Admin(broker.address, username="bob", password="password") as admin:
        admin.delete_user("bob")
        with pytest.raises(warmlog.WarmlogError):
            admin.list_users()


def test_a_user_that_is_deleted_within_its_exchange_is_refused(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin, WireClient(broker.address) as client:
        admin.create_user("bob", "password")
        exchange = ClientExchange(SHA_256, "bob", "password")
        first = cast("m.AuthenticateResponse", client.call(m.AuthenticateRequest(SHA_256, exchange.first())))
        admin.delete_user("bob")
        with pytest.raises(warmlog.SaslAuthenticationFailed):
            client.call(m.AuthenticateRequest(SHA_256, exchange.final(first.data)))


def test_both_passwords_are_valid_after_a_rotation_unless_it_has_no_grace_period(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        admin.create_user("bob", "one")
        admin.rotate_user("bob", "two")
        for password in ("one", "two"):
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                with warmlog.blocking.Admin(
                    broker.address, username="bob", password=password, sasl_mechanism=mechanism
                ) as of_bob:
                    (user,) = (each for each in of_bob.list_users() if each.name == "bob")
                    assert user.previous_until is not None
        admin.rotate_user("bob", "three", grace_ms=0)
        (user,) = (each for each in admin.list_users() if each.name == "bob")
        assert user.previous_until is None
    for password in ("one", "two"):
        assert type(refusal(broker.address, username="bob", password=password)) is warmlog.SaslAuthenticationFailed
    with warmlog.blocking.Admin(broker.address, username="bob", password="three"):
        pass


def test_a_token_is_a_user_with_a_random_password(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        secret = admin.create_token("etl")
        with warmlog.blocking.Admin(broker.address, username="etl", password=secret) as of_etl:
            assert [user.is_token for user in of_etl.list_users()] == [False, True]
        other = admin.rotate_token("etl", grace_ms=0)
    assert len(secret) > 40
    assert secret != other
    with warmlog.blocking.Admin(broker.address, username="etl", password=other):
        pass


def test_users_survive_a_restart(make_broker: Callable[..., BrokerThread]) -> None:
    with make_broker() as broker, warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        admin.create_user("bob", "password")
        admin.create_user("eve", "password")
        admin.delete_user("eve")
    with (
        BrokerThread(broker.config.data_paths[0], listeners=LISTENERS) as again,
        warmlog.blocking.Admin(again.address, username="bob", password="password") as admin,
    ):
        assert [user.name for user in admin.list_users()] == ["alice", "bob"]


def test_what_is_wrong_with_a_change_is_told(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        with pytest.raises(warmlog.DuplicateResource):
            admin.create_user("alice", "x")
        with pytest.raises(warmlog.ResourceNotFound):
            admin.rotate_user("nobody", "x")
        for name in ("", "ANONYMOUS", " alice", "x" * 256, "a\u0007"):
            with pytest.raises(warmlog.UnacceptableCredential):
                admin.create_user(name, "x")
        for password in ("", "a\u0007"):
            with pytest.raises(warmlog.UnacceptableCredential):
                admin.create_user("bob", password)
        with pytest.raises(TypeError) as found:
            admin.create_user("bob", b"geheim")  # type: ignore[arg-type]
        assert "geheim" not in str(found.value)


# --- with TLS, and with every kind of client -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_clients_authenticate_over_tls(make_broker: Callable[..., BrokerThread], certificates: Certificates) -> None:
    tls: Any = {"ssl": True, "ssl_cafile": certificates.ca}
    listeners = "main=sasl_ssl://127.0.0.1:0"
    with make_broker(listeners=listeners, tls_cert_file=certificates.broker) as broker:
        with warmlog.blocking.Admin(broker.address, **LOGIN, **tls) as admin:
            admin.create_topic("t")
        with Discovery([broker.address], ConnectionOptions(**LOGIN, **tls)) as discovery:
            assert list(discovery.topics_like(".*")) == ["t"]
        assert type(refusal(broker.address, **tls)) is warmlog.SaslAuthenticationFailed
        assert type(refusal(broker.address, **tls, username="alice", password="x")) is warmlog.SaslAuthenticationFailed
        assert isinstance(refusal(broker.address, **LOGIN), warmlog.BrokerUnavailable)


def test_a_certificate_is_no_password(make_broker: Callable[..., BrokerThread], certificates: Certificates) -> None:
    tls: Any = {"ssl": True, "ssl_cafile": certificates.ca}
    settings = {"tls_cert_file": certificates.broker, "tls_ca_file": certificates.ca, "tls_client_auth": "required"}
    with make_broker(listeners="main=sasl_ssl://127.0.0.1:0", **settings) as broker:
        assert isinstance(refusal(broker.address, **LOGIN, **tls), warmlog.BrokerUnavailable)
        tls["ssl_certfile"] = certificates.alice
        assert type(refusal(broker.address, **tls)) is warmlog.SaslAuthenticationFailed
        with warmlog.blocking.Admin(broker.address, **LOGIN, **tls) as admin:
            admin.create_user("bob", "password")
            said = broker.in_loop(lambda running: [each.user for each in running._connections])
            assert said == ["alice"]


async def test_a_commit_without_response_is_not_refused(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    password = "geheim"

    def send(connection: Connection, message: m.Message, *arguments: Any, **options: Any) -> None:
        nonlocal password
        request(connection, message, *arguments, **options)
        if isinstance(message, m.EndTransactionRequest) and password == "geheim":
            password = "wrong"
            assert connection._transport is not None
            connection._transport.pause_reading()
            asyncio.get_running_loop().call_later(0.5, connection._transport.abort)

    async with warmlog.Admin(broker.address, **LOGIN) as admin:
        await admin.create_topic("t")
    request = Connection.request
    monkeypatch.setattr(Connection, "request", send)
    login: Any = {"username": "alice", "password": lambda: password}
    async with warmlog.Producer(broker.address, **login, transactional_id="x") as producer:
        with pytest.raises(warmlog.BrokerUnavailable, match="the password is wrong"):
            async with producer.transaction():
                producer.send("t", b"one")
        password = "geheim"
    reading: Any = {"topics": ["t"], "start": "earliest", "isolation": "read_committed"}
    async with warmlog.Consumer(broker.address, **LOGIN, **reading) as consumer:
        assert [record.value async for record in consumer.records(until="latest")] == [b"one"]


def test_every_kind_of_client_authenticates(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        admin.create_topic("t")
        with warmlog.blocking.Producer(broker.address, **LOGIN) as producer:
            producer.send("t", b"one").result()
        with warmlog.blocking.Consumer(broker.address, topics=["t"], group="g", start="earliest", **LOGIN) as consumer:
            assert [record.value for record in next(iter(consumer.batches()))] == [b"one"]
            consumer.commit()
        assert [group.name for group in admin.list_groups()] == ["g"]
    assert arrow_reader(broker.address, ["t"], **LOGIN).read_all()["value"].to_pylist() == [b"one"]
    login = ConnectionOptions(**LOGIN)
    with LoopThread("writing") as thread, thread.entered(lambda: ArrowProducer(broker.address, login)) as writer:
        assert thread.call(lambda: writer.topic("t")).max_message_bytes > 0


def test_a_batch_of_spark_reads_and_writes_with_a_password(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **LOGIN) as admin:
        admin.create_topic("t")
    given = {"bootstrap.servers": broker.address, "username": "alice", "password": "geheim", "topic": "t"}
    options = parse_write_options(given)
    columns = {"value": 0}
    written = write_batches(iter([pa.record_batch({"value": pa.array([b"one"], pa.binary())})]), columns, options)
    assert written.records == 1
    del given["topic"]
    reading = parse_read_options({**given, "subscribe": "t"}, 0)
    assert len(plan_batch(reading)) == 1
    assert "geheim" not in repr(options) + repr(reading)
    with pytest.raises(warmlog.SaslAuthenticationFailed):
        plan_batch(parse_read_options({**given, "password": "x", "subscribe": "t"}, 0))
