"""Handshake, the first request of every connection; Metadata: brokers, topics and who leads their partitions."""

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


class MetadataRequest(Message, frozen=True):
    """Ask for the named topics; None asks for all, internal topics only with `include_internal`."""

    topics: list[str] | None = None
    include_internal: bool = False


class BrokerMetadata(Message, frozen=True):
    """One broker. An empty `host` means the address that the client connected to."""

    node_id: int
    host: str
    port: int
    rack: str = ""


class PartitionMetadata(Message, frozen=True):
    """The leader and replicas of a partition. `leader_id` is -1 while the partition is offline."""

    error_code: int
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: list[int]
    in_sync_replicas: list[int]


class TopicMetadata(Message, frozen=True):
    """A topic, its 16-byte id and its partitions in ascending order."""

    error_code: int
    name: str
    topic_id: bytes
    partitions: list[PartitionMetadata]
    error_message: str = ""


class MetadataResponse(Message, frozen=True):
    """The cluster as this broker sees it."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerMetadata]
    topics: list[TopicMetadata]
    throttle_ms: int = 0
