"""JoinJob, JobHeartbeat, CommitJob and AbortJobMembers: one transaction that many producers write.

The versions of a job are committed one after another, each with a transaction of its own. Each producer of it, a
member, joins for itself and writes as an idempotent producer does, with Produce and the job's transactional id. One
CommitJob then decides about all members: those it names are committed, all others are aborted. Repeating it is
harmless, and so is to join again what is committed: a version that runs a second time learns that nothing is left
to do. Any of these may be refused with the retriable errors of `transactions`.
"""

from warmlog_protocol.messages.base import Int32, Int64, Message


class JobMember(Message, frozen=True):
    """A producer of a job, as JoinJob has named it."""

    producer_id: Int64
    producer_epoch: Int32


class JoinJobRequest(Message, frozen=True):
    """Become a member of the transaction for `version`, which the first one begins.

    It is aborted if no member has joined or sent a heartbeat for `timeout_ms`, as the first member gives it.
    """

    transactional_id: str
    version: Int64
    timeout_ms: Int32


class JoinJobResponse(Message, frozen=True):
    """With `is_committed` the version was the last that was committed, and there is nothing to write.

    Otherwise the producer to write with; sequences begin with 0. Errors: STALE_JOB_VERSION if a higher version was
    committed, INVALID_TXN_STATE while another version is undecided or if the id belongs to a plain producer.
    """

    is_committed: bool
    producer_id: int = -1
    producer_epoch: int = -1


class JobHeartbeatRequest(Message, frozen=True):
    """Keep the transaction of `version` open."""

    transactional_id: str
    version: Int64
    member: JobMember


class JobHeartbeatResponse(Message, frozen=True):
    """The member is part of the open transaction. Errors: PRODUCER_FENCED if it is not, or no longer."""


class CommitJobRequest(Message, frozen=True):
    """Commit what `winners` have written for `version`, and abort all other members. They may be none.

    `records` is how many records the winners have written.
    """

    transactional_id: str
    version: Int64
    winners: list[JobMember]
    records: Int64


class CommitJobResponse(Message, frozen=True):
    """All records of the winners can be read by committed readers, unless that takes long; it is decided in any case.

    With `is_repeat` the version had been committed before, with so many `records`; the members that this request names
    count only if they were the winners then. Errors: TRANSACTION_ABORTABLE if a winner is no member of the open
    transaction, as this was aborted; INCONSISTENT_TOPIC_ID if they have written to a topic before and after it was
    recreated; STALE_JOB_VERSION, INVALID_TXN_STATE as for JoinJob.
    """

    is_repeat: bool
    records: int


class AbortJobMembersRequest(Message, frozen=True):
    """Abort what these members have written for `version`, unless that is decided. Others are not touched."""

    transactional_id: str
    version: Int64
    members: list[JobMember]


class AbortJobMembersResponse(Message, frozen=True):
    """They are aborted, or were unknown. Errors: INVALID_TXN_STATE if `version` is committed."""
