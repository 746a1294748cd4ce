"""The records of `__transactions`: transactional ids, and what belongs to their open transactions.

A transactional id belongs to a producer, or to a job with many producers, its members. Each member has a slot, which
later transactions of the job use again.

====  ==============  =========================================  ======================================================
kind  key             fields of the key                          fields of the value
====  ==============  =========================================  ======================================================
1     IdKey           transactional id                           producer id, epoch, state, end, the producer id and
                                                                 epoch before the last change, timeout, time of the
                                                                 beginning, time of the last change, producer id that
                                                                 comes next, principal that created it, whether the
                                                                 epoch was kept
2     PartitionKey    transactional id, topic id, number, slot   name of the topic
                      (0 for a plain producer)
3     GroupKey        transactional id, group                    (none)
4     JobKey          transactional id                           version, state, end, the version that was committed
                                                                 last and its records, slots of the winners, timeout,
                                                                 time of the beginning, time of the last change,
                                                                 principal that created it
5     MemberKey       transactional id, slot                     producer id, epoch, state
====  ==============  =========================================  ======================================================

A tombstone removes what the key stands for. Times are in milliseconds. See `framework/decision` for the encoding.
"""

from enum import IntEnum

from warmlog_broker.coordinator.framework.decision import VERSION, Key, RecordCodec, Value
from warmlog_protocol.batch.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

NO_VERSION = -1
"""No version of a job was committed."""


class Status(IntEnum):
    """The state of a transactional id."""

    EMPTY = 0
    """No transaction is open."""
    ONGOING = 1
    COMMITTING = 2
    """It is decided; markers and offsets are being written."""
    ABORTING = 3


class End(IntEnum):
    """The last change of a transactional id, and so who may continue with the epoch before it."""

    INITIALISED = 0
    """Its producer was given an id and epoch."""
    COMMITTED = 1
    ABORTED = 2
    """By its producer."""
    TIMED_OUT = 3
    REPLACED = 4
    """Aborted as another producer has started with the transactional id: the old one is fenced."""
    FORCED = 5
    """Aborted by an operator."""


class MemberStatus(IntEnum):
    """The state of a slot, until the job is decided."""

    FREE = 0
    """It belongs to no member."""
    WRITING = 1
    ABORTING = 2
    """Its member is aborted before the others are decided."""


class OfId(Key, frozen=True, gc=False):
    transactional_id: str


class IdKey(OfId, frozen=True, tag=1, gc=False):
    pass


class PartitionKey(OfId, frozen=True, tag=2, gc=False):
    topic_id: bytes
    partition: int
    slot: int = 0


class GroupKey(OfId, frozen=True, tag=3, gc=False):
    group: str


class JobKey(OfId, frozen=True, tag=4, gc=False):
    pass


class MemberKey(OfId, frozen=True, tag=5, gc=False):
    slot: int


class IdValue(Value, frozen=True, tag=VERSION, gc=False):
    producer_id: int
    epoch: int
    """While a decision is carried out, that of its markers: it rises with each decision that does not keep it."""
    status: Status
    end: End
    previous_producer_id: int = NO_PRODUCER_ID
    """With `previous_epoch`: whom the last change was made for, so that it can be repeated. None for a new producer."""
    previous_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    began_ms: int = -1
    changed_ms: int = -1
    next_producer_id: int = NO_PRODUCER_ID
    """The id of the next transaction, if `epoch` is the last one of `producer_id`."""
    owner: str = ""
    """The principal that created the transactional id."""
    keeps_epoch: bool = False
    """Whether the last decision left the epoch as it was (version 1 of Kafka's transactions)."""


class PartitionValue(Value, frozen=True, tag=VERSION, gc=False):
    topic: str


class GroupValue(Value, frozen=True, tag=VERSION, gc=False):
    pass


class JobValue(Value, frozen=True, tag=VERSION, gc=False):
    current_version: int
    """Of the transaction that is open or ending, else of the last one."""
    status: Status
    end: End = End.INITIALISED
    committed_version: int = NO_VERSION
    committed_records: int = 0
    winners: tuple[int, ...] = ()
    """Slots of the members to commit, while that is carried out."""
    timeout_ms: int = 0
    began_ms: int = -1
    changed_ms: int = -1
    owner: str = ""
    """The principal that created the job."""


class MemberValue(Value, frozen=True, tag=VERSION, gc=False):
    producer_id: int
    epoch: int
    """That of its batches; while it is free, that of the next one."""
    status: MemberStatus


CODEC: RecordCodec[OfId] = RecordCodec(
    {IdKey: IdValue, PartitionKey: PartitionValue, GroupKey: GroupValue, JobKey: JobValue, MemberKey: MemberValue}
)
put, remove, read = CODEC.put, CODEC.remove, CODEC.read
