"""EndTxn and TxnOffsetCommit, of Kafka's version 2 of transactions (KIP-890); and what tools ask about transactions.

That version is what the coordinator speaks: the first batch for a partition makes it part of the transaction, and each
end raises the epoch, which the response tells.
"""

from collections.abc import Callable
from typing import Any

from warmlog_broker.coordinator.group.patterns import compile_pattern, forget_compiled
from warmlog_broker.gate.asker import Asker
from warmlog_broker.handlers.items import handle
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.producer.producer_state import ProducerEntry
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.kafka.schema import API

STATES = {"empty": "Empty", "ongoing": "Ongoing", "committing": "PrepareCommit", "aborting": "PrepareAbort"}
"""As Kafka writes the states that warmlog has."""
OTHER_STATES = {"CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"}
"""Those that only Kafka has."""
NO_TRANSACTION = -1

_Ended = API["EndTxn"].response
_Committed = API["TxnOffsetCommit"].response
_List = API["ListTransactions"].response
_Described = API["DescribeTransactions"].response
_Producers = API["DescribeProducers"].response


def end_txn(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Commit or abort."""
    owner = (request.transactional_id, request.producer_id, request.producer_epoch)

    def back(ended: Any) -> Ready:
        return _Ended(producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)

    return then(kafka.call(context, m.EndTransactionRequest(*owner, request.committed)), back)


def txn_offset_commit(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Commit offsets with the transaction."""
    partitions = [
        m.OffsetCommitPartition(
            b"",
            topic.name,
            part.partition_index,
            part.committed_offset,
            part.committed_leader_epoch,
            part.committed_metadata or "",
        )
        for topic in request.topics
        for part in topic.partitions
    ]
    message = m.TxnOffsetCommitRequest(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.group_id,
        partitions,
        request.member_id,
        request.generation_id_or_member_epoch,
        request.group_instance_id or "",
    )

    def back(committed: Any) -> Ready:
        codes = iter([each.error_code for each in committed.partitions])
        return _committed(request, lambda: next(codes))

    return then(kafka.call(context, message), back)


def txn_offset_commit_failed(request: Any, error: ApiError) -> m.Message:
    """Every partition has the error."""
    return _committed(request, lambda: error.code)


def _committed(request: Any, code: Callable[[], int]) -> m.Message:
    result = _Committed.TxnOffsetCommitResponsePartition
    return _Committed(
        topics=[
            _Committed.TxnOffsetCommitResponseTopic(
                topic.name, [result(part.partition_index, code()) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )


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
        states += [_described(each) for each in found] or [_unknown(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)]
    return _Described(transaction_states=states)


def describe_transactions_failed(request: Any, error: ApiError) -> m.Message:
    """Every id has the error."""
    return _Described(transaction_states=[_unknown(name, error.code) for name in request.transactional_ids])


def _unknown(transactional_id: str, code: int) -> Any:
    return _Described.TransactionState(code, transactional_id)


def _described(transaction: m.ListedTransaction) -> Any:
    topics: dict[str, list[int]] = {}
    for each in transaction.partitions:
        topics.setdefault(each.topic, []).append(each.partition)
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
        if kafka.services.authorizer.is_on:
            asker.require(m.Operation.READ, m.ResourceType.TOPIC, wanted.topic)
        partition = kafka.services.topics.partition(wanted.topic, wanted.partition)
        producers = [_producer(each) for each in partition.log.producers.entries]
        return _Producers.PartitionResponse(wanted.partition, 0, None, producers)

    def failed(wanted: m.ProducePartition, error: ApiError) -> Any:
        return _Producers.PartitionResponse(wanted.partition, error.code, str(error))

    return _Producers(
        topics=[
            _Producers.TopicResponse(
                topic.name,
                [
                    handle(kafka.services, m.ProducePartition(topic.name, index, 0), describe, failed)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def describe_producers_failed(request: Any, error: ApiError) -> m.Message:
    """Every partition has the error."""
    result = _Producers.PartitionResponse
    return _Producers(
        topics=[
            _Producers.TopicResponse(
                topic.name, [result(index, error.code, str(error)) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


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
