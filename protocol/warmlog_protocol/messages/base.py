"""Common to all messages: API keys, isolation levels, special offsets and times."""

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
"""Integers in requests: msgpack allows up to 2^64 - 1, more than offsets, times and file positions can be."""
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

LATEST_TIMESTAMP = -1
"""ListOffsets: the end of what the client may read (the high watermark for a consumer)."""
EARLIEST_TIMESTAMP = -2
"""ListOffsets: the log start offset."""
MAX_TIMESTAMP = -3
"""ListOffsets: the first record that has the largest timestamp."""

HIGH_WATERMARK = -1
"""DeleteRecords: everything that a consumer may read now."""

CONSUMER_REPLICA_ID = -1
"""`replica_id` of a reader that is not a broker: it reads below the high watermark."""
DEBUGGING_REPLICA_ID = -2
"""`replica_id` of a tool. It reads as a consumer does, but ListOffsets for LATEST_TIMESTAMP returns the log end."""

NO_LEADER_EPOCH = -1
"""The leader epoch is not known, or is not to be checked."""

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1


class ApiKey(IntEnum):
    """Kafka's numbers; warmlog's own begin at 1000."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    LIST_GROUPS = 16
    HANDSHAKE = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    END_TRANSACTION = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    ALTER_TOPICS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    DELETE_OFFSETS = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    LIST_USERS = 50
    ALTER_USERS = 51
    LIST_TRANSACTIONS = 66
    GROUP_HEARTBEAT = 68
    DESCRIBE_GROUPS = 69
    FIND_SPLITS = 1000
    CHECK_ACL = 1001
    ABORT_TRANSACTION = 1002
    JOIN_JOB = 1003
    JOB_HEARTBEAT = 1004
    COMMIT_JOB = 1005
    ABORT_JOB_MEMBERS = 1006
    ALTER_BROKER_CONFIG = 1007
    DESCRIBE_STATUS = 1008
    DESCRIBE_PARTITIONS = 1009
    TRACE_INDEX = 1010
    PEER_HELLO = 1011
    REPLICA_FETCH = 1012
    REPLICA_FLUSHED = 1013
    WRITE_MARKER = 1014
    ENROL_PARTITION = 1015
    ADD_PENDING_OFFSETS = 1016
    END_PENDING_OFFSETS = 1017
    COMMIT_OFFSETS_ELSEWHERE = 1018


class IsolationLevel(IntEnum):
    """The bound up to which a consumer reads."""

    READ_UNCOMMITTED = 0
    """The high watermark."""
    READ_COMMITTED = 1
    """The last stable offset."""


class Message(Struct, array_like=True, frozen=True, gc=False):
    """The base class of all messages: an immutable msgpack array."""


class ItemResult(Message, frozen=True):
    """The result for one item of a request. The text is empty if the code is NONE."""

    error_code: int
    error_message: str


class NamedResult(ItemResult, frozen=True):
    """The same for items that have a name, such as topics, groups and users."""

    name: str


class PartitionResult(Message, frozen=True):
    """The same for items that are partitions."""

    topic: str
    partition: int
    error_code: int
    error_message: str
