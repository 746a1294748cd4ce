"""The options of connections, as a class and as type checkers see them; brokers' addresses as people type them."""

import ssl
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from warmlog.errors import InvalidConfig, SaslAuthenticationFailed
from warmlog_protocol.wire.login import current_password
from warmlog_transport.address import Address, parse_address, parse_addresses
from warmlog_transport.options import ConnectionKeywords, ConnectionOptions, connection_options


def test_type_checkers_see_every_option_with_its_type() -> None:
    assert get_type_hints(ConnectionKeywords) == get_type_hints(ConnectionOptions)


def test_a_password_is_in_no_text_of_the_options() -> None:
    assert "geheim" not in repr(ConnectionOptions(username="u", password="geheim"))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"username": "u"}, "belong together"),
        ({"password": "geheim"}, "belong together"),
        ({"username": "u", "password": b"geheim"}, "password=…"),
        ({"username": "u", "password": "geheim", "sasl_mechanism": "PLAIN"}, "SCRAM-SHA-256 or SCRAM-SHA-512"),
    ],
)
def test_a_wrong_login_is_refused_without_the_password(given: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason) as found:
        connection_options(given, ConnectionOptions)
    assert "geheim" not in str(found.value)


def test_a_function_is_taken_in_place_of_a_password() -> None:
    options = connection_options({"username": "u", "password": lambda: "geheim"}, ConnectionOptions)
    assert current_password(options.password) == "geheim"
    assert current_password("geheim") == "geheim"


@pytest.mark.parametrize("password", [lambda: 1, lambda: 1 / 0])
def test_a_function_that_returns_no_password_is_told(password: Callable[[], str]) -> None:
    with pytest.raises(SaslAuthenticationFailed, match="the function `password`"):
        current_password(password)


def test_options_have_defaults_of_their_types() -> None:
    for field in fields(ConnectionOptions):
        hint = get_type_hints(ConnectionOptions)[field.name]
        assert any(isinstance(field.default, get_origin(each) or each) for each in get_args(hint) or (hint,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl": "yes"}, "ssl='yes': True or False (ssl: or an ssl.SSLContext) expected"),
        ({"ssl": True, "ssl_cafile": Path("ca.pem")}, "a str expected"),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile is given without TLS: add ssl=True, or leave it out"),
        ({"ssl_check_hostname": False}, "ssl_check_hostname is given without TLS"),
        ({"ssl": True, "ssl_keyfile": "key.pem"}, "ssl_keyfile is given without ssl_certfile"),
        ({"ssl": True, "ssl_cafile": "/missing.pem"}, "ssl_cafile='/missing.pem' cannot be read: "),
        ({"ssl": True, "ssl_certfile": "/missing.pem"}, "ssl_certfile='/missing.pem' cannot be read: "),
        ({"ssl": True, "ssl_cafile": __file__}, "certificates as PEM expected"),
        ({"ssl": True, "ssl_certfile": __file__}, "a certificate and its private key as PEM expected"),
        ({"ssl": ssl.create_default_context(), "ssl_cafile": "ca.pem"}, "set it in the context, or give ssl=True"),
    ],
)
def test_options_of_tls_that_have_no_effect_or_cannot_be_used_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        connection_options(given, ConnectionOptions)
    assert message in str(refused.value)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(ConnectionOptions(ssl_keypassword="secret"))
    with pytest.raises(InvalidConfig) as refused:
        connection_options({"ssl_keypassword": 4711}, ConnectionOptions)
    assert "4711" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7400", Address("127.0.0.1", 7400)),
        ("broker", Address("broker", 7400)),
        (" broker:9 ", Address("broker", 9)),
        ("[::1]:9", Address("::1", 9)),
        ("[::1]", Address("::1", 7400)),
    ],
)
def test_an_address_is_a_host_and_perhaps_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":7400", "host:", "host:x", "host:0", "host:65536", "::1", "host:-1"])
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|no broker"):
        parse_address(text)


def test_a_url_is_told_from_an_ipv6_address() -> None:
    with pytest.raises(ValueError, match="HOST:PORT expected, without http://"):
        parse_address("http://127.0.0.1:7400")


def test_several_addresses_are_a_list_or_separated_by_commas() -> None:
    expected = [Address("a", 1), Address("b", 2)]
    assert parse_addresses("a:1,b:2") == expected
    assert parse_addresses(["a:1", "b:2"]) == expected
    with pytest.raises(ValueError, match="no broker address"):
        parse_addresses(" , ")


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert str(Address("::1", 9)) == "[::1]:9"
    assert str(Address("h", 9)) == "h:9"
