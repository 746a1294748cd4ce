"""Quotas: how much a user or a client may produce, fetch and ask for in a second, and how many connections it has."""

from enum import StrEnum

from warmlog_protocol.messages.base import Int64, ItemResult, Message

EVERY_OTHER = "*"
"""As a user or a client id of a quota: each one that has no quota of its own."""


class QuotaKey(StrEnum):
    """What is limited."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes of batches a second."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_RATE = "request_rate"
    """Requests a second, of any kind but those that begin a connection."""
    CONNECTIONS = "connections"
    """Connections that are open at once; of a user, whatever the client ids."""


class QuotaLimit(Message, frozen=True):
    """One limit: `producer_byte_rate`, `consumer_byte_rate`, `request_rate` (all a second) or `connections`."""

    key: str
    value: Int64


class ClientQuota(Message, frozen=True):
    """Limits of a user, of a client id, or of a client id of a user; nil: of any. `*`: each one without its own.

    The user is the principal without `User:`; clients that do not authenticate are the user ANONYMOUS.
    """

    user: str | None
    client_id: str | None
    limits: list[QuotaLimit]


class AlterClientQuotasRequest(Message, frozen=True):
    """Set the limits that are named, and remove those whose value is 0; the others stay as they are.

    Each quota is changed independently, durable on response, and in force at once.
    """

    quotas: list[ClientQuota]


class AlterClientQuotasResponse(Message, frozen=True):
    """The results, in the order of the request."""

    quotas: list[ItemResult]


class DescribeClientQuotasRequest(Message, frozen=True):
    """Which quotas are there?"""


class DescribeClientQuotasResponse(Message, frozen=True):
    """All quotas, by user and client id."""

    quotas: list[ClientQuota]
