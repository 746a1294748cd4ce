"""Listeners of Kafka's protocol with passwords and certificates, and what clients are told to connect to."""

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from broker_thread import BrokerThread
from certificates import Certificates
from kafka_client import ConnectionEnded, KafkaClient, rows
from warmlog.admin.access.user_changes import creation
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.listeners import Wire, parse_listeners
from warmlog_broker.tools.access import respond
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, InvalidConfig
from warmlog_protocol.kafka.schema import API
from warmlog_protocol.sasl.scram import ClientExchange

SHA_256 = "SCRAM-SHA-256"
TIMEOUT_S = 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    """In the place of the one without passwords."""
    directory = tmp_path / "data"
    respond(directory, m.AlterUsersRequest([creation("alice", "geheim"), creation("bob", "secret")]))
    listeners = "own=plaintext://127.0.0.1:0,kafka=kafka+sasl_plaintext://127.0.0.1:0"
    settings = {"sasl_failure_delay_ms": 100, "sasl_session_lifetime_ms": 60_000, "authorization": "acl"}
    with BrokerThread(directory, listeners=listeners, super_users="User:alice", **settings) as running:
        yield running


def log_in(client: KafkaClient, user: str = "alice", password: str = "geheim", version: int = 2) -> Any:
    """Return the response to the last message."""
    assert client.call("SaslHandshake", 1, mechanism=SHA_256).error_code == 0
    exchange = ClientExchange(SHA_256, user, password)
    first = client.call("SaslAuthenticate", version, auth_bytes=exchange.first())
    return client.call("SaslAuthenticate", version, auth_bytes=exchange.final(first.auth_bytes))


def test_a_client_logs_in_and_has_its_rights(kafka_address: str) -> None:
    for version in range(3):
        with KafkaClient(kafka_address) as client:
            client.call("ApiVersions", 3)
            done = log_in(client, version=version)
            assert (done.error_code, done.session_lifetime_ms) == (0, 60_000 if version else 0)
            assert client.call("Metadata", 1, topics=None).brokers
    with KafkaClient(kafka_address) as client:
        log_in(client, "bob", "secret")
        refused = client.produce("secret", rows(b"a"))
        assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        part, _ = client.fetch("secret")
        assert part.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_topic_by_its_id_has_no_name_for_those_without_rights(kafka_address: str) -> None:
    asked = API["Metadata"].request.MetadataRequestTopic
    creatable = API["CreateTopics"].request.CreatableTopic
    dropped = API["DeleteTopics"].request.DeleteTopicState
    with KafkaClient(kafka_address) as alice, KafkaClient(kafka_address) as bob:
        log_in(alice)
        log_in(bob, "bob", "secret")
        (made,) = alice.call("CreateTopics", 7, topics=[creatable("hidden", 1, 1)], timeout_ms=5000).topics
        for version in (11, 12):
            topics = [asked(topic_id=made.topic_id, name=None)]
            (seen,) = alice.call("Metadata", version, topics=topics).topics
            assert seen.name == "hidden"
            (seen,) = bob.call("Metadata", version, topics=topics).topics
            expected = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "", made.topic_id)
            assert (seen.error_code, seen.name or "", seen.topic_id) == expected
        topics = [dropped(name=None, topic_id=made.topic_id)]
        (told,) = bob.call("DeleteTopics", 6, topics=topics, timeout_ms=5000).responses
        assert (told.error_code, told.name, told.topic_id) == (expected[0], None, made.topic_id)
        assert "hidden" not in (told.error_message or "")


def test_trap_33_a_session_is_continued_on_its_connection(kafka_address: str) -> None:
    with KafkaClient(kafka_address) as client:
        assert log_in(client).session_lifetime_ms == log_in(client).session_lifetime_ms == 60_000
        assert client.call("Metadata", 1, topics=None).brokers
        assert log_in(client, "bob", "secret").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_trap_33_who_does_not_log_in_again_is_cut_off(tmp_path: Path) -> None:
    respond(tmp_path / "data", m.AlterUsersRequest([creation("alice", "geheim")]))
    listeners = "kafka=kafka+sasl_plaintext://127.0.0.1:0"
    with (
        BrokerThread(tmp_path / "data", listeners=listeners, sasl_session_lifetime_ms=1500) as running,
        KafkaClient(running.broker.address) as client,
    ):
        log_in(client)
        client.call("Metadata", 1, topics=None)
        time.sleep(1.6)
        client.send("Metadata", 1, topics=None)
        with pytest.raises(ConnectionEnded):
            client.receive_frame()


def test_trap_34_api_versions_comes_first_but_not_for_ever(kafka_address: str) -> None:
    with KafkaClient(kafka_address) as client:
        for version in (4, 0, 3, 4):
            assert client.call("ApiVersions", version).error_code == 0
        assert client.call("ApiVersions", 0).error_code == ErrorCode.ILLEGAL_SASL_STATE
        with pytest.raises(ConnectionEnded):
            client.receive_frame()


def test_trap_34_the_raw_form_of_version_0_is_refused(kafka_address: str) -> None:
    with KafkaClient(kafka_address) as client:
        answered = client.call("SaslHandshake", 0, mechanism=SHA_256)
        assert (answered.error_code, SHA_256 in answered.mechanisms) == (ErrorCode.UNSUPPORTED_VERSION, True)


