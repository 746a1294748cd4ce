"""Which rights each API needs. The operations are Kafka's."""

from collections.abc import Callable
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
from warmlog_broker.handlers import FAMILIES
from warmlog_broker.handlers.fetch import failed
from warmlog_broker.handlers.items import failed_name, failed_partition
from warmlog_broker.handlers.metadata import not_described
from warmlog_broker.network.request import ConnectionEnds
from warmlog_protocol import messages as m
from warmlog_protocol.errors import AuthorizationFailed
from warmlog_protocol.messages import CLUSTER_NAME, Message, Operation, ResourceType

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID


def _each_partition(operation: Operation, refused: Callable[[Any, AuthorizationFailed], Any], **more: Any) -> Each:
    """Each partition of a request needs `operation` on its topic."""
    return Each((operation,), TOPIC, "partitions", "partitions", refused, **{"named": topic_of, **more})


def _each_topic(operation: Operation, result: Callable[[int, str, str], Any] = m.NamedResult) -> Each:
    """Each topic that a request names with more about it needs `operation`."""
    failed = failed_name(result)
    return Each((operation,), TOPIC, "topics", "topics", lambda item, error: failed(item.name, error), name_of)


def _each_group(operation: Operation, result: Callable[[int, str, str], Any]) -> Each:
    return Each((operation,), GROUP, "groups", "groups", failed_name(result))


def _in_cluster(operation: Operation, otherwise: Rule) -> Rule:
    """A right to `operation` on the cluster allows everything; without it `otherwise` applies."""
    return lambda asker, message: (message, None) if asker.may_in_cluster(operation) else otherwise(asker, message)


def _in_group(operation: Operation) -> Whole:
    return Whole(operation, GROUP, lambda message: (message.group,))


_DESCRIBED_TOPICS = Each(
    (Operation.DESCRIBE,), TOPIC, "topics", "topics", not_described, is_distinct=True, runs_without=True
)
_ALL_TOPICS = Listed(TOPIC, "topics", name_of)
_DESCRIBED_CONFIGS = Each(
    (Operation.DESCRIBE_CONFIGS, Operation.WRITE),  # a producer needs the limits of batches
    TOPIC,
    "topics",
    "resources",
    failed_name(m.DescribedConfigs),
)
_PRODUCED = _each_partition(Operation.WRITE, failed_partition(m.ProducedPartition))
_COMMITTED = _each_partition(
    Operation.READ,
    lambda part, error: m.CommittedPartition(part.topic_id, part.topic, part.partition, error.code, str(error)),
    named=identified_topic_of,
)
_ALL_OFFSETS = Listed(TOPIC, "partitions", identified_topic_of)


def _metadata(asker: Asker, message: m.MetadataRequest) -> Admitted:
    return (_ALL_TOPICS if message.topics is None else _DESCRIBED_TOPICS)(asker, message)


def _describe_configs(asker: Asker, message: m.DescribeConfigsRequest) -> Admitted:
    """Without topics it asks for the settings of the broker."""
    return (_DESCRIBED_CONFIGS if message.topics else on_cluster(Operation.DESCRIBE_CONFIGS))(asker, message)


def _produce(asker: Asker, message: m.ProduceRequest) -> Admitted:
    if message.transactional_id is not None:
        asker.require(Operation.WRITE, TRANSACTIONAL_ID, message.transactional_id)
    admitted = _PRODUCED(asker, message)
    if admitted[1] is not None and message.acks == m.ACKS_NONE:
        raise ConnectionEnds("acks=0, and a topic may not be written to")
    return admitted


def _init_producer_id(asker: Asker, message: m.InitProducerIdRequest) -> Admitted:
    """An idempotent producer needs a right to write, to whatever topic."""
    if message.transactional_id is not None:
        asker.require(Operation.WRITE, TRANSACTIONAL_ID, message.transactional_id)
    elif not asker.may_in_cluster(Operation.IDEMPOTENT_WRITE):
        asker.require(Operation.WRITE, TOPIC, None)
    return message, None


