"""The options of connections, as a class and as what type checkers see of the clients' constructors."""

from dataclasses import fields
from typing import get_type_hints

from warmlog.cluster.options import ConnectionKeywords, ConnectionOptions


def test_type_checkers_see_every_option_with_its_type() -> None:
    options = {field.name: type(field.default) for field in fields(ConnectionOptions)}
    assert get_type_hints(ConnectionKeywords) == options
