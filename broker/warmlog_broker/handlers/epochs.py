"""OffsetForLeaderEpoch: where a leader epoch ends in a partition."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.storage.directory.leader_epochs import NO_EPOCH, NO_OFFSET
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import (
    EpochEndOffset,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)


async def offset_for_leader_epoch(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """One result for each partition, in the order of the request."""

    async def find(wanted: OffsetForLeaderEpochPartition) -> EpochEndOffset:
        partition = services.topics.partition(wanted.topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        log = partition.log
        epoch, end_offset = log.end_offset_for_epoch(wanted.leader_epoch)
        return EpochEndOffset(wanted.topic, wanted.partition, ErrorCode.NONE, "", epoch, end_offset, log.log_end_offset)

    items = Items(services, context, "OffsetForLeaderEpoch")
    return OffsetForLeaderEpochResponse(await items.handle_all(request.partitions, find, _epoch_not_found))


def _epoch_not_found(wanted: OffsetForLeaderEpochPartition, error: ApiError) -> EpochEndOffset:
    return EpochEndOffset(wanted.topic, wanted.partition, error.code, str(error), NO_EPOCH, NO_OFFSET, NO_OFFSET)
