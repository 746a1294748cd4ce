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


COORDINATED: dict[type[Message], tuple[CoordinatorKind, str]] = {
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
"""The requests that go to a coordinator, and what of them has its key; the groups of one must have the same.

Without a transactional id any broker responds to InitProducerId.
"""
