"""Both versions of Kafka's transactions, and what tools ask about transactions.

In version 2 (KIP-890) the first batch for a partition makes it part of the transaction, and each end raises the epoch,
which the response tells. In version 1 AddPartitionsToTxn and AddOffsetsToTxn say what will be part of it, batches and
offsets are refused elsewhere, and the epoch stays. Each request says by its own version which of the two it belongs to.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions.state import check_group_id
from warmlog_broker.coordinator.group.patterns import compile_pattern, forget_compiled
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation
from warmlog_broker.gate.asker import Asker
from warmlog_broker.handlers.items import handle
from warmlog_broker.kafka.groups.offsets import offsets_in
from warmlog_broker.kafka.responses import Result, answered, by_topic, refused
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.producer.producer_state import ProducerEntry
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, NotLeaderOrFollower
from warmlog_protocol.kafka.schema import API

STATES = {"empty": "Empty", "ongoing": "Ongoing", "committing": "PrepareCommit", "aborting": "PrepareAbort"}
"""As Kafka writes the states that warmlog has."""
OTHER_STATES = {"CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"}
"""Those that only Kafka has."""
NO_TRANSACTION = -1

VERSION_2_FROM = 5
"""EndTxn and TxnOffsetCommit: the first version of theirs that belongs to version 2 of transactions."""

_GroupAdded = API["AddOffsetsToTxn"].response
_Ended = API["EndTxn"].response
_List = API["ListTransactions"].response
_Described = API["DescribeTransactions"].response
_Producers = API["DescribeProducers"].response


async def add_partitions_to_txn(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Make partitions part of the transaction: all of them, or none if there is an error."""
    transactional_id = request.v3_and_below_transactional_id
    asker = Asker(kafka.services, context, "AddPartitionsToTxn")
    asker.require(m.Operation.WRITE, m.ResourceType.TRANSACTIONAL_ID, transactional_id)
    wanted: dict[PartitionId, str] = {}

    def find(item: m.ProducePartition) -> int:
        asker.require(m.Operation.WRITE, m.ResourceType.TOPIC, item.topic)
        with suppress(NotLeaderOrFollower):  # another broker may lead it
            kafka.services.topics.partition(item.topic, item.partition, to_change=True)
        wanted[PartitionId(kafka.services.topics.get(item.topic).topic_id, item.partition)] = item.topic
        return ErrorCode.NONE

    codes = [
        handle(kafka.services, m.ProducePartition(topic.name, index, 0), find, lambda _, error: error.code)
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    ]
    if any(codes):
        return answered(
            "AddPartitionsToTxn", request, [Result(code or ErrorCode.OPERATION_NOT_ATTEMPTED) for code in codes]
        )
    producer = Incarnation(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    await kafka.services.coordinators.transactions.enrol(transactional_id, producer, partitions=wanted)
    return answered("AddPartitionsToTxn", request, map(Result, codes))


async def add_offsets_to_txn(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Make a group part of the transaction, which will commit offsets of it."""
    asker = Asker(kafka.services, context, "AddOffsetsToTxn")
    asker.require(m.Operation.WRITE, m.ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    asker.require(m.Operation.READ, m.ResourceType.GROUP, request.group_id)
    check_group_id(request.group_id)
    producer = Incarnation(request.producer_id, request.producer_epoch)
    await kafka.services.coordinators.transactions.enrol(request.transactional_id, producer, group=request.group_id)
    return _GroupAdded()


def end_txn(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Commit or abort."""
    message = m.EndTransactionRequest(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        keeps_epoch=request.api_version < VERSION_2_FROM,
    )

    def back(ended: Any) -> Ready:
        return _Ended(producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)

    return then(kafka.call(context, message), back)


def txn_offset_commit(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Commit offsets with the transaction. As in Kafka, one may be after the log end."""
    message = m.TxnOffsetCommitRequest(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.group_id,
        offsets_in(request),
        request.member_id,
        request.generation_id_or_member_epoch,
        request.group_instance_id or "",
        takes_any_offset=True,
        is_enrolled=request.api_version < VERSION_2_FROM,
    )
    return kafka.pass_on(context, "TxnOffsetCommit", request, message)


def list_transactions(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """List transactional ids, those that all filters fit."""
    matches: Callable[[str], bool] = lambda _: True  # noqa: E731
    if request.transactional_id_pattern:
        matches = compile_pattern(request.transactional_id_pattern)
    unknown = [each for each in request.state_filters if each not in {*STATES.values(), *OTHER_STATES}]

    def back(listed: Any) -> Ready:
        began_before_ms = now_ms() - request.duration_filter
        found = [
            each
            for each in listed.transactions
            if (not request.state_filters or STATES[each.state] in request.state_filters)
            and (not request.producer_id_filters or each.producer_id in request.producer_id_filters)
            and (request.duration_filter < 0 or NO_TRANSACTION < each.began_ms <= began_before_ms)
            and matches(each.transactional_id)
        ]
        if request.transactional_id_pattern:
            forget_compiled()
        states = [_List.TransactionState(each.transactional_id, each.producer_id, STATES[each.state]) for each in found]
        return _List(unknown_state_filters=unknown, transaction_states=states)

    return then(kafka.call(context, m.ListTransactionsRequest()), back)


async def describe_transactions(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Describe transactional ids."""
    states = []
    for name in request.transactional_ids:
        found = (await kafka.ask(context, m.ListTransactionsRequest(name))).transactions
        unknown = _Described.TransactionState(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
        states += [_described(each) for each in found] or [unknown]
    return _Described(transaction_states=states)


def _described(transaction: m.ListedTransaction) -> Any:
    topics = by_topic((each.topic, each.partition) for each in transaction.partitions)
    return _Described.TransactionState(
        0,
        transaction.transactional_id,
        STATES[transaction.state],
        transaction.timeout_ms,
        transaction.began_ms,
        transaction.producer_id,
        transaction.producer_epoch,
        [_Described.TopicData(topic, partitions) for topic, partitions in topics.items()],
    )


def describe_producers(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Describe the idempotent producers of partitions, and their open transactions."""
    asker = Asker(kafka.services, context, "DescribeProducers")

    def describe(wanted: m.ProducePartition) -> Any:
        asker.require(m.Operation.READ, m.ResourceType.TOPIC, wanted.topic)
        partition = kafka.services.topics.partition(wanted.topic, wanted.partition)
        producers = [_producer(each) for each in partition.log.producers.entries]
        return _Producers.PartitionResponse(active_producers=producers)

    wanted = [m.ProducePartition(topic.name, index, 0) for topic in request.topics for index in topic.partition_indexes]
    results = [handle(kafka.services, each, describe, lambda _, error: refused(error)) for each in wanted]
    return answered("DescribeProducers", request, results)


def _producer(entry: ProducerEntry) -> Any:
    last_sequence = entry.batches[-1].last_sequence if entry.batches else -1
    return _Producers.ProducerState(
        entry.producer_id,
        entry.epoch,
        last_sequence,
        entry.last_timestamp_ms,
        entry.coordinator_epoch,
        entry.transaction_first_offset,
    )
