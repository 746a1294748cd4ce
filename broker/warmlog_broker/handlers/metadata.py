"""Metadata: the broker, the topics, and who leads their partitions."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.topics import Topic
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)

DIALLED_HOST = ""
"""The address that the client dialled: with one broker there is no other."""
NO_LEADER = -1
NO_TOPIC_ID = bytes(16)


async def metadata(services: Services, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """The named topics, each once, or all; one that does not exist has an error code and no partitions."""
    node_id = services.config.node_id

    async def describe(name: str) -> TopicMetadata:
        return _describe(services.topics.get(name), node_id)

    if request.topics is None:
        topics = [
            _describe(topic, node_id) for topic in services.topics if request.include_internal or not topic.is_internal
        ]
    else:
        items = Items(services, context, "Metadata")
        topics = await items.handle_all(dict.fromkeys(request.topics), describe, _not_described)
    return MetadataResponse(
        cluster_id=services.cluster_id,
        controller_id=node_id,
        brokers=[BrokerMetadata(node_id, DIALLED_HOST, 0)],
        topics=topics,
    )


def _not_described(name: str, error: ApiError) -> TopicMetadata:
    return TopicMetadata(error.code, name, NO_TOPIC_ID, [])


def _describe(topic: Topic, node_id: int) -> TopicMetadata:
    partitions = [_describe_partition(partition, node_id) for partition in topic.partitions]
    return TopicMetadata(ErrorCode.NONE, topic.name, topic.topic_id, partitions)


def _describe_partition(partition: Partition, node_id: int) -> PartitionMetadata:
    is_offline = not partition.allows.read
    return PartitionMetadata(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NONE,
        partition=partition.key.partition,
        leader_id=NO_LEADER if is_offline else node_id,
        leader_epoch=partition.leader_epoch,
        replicas=[node_id],
        in_sync_replicas=[] if is_offline else [node_id],
    )
