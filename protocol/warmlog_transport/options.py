"""Options of every connection of a client, and the version that it announces."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from ssl import SSLContext
from types import NoneType
from typing import TypedDict

from warmlog_protocol.errors import InvalidConfig, did_you_mean
from warmlog_protocol.messages import HandshakeResponse
from warmlog_protocol.sasl.credential import MECHANISMS
from warmlog_protocol.wire.connection import CLIENT_BUFFER_BYTES, DEFAULT_MAX_FRAME_BYTES
from warmlog_protocol.wire.login import Login, Password, login
from warmlog_transport.address import Address
from warmlog_transport.tls import make_context


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Timeouts, bounds and encryption of a client's connections."""

    client_name: str = f"warmlog-python-{os.getpid()}"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 60_000
    rack: str = ""
    """Where the client is, as `rack` of a broker: it reads from an in-sync replica there, if there is one."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    receive_buffer_bytes: int = CLIENT_BUFFER_BYTES
    username: str = ""
    """The user to authenticate as; empty for a broker that does not authenticate."""
    password: Password = field(default="", repr=False)
    """The password, or a function that returns it: it is called for each authentication, and must not wait for long."""
    sasl_mechanism: str = "SCRAM-SHA-256"
    ssl: bool | SSLContext = False
    """Whether to connect by TLS; or a context for it, instead of the options that follow."""
    ssl_cafile: str = ""
    """A PEM file with the issuers of brokers' certificates; by default those that the system trusts."""
    ssl_certfile: str = ""
    """A PEM file with the client's certificate, if the broker asks for one."""
    ssl_keyfile: str = ""
    """A PEM file with its key, if that is not in `ssl_certfile`."""
    ssl_keypassword: str = field(default="", repr=False)
    """The password of the key, if that is encrypted."""
    ssl_check_hostname: bool = True
    """Whether the broker's certificate must be for the host that was connected to."""

    def tls_context(self) -> SSLContext | None:
        """Return a context for one connection, with the files as they are now; None without TLS.

        Raises InvalidConfig if a file cannot be used.
        """
        if not self.ssl or isinstance(self.ssl, SSLContext):
            return self.ssl or None
        return make_context(
            cafile=self.ssl_cafile,
            certfile=self.ssl_certfile,
            keyfile=self.ssl_keyfile,
            password=self.ssl_keypassword,
            checks_hostname=self.ssl_check_hostname,
        )

    def login(self, address: Address, broker: HandshakeResponse) -> Login:
        """Return the requests that authenticate a new connection."""
        return login(str(address), broker, self.username, self.password, self.sasl_mechanism)


class ConnectionKeywords(TypedDict, total=False):
    """The fields of ConnectionOptions, as the clients' constructors take them."""

    client_name: str
    connect_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    rack: str
    max_frame_bytes: int
    receive_buffer_bytes: int
    username: str
    password: Password
    sasl_mechanism: str
    ssl: bool | SSLContext
    ssl_cafile: str
    ssl_certfile: str
    ssl_keyfile: str
    ssl_keypassword: str
    ssl_check_hostname: bool


_TYPES = {field.name: type(field.default) for field in fields(ConnectionOptions)}
_IN_WORDS = {bool: "True or False (ssl: or an ssl.SSLContext)", int: "a positive int", str: "a str"}
SECRETS = frozenset(field.name for field in fields(ConnectionOptions) if not field.repr)
"""Options whose values are not shown."""


def connection_options(given: Mapping[str, object], client: Callable[..., object]) -> ConnectionOptions:
    """The options of these names. TypeError for an unknown name; InvalidConfig for a wrong type, a value below 1, or
    options of TLS that contradict each other or whose files cannot be used.

    `client` is what was called, a class or a function: its own options are named for an unknown one.
    """
    for name in given:
        if name not in _TYPES:
            raise TypeError(_unknown_option(name, client))
    check_types(given)
    options = ConnectionOptions(**given)  # type: ignore[arg-type]
    _check_tls(options)
    if bool(options.username) != bool(options.password):
        raise InvalidConfig("`username` and `password` belong together: give both, or neither")
    return options


