"""Addresses of brokers: `host:port`, and lists of them as users type them."""

from collections.abc import Sequence
from errno import ECONNREFUSED
from typing import NamedTuple

from warmlog_protocol.errors import InvalidConfig
from warmlog_transport.tls import why_tls_failed

DEFAULT_PORT = 7400


class Address(NamedTuple):
    """A host name or IP address, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `host`, `host:port` or `[ipv6]:port`; the default port is 7400. Raises ValueError."""
    text = text.strip()
    if "://" in text:
        raise ValueError(f"address {text!r}: HOST:PORT expected, without {text.partition('://')[0]}://")
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {text!r}: an IPv6 address needs brackets, as in [::1]:{DEFAULT_PORT}")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"address {text!r} is not HOST:PORT")
    return Address(host, int(port))


def checked_bootstrap(bootstrap: str | Sequence[str]) -> str | Sequence[str]:
    """Return `bootstrap` unless it is no address. Raises TypeError or InvalidConfig, which names the argument."""
    expected = (
        f'expected "HOST:PORT", several with commas between them, or a list of them, as in "127.0.0.1:{DEFAULT_PORT}"'
    )
    is_list = isinstance(bootstrap, Sequence) and all(isinstance(one, str) for one in bootstrap)
    if not is_list or isinstance(bootstrap, bytes | bytearray):
        raise TypeError(f"bootstrap={bootstrap!r}: {expected}")
    try:
        parse_addresses(bootstrap)
    except ValueError as error:
        raise InvalidConfig(f"bootstrap={bootstrap!r}: {error}; {expected}") from None
    return bootstrap


def parse_addresses(bootstrap: str | Sequence[str]) -> list[Address]:
    """Parse a list of addresses, or one text with commas between them. Raises ValueError if there is none."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [parse_address(text) for text in texts if text.strip()]
    if not addresses:
        raise ValueError("no broker address given: expected HOST:PORT")
    return addresses


def why_unconnected(error: OSError, *, uses_tls: bool = False) -> str:
    """Return why no connection was made, as part of a message; asyncio's own texts are Python tuples."""
    if uses_tls and (reason := why_tls_failed(error)) is not None:
        return reason
    if f"[Errno {ECONNREFUSED}]" in str(error):  # also if several addresses of a host were tried
        return "connection refused: is the broker running there?"
    return error.strerror or str(error)


def silent(address: Address, timeout_s: float) -> str:
    """Return the message about a server that accepts connections and does not respond to the handshake."""
    return f"connected to {address}, but no response within {timeout_s:g} s: is it a warmlog broker?"
