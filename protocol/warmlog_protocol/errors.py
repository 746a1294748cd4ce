"""Every error that crosses the wire or breaks its rules, in one tree.

::

    WarmlogError
    ├── ApiError                        a request failed with a wire code; `retriable` says whether to send it again
    │   ├── StorageError
    │   │   ├── DiskFull
    │   │   ├── OutOfResources
    │   │   └── SafeMode
    │   ├── SaslAuthenticationFailed
    │   │   ├── UnsupportedSaslMechanism
    │   │   └── IllegalSaslState
    │   ├── AuthorizationFailed
    │   │   ├── TopicAuthorizationFailed
    │   │   ├── GroupAuthorizationFailed
    │   │   ├── ClusterAuthorizationFailed
    │   │   └── TransactionalIdAuthorizationFailed
    │   ├── CorruptBatch … (one class for each ErrorCode below)
    ├── ProtocolError
    │   ├── LocalProtocolError          we used the protocol wrongly: a bug of ours
    │   └── RemoteProtocolError         the peer used it wrongly: the connection is closed
    └── (broker and client add their own: see warmlog.errors)

Numbers and names are Kafka's (org.apache.kafka.common.protocol.Errors); warmlog's own begin at 1000. The broker raises
these classes, the wire carries `code` and the message, and `error_from_code` gives the same class again at the client.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Kafka's error numbers, as far as warmlog uses them, and its own from 1000 on."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128
    DISK_FULL = 1000
    OUT_OF_RESOURCES = 1001
    SAFE_MODE = 1002
    TOO_MANY_CONNECTIONS = 1003
    TOO_MANY_GROUPS = 1004
    TOO_MANY_TRANSACTIONAL_IDS = 1005
    STALE_JOB_VERSION = 1006
    NEEDS_RESTART = 1007


_BY_CODE: "dict[int, type[ApiError]]" = {}


class WarmlogError(Exception):
    """The base class of all errors that warmlog raises."""


class ProtocolError(WarmlogError):
    """The wire protocol was violated."""


class LocalProtocolError(ProtocolError):
    """This side violated the protocol: a bug in the calling code."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol. `reply`, if not empty, is a last frame to send before closing the connection.

    `kind` is a short label, the same for all errors of one kind, by which rate-limited logging counts them.
    """

    def __init__(self, message: str, reply: bytes = b"", *, kind: str = "malformed frames") -> None:
        super().__init__(message)
        self.reply = reply
        self.kind = kind


class ApiError(WarmlogError):
    """A request, or one partition of it, failed with an error code. What a subclass does not give it inherits."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: ErrorCode | None = None, retriable: bool | None = None) -> None:
        """With `code`, the class is the one that `error_from_code` returns for it."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code
            _BY_CODE[int(code)] = cls
        if retriable is not None:
            cls.retriable = retriable


class UnknownServerError(ApiError, code=ErrorCode.UNKNOWN_SERVER_ERROR):
    """The broker failed in a way that has no error code; its log has the details."""


class OffsetOutOfRange(ApiError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset is before the start or after the end of the log."""


class CorruptBatch(ApiError, code=ErrorCode.CORRUPT_MESSAGE):
    """Bytes that should be a record batch are not: wrong CRC, wrong lengths, an unknown codec or magic."""


class UnknownTopicOrPartition(ApiError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, retriable=True):
    """The broker does not host this topic or partition."""


class NotLeaderOrFollower(ApiError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER, retriable=True):
    """Another broker leads this partition: ask for metadata again."""


class NotEnoughReplicas(ApiError, code=ErrorCode.NOT_ENOUGH_REPLICAS, retriable=True):
    """Fewer replicas are in sync than acks=all needs: `min.insync.replicas`, or a majority."""


class RequestTimedOut(ApiError, code=ErrorCode.REQUEST_TIMED_OUT, retriable=True):
    """The broker could not finish the request within the request's timeout."""