def _fetch(asker: Asker, message: m.FetchRequest) -> Admitted:
    """What replicas tell with a fetch is not for clients."""
    is_replica = message.replica_id not in (m.CONSUMER_REPLICA_ID, m.DEBUGGING_REPLICA_ID)
    for part in message.partitions:
        if is_replica or part.flushed_offset >= 0 or part.log_start_offset >= 0:
            asker.require(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    return message, None


def _list_offsets(asker: Asker, message: m.ListOffsetsRequest) -> Admitted:
    if message.replica_id not in (m.CONSUMER_REPLICA_ID, m.DEBUGGING_REPLICA_ID):
        asker.require(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    return message, None


def _offset_fetch(asker: Asker, message: m.OffsetFetchRequest) -> Admitted:
    """A result has no error of its own, and without an offset a reader would begin at the start: all is refused."""
    if message.partitions is None:
        return _ALL_OFFSETS(asker, message)
    for name in {identified_topic_of(asker, each) for each in message.partitions}:
        asker.require(Operation.DESCRIBE, TOPIC, name)
    return message, None


def _members_topics(asker: Asker, message: Any) -> Admitted:
    """A group is described only to a principal that may describe the topics of its members."""
    return message, lambda response: replace(
        response, groups=[_known_or_refused(asker, group) for group in response.groups]
    )


def _known_or_refused(asker: Asker, group: m.DescribedGroup) -> m.DescribedGroup:
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
    return m.DescribedGroup(error.code, text, group.group)


def _parts_of_transactions(asker: Asker, message: Any) -> Admitted:
    """Of a transaction, only the topics and groups are shown that the principal may describe."""

    def shown(transaction: m.ListedTransaction) -> m.ListedTransaction:
        partitions = [
            each
            for each in transaction.partitions
            if asker.may(Operation.DESCRIBE, TOPIC, identified_topic_of(asker, each))
        ]
        groups = [name for name in transaction.groups if asker.may(Operation.DESCRIBE, GROUP, name)]
        return replace(transaction, partitions=partitions, groups=groups)

    return message, lambda response: replace(response, transactions=[shown(each) for each in response.transactions])


_WRITE_TRANSACTIONS = Whole(Operation.WRITE, TRANSACTIONAL_ID, lambda message: (message.transactional_id,))

RIGHTS: dict[type[Message], tuple[Rule, ...]] = {
    m.HandshakeRequest: (),
    m.AuthenticateRequest: (),
    m.MetadataRequest: (_metadata,),
    m.FindCoordinatorRequest: (),  # it says nothing about what a key stands for
    m.CreateTopicsRequest: (_in_cluster(Operation.CREATE, _each_topic(Operation.CREATE, m.CreatedTopic)),),
    m.DeleteTopicsRequest: (Each((Operation.DELETE,), TOPIC, "names", "topics", failed_name(m.NamedResult)),),
    m.AlterTopicsRequest: (_each_topic(Operation.ALTER_CONFIGS),),
    m.CreatePartitionsRequest: (_each_topic(Operation.ALTER),),
    m.DescribeConfigsRequest: (_describe_configs,),
    m.AlterReplicaLogDirsRequest: (on_cluster(Operation.ALTER),),
    m.DescribeLogDirsRequest: (on_cluster(Operation.DESCRIBE),),
    m.AlterPartitionReassignmentsRequest: (on_cluster(Operation.ALTER),),
    m.ListPartitionReassignmentsRequest: (on_cluster(Operation.DESCRIBE),),
    m.ElectLeadersRequest: (on_cluster(Operation.ALTER),),
    m.InitProducerIdRequest: (_init_producer_id,),
    m.ProduceRequest: (_produce,),
    m.FetchRequest: (_fetch, _each_partition(Operation.READ, failed, changes={"max_wait_ms": 0})),
    m.ListOffsetsRequest: (_list_offsets, _each_partition(Operation.DESCRIBE, failed_partition(m.ListedOffset))),
    m.DeleteRecordsRequest: (_each_partition(Operation.DELETE, failed_partition(m.DeletedRecords)),),
    m.OffsetForLeaderEpochRequest: (_each_partition(Operation.DESCRIBE, failed_partition(m.EpochEndOffset)),),
    m.OffsetCommitRequest: (_in_group(Operation.READ), _COMMITTED),
    m.OffsetFetchRequest: (_in_group(Operation.DESCRIBE), _offset_fetch),
    m.GroupHeartbeatRequest: (
        _in_group(Operation.READ),
        Whole(Operation.DESCRIBE, TOPIC, lambda message: message.topics or ()),
    ),
    m.ListGroupsRequest: (_in_cluster(Operation.DESCRIBE, Listed(GROUP, "groups", name_of)),),
    m.DescribeGroupsRequest: (_each_group(Operation.DESCRIBE, m.DescribedGroup), _members_topics),
    m.DeleteGroupsRequest: (_each_group(Operation.DELETE, m.NamedResult),),
    m.DeleteOffsetsRequest: (
        _in_group(Operation.DELETE),
        _each_partition(
            Operation.READ,
            lambda each, error: [
                m.DeletedOffset(each.topic_id, each.topic, number, error.code, str(error)) for number in each.partitions
            ],
            named=identified_topic_of,
            result_count=lambda each: len(each.partitions),
        ),
    ),
    m.EndTransactionRequest: (_WRITE_TRANSACTIONS,),
    m.JoinJobRequest: (_WRITE_TRANSACTIONS,),
    m.JobHeartbeatRequest: (_WRITE_TRANSACTIONS,),
    m.CommitJobRequest: (_WRITE_TRANSACTIONS,),
    m.AbortJobMembersRequest: (_WRITE_TRANSACTIONS,),
    m.TxnOffsetCommitRequest: (_WRITE_TRANSACTIONS, _in_group(Operation.READ), _COMMITTED),
    m.ListTransactionsRequest: (
        _parts_of_transactions,
        Listed(TRANSACTIONAL_ID, "transactions", lambda _, each: each.transactional_id),
    ),
    m.AbortTransactionRequest: (on_cluster(Operation.ALTER),),
    m.ListUsersRequest: (on_cluster(Operation.DESCRIBE),),
    m.AlterUsersRequest: (on_cluster(Operation.ALTER),),
    m.CreateAclsRequest: (on_cluster(Operation.ALTER),),
    m.DeleteAclsRequest: (on_cluster(Operation.ALTER),),
    m.DescribeAclsRequest: (on_cluster(Operation.DESCRIBE),),
    m.CheckAclRequest: (on_cluster(Operation.DESCRIBE),),
    m.DescribeClientQuotasRequest: (on_cluster(Operation.DESCRIBE_CONFIGS),),
    m.AlterClientQuotasRequest: (on_cluster(Operation.ALTER_CONFIGS),),
    m.AlterBrokerConfigRequest: (on_cluster(Operation.ALTER_CONFIGS),),
    m.FindSplitsRequest: (_each_partition(Operation.READ, failed_partition(m.FoundSplits)),),
    m.DescribeStatusRequest: (on_cluster(Operation.DESCRIBE),),
    m.DescribePartitionsRequest: (_each_partition(Operation.DESCRIBE, failed_partition(m.DescribedPartition)),),
    **dict.fromkeys(FAMILIES["brokers"], ()),  # `handlers/brokers` looks at who has sent them
    m.TraceIndexRequest: (Whole(Operation.DESCRIBE, TOPIC, lambda message: (message.topic,)),),
}
"""The rules of each kind of request, which are asked in order."""

assert RIGHTS.keys() == m.API_OF_REQUEST.keys()
