"""Codes of errors as clients know them: what a version of an API does not know becomes the nearest that it knows."""

import sys
from collections.abc import Mapping, Sequence

from warmlog_protocol.errors import ErrorCode

NEVER = sys.maxsize
Rows = Sequence[tuple[ErrorCode, int, ErrorCode]]


def _transactional(fenced_from: int, abortable_from: int) -> Rows:
    return (
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, NEVER, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.TRANSACTION_ABORTABLE, abortable_from, ErrorCode.PRODUCER_FENCED),
        (ErrorCode.PRODUCER_FENCED, fenced_from, ErrorCode.INVALID_PRODUCER_EPOCH),
    )


def _of_members(epochs_from: int) -> Rows:
    """Who is no member is UNKNOWN_MEMBER_ID if the group has some."""
    return (
        (ErrorCode.NON_EMPTY_GROUP, NEVER, ErrorCode.UNKNOWN_MEMBER_ID),
        (ErrorCode.FENCED_MEMBER_EPOCH, NEVER, ErrorCode.STALE_MEMBER_EPOCH),
        (ErrorCode.STALE_MEMBER_EPOCH, epochs_from, ErrorCode.ILLEGAL_GENERATION),
    )


INSTEAD: Mapping[str, Rows] = {
    "Produce": (
        # What a coordinator says of a batch, producers do not expect here. They repeat NOT_ENOUGH_REPLICAS at once.
        (ErrorCode.CONCURRENT_TRANSACTIONS, NEVER, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, NEVER, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NEVER, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, NEVER, ErrorCode.NOT_ENOUGH_REPLICAS),
        *_transactional(NEVER, 11),
    ),
    "InitProducerId": _transactional(4, 5),
    "AddPartitionsToTxn": _transactional(2, 4),
    "AddOffsetsToTxn": _transactional(2, 4),
    "EndTxn": _transactional(2, 4),
    "TxnOffsetCommit": (
        *_of_members(NEVER),
        *_transactional(5, 4),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),  # older clients repeat this one
    ),
    "OffsetCommit": _of_members(9),
    "ConsumerGroupHeartbeat": ((ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NEVER, ErrorCode.GROUP_ID_NOT_FOUND),),
}
"""By API: an error, the first version that knows it, and what stands for it before. Rows apply one after another."""


def code_in(api_name: str, version: int, code: int) -> int:
    """Return what stands for an error in this version of an API."""
    if code != ErrorCode.NONE:
        for known, known_from, instead in INSTEAD.get(api_name, ()):
            if code == known and version < known_from:
                code = instead
    return code
