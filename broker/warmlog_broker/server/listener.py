"""Listening sockets: bound first, so that a used port is reported at once; they listen once the broker can serve."""

import socket
from collections.abc import Iterable

from msgspec import Struct

from warmlog_broker.config.listeners import Listener, format_address
from warmlog_protocol.errors import WarmlogError


class CannotListen(WarmlogError):
    """The broker cannot listen at an address; the message says why."""


class BoundListener(Struct, frozen=True):
    """A listener and its sockets, one for each address of its host."""

    listener: Listener
    sockets: list[socket.socket]

    @property
    def address(self) -> str:
        """Its host, and the port that it has."""
        return format_address(self.listener.host, self.sockets[0].getsockname()[1])

    def listen(self, backlog: int) -> None:
        """Listen at all addresses. Raises CannotListen if another socket does, which `bind` cannot tell if it was bound
        at the same time."""
        for each in self.sockets:
            try:
                each.listen(backlog)
            except OSError as error:
                raise CannotListen(f"cannot listen at {self.address}: {error.strerror}") from error

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def bind_all(listeners: Iterable[Listener]) -> list[BoundListener]:
    """Bind each of `listeners`. Raises CannotListen, and binds none, if one cannot be bound."""
    bound: list[BoundListener] = []
    try:
        bound.extend(BoundListener(each, bind(each.host, each.port)) for each in listeners)
    except CannotListen:
        for each in bound:
            each.close()
        raise
    return bound


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of `host`, bound to `port`; with port 0 all to one free port.

    Raises CannotListen, naming the address, if one of them cannot be bound.
    """
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in _addresses(host, port):
            listener = socket.socket(family, kind, protocol)
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], sockets[0].getsockname()[1] if len(sockets) > 1 else port, *address[2:]))
    except (OSError, UnicodeError) as error:
        for listener in sockets:
            listener.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CannotListen(f"cannot listen at {format_address(host, port)}: {reason}") from error
    return sockets


def _addresses(host: str, port: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    # For text socket would import the rules of international names, which take a while.
    found = socket.getaddrinfo(
        host.encode() if host.isascii() else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return list(dict.fromkeys(found))
