"""What handlers know about the connection of a request."""

from dataclasses import dataclass

from warmlog_broker.security.authentication import Authentication
from warmlog_broker.security.quota_rules import MAX_CLIENT_ID_CHARACTERS as MAX_CLIENT_ID_CHARACTERS

ANONYMOUS_PRINCIPAL = "User:ANONYMOUS"
"""Kafka's name for a client that did not authenticate."""
USER_PREFIX = "User:"
"""Before the name of a user: with it, the name is a principal."""


@dataclass(frozen=True, slots=True)
class RequestContext:
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
