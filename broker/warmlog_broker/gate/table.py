"""Which rights each API needs. The operations are Kafka's."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from warmlog_broker.gate.asker import Asker
from warmlog_broker.gate.rules import (
    Admitted,
    Each,
    Listed,
    Rule,
    Whole,
    identified_topic_of,
    name_of,
    on_cluster,
    topic_of,
)
from warmlog_broker.handlers.fetch import failed
from warmlog_broker.handlers.metadata import NO_TOPIC_ID
from warmlog_broker.handlers.offsets import NOT_FOUND
from warmlog_broker.network.request import ConnectionEnds
from warmlog_protocol import messages
from warmlog_protocol.batch.header import NO_LEADER_EPOCH, NO_OFFSET
from warmlog_protocol.errors import AuthorizationFailed
from warmlog_protocol.messages import (
    ACKS_NONE,
    API_OF_REQUEST,
    CLUSTER_NAME,
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    AlterTopicResult,
    CommittedPartition,
    CreatedPartitions,
    CreatedTopic,
    DeletedGroup,
    DeletedOffset,
    DeletedRecords,
    DeletedTopic,
    DescribeConfigsRequest,
    DescribedConfigs,
    DescribedGroup,
    EpochEndOffset,
    FetchRequest,
    FoundSplits,
    InitProducerIdRequest,
    ListedOffset,
    ListedTransaction,
    ListGroupsRequest,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    OffsetFetchRequest,
    Operation,
    ProducedPartition,
    ProduceRequest,
    ResourceType,
    TopicMetadata,
)

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID


def _each_partition(
    operation: Operation, refused: Callable[[Any, AuthorizationFailed], list[Any]], **more: Any
) -> Each:
    """Each partition of a request needs `operation` on its topic."""
    return Each((operation,), TOPIC, "partitions", "partitions", refused, **{"named": topic_of, **more})


def _each_topic(operation: Operation, refused: Callable[[Any, AuthorizationFailed], list[Any]]) -> Each:
    """Each topic that a request names with more about it needs `operation`."""
    return Each((operation,), TOPIC, "topics", "topics", refused, name_of)


def _each_group(operation: Operation, result: type[DeletedGroup | DescribedGroup]) -> Each:
    return Each((operation,), GROUP, "groups", "groups", lambda name, error: [result(error.code, str(error), name)])


def _in_group(operation: Operation) -> Whole:
    return Whole(operation, GROUP, lambda message: (message.group,))


_DESCRIBED_TOPICS = Each(
    (Operation.DESCRIBE,),
    TOPIC,
    "topics",
    "topics",
    lambda name, error: [TopicMetadata(error.code, name, NO_TOPIC_ID, [], str(error))],
    is_distinct=True,
    runs_without=True,
)
_ALL_TOPICS = Listed(TOPIC, "topics", attrgetter("name"))
_CREATED_TOPICS = _each_topic(
    Operation.CREATE, lambda new, error: [CreatedTopic(error.code, str(error), new.name, NO_TOPIC_ID, 0)]
)
_DESCRIBED_CONFIGS = Each(
    (Operation.DESCRIBE_CONFIGS, Operation.WRITE),  # a producer needs the limits of batches
    TOPIC,
    "topics",
    "resources",
    lambda name, error: [DescribedConfigs(error.code, str(error), name, [])],
)
_PRODUCED = _each_partition(
    Operation.WRITE, lambda part, error: [ProducedPartition(part.topic, part.partition, error.code, str(error))]
)
_COMMITTED = _each_partition(
    Operation.READ,
    lambda part, error: [CommittedPartition(part.topic_id, part.topic, part.partition, error.code, str(error))],
    named=identified_topic_of,
)
_GROUPS = Listed(GROUP, "groups", attrgetter("name"))


def _metadata(asker: Asker, message: MetadataRequest) -> Admitted:
    return (_ALL_TOPICS if message.topics is None else _DESCRIBED_TOPICS)(asker, message)


def _create_topics(asker: Asker, message: Any) -> Admitted:
    return (message, None) if asker.may_in_cluster(Operation.CREATE) else _CREATED_TOPICS(asker, message)


def _describe_configs(asker: Asker, message: DescribeConfigsRequest) -> Admitted:
    """Without topics it asks for the settings of the broker."""
    return (_DESCRIBED_CONFIGS if message.topics else on_cluster(Operation.DESCRIBE_CONFIGS))(asker, message)


def _produce(asker: Asker, message: ProduceRequest) -> Admitted:
    if message.transactional_id is not None:
        asker.require(Operation.WRITE, TRANSACTIONAL_ID, message.transactional_id)
    admitted = _PRODUCED(asker, message)
    if admitted[1] is not None and message.acks == ACKS_NONE:
        raise ConnectionEnds("acks=0, and a topic may not be written to")
    return admitted


def _init_producer_id(asker: Asker, message: InitProducerIdRequest) -> Admitted:
    """An idempotent producer needs a right to write, to whatever topic."""
    if message.transactional_id is not None:
        asker.require(Operation.WRITE, TRANSACTIONAL_ID, message.transactional_id)
    elif not asker.may_in_cluster(Operation.IDEMPOTENT_WRITE):
        asker.require(Operation.WRITE, TOPIC, None)
    return message, None


def _fetch(asker: Asker, message: FetchRequest) -> Admitted:
    """What replicas tell with a fetch is not for clients."""
    is_replica = message.replica_id not in (CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID)
    for part in message.partitions:
        if is_replica or part.flushed_offset >= 0 or part.log_start_offset >= 0:
            asker.require(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    return message, None


def _list_offsets(asker: Asker, message: ListOffsetsRequest) -> Admitted:
    if message.replica_id not in (CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID):
        asker.require(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    return message, None


def _offset_fetch(asker: Asker, message: OffsetFetchRequest) -> Admitted:
    """A result has no error of its own, and without an offset a reader would begin at the start: all is refused."""
    if message.partitions is None:
        return message, lambda response: _described_offsets(asker, response)
    for name in {identified_topic_of(asker, each) for each in message.partitions}:
        asker.require(Operation.DESCRIBE, TOPIC, name)
    return message, None


def _described_offsets(asker: Asker, response: Any) -> Any:
    return replace(
        response,
        partitions=[
            each
            for each in response.partitions
            if asker.may(Operation.DESCRIBE, TOPIC, identified_topic_of(asker, each))
        ],
    )


def _list_groups(asker: Asker, message: ListGroupsRequest) -> Admitted:
    return (message, None) if asker.may_in_cluster(Operation.DESCRIBE) else _GROUPS(asker, message)


def _members_topics(asker: Asker, message: Any) -> Admitted:
    """A group is described only to a principal that may describe the topics of its members."""
    return message, lambda response: _with_known_topics(asker, response)


def _with_known_topics(asker: Asker, response: Any) -> Any:
    return replace(response, groups=[_known_or_refused(asker, group) for group in response.groups])


def _known_or_refused(asker: Asker, group: DescribedGroup) -> DescribedGroup:
    names: set[str] = set()
    for member in group.members:
        names.update(member.topics)
        for owned in (*member.assigned, *member.revoking, *member.target):
            names.add(asker.topic_name(owned.topic_id, owned.topic))
    hidden = next((name for name in sorted(names) if not asker.may(Operation.DESCRIBE, TOPIC, name)), None)
    if hidden is None:
        return group
    error = asker.refusal(Operation.DESCRIBE, TOPIC, hidden)
    asker.count(error)
    text = f"members of group {group.group!r} read topics that you may not describe"
    return DescribedGroup(error.code, text, group.group)


def _parts_of_transactions(asker: Asker, message: Any) -> Admitted:
    """Of a transaction, only the topics and groups are shown that the principal may describe."""
    return message, lambda response: _with_known_parts(asker, response)


def _with_known_parts(asker: Asker, response: Any) -> Any:
    def shown(transaction: ListedTransaction) -> ListedTransaction:
        partitions = [
            each
            for each in transaction.partitions
            if asker.may(Operation.DESCRIBE, TOPIC, identified_topic_of(asker, each))
        ]
        groups = [name for name in transaction.groups if asker.may(Operation.DESCRIBE, GROUP, name)]
        return replace(transaction, partitions=partitions, groups=groups)

    return replace(response, transactions=[shown(each) for each in response.transactions])


_WRITE_TRANSACTIONS = Whole(Operation.WRITE, TRANSACTIONAL_ID, lambda message: (message.transactional_id,))

RIGHTS: dict[type[Message], tuple[Rule, ...]] = {
    messages.HandshakeRequest: (),
    messages.AuthenticateRequest: (),
    messages.MetadataRequest: (_metadata,),
    messages.CreateTopicsRequest: (_create_topics,),
    messages.DeleteTopicsRequest: (
        Each(
            (Operation.DELETE,),
            TOPIC,
            "names",
            "topics",
            lambda name, error: [DeletedTopic(error.code, str(error), name)],
        ),
    ),
    messages.AlterTopicsRequest: (
        _each_topic(Operation.ALTER_CONFIGS, lambda each, error: [AlterTopicResult(error.code, str(error), each.name)]),
    ),
    messages.CreatePartitionsRequest: (
        _each_topic(Operation.ALTER, lambda each, error: [CreatedPartitions(error.code, str(error), each.name)]),
    ),
    messages.DescribeConfigsRequest: (_describe_configs,),
    messages.AlterReplicaLogDirsRequest: (on_cluster(Operation.ALTER),),
    messages.DescribeLogDirsRequest: (on_cluster(Operation.DESCRIBE),),
    messages.InitProducerIdRequest: (_init_producer_id,),
    messages.ProduceRequest: (_produce,),
    messages.FetchRequest: (
        _fetch,
        _each_partition(Operation.READ, lambda part, error: [failed(part, error)], changes={"max_wait_ms": 0}),
    ),
    messages.ListOffsetsRequest: (
        _list_offsets,
        _each_partition(
            Operation.DESCRIBE,
            lambda part, error: [ListedOffset(part.topic, part.partition, error.code, str(error), *NOT_FOUND)],
        ),
    ),
    messages.DeleteRecordsRequest: (
        _each_partition(
            Operation.DELETE,
            lambda part, error: [DeletedRecords(part.topic, part.partition, error.code, str(error), NO_OFFSET)],
        ),
    ),
    messages.OffsetForLeaderEpochRequest: (
        _each_partition(
            Operation.DESCRIBE,
            lambda part, error: [
                EpochEndOffset(
                    part.topic, part.partition, error.code, str(error), NO_LEADER_EPOCH, NO_OFFSET, NO_OFFSET
                )
            ],
        ),
    ),
    messages.OffsetCommitRequest: (_in_group(Operation.READ), _COMMITTED),
    messages.OffsetFetchRequest: (_in_group(Operation.DESCRIBE), _offset_fetch),
    messages.GroupHeartbeatRequest: (
        _in_group(Operation.READ),
        Whole(Operation.DESCRIBE, TOPIC, lambda message: message.topics or ()),
    ),
    messages.ListGroupsRequest: (_list_groups,),
    messages.DescribeGroupsRequest: (
        _each_group(Operation.DESCRIBE, DescribedGroup),
        _members_topics,
    ),
    messages.DeleteGroupsRequest: (_each_group(Operation.DELETE, DeletedGroup),),
    messages.DeleteOffsetsRequest: (
        _in_group(Operation.DELETE),
        _each_partition(
            Operation.READ,
            lambda each, error: [
                DeletedOffset(each.topic_id, each.topic, number, error.code, str(error)) for number in each.partitions
            ],
            named=identified_topic_of,
            result_count=lambda each: len(each.partitions),
        ),
    ),
    messages.EndTransactionRequest: (_WRITE_TRANSACTIONS,),
    messages.JoinJobRequest: (_WRITE_TRANSACTIONS,),
    messages.JobHeartbeatRequest: (_WRITE_TRANSACTIONS,),
    messages.CommitJobRequest: (_WRITE_TRANSACTIONS,),
    messages.AbortJobMembersRequest: (_WRITE_TRANSACTIONS,),
    messages.TxnOffsetCommitRequest: (_WRITE_TRANSACTIONS, _in_group(Operation.READ), _COMMITTED),
    messages.ListTransactionsRequest: (
        _parts_of_transactions,
        Listed(TRANSACTIONAL_ID, "transactions", attrgetter("transactional_id")),
    ),
    messages.AbortTransactionRequest: (on_cluster(Operation.ALTER),),
    messages.ListUsersRequest: (on_cluster(Operation.DESCRIBE),),
    messages.AlterUsersRequest: (on_cluster(Operation.ALTER),),
    messages.CreateAclsRequest: (on_cluster(Operation.ALTER),),
    messages.DeleteAclsRequest: (on_cluster(Operation.ALTER),),
    messages.DescribeAclsRequest: (on_cluster(Operation.DESCRIBE),),
    messages.CheckAclRequest: (on_cluster(Operation.DESCRIBE),),
    messages.DescribeClientQuotasRequest: (on_cluster(Operation.DESCRIBE_CONFIGS),),
    messages.AlterClientQuotasRequest: (on_cluster(Operation.ALTER_CONFIGS),),
    messages.AlterBrokerConfigRequest: (on_cluster(Operation.ALTER_CONFIGS),),
    messages.FindSplitsRequest: (
        _each_partition(
            Operation.READ, lambda part, error: [FoundSplits(part.topic, part.partition, error.code, str(error))]
        ),
    ),
}
"""The rules of each kind of request, which are asked in order."""

assert RIGHTS.keys() == API_OF_REQUEST.keys()
