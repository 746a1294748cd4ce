"""Options of every connection of a client, and the version that it announces."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TypedDict

from warmlog.errors import InvalidConfig
from warmlog_protocol.errors import did_you_mean
from warmlog_protocol.messages import HandshakeRequest
from warmlog_protocol.sasl.credential import MECHANISMS
from warmlog_protocol.wire.connection import CLIENT_BUFFER_BYTES, DEFAULT_MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Timeouts and bounds of a client's connections."""

    client_name: str = f"warmlog-python-{os.getpid()}"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 60_000
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    receive_buffer_bytes: int = CLIENT_BUFFER_BYTES
    username: str = ""
    """The user to authenticate as; empty for a broker that does not authenticate."""
    password: str | Callable[[], str] = field(default="", repr=False)
    """The password, or a function that returns it: it is called for each authentication, and must not wait for long."""
    sasl_mechanism: str = "SCRAM-SHA-256"

    def handshake(self) -> HandshakeRequest:
        """The first request of a connection."""
        return HandshakeRequest(self.client_name, client_version())


class ConnectionKeywords(TypedDict, total=False):
    """The fields of ConnectionOptions, as the clients' constructors take them."""

    client_name: str
    connect_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    max_frame_bytes: int
    receive_buffer_bytes: int
    username: str
    password: str | Callable[[], str]
    sasl_mechanism: str


_TYPES = {field.name: type(field.default) for field in fields(ConnectionOptions)}


def connection_options(given: Mapping[str, object], client: type) -> ConnectionOptions:
    """The options of these names. TypeError for an unknown name, InvalidConfig for a wrong type or a value below 1.

    `client` is the class whose constructor was called: its own options are named for an unknown one.
    """
    for name, value in given.items():
        if name not in _TYPES:
            raise TypeError(_unknown_option(name, client))
        if name == "password" and callable(value):
            continue
        if type(value) is not _TYPES[name] or (isinstance(value, int) and value < 1):
            shown = "…" if name == "password" else repr(value)
            raise InvalidConfig(f"{name}={shown}: a positive {_TYPES[name].__name__} expected")
    _check_login(given)
    return ConnectionOptions(**given)  # type: ignore[arg-type]


def _check_login(given: Mapping[str, object]) -> None:
    if bool(given.get("username")) != bool(given.get("password")):
        raise InvalidConfig("`username` and `password` belong together: give both, or neither")
    if (mechanism := given.get("sasl_mechanism", "SCRAM-SHA-256")) not in MECHANISMS:
        raise InvalidConfig(f"sasl_mechanism={mechanism!r}: {' or '.join(MECHANISMS)} expected")


def _unknown_option(name: str, client: type) -> str:
    """Return the message about an unknown option: it has the nearest one, or all of them if none is near."""
    import inspect

    parameters = inspect.signature(client).parameters.values()
    own = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    options = [*own, *_TYPES]
    return f"{client.__name__}() has no option {name!r}{did_you_mean(name, options, 'the options are')}"


@cache
def client_version() -> str:
    """The installed version of warmlog; "0" in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("warmlog")
    except PackageNotFoundError:
        return "0"