def override(base: ConnectionOptions, given: Mapping[str, object], client: Callable[..., object]) -> ConnectionOptions:
    checked = connection_options(given, client)
    return replace(base, **{name: getattr(checked, name) for name in given})


def check_types(given: Mapping[str, object]) -> None:
    """Raise InvalidConfig if a field of ConnectionOptions is given a wrong type or a value below 1."""
    for name, value in given.items():
        expected = _TYPES[name]
        if name == "ssl" and isinstance(value, SSLContext):
            continue
        if name == "password" and callable(value):
            continue
        if type(value) is not expected or (type(value) is int and value < 1):
            shown = "…" if name in SECRETS else repr(value)
            raise InvalidConfig(f"{name}={shown}: {_IN_WORDS[expected]} expected")
        if name == "sasl_mechanism" and value not in MECHANISMS:
            raise InvalidConfig(f"sasl_mechanism={value!r}: {' or '.join(MECHANISMS)} expected")


_OWN_TYPES: dict[str, tuple[type, ...]] = {
    "linger_ms": (int, float),
    "compression": (str,),
    "isolation": (str,),
    "idempotent": (bool, NoneType),
    "verify_crc": (bool,),
    "high_water_bytes": (int, NoneType),
    "session_timeout_ms": (int, NoneType),
    "rebalance_timeout_ms": (int, NoneType),
    "transactional_id": (str, NoneType),
}
_LEAST = {"linger_ms": 0, "max_wait_ms": 0, "unavailable_timeout_ms": 0}


def check_own_options(**options: object) -> None:
    """Check options of a producer or consumer, of which most are an int from 1 on.

    TypeError for a value of another type, InvalidConfig for a number that is too low.
    """
    for name, value in options.items():
        types = _OWN_TYPES.get(name, (int,))
        if type(value) not in types:
            expected = " or ".join("None" if one is NoneType else one.__name__ for one in types)
            raise TypeError(f"{name}={value!r}: {expected} expected, not {type(value).__name__}")
        least = _LEAST.get(name, 1)
        if isinstance(value, (int, float)) and type(value) is not bool and not value >= least:
            raise InvalidConfig(f"{name}={value}: at least {least} expected")


_OF_KAFKA = {"auto_offset_reset": "start", "enable_auto_commit": "commit", "security_protocol": "ssl"}
"""Options of Kafka's clients, and those that are meant; the names of others are alike."""


def _check_tls(options: ConnectionOptions) -> None:
    """Raise InvalidConfig if options of TLS contradict each other, or their files cannot be used."""
    given = [
        field.name
        for field in fields(options)
        if field.name.startswith("ssl_") and getattr(options, field.name) != field.default
    ]
    if given and not options.ssl:
        raise InvalidConfig(f"{given[0]} is given without TLS: add ssl=True, or leave it out")
    if given and isinstance(options.ssl, SSLContext):
        raise InvalidConfig(f"{given[0]} and a context as ssl are both given: set it in the context, or give ssl=True")
    if options.ssl_keyfile and not options.ssl_certfile:
        raise InvalidConfig("ssl_keyfile is given without ssl_certfile, the certificate of the key")
    options.tls_context()


def _unknown_option(name: str, client: Callable[..., object]) -> str:
    """Return the message about an unknown option: it has the nearest one, or all of them if none is near."""
    import inspect

    parameters = inspect.signature(client).parameters.values()
    own = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    options = [*own, *_TYPES]
    meant = _OF_KAFKA.get(name)
    hint = did_you_mean(meant if meant in options else name, options, "the options are")
    return f"{client.__name__}() has no option {name!r}{hint}"


@cache
def client_version() -> str:
    """The installed version of warmlog; "0" in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("warmlog")
    except PackageNotFoundError:
        return "0"
