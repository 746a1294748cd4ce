"""Handshake: the first request of every connection."""

from msgspec import field

from warmlog_protocol.messages.base import Message


class HandshakeRequest(Message, frozen=True):
    """The client introduces itself. The broker refuses every other request before this."""

    client_name: str
    client_version: str


class ApiVersions(Message, frozen=True):
    """The versions of one API that the broker speaks, both ends inclusive."""

    api_key: int
    min_version: int
    max_version: int


class HandshakeResponse(Message, frozen=True):
    """The broker, the APIs that it speaks, and the largest frame that it accepts, in bytes.

    `write_refusal` is why a broker of 0.1 refuses records and new topics after repeated crashes; "" from others. If
    there are `mechanisms`, the connection must authenticate by one of them before it sends anything else. `throttle_ms`
    is how long the broker does not read it, as the client has exceeded a quota on other connections; only without
    `mechanisms`.
    """

    broker_version: str
    cluster_id: str
    node_id: int
    max_frame_bytes: int
    apis: list[ApiVersions]
    write_refusal: str = ""
    mechanisms: list[str] = field(default_factory=list)
    throttle_ms: int = 0
