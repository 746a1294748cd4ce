"""What handlers know about the connection of a request."""

from contextvars import ContextVar

from msgspec import Struct

from warmlog_broker.network.request_scheduler import StartedRequest
from warmlog_broker.security.authentication import Authentication
from warmlog_broker.security.quota_rules import MAX_CLIENT_ID_CHARACTERS as MAX_CLIENT_ID_CHARACTERS
from warmlog_protocol.messages import USER_PREFIX

ANONYMOUS_PRINCIPAL = f"{USER_PREFIX}ANONYMOUS"
"""Kafka's name for a client that did not authenticate."""


class RequestContext(Struct, frozen=True):
    """One object for each connection, replaced at the Handshake and by an authentication."""

    listener: str
    """The name of the listener that accepted the connection."""
    client_id: str
    """The client's name from the Handshake, at most MAX_CLIENT_ID_CHARACTERS of it; empty before."""
    principal: str
    """The authenticated user; ANONYMOUS_PRINCIPAL without authentication."""
    peer: str
    """HOST:PORT, for the log."""
    is_replica: bool
    """Whether the peer was identified as another broker. The claims of a request do not count."""
    authentication: Authentication | None = None
    """None if the listener does not authenticate."""
    connection: int = 0
    """The number of the connection: they are counted from the start of the broker."""


CURRENT_REQUEST: ContextVar[tuple[RequestContext, StartedRequest] | None] = ContextVar("current request", default=None)
"""Set while a request is handled, and in the tasks and callbacks that its handler starts."""


def request_number() -> str:
    """Return the number of the request that is being handled: that of its connection, and its own on that."""
    current = CURRENT_REQUEST.get()
    return "" if current is None else f"{current[0].connection}-{current[1].correlation_id}"


def current_request() -> dict[str, str]:
    """Return what log lines say about the request that is being handled; empty outside of one.

    A task or timer that a handler has started may outlive the request: what it does after that is not said to be the
    request's.
    """
    current = CURRENT_REQUEST.get()
    if current is None or current[1].is_over:
        return {}
    context, started = current
    return {
        "request": request_number(),
        "api": started.api.name,
        "principal": context.principal,
        "client": context.peer,
        "client_id": context.client_id,
        "listener": context.listener,
    }
