"""Metadata: brokers, topics and who leads their partitions."""

from warmlog_protocol.messages.base import Message


class MetadataRequest(Message, frozen=True):
    """Ask for the named topics; None asks for all, internal topics only with `include_internal`."""

    topics: list[str] | None = None
    include_internal: bool = False


class BrokerMetadata(Message, frozen=True):
    """One broker. An empty `host` means the address that the client connected to."""

    node_id: int
    host: str
    port: int


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
