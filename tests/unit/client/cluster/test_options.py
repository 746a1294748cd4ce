"""The options of connections, as a class and as what type checkers see of the clients' constructors."""

from collections.abc import Callable
from typing import get_type_hints

import pytest

from warmlog.cluster.login import current_password
from warmlog.cluster.options import ConnectionKeywords, ConnectionOptions, connection_options
from warmlog.errors import InvalidConfig, SaslAuthenticationFailed


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
    assert current_password(options) == "geheim"
    assert current_password(ConnectionOptions(username="u", password="geheim")) == "geheim"


@pytest.mark.parametrize("password", [lambda: 1, lambda: 1 / 0])
def test_a_function_that_returns_no_password_is_told(password: Callable[[], str]) -> None:
    with pytest.raises(SaslAuthenticationFailed, match="the function `password`"):
        current_password(ConnectionOptions(username="u", password=password))
