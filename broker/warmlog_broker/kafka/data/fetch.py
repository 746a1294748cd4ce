"""Fetch: rows are sent from the file as they are stored, columns are converted to rows.

There are no fetch sessions: each response says so by session 0, and clients send full requests. A partition that has no
records from the offset on, since compaction has removed them, gets an empty batch that ends where reading goes on: the
response has no other way to say it. A partition that is to be read from a near replica gets no records: librdkafka
would complain.
"""

import logging
from contextlib import closing
from functools import partial
from typing import Any

from warmlog_broker.handlers.fetch import failed
from warmlog_broker.kafka.data.leaders import Leaders
from warmlog_broker.kafka.data.rows import Pieces, in_rows, note_rows, with_columns
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.codec import slices_bytes
from warmlog_broker.network.request import Life, MessageWithSlices, RequestContext, Response, then
from warmlog_broker.replica.cluster_view import NO_LEADER
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol import messages as m
from warmlog_protocol.batch import (
    MAGIC_ROWS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    empty_batch,
)
from warmlog_protocol.batch.header import NO_OFFSET, BatchHeader
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.kafka.schema import API

TOPIC_IDS_FROM = 13
NO_SESSION = 0
FINAL_EPOCH = -1
"""Ends a session, and asks for a full response."""
_MOST_DELTA = 2**31 - 1

_Response = API["Fetch"].response
_Partition = _Response.PartitionData


