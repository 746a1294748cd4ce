"""Produce and InitProducerId. Batches are stored as they came."""

from collections.abc import Iterator
from typing import Any

from warmlog_broker.handlers.produce import RefusedRecords
from warmlog_broker.kafka.codes import code_in
from warmlog_broker.kafka.data.leaders import Leaders
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import BatchSource, ConnectionEnds, Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.batch import HEADER_BYTES, MAGIC_ROWS
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRecord, UnknownTopicId
from warmlog_protocol.kafka.schema import API
from warmlog_protocol.wire.connection import ReceivedBatch

TOPIC_IDS_FROM = 13
ENROLS_FROM = 12
"""In this version a batch makes its partition part of the transaction (KIP-890); before, AddPartitionsToTxn does."""

_MAGIC_POSITION = 16
_Response = API["Produce"].response
_Partition = _Response.PartitionProduceResponse
_RecordError = _Response.BatchIndexAndErrorMessage
_Init = API["InitProducerId"].response


def produce(kafka: Kafka, context: RequestContext, request: Any, source: BatchSource) -> Response:
    """Append the batch of each partition."""
    has_ids = request.api_version >= TOPIC_IDS_FROM
    passed: list[ReceivedBatch] = []
    refused: list[ApiError | None] = []
    batches = iter(source())
    for topic in request.topic_data:
        name = kafka.topic_name(topic.topic_id) if has_ids else topic.name
        for part in topic.partition_data:
            error = _refusal(batch := next(batches), name)
            refused.append(error)
            if error is None and name is not None:
                passed.append(ReceivedBatch(name, part.index, batch.batch, batch.is_owned) if has_ids else batch)
    if request.acks == m.ACKS_NONE and (error := next((each for each in refused if each), None)):
        raise ConnectionEnds(f"acks=0, and a batch was refused: {error}")

    leaders = Leaders(kafka, context, _Response)

    def back(done: Any) -> Ready:
        return None if done is None else _back(request, refused, iter(done.partitions), leaders)

    if not passed:
        return _back(request, refused, iter(()), leaders)
    wanted = [m.ProducePartition(each.topic, each.partition, len(each.batch)) for each in passed]
    is_enrolled = request.api_version < ENROLS_FROM
    message = m.ProduceRequest(request.acks, request.timeout_ms, wanted, request.transactional_id, is_enrolled)
    try:
        return then(kafka.call(context, message, lambda: passed), back)
    except ApiError as error:
        if request.acks == m.ACKS_NONE:
            raise ConnectionEnds(f"acks=0, and the request was refused: {error}") from None
        raise


def _refusal(batch: ReceivedBatch, topic: str | None) -> ApiError | None:
    """Return why a record set is not passed on. What is wrong with a batch of rows, the append tells."""
    if topic is None:
        return UnknownTopicId("there is no topic with this id")
    if len(batch.batch) < HEADER_BYTES:
        return InvalidRecord(f"{len(batch.batch)} bytes of records: a batch of at least {HEADER_BYTES} is expected")
    magic = batch.batch[_MAGIC_POSITION]
    if magic != MAGIC_ROWS:
        return InvalidRecord(f"records of magic {magic}: {MAGIC_ROWS} is expected")
    return None


def _back(
    request: Any, refused: list[ApiError | None], done: Iterator[m.ProducedPartition], leaders: Leaders
) -> m.Message:
    refusals, version = iter(refused), request.api_version
    topics = [
        _Response.TopicProduceResponse(
            topic.name,
            topic.topic_id,
            [_partition(version, part.index, next(refusals), done, leaders) for part in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return _Response(topics, node_endpoints=leaders.endpoints)


def _partition(
    version: int, index: int, refusal: ApiError | None, done: Iterator[m.ProducedPartition], leaders: Leaders
) -> Any:
    if refusal is not None:
        return _Partition(index, refusal.code, base_offset=-1, error_message=str(refusal))
    produced = next(done)
    code = produced.error_code
    if code == ErrorCode.NONE:
        return _Partition(index, 0, produced.base_offset, produced.log_append_time_ms, produced.log_start_offset)
    return _Partition(
        index,
        code_in("Produce", version, code),
        base_offset=-1,
        record_errors=[*map(_RecordError, produced.indexes)] if isinstance(produced, RefusedRecords) else [],
        error_message=produced.error_message,
        current_leader=leaders.of(produced),
    )


def init_producer_id(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Give a producer its id, or the next epoch.

    Without a transactional id it is always a new one, as in Kafka: some clients give 0 when they have none.
    """
    message = m.InitProducerIdRequest()
    if request.transactional_id is not None:
        message = m.InitProducerIdRequest(
            request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
        )

    def back(given: Any) -> Ready:
        return _Init(0, ErrorCode.NONE, given.producer_id, given.producer_epoch)

    return then(kafka.call(context, message), back)
