"""Listeners: from text to addresses, protocols and advertised addresses, and what is refused."""

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.listeners import (
    Listener,
    SecurityProtocol,
    format_address,
    parse_address,
    parse_listeners,
)
from warmlog_protocol.errors import InvalidConfig

DIRECTORY = {"data.dir": "/data"}


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:7400", ("127.0.0.1", 7400)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65535))],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert format_address(*address) == text


@pytest.mark.parametrize("text", ["", "7400", "host", ":7400", "host:", "host:x", "host:65536", "::1:7400", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="HOST:PORT"):
        parse_address(text)


def test_each_listener_has_a_name_a_protocol_and_an_address() -> None:
    first, second = parse_listeners(" inside=plaintext://127.0.0.1:7400 , out=SASL_SSL://[::]:7443", "out=a.example:1")
    assert first == Listener("inside", SecurityProtocol.PLAINTEXT, "127.0.0.1", 7400)
    assert second == Listener("out", SecurityProtocol.SASL_SSL, "::", 7443, ("a.example", 1))
    assert [(each.uses_tls, each.authenticates) for each in (first, second)] == [(False, False), (True, True)]
    with_tls, with_sasl = parse_listeners("a=ssl://h:1,b=sasl_plaintext://h:2")
    assert [(each.uses_tls, each.authenticates) for each in (with_tls, with_sasl)] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("text", "advertised", "named"),
    [
        ("a", "", "NAME=PROTOCOL://HOST:PORT"),
        ("=plaintext://h:1", "", "NAME=PROTOCOL"),
        ("a b=plaintext://h:1", "", "letters, digits"),
        ("a=127.0.0.1:1", "", "plaintext or ssl or sasl_plaintext or sasl_ssl"),
        ("a=tls://127.0.0.1:1", "", "plaintext or ssl"),
        ("a=ssl://127.0.0.1", "", "listeners: a: '127.0.0.1' is not allowed, it must be HOST:PORT"),
        ("a=ssl://h:1,a=ssl://h:2", "", "'a' occurs twice"),
        (",", "", "at least one"),
        ("inside=ssl://h:1", "insid=h:1", "did you mean inside?"),
        ("a=ssl://h:1", "a=h", "advertised.listeners: a"),
        ("a=ssl://h:1", "a=h:0", "from 1 to 65535"),
    ],
)
def test_a_wrong_listener_is_refused_with_what_is_expected(text: str, advertised: str, named: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_listeners(text, advertised)
    assert named in str(refused.value)


def test_listen_is_short_for_one_listener_called_default() -> None:
    config = BrokerConfig.from_settings({**DIRECTORY, "advertised.listeners": "default=a.example:7400"})
    expected = Listener("default", SecurityProtocol.PLAINTEXT, "127.0.0.1", 7400, ("a.example", 7400))
    assert config.all_listeners == (expected,)


def test_listen_and_listeners_exclude_each_other() -> None:
    listeners = {**DIRECTORY, "listeners": "a=plaintext://127.0.0.1:1"}
    with pytest.raises(InvalidConfig, match="both set"):
        BrokerConfig.from_settings({**listeners, "listen": "127.0.0.1:7400"})
    config = BrokerConfig.from_settings({**listeners, "listen": ""})  # as a container's environment empties it
    assert [each.name for each in config.all_listeners] == ["a"]


@pytest.mark.parametrize(
    "settings",
    [
        {"listeners": "a=plaintext://127.0.0.1:1,b=sasl_plaintext://127.0.0.1:1"},
        {"listen": "127.0.0.1:1", "admin.listen": "127.0.0.1:1"},
    ],
)
def test_two_ports_at_one_address_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match=r"are both at 127\.0\.0\.1:1"):
        BrokerConfig.from_settings({**DIRECTORY, **settings})
    chosen = {name: value.replace(":1", ":0") for name, value in settings.items()}
    BrokerConfig.from_settings({**DIRECTORY, **chosen})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_a_listener_on_a_loopback_interface_needs_no_authentication(host: str) -> None:
    assert BrokerConfig.from_settings({**DIRECTORY, "listen": f"{host}:7400"}).all_listeners[0].is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "logs.example.org"])
def test_a_listener_for_other_machines_without_authentication_has_to_be_allowed(host: str) -> None:
    settings = {**DIRECTORY, "listeners": f"in=plaintext://127.0.0.1:1,out=plaintext://{host}:7400"}
    with pytest.raises(InvalidConfig, match=r"listener out at .*7400 .*sasl_ssl.*allow\.unauthenticated=true"):
        BrokerConfig.from_settings(settings)
    assert BrokerConfig.from_settings({**settings, "allow.unauthenticated": "true"}).all_listeners[1].name == "out"


def test_a_listener_that_authenticates_needs_no_permission_for_other_machines() -> None:
    (listener,) = BrokerConfig.from_settings({**DIRECTORY, "listeners": "a=sasl_plaintext://0.0.0.0:1"}).all_listeners
    assert listener.authenticates
    assert not listener.is_local


@pytest.mark.parametrize("mechanisms", ["", ",", "PLAIN", "SCRAM-SHA-256,SCRAM-SHA-1", "scram-sha-256"])
def test_mechanisms_that_do_not_exist_are_refused(mechanisms: str) -> None:
    with pytest.raises(InvalidConfig, match=r"sasl\.mechanisms"):
        BrokerConfig.from_settings({**DIRECTORY, "sasl.mechanisms": mechanisms})


def test_mechanisms_are_separated_by_commas() -> None:
    settings = {**DIRECTORY, "sasl.mechanisms": "SCRAM-SHA-512, SCRAM-SHA-256,SCRAM-SHA-512"}
    assert BrokerConfig.from_settings(settings).offered_mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256")