class MessageTooLarge(ApiError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """A batch is larger than the topic's `max.message.bytes`."""


class InvalidTopic(ApiError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The topic's name breaks the rules for names."""


class RecordListTooLarge(ApiError, code=ErrorCode.RECORD_LIST_TOO_LARGE):
    """A batch is larger than a segment of the topic may be."""


class InvalidRequiredAcks(ApiError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """`acks` is not 0, 1 or -1 (all)."""


class InvalidTimestamp(ApiError, code=ErrorCode.INVALID_TIMESTAMP):
    """A timestamp is outside the range that the topic accepts."""


class UnsupportedVersion(ApiError, code=ErrorCode.UNSUPPORTED_VERSION):
    """The broker does not speak this version of the API, or does not know the API."""


class TopicAlreadyExists(ApiError, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """A topic of this name exists."""


class InvalidPartitions(ApiError, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is out of bounds."""


class InvalidReplicationFactor(ApiError, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """The replication factor exceeds the number of brokers."""


class InvalidReplicaAssignment(ApiError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The assignment of replicas to brokers is not possible."""


class NoReassignmentInProgress(ApiError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """The partition is not moved to other brokers, so there is nothing to take back."""


class ElectionNotNeeded(ApiError, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The partition has the leader already that an election would give it."""


class PreferredLeaderNotAvailable(ApiError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
    """The first replica of the partition is not in sync, or its broker is away."""


class EligibleLeadersNotAvailable(ApiError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
    """No broker that has a replica of the partition is there."""


class InvalidConfig(ApiError, code=ErrorCode.INVALID_CONFIG):
    """A setting does not exist or its value is out of bounds."""


class InvalidRequest(ApiError, code=ErrorCode.INVALID_REQUEST):
    """The request can be decoded but is not valid."""


class PolicyViolation(ApiError, code=ErrorCode.POLICY_VIOLATION):
    """The topic's settings, or a limit of the broker on what clients store, do not allow the request."""


class OutOfOrderSequence(ApiError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """A producer's batch does not follow its last batch in the partition."""


class DuplicateSequence(ApiError, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
    """The batch was appended before, and its offset is no longer known. A producer treats this as success."""


class InvalidProducerEpoch(ApiError, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """A newer producer with the same id has written: this one is fenced."""


class InvalidTxnState(ApiError, code=ErrorCode.INVALID_TXN_STATE):
    """A batch does not fit the state of its producer's transaction."""


class InvalidProducerIdMapping(ApiError, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING):
    """The transactional id belongs to another producer id."""


class InvalidTransactionTimeout(ApiError, code=ErrorCode.INVALID_TRANSACTION_TIMEOUT):
    """The timeout of a transaction is longer than the broker allows, or not positive."""


class ConcurrentTransactions(ApiError, code=ErrorCode.CONCURRENT_TRANSACTIONS, retriable=True):
    """The last transaction of the transactional id is still ending."""


class ProducerFenced(ApiError, code=ErrorCode.PRODUCER_FENCED):
    """Another producer has started with the same transactional id: this one can write no more."""


class TransactionalIdNotFound(ApiError, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
    """The transactional id was never used, or has expired."""


class TransactionAbortable(ApiError, code=ErrorCode.TRANSACTION_ABORTABLE):
    """The transaction was aborted by its timeout or by an operator; the producer may begin the next one."""


class UnstableOffsetCommit(ApiError, code=ErrorCode.UNSTABLE_OFFSET_COMMIT, retriable=True):
    """A transaction that commits these offsets is still open."""


class TooManyTransactionalIds(ApiError, code=ErrorCode.TOO_MANY_TRANSACTIONAL_IDS):
    """The broker has as many transactional ids as it allows."""


class StaleJobVersion(ApiError, code=ErrorCode.STALE_JOB_VERSION):
    """A job has committed a higher version: this one comes from an old copy of its state."""


class TransactionCoordinatorFenced(ApiError, code=ErrorCode.TRANSACTION_COORDINATOR_FENCED):
    """A newer coordinator has ended a transaction of this producer."""


class SecurityDisabled(ApiError, code=ErrorCode.SECURITY_DISABLED):
    """The broker does not check rights."""


class StorageError(ApiError, code=ErrorCode.KAFKA_STORAGE_ERROR, retriable=True):
    """An error of the disk. Usually it has failed, and the partition is offline until a restart has verified it."""


class DiskFull(StorageError, code=ErrorCode.DISK_FULL):
    """The disk has no more free space than `disk.reserve.bytes`. Reading, deleting and retention continue."""


class OutOfResources(StorageError, code=ErrorCode.OUT_OF_RESOURCES):
    """The broker is out of memory or descriptors. Nothing was changed, and the partition is served as before."""


class SafeMode(StorageError, code=ErrorCode.SAFE_MODE, retriable=False):
    """A broker of version 0.1 crashed repeatedly while starting: it serves reads and refuses records until an operator
    restarts it. Not retriable, since that takes longer than a client should wait."""


class TooManyConnections(ApiError, code=ErrorCode.TOO_MANY_CONNECTIONS, retriable=True):
    """The broker has reached its limit of connections, in total, from one address or of one user."""


class LogDirNotFound(ApiError, code=ErrorCode.LOG_DIR_NOT_FOUND):
    """The broker has no data directory of this path."""


class UnknownProducerId(ApiError, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The broker never assigned this producer id."""


class FencedLeaderEpoch(ApiError, code=ErrorCode.FENCED_LEADER_EPOCH, retriable=True):
    """The request's leader epoch is older than the partition's."""


class UnknownLeaderEpoch(ApiError, code=ErrorCode.UNKNOWN_LEADER_EPOCH, retriable=True):
    """The request's leader epoch is newer than the partition's."""


class LeaderNotAvailable(ApiError, code=ErrorCode.LEADER_NOT_AVAILABLE, retriable=True):
    """The partition has no leader now: one is being elected."""


class NotEnoughReplicasAfterAppend(ApiError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, retriable=True):
    """The leader has the batch, and too few replicas are in sync to acknowledge it: it may stay, or be lost."""


class OffsetNotAvailable(ApiError, code=ErrorCode.OFFSET_NOT_AVAILABLE, retriable=True):
    """A new leader does not know yet what its predecessor has told readers, or a replica does not have the offset."""


class InvalidRecord(ApiError, code=ErrorCode.INVALID_RECORD):
    """A batch breaks a rule for batches that clients write.

    If single records do, and not too many of them, `indexes` has where they are in the batch.
    """

    def __init__(self, text: str, indexes: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.indexes = indexes


class UnknownTopicId(ApiError, code=ErrorCode.UNKNOWN_TOPIC_ID, retriable=True):
    """No topic has this id: it was deleted."""


class InconsistentTopicId(ApiError, code=ErrorCode.INCONSISTENT_TOPIC_ID):
    """The topic's name belongs to another id now: it was deleted and recreated."""


class OffsetMetadataTooLarge(ApiError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE):
    """The metadata of a committed offset is larger than the broker allows."""


class CoordinatorLoadInProgress(ApiError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, retriable=True):
    """The coordinator reads its state from the log, and will be ready soon."""


class CoordinatorNotAvailable(ApiError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE, retriable=True):
    """The coordinator's partition is offline, or its internal topic could not be created."""


class NotCoordinator(ApiError, code=ErrorCode.NOT_COORDINATOR, retriable=True):
    """Another broker coordinates this group."""


class InvalidGroupId(ApiError, code=ErrorCode.INVALID_GROUP_ID):
    """The name of the group is empty or too long."""


class UnknownMemberId(ApiError, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The group has no such member: its session has expired, or it has left."""


class InvalidSessionTimeout(ApiError, code=ErrorCode.INVALID_SESSION_TIMEOUT):
    """The session timeout is outside the bounds that the broker sets."""


class NonEmptyGroup(ApiError, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members, so that it cannot be deleted, and only they may commit."""


class GroupIdNotFound(ApiError, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """There is no such group."""


class GroupMaxSizeReached(ApiError, code=ErrorCode.GROUP_MAX_SIZE_REACHED):
    """The group has as many members as the broker allows."""


class FencedInstanceId(ApiError, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another process has joined with this member's instance id, and taken its place."""


class IllegalGeneration(ApiError, code=ErrorCode.ILLEGAL_GENERATION):
    """The generation of a member of the classic protocol is not the group's: it is to join again."""


class InconsistentGroupProtocol(ApiError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
    """The members of the group are of another kind, or know none of the protocols of this one."""


class RebalanceInProgress(ApiError, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The members of the group are to join again."""


class MemberIdRequired(ApiError, code=ErrorCode.MEMBER_ID_REQUIRED):
    """A new member is to join again with the id that it gets here: the text is the id and nothing else."""


class GroupSubscribedToTopic(ApiError, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
    """Members of the group subscribe to the topic, so that its offsets cannot be deleted."""


class FencedMemberEpoch(ApiError, code=ErrorCode.FENCED_MEMBER_EPOCH):
    """The member's epoch is not the group's: it has lost its partitions."""


class UnsupportedAssignor(ApiError, code=ErrorCode.UNSUPPORTED_ASSIGNOR):
    """The broker has no assignor of this name."""


class StaleMemberEpoch(ApiError, code=ErrorCode.STALE_MEMBER_EPOCH):
    """The member does not own the partition, or was assigned it in a later epoch."""


class InvalidRegularExpression(ApiError, code=ErrorCode.INVALID_REGULAR_EXPRESSION):
    """The pattern of a subscription is not a regular expression."""


class SaslAuthenticationFailed(ApiError, code=ErrorCode.SASL_AUTHENTICATION_FAILED):
    """There is no such user, or the password is wrong: the broker's log says which, the response does not."""


class UnsupportedSaslMechanism(SaslAuthenticationFailed, code=ErrorCode.UNSUPPORTED_SASL_MECHANISM):
    """The listener does not offer the mechanism, or does not authenticate at all although a password was given."""


class IllegalSaslState(SaslAuthenticationFailed, code=ErrorCode.ILLEGAL_SASL_STATE):
    """The listener authenticates, and a request came before that, or the messages are not in their order."""


class AuthorizationFailed(ApiError):
    """The principal of the connection has no right to do this: the broker's log says why, the response does not."""


class TopicAuthorizationFailed(AuthorizationFailed, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """The principal has no right to this operation on the topic, which may or may not exist."""


class GroupAuthorizationFailed(AuthorizationFailed, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """The principal has no right to this operation on the consumer group."""


class ClusterAuthorizationFailed(AuthorizationFailed, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The principal has no right to this operation on the cluster."""


class TransactionalIdAuthorizationFailed(AuthorizationFailed, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
    """The principal has no right to this operation on the transactional id."""


class ResourceNotFound(ApiError, code=ErrorCode.RESOURCE_NOT_FOUND):
    """There is no such user."""


class DuplicateResource(ApiError, code=ErrorCode.DUPLICATE_RESOURCE):
    """The user exists."""


class UnacceptableCredential(ApiError, code=ErrorCode.UNACCEPTABLE_CREDENTIAL):
    """A name or a credential of a user breaks the rules."""


class TooManyGroups(ApiError, code=ErrorCode.TOO_MANY_GROUPS):
    """The broker has as many groups as it allows."""


class NeedsRestart(ApiError, code=ErrorCode.NEEDS_RESTART):
    """The setting of the broker cannot be altered while it runs."""


def error_from_code(code: int, message: str) -> ApiError:
    """Return the error of class `code` with `message`; for an unknown code, UnknownServerError with the number."""
    cls = _BY_CODE.get(code)
    if cls is None:
        return UnknownServerError(f"error code {code}: {message}")
    return cls(message)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error message: a suggestion of the known name that is most like `name`, if one is.

    Else, with `otherwise`, that and all known names: `did_you_mean("x", names, "there are")` is "; there are a, b".
    """
    names = list(known)
    if nearest := nearest_name(name, names):
        return f"; did you mean {nearest}?"
    return f"; {otherwise} {', '.join(names)}" if otherwise and names else ""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`; empty if none is."""
    from difflib import get_close_matches  # imported here because few programs meet such an error

    names = list(known)
    beginning_so = [each for each in names if name and each.startswith(name)]
    return next(iter(get_close_matches(name, names, n=1, cutoff=0.5) or beginning_so), "")
