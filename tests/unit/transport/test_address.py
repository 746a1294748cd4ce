"""Broker addresses as people type them."""

import pytest

from warmlog_transport.address import Address, parse_address, parse_addresses


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
