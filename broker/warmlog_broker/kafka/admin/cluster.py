"""DescribeCluster, DescribeLogDirs and AlterReplicaLogDirs."""

from collections.abc import Iterable
from typing import Any

from warmlog_broker.kafka.cluster import address_of, authorized_operations
from warmlog_broker.kafka.responses import by_topic
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.kafka.schema import API

BROKERS = 1
"""The type of endpoints that are asked for; 2 are controllers, which brokers are not."""

_Cluster = API["DescribeCluster"].response
_Dirs = API["DescribeLogDirs"].response
_Moved = API["AlterReplicaLogDirs"].response


def describe_cluster(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Tell the brokers."""
    if request.endpoint_type != BROKERS:
        text = f"endpoints of type {request.endpoint_type}: brokers (1) are told here"
        return _Cluster(error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=text)

    def back(described: Any) -> Ready:
        shows_rights = request.include_cluster_authorized_operations
        rights = authorized_operations(
            kafka, context, m.ResourceType.CLUSTER, m.CLUSTER_NAME, is_asked_for=shows_rights
        )
        return _Cluster(
            cluster_id=described.cluster_id,
            controller_id=described.controller_id,
            brokers=[
                _Cluster.DescribeClusterBroker(each.node_id, *address_of(context, each), each.rack or None)
                for each in described.brokers
            ],
            cluster_authorized_operations=rights,
        )

    return then(kafka.call(context, m.MetadataRequest([])), back)


def describe_log_dirs(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Tell which partitions each data directory has, and their sizes."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    names = None if wanted is None else sorted({topic for topic, _ in wanted})

    def back(described: Any) -> Ready:
        return _Dirs(results=[_directory(each, wanted) for each in described.directories])

    return then(kafka.call(context, m.DescribeLogDirsRequest(names)), back)


def _directory(directory: m.LogDir, wanted: set[tuple[str, int]] | None) -> Any:
    part = _Dirs.DescribeLogDirsPartition
    topics = by_topic(
        (each.topic, part(each.partition, each.size_bytes, each.offset_lag, each.is_future))
        for each in directory.partitions
        if wanted is None or (each.topic, each.partition) in wanted
    )
    listed = [_Dirs.DescribeLogDirsTopic(*topic) for topic in topics.items()]
    return _Dirs.DescribeLogDirsResult(
        directory.error_code, directory.path, listed, directory.total_bytes, directory.usable_bytes
    )


def alter_replica_log_dirs(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Begin to move partitions to other data directories."""
    wanted = [
        m.ReplicaLogDir(topic.name, number, directory.path)
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    ]

    def back(altered: Any) -> Ready:
        return _moved((each.topic, each.partition, each.error_code) for each in altered.partitions)

    return then(kafka.call(context, m.AlterReplicaLogDirsRequest(wanted)), back)


def alter_replica_log_dirs_failed(request: Any, error: ApiError) -> m.Message:
    """Every partition has the error."""
    return _moved(
        (topic.name, number, error.code)
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    )


def _moved(results: Iterable[tuple[str, int, int]]) -> m.Message:
    topics = by_topic((topic, _Moved.AlterReplicaLogDirPartitionResult(*part)) for topic, *part in results)
    return _Moved(results=[_Moved.AlterReplicaLogDirTopicResult(*topic) for topic in topics.items()])
