"""OffsetForLeaderEpoch: where a leader epoch ends in a partition."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.storage.directory.leader_epochs import NO_EPOCH, NO_OFFSET
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import (
    EpochEndOffset,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from warmlog_protocol.wire.connection import Request


def offset_for_leader_epoch(
    services: Services,
    asker: Asker,  # noqa: ARG001
    request: Request,
) -> OffsetForLeaderEpochResponse:
    """One result for each partition, in the order of the request."""
    message = request.message
    assert isinstance(message, OffsetForLeaderEpochRequest)
    return OffsetForLeaderEpochResponse([_answer(services, wanted) for wanted in message.partitions])


def _answer(services: Services, wanted: OffsetForLeaderEpochPartition) -> EpochEndOffset:
    try:
        partition = services.topics.partition(wanted.topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        log = partition.log
        epoch, end_offset = log.end_offset_for_epoch(wanted.leader_epoch)
    except ApiError as error:
        return _failed(wanted, error)
    except Exception:
        return _failed(wanted, own_failure(f"OffsetForLeaderEpoch of {wanted.topic!r} {wanted.partition}"))
    return EpochEndOffset(wanted.topic, wanted.partition, ErrorCode.NONE, "", epoch, end_offset, log.log_end_offset)


def _failed(wanted: OffsetForLeaderEpochPartition, error: ApiError) -> EpochEndOffset:
    return EpochEndOffset(wanted.topic, wanted.partition, error.code, str(error), NO_EPOCH, NO_OFFSET, NO_OFFSET)
