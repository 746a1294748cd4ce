"""FindCoordinator: which broker coordinates a group or the transactions of an id, and which requests go there."""

from enum import IntEnum

from warmlog_protocol.messages.base import Int32, ItemResult, Message
from warmlog_protocol.messages.coordinators import groups, jobs, transactions
from warmlog_protocol.messages.produce import InitProducerIdRequest


class CoordinatorKind(IntEnum):
    """What a coordinator coordinates."""

    GROUP = 0
    TRANSACTION = 1
    """The transactions of a producer or a job."""


class FindCoordinatorRequest(Message, frozen=True):
    """Ask for the coordinators of groups, or of transactional ids. Any broker responds."""

    kind: Int32
    keys: list[str]


class FoundCoordinator(ItemResult, frozen=True):
    """The coordinator of one key. An empty `host` means the address that the client connected to.

    COORDINATOR_NOT_AVAILABLE, which is retriable, while there is none.
    """

    key: str
    node_id: int = -1
    host: str = ""
    port: int = 0


class FindCoordinatorResponse(Message, frozen=True):
    """One result for each key, in the order of the request. `is_for_all`: this broker coordinates everything."""

    coordinators: list[FoundCoordinator]
    is_for_all: bool = False


_KEYS: dict[type[Message], tuple[CoordinatorKind, str]] = {
    **dict.fromkeys(
        (
            groups.GroupHeartbeatRequest,
            groups.OffsetCommitRequest,
            groups.OffsetFetchRequest,
            groups.DeleteOffsetsRequest,
        ),
        (CoordinatorKind.GROUP, "group"),
    ),
    **dict.fromkeys((groups.DescribeGroupsRequest, groups.DeleteGroupsRequest), (CoordinatorKind.GROUP, "groups")),
    **dict.fromkeys(
        (
            InitProducerIdRequest,
            transactions.EndTransactionRequest,
            transactions.TxnOffsetCommitRequest,
            transactions.AbortTransactionRequest,
            jobs.JoinJobRequest,
            jobs.JobHeartbeatRequest,
            jobs.CommitJobRequest,
            jobs.AbortJobMembersRequest,
        ),
        (CoordinatorKind.TRANSACTION, "transactional_id"),
    ),
}
"""What has the key of the request's coordinator. The groups of one request must have the same."""


def coordinated(message: Message) -> tuple[CoordinatorKind, str] | None:
    """Return whose coordinator `message` goes to; None if any broker may respond."""
    kind, name = _KEYS.get(type(message), (None, ""))
    key = getattr(message, name) if kind is not None else None
    if kind is None or not key:
        return None
    return kind, key if isinstance(key, str) else key[0]
