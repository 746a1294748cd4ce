"""Listeners: the addresses at which the broker accepts connections, and what each expects of them.

The setting `listeners` is `NAME=PROTOCOL://HOST:PORT`, several with commas between them; PROTOCOL is one of Kafka's
security protocols in lower case, with `kafka+` before it if clients of Kafka connect there. `advertised.listeners` is
`NAME=HOST:PORT` in the same way.
"""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from warmlog_protocol.errors import InvalidConfig, did_you_mean

DEFAULT_LISTENER = "default"
"""The name of the listener that the setting `listen` stands for."""
KAFKA_LISTENER = "kafka"
"""The same for `kafka.listen`."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")


class SecurityProtocol(StrEnum):
    """Whether connections are encrypted, and whether clients authenticate."""

    PLAINTEXT = "plaintext"
    SSL = "ssl"
    SASL_PLAINTEXT = "sasl_plaintext"
    SASL_SSL = "sasl_ssl"


class Wire(StrEnum):
    """The protocol in which requests come, as metrics name it."""

    WARMLOG = "warmlog"
    KAFKA = "kafka"


class Listener(Struct, frozen=True):
    """One address, and what connections to it are like."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    """0: the system chooses one."""
    advertised: tuple[str, int] | None = None
    """Host and port that clients are told to connect to; None: those that they connected to."""
    wire: Wire = Wire.WARMLOG

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def authenticates(self) -> bool:
        """Whether clients must authenticate by SASL before any other request."""
        return self.protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @property
    def may_offer_plain(self) -> bool:
        """Whether clients may show their password itself, by the mechanism PLAIN."""
        return self.wire is Wire.KAFKA and self.uses_tls and self.authenticates

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host in ("localhost", "127.0.0.1"):
            return True
        import ipaddress  # slow to import

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listeners(text: str, advertised: str = "") -> tuple[Listener, ...]:
    """Return the listeners of the settings `listeners` and `advertised.listeners`; InvalidConfig if one is wrong."""
    parts = dict(_named(text, "listeners", "NAME=PROTOCOL://HOST:PORT"))
    if not parts:
        raise InvalidConfig("listeners: at least one is expected, such as internal=plaintext://127.0.0.1:7400")
    return _listeners([_endpoint(name, endpoint) for name, endpoint in parts.items()], advertised)


def short_listeners(listen: str, kafka_listen: str = "", advertised: str = "") -> tuple[Listener, ...]:
    """Return the listeners that the settings `listen` and, unless it is empty, `kafka.listen` stand for."""
    short = [Listener(DEFAULT_LISTENER, SecurityProtocol.PLAINTEXT, *parse_address(listen))]
    if kafka_listen:
        address = parse_address(kafka_listen, "kafka.listen")
        short.append(Listener(KAFKA_LISTENER, SecurityProtocol.PLAINTEXT, *address, wire=Wire.KAFKA))
    return _listeners(short, advertised)


def _listeners(listeners: Sequence[Listener], advertised: str) -> tuple[Listener, ...]:
    names = [each.name for each in listeners]
    told = dict(_named(advertised, "advertised.listeners", "NAME=HOST:PORT"))
    for name in told:
        if name not in names:
            hint = did_you_mean(name, names, "the listeners are")
            raise InvalidConfig(f"advertised.listeners: there is no listener {name!r}{hint}")
    addresses = {name: parse_address(text, f"advertised.listeners: {name}") for name, text in told.items()}
    for name, (_, port) in addresses.items():
        if port == 0:
            raise InvalidConfig(f"advertised.listeners: {name}: port 0 is not allowed, it must be from 1 to 65535")
    for each in listeners:
        if each.wire is Wire.KAFKA and each.uses_tls and each.name not in addresses:
            raise InvalidConfig(
                f"advertised.listeners: {each.name} is missing: Kafka's clients check that a certificate has the name "
                f"that they are told: give it, such as {each.name}=broker.example.org:9093"
            )
    return tuple(replace(each, advertised=addresses.get(each.name)) for each in listeners)


def _named(text: str, setting: str, form: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of `NAME=VALUE, …`; InvalidConfig for another form or a name that occurs twice."""
    seen = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise InvalidConfig(
                f"{setting}: {part!r} is not allowed, it must be {form} with a name of letters, digits, '.', '_', '-'"
            )
        if name in seen:
            raise InvalidConfig(f"{setting}: {name!r} occurs twice: give each listener its own name")
        seen.add(name)
        yield name, value


def _endpoint(name: str, text: str) -> Listener:
    protocol, separator, address = text.partition("://")
    protocol = protocol.lower() if separator else ""
    security = protocol.removeprefix(f"{Wire.KAFKA}+")
    try:
        chosen = SecurityProtocol(security)
    except ValueError:
        raise InvalidConfig(
            f"listeners: {name}={text} is not allowed, it must be NAME=PROTOCOL://HOST:PORT where PROTOCOL is "
            f"{' or '.join(SecurityProtocol)}, with kafka+ before it for clients of Kafka"
        ) from None
    wire = Wire.WARMLOG if security == protocol else Wire.KAFKA
    return Listener(name, chosen, *parse_address(address, f"listeners: {name}"), wire=wire)


def parse_address(text: str, name: str = "listen") -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[IPV6]:PORT"; InvalidConfig, with the `name`, otherwise."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InvalidConfig(f"{name}: {text!r} is not allowed, it must be HOST:PORT with a port from 0 to 65535")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