def fetch(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Read partitions, now or when there is enough to read."""
    if request.session_id != NO_SESSION and request.session_epoch != FINAL_EPOCH:
        return _Response(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    names = [
        kafka.topic_name(topic.topic_id) if request.api_version >= TOPIC_IDS_FROM else topic.topic
        for topic in request.topics
    ]
    wanted = [
        m.FetchPartition(
            name,
            part.partition,
            part.fetch_offset,
            part.partition_max_bytes,
            current_leader_epoch=part.current_leader_epoch,
            last_fetched_epoch=part.last_fetched_epoch,
        )
        for topic, name in zip(request.topics, names, strict=True)
        if name is not None
        for part in topic.partitions
    ]
    message = m.FetchRequest(
        request.max_wait_ms if None not in names else 0,
        request.min_bytes,
        request.max_bytes,
        wanted,
        request.isolation_level,
        skips_gaps=True,
        rack=request.rack_id,
    )

    def back(fetched: Any) -> Response:
        if not isinstance(fetched, MessageWithSlices):  # without rights to any of the partitions
            fetched = MessageWithSlices(fetched, [() for _ in fetched.partitions])
        parts = fetched.message.partitions
        kept = [
            each if part.near_replica == NO_LEADER else () for part, each in zip(parts, fetched.slices, strict=True)
        ]
        slices: list[Pieces] = [list(each) for each in kept]
        columnar = with_columns(kept)
        if not columnar:
            return _respond(request, names, parts, slices, Leaders(kafka, context, _Response))
        return _converted(kafka, context, request, names, wanted, parts, slices, columnar)

    return then(kafka.call(context, message), back)


class _Conversion:
    """Converts batches for one response, in a thread, and counts them until that is sent or waits for its turn."""

    def __init__(self, kafka: Kafka, life: Life) -> None:
        self._convert = kafka.converted.rows_of
        self._loop, self._memory = kafka.services.loop, kafka.services.response_memory
        self._life = life
        self._rows_bytes = 0

    def rows_of(self, stored: FileSlice) -> bytes:
        """Return a batch as rows."""
        rows = self._convert(stored)
        self._rows_bytes += len(rows)
        self._loop.call_soon_threadsafe(self._memory.hold, self._life, len(rows))
        return rows

    def is_over(self) -> bool:
        """Whether the connection has ended, or holds some of too much memory: then it gets no more batches now."""
        return self._life.is_over or (self._memory.is_short and self._life.held_bytes + self._rows_bytes > 0)

    def close(self) -> None:
        self._memory.hold(self._life, -self._rows_bytes)


async def _converted(
    kafka: Kafka,
    context: RequestContext,
    request: Any,
    names: list[str | None],
    wanted: list[m.FetchPartition],
    parts: list[m.FetchedPartition],
    slices: list[Any],
    columnar: list[int],
) -> MessageWithSlices:
    """Respond with the rows of partitions that have columns; one that cannot be converted has an error.

    As in a read, the first partition that has any batch gets at least one, unless other responses of the connection are
    in memory and responses take too much of it. If the connection ends, the conversion does.
    """
    services = kafka.services
    unconverted = set(columnar)
    rows_bytes = slices_bytes([each for index, each in enumerate(slices) if index not in unconverted])
    left_bytes = min(request.max_bytes, services.config.fetch_max_bytes) - rows_bytes
    first = next((index for index, each in enumerate(slices) if each and index not in unconverted), len(slices))
    with closing(_Conversion(kafka, context.life)) as conversion:
        for index in columnar:
            convert = partial(
                in_rows,
                slices[index],
                min(wanted[index].max_bytes, left_bytes),
                conversion.rows_of,
                min_one_batch=index < first,
                is_over=conversion.is_over,
            )
            try:
                slices[index] = await services.loop.run_in_executor(services.cold_readers, convert)
                note_rows(slices[index])
            except (OSError, MemoryError, ApiError) as error:
                part = parts[index]
                text = f"{part.topic}-{part.partition}: {error}"
                services.lines.write(
                    logging.ERROR,
                    "batches that could not be converted for clients of Kafka",
                    text,
                    services.loop.time(),
                )
                failure = error if isinstance(error, ApiError) else storage_error(text, error)
                try:
                    services.topics.partition(part.topic, part.partition).check_again(slices[index])
                except ApiError as refused:
                    failure = refused
                parts[index], slices[index] = failed(part, failure), []
            left_bytes -= slices_bytes([slices[index]])
            if slices[index]:
                first = min(first, index)
    return _respond(request, names, parts, slices, Leaders(kafka, context, _Response))


def _respond(
    request: Any, names: list[str | None], parts: list[m.FetchedPartition], slices: list[Pieces], leaders: Leaders
) -> MessageWithSlices:
    """Return the response: its partitions are those of the request, in its order."""
    fetched = iter(zip(parts, slices, strict=True))
    all_slices: list[Pieces] = []
    topics = []
    for topic, name in zip(request.topics, names, strict=True):
        answers = []
        for wanted in topic.partitions:
            if name is None:
                answers.append(_refused(wanted.partition, ErrorCode.UNKNOWN_TOPIC_ID))
                all_slices.append([])
                continue
            part, pieces = next(fetched)
            if not pieces and part.next_offset > wanted.fetch_offset and part.error_code == ErrorCode.NONE:
                pieces = [_gap(wanted.fetch_offset, part.next_offset, part.leader_epoch)]
            answers.append(_answer(part, slices_bytes([pieces]), request.isolation_level, leaders.of(part)))
            all_slices.append(pieces)
        topics.append(_Response.FetchableTopicResponse(topic.topic, topic.topic_id, answers))
    return MessageWithSlices(_Response(responses=topics, node_endpoints=leaders.endpoints), all_slices)


def _answer(part: m.FetchedPartition, size_bytes: int, isolation: int, leader: Any) -> Any:
    return _Partition(
        part.partition,
        part.error_code,
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        part.diverging,
        leader,
        aborted_transactions=part.aborted_transactions if isolation == m.IsolationLevel.READ_COMMITTED else None,
        preferred_read_replica=part.near_replica,
        records=size_bytes,
    )


def _refused(partition: int, code: int) -> Any:
    return _Partition(partition, code, NO_OFFSET, NO_OFFSET, NO_OFFSET)


def _gap(first_offset: int, next_offset: int, leader_epoch: int) -> bytes:
    """Return a batch without records from `first_offset` to before `next_offset`, or as far as one batch can reach."""
    return empty_batch(
        BatchHeader(
            base_offset=first_offset,
            batch_length=0,
            partition_leader_epoch=leader_epoch,
            magic=MAGIC_ROWS,
            crc=0,
            attributes=0,
            last_offset_delta=min(next_offset - 1 - first_offset, _MOST_DELTA),
            base_timestamp_ms=NO_TIMESTAMP,
            max_timestamp_ms=NO_TIMESTAMP,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=0,
        )
    )
