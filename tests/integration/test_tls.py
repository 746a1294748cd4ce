"""TLS between real clients and a broker, on asyncio's event loop and uvloop: what works, and who is refused why."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from certificates import Certificates
from waiting import until
from warmlog import Admin, BrokerUnavailable, Consumer, Producer
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.ranges.discover import Discovery
from warmlog_broker import Broker, BrokerConfig, start_broker
from warmlog_broker.network.tls import acceptor
from warmlog_protocol.errors import InvalidConfig
from warmlog_protocol.messages import FetchPartition, FetchRequest, HandshakeRequest, MetadataRequest
from warmlog_protocol.wire.connection import ClientConnection
from warmlog_transport.options import ConnectionOptions
from wire_client import WireClient, batch_of

TIMEOUT_S = 40.0
Run = Callable[[Coroutine[Any, Any, None]], None]
Ask = Callable[..., Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
        errors: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.get_loop().set_exception_handler(lambda loop, context: errors.append(context))
            runner.run(asyncio.wait_for(work, TIMEOUT_S))
        assert errors == []

    return run_on_loop


@pytest.fixture
def start(tmp_path: Path, certificates: Certificates) -> Callable[..., Coroutine[Any, Any, Broker]]:
    """Starts a broker with the listeners `plain` and `tls`."""

    async def start_it(**settings: object) -> Broker:
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        given = {
            "data.dir": str(tmp_path / "data"),
            "listeners": "plain=plaintext://127.0.0.1:0,tls=ssl://127.0.0.1:0",
            "tls.cert.file": certificates.broker,
        }
        return await start_broker(BrokerConfig.from_settings(given | texts))

    return start_it


Start = Callable[..., Coroutine[Any, Any, Broker]]


async def ask_by_asyncio(address: str, **options: Any) -> None:
    async with Admin(address, **options) as admin:
        await admin.topic_names()


async def ask_in_thread(address: str, **options: Any) -> None:
    def ask() -> None:
        with Discovery([address], ConnectionOptions(**options)) as discovery:
            discovery.topics([])

    await asyncio.to_thread(ask)


@pytest.fixture(params=[ask_by_asyncio, ask_in_thread], ids=["the asyncio client", "a client in a thread"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return request.param


def test_records_go_both_ways_and_all_responses_come_whole(run: Run, start: Start, certificates: Certificates) -> None:
    values = [bytes([number]) * 300_000 for number in range(40)]

    async def work() -> None:
        async with await start(fetch_sendfile_enable="true") as broker:
            address, tls = broker.listening.addresses["tls"], {"ssl": True, "ssl_cafile": certificates.ca}
            async with Admin(address, **tls) as admin:
                await admin.create_topic("t", partitions=1)
            async with Producer(address, **tls) as producer:
                futures = [producer.send("t", value) for value in values]
                assert [(await future).offset for future in futures] == list(range(len(values)))
            async with Consumer(address, topics=["t"], start="earliest", **tls) as consumer:
                read = []
                async for record in consumer:
                    read.append(record.value)
                    if len(read) == len(values):
                        break
            assert read == values

            def read_by_sockets() -> int:
                reader = arrow_reader(address, ["t"], columns=["value"], **tls)
                return sum(len(value) for value in reader.read_all()["value"].to_pylist())

            assert await asyncio.to_thread(read_by_sockets) == sum(map(len, values))

    run(work())


WRONG: dict[str, tuple[str, dict[str, str], dict[str, Any], str, str]] = {
    "an issuer that the client does not trust": (
        "tls",
        {},
        {"ssl": True, "ssl_cafile": "foreign_ca"},
        "unknown issuer: give the issuer's certificate with ssl_cafile",
        "trust the issuer of tls.cert.file",
    ),
    "an expired certificate of the broker": (
        "tls",
        {"tls.cert.file": "expired_broker"},
        {"ssl": True, "ssl_cafile": "ca"},
        "the broker's certificate has expired",
        "TLS handshake with 127.0.0.1",
    ),
    "a certificate for another host": (
        "tls",
        {"tls.cert.file": "elsewhere"},
        {"ssl": True, "ssl_cafile": "ca"},
        "connect by a name in its certificate, or leave it unchecked with ssl_check_hostname=False",
        "TLS handshake with 127.0.0.1",
    ),
    "a client without TLS on a port with TLS": (
        "tls",
        {},
        {},
        "does it expect TLS (ssl=True) at this port?",
        "the peer does not speak TLS: a warmlog client needs ssl=True",
    ),
    "a client with TLS on a port without": (
        "plain",
        {},
        {"ssl": True, "ssl_cafile": "ca"},
        "does it speak TLS at this port",
        "the peer speaks TLS, not warmlog's protocol",
    ),
    "no client certificate": (
        "tls",
        {"tls.client.auth": "required", "tls.ca.file": "ca"},
        {"ssl": True, "ssl_cafile": "ca"},
        "does it require another client certificate (ssl_certfile)?",
        "the client has shown no certificate, which tls.client.auth asks for",
    ),
    "a client certificate of another authority": (
        "tls",
        {"tls.client.auth": "optional", "tls.ca.file": "ca"},
        {"ssl": True, "ssl_cafile": "ca", "ssl_certfile": "foreign_alice"},
        "does it require another client certificate (ssl_certfile)?",
        "the client's certificate was refused",
    ),
    "an expired client certificate": (
        "tls",
        {"tls.client.auth": "required", "tls.ca.file": "ca"},
        {"ssl": True, "ssl_cafile": "ca", "ssl_certfile": "expired_alice"},
        "does it require another client certificate (ssl_certfile)?",
        "the client's certificate was refused: certificate has expired",
    ),
}
"""The listener, settings and options with certificates by name, what the client is told, and what the broker logs."""


@pytest.mark.parametrize("case", WRONG)
def test_both_sides_are_told_what_is_wrong(
    run: Run, start: Start, ask: Ask, certificates: Certificates, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener, settings, options, told, logged = WRONG[case]
    caplog.set_level(logging.INFO, "warmlog_broker")

    def files(given: dict[str, Any]) -> dict[str, Any]:
        return {name: getattr(certificates, str(value), value) for name, value in given.items()}

    async def work() -> None:
        async with await start(**files({name.replace(".", "_"): text for name, text in settings.items()})) as broker:
            with pytest.raises(BrokerUnavailable) as refused:
                await ask(broker.listening.addresses[listener], **files(options))
            assert told in str(refused.value)
            await until(lambda: logged in caplog.text)

    run(work())


def test_versions_of_tls_below_1_2_are_refused(run: Run, start: Start, ask: Ask, certificates: Certificates) -> None:
    old = ssl.create_default_context(cafile=certificates.ca)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    newer = ssl.create_default_context(cafile=certificates.ca)
    newer.maximum_version = ssl.TLSVersion.TLSv1_2

    async def work() -> None:
        async with await start() as broker:
            address = broker.listening.addresses["tls"]
            with pytest.raises(BrokerUnavailable, match="ended the TLS handshake"):
                await ask(address, ssl=old)
            await ask(address, ssl=newer)

    run(work())


def test_a_host_name_is_not_checked_on_request(run: Run, start: Start, ask: Ask, certificates: Certificates) -> None:
    async def work() -> None:
        async with await start(tls_cert_file=certificates.elsewhere) as broker:
            address = broker.listening.addresses["tls"]
            await ask(address, ssl=True, ssl_cafile=certificates.ca, ssl_check_hostname=False)

    run(work())


@pytest.mark.parametrize(
    ("settings", "certfile", "principal"),
    [
        ({"tls_client_auth": "required"}, "alice", "User:alice"),
        ({"tls_client_auth": "optional"}, "alice", "User:alice"),
        ({"tls_client_auth": "optional"}, "", "User:ANONYMOUS"),
        ({"tls_client_auth": "required", "tls_principal": "dn"}, "alice", "User:CN=alice,OU=Testing cert"),
    ],
)
def test_a_client_certificate_gives_the_principal(
    run: Run, start: Start, certificates: Certificates, settings: dict[str, str], certfile: str, principal: str
) -> None:
    options = {"ssl": True, "ssl_cafile": certificates.ca}
    if certfile:
        options["ssl_certfile"] = getattr(certificates, certfile)

    async def work() -> None:
        async with (
            await start(tls_ca_file=certificates.ca, **settings) as broker,
            Admin(broker.listening.addresses["tls"], **options),
        ):
            (session,) = broker._connections
            context = session._requests.context  # type: ignore[attr-defined]
            assert context.principal.startswith(principal)
            assert context.listener == "tls"

    run(work())


def test_a_certificate_without_a_name_for_the_principal_is_refused(
    run: Run, start: Start, ask: Ask, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warmlog_broker")
    nameless = certificates.issue("nameless", "nameless.example.org")

    async def work() -> None:
        async with await start(tls_ca_file=certificates.ca, tls_client_auth="required") as broker:
            with pytest.raises(BrokerUnavailable):
                await ask(
                    broker.listening.addresses["tls"], ssl=True, ssl_cafile=certificates.ca, ssl_certfile=nameless
                )
            assert "has no name for tls.principal=cn" in caplog.text

    run(work())


def test_clients_are_told_the_address_of_their_listener(run: Run, start: Start, certificates: Certificates) -> None:
    async def work() -> None:
        async with await start(advertised_listeners="plain=plain.example.org:7400") as broker:
            for name, host in (("plain", "plain.example.org"), ("tls", "")):
                options = ConnectionOptions(ssl=name == "tls", ssl_cafile=certificates.ca if name == "tls" else "")

                def brokers(address: str, options: ConnectionOptions) -> list[str]:
                    from warmlog_protocol.messages import MetadataResponse

                    with Discovery([address], options) as discovery:
                        return [each.host for each in discovery.call(MetadataRequest([]), MetadataResponse).brokers]

                assert await asyncio.to_thread(brokers, broker.listening.addresses[name], options) == [host]

    run(work())


# --- handshakes and their bounds --------------------------------------------------------------------------------------


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def test_clients_get_in_although_others_never_finish_their_handshakes(
    run: Run,
    start: Start,
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "MOST_HANDSHAKES", 4)
    idle: list[socket.socket] = []

    async def work() -> None:
        async with await start(handshake_timeout_ms=300_000) as broker:
            address = broker.listening.addresses["tls"]
            idle.extend(connected(address) for _ in range(12))
            await ask_in_thread(address, ssl=True, ssl_cafile=certificates.ca)
            assert "it was the oldest of 4 on its listener" in caplog.text

    try:
        run(work())
    finally:
        for each in idle:
            each.close()


def test_a_handshake_has_a_deadline(run: Run, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warmlog_broker")

    async def work() -> None:
        async with await start(handshake_timeout_ms=100) as broker:
            with connected(broker.listening.addresses["tls"]) as idle:
                assert await asyncio.to_thread(idle.recv, 1) == b""
            assert "not done within handshake.timeout.ms" in caplog.text

    run(work())


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_stop_ends_handshakes(run: Run, start: Start, has_begun: bool) -> None:
    async def work() -> None:
        broker = await start(handshake_timeout_ms=300_000)
        with connected(broker.listening.addresses["tls"]) as idle:
            if has_begun:
                await until(lambda: any("handshake" in task.get_name() for task in asyncio.all_tasks()))
            assert await broker.stop()
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(idle.recv, 1) == b""

    run(work())


def test_a_client_that_ends_its_side_is_served_to_the_end(run: Run, start: Start, certificates: Certificates) -> None:
    """TLS of asyncio and uvloop closes both directions then: a response may be lost, but the end is an orderly one."""

    def send_and_end(address: str) -> bytes:
        core = ClientConnection()
        tls = ssl.create_default_context(cafile=certificates.ca)
        with tls.wrap_socket(connected(address), server_hostname="127.0.0.1") as encrypted:
            encrypted.sendall(core.request(HandshakeRequest("half", "1"))[1])
            received = encrypted.recv(65536)
            plain = encrypted.unwrap()  # sends the end, and waits for that of the broker
            plain.close()
            return received

    async def work() -> None:
        async with await start() as broker:
            assert await asyncio.to_thread(send_and_end, broker.listening.addresses["tls"])
            await until(lambda: not len(broker._connections))

    run(work())


def test_a_client_that_does_not_read_holds_little_memory(run: Run, start: Start, certificates: Certificates) -> None:
    fetches, value = 40, bytes(900_000)

    async def work() -> None:
        async with await start(send_queue_bytes=8_000_000) as broker:
            address = broker.listening.addresses["tls"]
            tls = ssl.create_default_context(cafile=certificates.ca)
            client = await asyncio.to_thread(WireClient, address, tls=tls)
            try:
                await asyncio.to_thread(client.create_topic, "t")
                await asyncio.to_thread(client.produce, "t", batch_of([value]))
                request = FetchRequest(0, 1, 1 << 20, [FetchPartition("t", 0, 0, 1 << 20)])
                sent = [await asyncio.to_thread(client.send, request) for _ in range(fetches)]
                (session,) = broker._connections
                sending = session._sending  # type: ignore[attr-defined]
                await until(lambda: sending.queued_bytes > 8_000_000)
                assert sending.queued_bytes < 8_000_000 + 2 * len(value)
                assert session._life.held_bytes < 2_000_000  # type: ignore[attr-defined]
                for each in sent:
                    _, payload = await asyncio.to_thread(client.fetched, each)
                    assert len(payload) > len(value)
                await until(lambda: session._life.held_bytes == 0)  # type: ignore[attr-defined]
            finally:
                client.close()

    run(work())


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tls.cert.file": ""}, "tls.cert.file is not set"),
        ({"tls.client.auth": "required"}, "needs tls.ca.file"),
        ({"tls.ca.file": "/ca.pem"}, "set tls.client.auth to optional or required"),
        ({"listeners": "a=plaintext://127.0.0.1:0"}, "no listener uses TLS"),
        ({"tls.client.auth": "maybe"}, "none or optional or required"),
    ],
)
def test_settings_of_tls_that_contradict_each_other_are_refused(settings: dict[str, str], named: str) -> None:
    given = {"data.dir": "/d", "listeners": "a=ssl://127.0.0.1:0", "tls.cert.file": "/c.pem"}
    with pytest.raises(InvalidConfig) as refused:
        BrokerConfig.from_settings(given | settings)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "content", "named"),
    [
        ("tls.cert.file", None, "No such file"),
        ("tls.cert.file", "nonsense", "expected are a certificate and its private key as PEM"),
        ("tls.key.file", None, "No such file"),
        ("tls.key.file", "nonsense", "with the key in"),
        ("tls.ca.file", "nonsense", "cannot be used"),
        ("tls.key.password.file", None, "No such file"),
    ],
)
async def test_a_start_with_a_file_that_cannot_be_used_names_it(
    start: Start, tmp_path: Path, setting: str, content: str | None, named: str
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)
    settings = {setting.replace(".", "_"): path} | ({"tls_client_auth": "required"} if "ca" in setting else {})
    with pytest.raises(InvalidConfig) as refused:
        await start(**settings)
    assert str(path) in str(refused.value)
    assert named in str(refused.value)


async def test_a_key_may_be_encrypted(start: Start, ask: Ask, certificates: Certificates, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(await asyncio.to_thread(Path(certificates.broker).read_bytes), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "key.pem").write_bytes(encrypted)
    (tmp_path / "password").write_text("secret\n")
    key_file = {"tls_key_file": tmp_path / "key.pem"}
    with pytest.raises(InvalidConfig, match=r"tls\.key\.password\.file if the key is encrypted"):
        await start(**key_file)
    async with await start(**key_file, tls_key_password_file=tmp_path / "password") as broker:
        await ask(broker.listening.addresses["tls"], ssl=True, ssl_cafile=certificates.ca)
