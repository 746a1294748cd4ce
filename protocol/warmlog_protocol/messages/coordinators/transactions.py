"""EndTransaction, TxnOffsetCommit, ListTransactions and AbortTransaction. InitProducerId and Produce come before them.

InitProducerId with a transactional id makes its sender the only producer of that id. A partition becomes part of the
transaction with the first transactional batch that a Produce with the transactional id has for it. Any of these may be
refused as a whole with COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR or CONCURRENT_TRANSACTIONS, which are retriable.
"""

from warmlog_protocol.messages.base import Int32, Int64, Message
from warmlog_protocol.messages.coordinators.groups import NO_MEMBER_EPOCH, OffsetCommitPartition, OffsetCommitResponse


class EndTransactionRequest(Message, frozen=True):
    """Commit or abort the open transaction. Repeating it is harmless.

    With `keeps_epoch` the producer stays the same, and its sequences go on (version 1 of Kafka's transactions).
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int32
    commits: bool
    keeps_epoch: bool = False


class EndTransactionResponse(Message, frozen=True):
    """The id and epoch of the next transaction, whose sequences begin with 0 in each partition.

    All records of the ended one can be read by committed readers, or none. Errors: PRODUCER_FENCED (final),
    INVALID_PRODUCER_ID_MAPPING, TRANSACTIONAL_ID_NOT_FOUND, INVALID_TXN_STATE, TRANSACTION_ABORTABLE (it was aborted by
    its timeout or an operator: InitProducerId with the old id and epoch begins again).
    """

    producer_id: int
    producer_epoch: int


class TxnOffsetCommitRequest(Message, frozen=True):
    """Commit offsets for a group when the transaction commits; the fields after the epoch are those of OffsetCommit.

    `sequence` rises with each of these requests of a transaction, also if they are for several groups: a copy with a
    lower one that arrives late is refused with INVALID_TXN_STATE, and cannot undo a later one. 0: it is not checked.
    The group becomes part of the transaction, unless it is already (`is_enrolled`): else INVALID_TXN_STATE.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int32
    group: str
    partitions: list[OffsetCommitPartition]
    member_id: str = ""
    member_epoch: Int32 = NO_MEMBER_EPOCH
    instance_id: str = ""
    sequence: Int64 = 0
    takes_any_offset: bool = False
    is_enrolled: bool = False


TxnOffsetCommitResponse = OffsetCommitResponse


class ListTransactionsRequest(Message, frozen=True):
    """Ask for all transactional ids of this broker, or for one; with `only_open` for those with an open transaction."""

    transactional_id: str | None = None
    only_open: bool = False


class TransactionPartition(Message, frozen=True):
    """A partition that is part of a transaction, with the name of its topic when it began there."""

    topic_id: bytes
    topic: str
    partition: int


class JobDescription(Message, frozen=True):
    """What only a job has: many producers, its members, write one transaction."""

    version: int
    """Of the open transaction, or of the last one; -1 if there was none."""
    committed_version: int
    """Of the transaction that was committed last; -1 if there was none."""
    committed_records: int
    members: int


class ListedTransaction(Message, frozen=True):
    """`state` is "empty", "ongoing", "committing" or "aborting". `began_ms` is -1 if none is open.

    A job has no producer (-1) and no groups of its own; its partitions are those of all members.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    began_ms: int
    partitions: list[TransactionPartition]
    groups: list[str]
    job: JobDescription | None = None


class ListTransactionsResponse(Message, frozen=True):
    """The transactional ids, in order."""

    transactions: list[ListedTransaction]


class AbortTransactionRequest(Message, frozen=True):
    """Abort the open transaction of a producer that does not end it; its timeout would do so later."""

    transactional_id: str


class AbortTransactionResponse(Message, frozen=True):
    """It is aborted in all its partitions. Errors: TRANSACTIONAL_ID_NOT_FOUND, INVALID_TXN_STATE if none is open."""