@pytest.mark.parametrize(
    ("name", "version", "fields", "code"),
    [
        ("Metadata", 13, {"topics": None}, ErrorCode.ILLEGAL_SASL_STATE),
        ("SaslAuthenticate", 1, {"auth_bytes": b"n,,n=alice,r=x"}, ErrorCode.ILLEGAL_SASL_STATE),
        ("InitProducerId", 1, {"transactional_id": None}, ErrorCode.ILLEGAL_SASL_STATE),
    ],
)
def test_before_the_login_a_request_gets_its_error_and_the_connection_ends(
    kafka_address: str, name: str, version: int, fields: dict[str, Any], code: ErrorCode
) -> None:
    with KafkaClient(kafka_address) as client:
        assert client.call(name, version, **fields).error_code == code
        with pytest.raises(ConnectionEnded):
            client.receive_frame()


def test_a_wrong_password_or_mechanism_is_refused(kafka_address: str) -> None:
    with KafkaClient(kafka_address) as client:
        unknown = client.call("SaslHandshake", 1, mechanism="GSSAPI")
        assert (unknown.error_code, SHA_256 in unknown.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, True)
        refused = log_in(client, password="wrong")
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "wrong" in refused.error_message
        with pytest.raises(ConnectionEnded):
            client.receive_frame()


def test_without_passwords_a_login_is_refused(tmp_path: Path) -> None:
    with (
        BrokerThread(tmp_path / "data", listeners="kafka=kafka+plaintext://127.0.0.1:0") as running,
        KafkaClient(running.broker.address) as client,
    ):
        answered = client.call("SaslHandshake", 1, mechanism=SHA_256)
        assert answered.error_code == ErrorCode.ILLEGAL_SASL_STATE


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def log_in_by_password(address: str, certificates: Certificates, message: bytes) -> Any:
    """Return the response to a message of PLAIN, on a connection that can be used after it or is closed."""
    client = KafkaClient(address)
    context = ssl.create_default_context(cafile=certificates.ca)
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    with client:
        assert "PLAIN" in client.call("SaslHandshake", 1, mechanism="PLAIN").mechanisms
        told = client.call("SaslAuthenticate", 2, auth_bytes=message)
        if told.error_code == 0:
            assert client.call("Metadata", 1, topics=None).brokers
        else:
            with pytest.raises(ConnectionEnded):
                client.receive_frame()
    return told


async def test_clients_with_passwords_and_certificates_connect(tmp_path: Path, certificates: Certificates) -> None:
    respond(tmp_path / "data", m.AlterUsersRequest([creation("alice", "geheim")]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    settings = {
        "listeners": f"own=plaintext://127.0.0.1:0,kafka=kafka+sasl_ssl://{address}",
        "advertised_listeners": f"kafka={address}",
        "tls_cert_file": certificates.broker,
        "auto_create_topics_enable": "true",
        "sasl_mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "sasl_failure_delay_ms": 100,
    }
    with BrokerThread(tmp_path / "data", **settings):
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password="geheim",
            ssl_context=ssl.create_default_context(cafile=certificates.ca),
        ) as producer:
            assert (await producer.send_and_wait("secured", b"a")).offset == 0
        settings = {
            "bootstrap.servers": address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SHA_256,
            "sasl.username": "alice",
            "sasl.password": "geheim",
            "ssl.ca.location": certificates.ca,
        }
        for mechanism in (SHA_256, "PLAIN"):
            other = confluent_kafka.Producer({**settings, "sasl.mechanism": mechanism})
            other.produce("secured", b"b")
            assert other.flush(TIMEOUT_S) == 0
        assert log_in_by_password(address, certificates, b"\0alice\0geheim").error_code == 0
        for wrong in (b"\0alice\0falsch", b"\0nobody\0geheim", b"bob\0alice\0geheim", b"\0alice", b"\xff\0\0"):
            refused = log_in_by_password(address, certificates, wrong)
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_passwords_are_shown_only_with_tls_and_to_no_other_protocol(kafka_address: str) -> None:
    with KafkaClient(kafka_address) as client:
        told = client.call("SaslHandshake", 1, mechanism="PLAIN")
        assert (told.error_code, "PLAIN" in told.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, False)
    settings = {"data.dir": "/data", "sasl.mechanisms": "PLAIN", "listeners": "k=kafka+sasl_plaintext://127.0.0.1:1"}
    with pytest.raises(InvalidConfig, match="PLAIN shows passwords"):
        BrokerConfig.from_settings(settings)


def test_with_certificates_an_address_must_be_advertised() -> None:
    with pytest.raises(InvalidConfig, match=r"advertised.listeners: k is missing"):
        parse_listeners("k=kafka+ssl://127.0.0.1:9093")
    (listener,) = parse_listeners("k=kafka+ssl://127.0.0.1:9093", "k=broker.example.org:9093")
    assert (listener.wire, listener.uses_tls, listener.advertised) == (Wire.KAFKA, True, ("broker.example.org", 9093))
