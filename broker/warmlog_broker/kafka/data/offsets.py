"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from typing import Any

from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError
from warmlog_protocol.kafka.schema import API

EARLIEST_LOCAL_TIMESTAMP = -4
"""The log start, as there are no tiers (KIP-405)."""
LATEST_TIERED_TIMESTAMP = -5
"""The last offset of the other tier: -1, as there is none (KIP-1005)."""

_Listed = API["ListOffsets"].response
_Epochs = API["OffsetForLeaderEpoch"].response
_Deleted = API["DeleteRecords"].response


def list_offsets(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Find offsets by time, or the first and last ones."""
    replica_id = request.replica_id if request.replica_id == m.DEBUGGING_REPLICA_ID else m.CONSUMER_REPLICA_ID
    wanted = [
        m.ListOffsetsPartition(
            topic.name,
            part.partition_index,
            m.EARLIEST_TIMESTAMP if part.timestamp == EARLIEST_LOCAL_TIMESTAMP else part.timestamp,
            part.current_leader_epoch,
        )
        for topic in request.topics
        for part in topic.partitions
        if part.timestamp != LATEST_TIERED_TIMESTAMP
    ]

    def back(listed: Any) -> Ready:
        found = iter(listed.partitions)
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                if part.timestamp == LATEST_TIERED_TIMESTAMP:
                    parts.append(_Listed.ListOffsetsPartitionResponse(part.partition_index))
                    continue
                each = next(found)
                parts.append(
                    _Listed.ListOffsetsPartitionResponse(
                        each.partition, each.error_code, each.timestamp_ms, each.offset, each.leader_epoch
                    )
                )
            topics.append(_Listed.ListOffsetsTopicResponse(topic.name, parts))
        return _Listed(topics=topics)

    return then(kafka.call(context, m.ListOffsetsRequest(wanted, request.isolation_level, replica_id)), back)


def list_offsets_failed(request: Any, error: ApiError) -> m.Message:
    """Every partition has the error."""
    result = _Listed.ListOffsetsPartitionResponse
    return _Listed(
        topics=[
            _Listed.ListOffsetsTopicResponse(
                topic.name, [result(part.partition_index, error.code) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def offset_for_leader_epoch(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Tell where leader epochs end."""
    wanted = [
        m.OffsetForLeaderEpochPartition(topic.topic, part.partition, part.leader_epoch, part.current_leader_epoch)
        for topic in request.topics
        for part in topic.partitions
    ]

    def back(ends: Any) -> Ready:
        found = iter(ends.partitions)
        return _epochs(request, lambda _: _epoch(next(found)))

    return then(kafka.call(context, m.OffsetForLeaderEpochRequest(wanted)), back)


def offset_for_leader_epoch_failed(request: Any, error: ApiError) -> m.Message:
    """Every partition has the error."""
    return _epochs(request, lambda part: _Epochs.EpochEndOffset(error.code, part.partition))


def _epochs(request: Any, result: Any) -> m.Message:
    return _Epochs(
        topics=[
            _Epochs.OffsetForLeaderTopicResult(topic.topic, [result(part) for part in topic.partitions])
            for topic in request.topics
        ]
    )


def _epoch(end: m.EpochEndOffset) -> Any:
    return _Epochs.EpochEndOffset(end.error_code, end.partition, end.leader_epoch, end.end_offset)


def delete_records(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Raise the log starts of partitions."""
    wanted = [
        m.DeleteRecordsPartition(topic.name, part.partition_index, part.offset)
        for topic in request.topics
        for part in topic.partitions
    ]

    def back(deleted: Any) -> Ready:
        found = iter(deleted.partitions)
        return _deleted(request, lambda _: _low_watermark(next(found)))

    return then(kafka.call(context, m.DeleteRecordsRequest(wanted)), back)


def delete_records_failed(request: Any, error: ApiError) -> m.Message:
    """Every partition has the error."""
    result = _Deleted.DeleteRecordsPartitionResult
    return _deleted(request, lambda part: result(part.partition_index, -1, error.code))


def _deleted(request: Any, result: Any) -> m.Message:
    return _Deleted(
        topics=[
            _Deleted.DeleteRecordsTopicResult(topic.name, [result(part) for part in topic.partitions])
            for topic in request.topics
        ]
    )


def _low_watermark(each: m.DeletedRecords) -> Any:
    return _Deleted.DeleteRecordsPartitionResult(each.partition, each.low_watermark, each.error_code)
