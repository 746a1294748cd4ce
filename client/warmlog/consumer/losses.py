"""What a consumer does when a partition cannot be read at its position; the verdicts are in `records.verdict`."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from warmlog import errors
from warmlog.consumer.options import ConsumerOptions
from warmlog.consumer.partition_reader import NO_LIMIT, PartitionReader
from warmlog.points import Point, PointKind, parse_point
from warmlog.records.fetched import error_in, first_header, is_intact, next_readable
from warmlog.records.verdict import Action, decide
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster
from warmlog_transport.list_offsets import list_offsets
from warmlog_transport.responses import TopicPartition, partition_range

_log = logging.getLogger("warmlog")


Seek = Callable[[Mapping[TopicPartition, Point]], Awaitable[None]]


class Losses:
    """Carries out the verdict on a partition's error: raises it, or finds a new position."""

    def __init__(self, options: ConsumerOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster

    async def handle(self, reader: PartitionReader, seek: Seek) -> None:
        """Raise the reader's error, or let it continue elsewhere."""
        error, reader.error = reader.error, None
        assert error is not None
        policy = self._options.loss_policy(is_endless=reader.until == NO_LIMIT)
        verdict = decide(error, policy)
        if verdict.action is Action.LOCATE:
            assert isinstance(error, errors.CorruptBatch)
            located = await self._locate(reader, error)
            if located is None:
                return
            error, verdict = located, decide(located, policy)
        if isinstance(error, errors.InconsistentTopicId):
            try:
                error = await self._recreated(reader)
            except errors.UnknownTopicOrPartition:
                if verdict.action is Action.RESET and reader.error is None:  # deleted again: the fetcher waits
                    return
                raise
        if verdict.action in (Action.RAISE, Action.RETRY):  # the fetcher has retried for as long as it may
            reader.error = await self._with_remedy(reader, error)
            raise reader.error or error
        lost_position = reader.position
        if verdict.action is Action.RESET:
            point = parse_point(self._options.on_out_of_range)
        else:
            point = Point(PointKind.OFFSET, verdict.next_offset)
        await seek({reader.tp: point})
        if verdict.action is Action.RAISE_ONCE:
            raise error
        begin = f"its {self._options.on_out_of_range} offset, {reader.position}"
        if isinstance(error, errors.LogTruncated):
            _log.warning("%s; continuing at %d", error, reader.position)
        elif isinstance(error, errors.InconsistentTopicId):
            _log.warning("%s; continuing at %s", error, begin)
        else:
            _log.warning("%s-%d: offset %d is not in the log; continuing at %s", *reader.tp, lost_position, begin)

    async def _with_remedy(self, reader: PartitionReader, error: errors.WarmlogError) -> errors.WarmlogError | None:
        """`error` with what to do, to be raised until a seek; None if a later read may succeed."""
        if isinstance(error, errors.LogTruncated):
            seek = "Seek" if error.diverging_offset is None else f"Seek to {error.diverging_offset}"
            where = error.topic, error.partition, error.offset, error.diverging_offset
            return errors.LogTruncated(*where, f"{errors.LogTruncated(*where)}. {seek}, or set on_out_of_range")
        if isinstance(error, errors.InconsistentTopicId):
            return errors.InconsistentTopicId(f"{error}. Seek to read the new one, or set on_out_of_range")
        if isinstance(error, errors.OffsetOutOfRange):
            (first,) = (await list_offsets(self._cluster, {reader.tp: m.EARLIEST_TIMESTAMP})).values()
            (end,) = (await list_offsets(self._cluster, {reader.tp: m.LATEST_TIMESTAMP})).values()
            return errors.OffsetOutOfRange(
                f"{reader.topic}-{reader.partition}: offset {reader.position} is not in the log, which goes from "
                f"{first.offset} to {end.offset} (the next to be written). Seek to one of these, or set on_out_of_range"
            )
        return None

    async def _recreated(self, reader: PartitionReader) -> errors.InconsistentTopicId:
        """The error that names both ids; the next seek goes over to the new topic. UnknownTopicOrPartition if none."""
        (topic,) = await self._cluster.topics([reader.topic])
        text = (
            f"{reader.topic}-{reader.partition}: topic {reader.topic!r} was deleted and recreated: its id was "
            f"{UUID(bytes=reader.topic_id)} and is now {topic.topic_id}; position {reader.position} is of the old topic"
        )
        if reader.partition >= len(topic.partitions):
            reader.error = errors.UnknownTopicOrPartition(
                f"{text}; it has only {partition_range(len(topic.partitions))}"
            )
            raise reader.error
        reader.new_topic_id = topic.topic_id.bytes
        return errors.InconsistentTopicId(text)

    async def _locate(self, reader: PartitionReader, error: errors.CorruptBatch) -> errors.UnreadableBatch | None:
        """`error`, which begins where the reader fetches, with the offset to continue at. None if it reads on there.

        The leader is asked for that batch alone: it hands over if others have it, and the next leader is asked. If it
        does not return the error, as it does not know of the damage, the offsets after it are tried.
        """
        damaged, damage_end = reader.fetch_offset, reader.damage_end
        self._cluster.leave_near(*reader.tp)
        part, payload = await self._fetch_one(reader, damaged)
        if part.error_code:
            found = error_in(part, damaged)
            if isinstance(found, errors.UnreadableBatch):
                return found
            if not isinstance(found, errors.CorruptBatch):  # as any fetch would get: the fetcher knows what to do
                reader.drop_ahead()
                return None
        elif self._is_readable(part, payload, damaged):
            reader.drop_ahead()
            reader.add(part, payload)
            return None

        async def is_readable(offset: int) -> bool:
            return self._is_readable(*await self._fetch_one(reader, offset), offset)

        end = max(reader.high_watermark, part.high_watermark, damaged + 1)
        next_offset = damage_end if damage_end > damaged else await next_readable(is_readable, damaged, end)
        return errors.UnreadableBatch(str(error), reader.topic, reader.partition, damaged, next_offset)

    def _is_readable(self, part: m.FetchedPartition, payload: memoryview, offset: int) -> bool:
        first = first_header(part, payload, offset)
        if first is None or (self._options.verify_crc and not is_intact(first, payload)):
            return False
        return first.next_offset > offset

    async def _fetch_one(self, reader: PartitionReader, offset: int) -> tuple[m.FetchedPartition, memoryview]:
        """What the broker has at `offset`: one batch, or an error."""
        epoch = self._cluster.leader_epoch(*reader.tp)
        wanted = m.FetchPartition(reader.topic, reader.partition, offset, 1, reader.topic_id, epoch)
        request = m.FetchRequest(0, 1, 1, [wanted], self._options.isolation)
        if self._cluster.leader(*reader.tp) is None:
            raise errors.NotLeaderOrFollower(f"{reader.topic}-{reader.partition} has no leader now")
        response = await self._cluster.ask_leader(request, *reader.tp)
        assert isinstance(response.result, m.FetchResponse)
        (part,) = response.result.partitions
        return part, response.payload
