"""Where a broker listens: `host:port`, and the lists of them that people type."""

from collections.abc import Sequence
from typing import NamedTuple

DEFAULT_PORT = 7400


class Address(NamedTuple):
    """A host name or IP address, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host`, `host:port` or `[ipv6]:port`; without a port it is 7400. ValueError says what is wrong."""
    text = text.strip()
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {text!r}: write an IPv6 address in brackets, as [::1]:{DEFAULT_PORT}")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"address {text!r} is not HOST:PORT")
    return Address(host, int(port))


def parse_addresses(bootstrap: str | Sequence[str]) -> list[Address]:
    """The addresses of `bootstrap`: a list of them, or one text with commas between. At least one."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [parse_address(text) for text in texts if text.strip()]
    if not addresses:
        raise ValueError("no broker address given: expected HOST:PORT")
    return addresses
