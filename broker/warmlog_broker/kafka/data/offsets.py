"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from typing import Any

from warmlog_broker.kafka.responses import answered
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m

EARLIEST_LOCAL_TIMESTAMP = -4
"""The log start, as there are no tiers (KIP-405)."""
LATEST_TIERED_TIMESTAMP = -5
"""The last offset of the other tier: -1, as there is none (KIP-1005)."""


def list_offsets(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Find offsets by time, or the first and last ones."""
    replica_id = request.replica_id if request.replica_id == m.DEBUGGING_REPLICA_ID else m.CONSUMER_REPLICA_ID
    asked = [(topic.name, part) for topic in request.topics for part in topic.partitions]
    wanted = [
        m.ListOffsetsPartition(
            name,
            part.partition_index,
            m.EARLIEST_TIMESTAMP if part.timestamp == EARLIEST_LOCAL_TIMESTAMP else part.timestamp,
            part.current_leader_epoch,
        )
        for name, part in asked
        if part.timestamp != LATEST_TIERED_TIMESTAMP
    ]

    def back(listed: Any) -> Ready:
        found = iter(listed.partitions)
        results = (
            m.ListedOffset(name, part.partition_index, 0, "")
            if part.timestamp == LATEST_TIERED_TIMESTAMP
            else next(found)
            for name, part in asked
        )
        return answered("ListOffsets", request, results)

    return then(kafka.call(context, m.ListOffsetsRequest(wanted, request.isolation_level, replica_id)), back)


def offset_for_leader_epoch(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Tell where leader epochs end."""
    wanted = [
        m.OffsetForLeaderEpochPartition(topic.topic, part.partition, part.leader_epoch, part.current_leader_epoch)
        for topic in request.topics
        for part in topic.partitions
    ]
    return kafka.pass_on(context, "OffsetForLeaderEpoch", request, m.OffsetForLeaderEpochRequest(wanted))


def delete_records(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Raise the log starts of partitions."""
    wanted = [
        m.DeleteRecordsPartition(topic.name, part.partition_index, part.offset)
        for topic in request.topics
        for part in topic.partitions
    ]
    return kafka.pass_on(context, "DeleteRecords", request, m.DeleteRecordsRequest(wanted))
