"""What a consumer has between `start` and `close`: its partitions, the fetcher, and the batch that comes next."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from operator import length_hint
from uuid import UUID

from warmlog.cluster.cluster import Cluster, Topic
from warmlog.cluster.list_offsets import list_offsets
from warmlog.cluster.options import ConnectionOptions
from warmlog.cluster.responses import TopicPartition, partition_range
from warmlog.consumer.fetcher import Fetcher
from warmlog.consumer.options import ConsumerOptions
from warmlog.consumer.partition_reader import NO_LIMIT, PartitionReader
from warmlog.consumer.starting import look_up_points, topics_like
from warmlog.errors import (
    ClientClosed,
    CorruptBatch,
    InconsistentTopicId,
    LogTruncated,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    UnreadableBatch,
    WarmlogError,
)
from warmlog.points import EARLIEST, LATEST, Point, Points, Where, fit_points, parse_point, parse_where
from warmlog.records.batch import Batch, Record
from warmlog.records.fetched import error_in, first_header, is_intact, next_readable
from warmlog.records.verdict import Action, decide
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

_log = logging.getLogger("warmlog")


class ConsumerCore:
    """Reads some partitions. Batches of several partitions take turns."""

    def __init__(
        self, bootstrap: str | Sequence[str], options: ConsumerOptions, connection_options: ConnectionOptions
    ) -> None:
        self._options = options
        self._changed = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._fetcher: Fetcher | None = None
        self._finding: asyncio.Task[None] | None = None
        self._whole_topics: list[str] = []
        self._is_bounded = False
        """Whether the read under way has an end."""
        self._turns: list[PartitionReader] = []
        self._turn = 0
        self._hand: list[Record] = []
        self._hand_reader: PartitionReader | None = None
        self.cluster = Cluster(bootstrap, connection_options, self._changed.set)
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.hand: Iterator[Record] = iter(self._hand)

    async def start(
        self,
        topics: Sequence[str] | None,
        partitions: Sequence[TopicPartition] | None,
        pattern: str | None,
        start: Points,
    ) -> None:
        """Connect, find the partitions and where to start.

        Raises UnknownTopicOrPartition, BrokerUnavailable, and ValueError if `start` names a partition that is not read.
        """
        await self.cluster.start()
        if pattern is not None:
            topics = await topics_like(self.cluster, pattern)
        names = list(topics) if topics is not None else sorted({topic for topic, _ in partitions or ()})
        known = {topic.name: topic for topic in await self.cluster.topics(names)}
        if topics is not None:
            partitions = [(topic.name, each.partition) for topic in known.values() for each in topic.partitions]
        for topic, partition in partitions or ():
            count = len(known[topic].partitions)
            if not 0 <= partition < count:
                raise UnknownTopicOrPartition(f"topic {topic!r} has {partition_range(count)}, not {partition}")
            self.readers[topic, partition] = self._new_reader(known[topic], partition)
        await self.seek(fit_points(start, self.readers, "start", left_out=EARLIEST))
        self._turns = list(self.readers.values())
        self._whole_topics = [] if topics is None else names
        self._fetcher = Fetcher(self._options, self.cluster, self._changed, self._turns, self._find_new_soon)
        self._fetching = asyncio.create_task(self._fetcher.run(), name="warmlog consumer")

    async def stop(self) -> None:
        """End all tasks and connections."""
        tasks = [task for task in (self._finding, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.cluster.close()

    def _new_reader(self, topic: Topic, partition: int) -> PartitionReader:
        return PartitionReader(
            topic.name,
            partition,
            topic.topic_id.bytes,
            verify_crc=self._options.verify_crc,
            max_decompressed_bytes=self._options.max_decompressed_bytes,
        )

    # --- partitions that are added to a topic that is read as a whole ------------------------------------------------

    def _find_new_soon(self) -> None:
        if self._whole_topics and self._finding is None:
            self._finding = asyncio.create_task(self._find_new(), name="warmlog new partitions")

    async def _find_new(self) -> None:
        """Read partitions that were added since the start, from their beginning."""
        try:
            new = {}
            for topic in await self.cluster.topics(self._whole_topics):
                first = self.readers.get((topic.name, 0))
                if first is None or first.topic_id != topic.topic_id.bytes:  # deleted and recreated: see `_recreated`
                    continue
                for part in topic.partitions:
                    if (topic.name, part.partition) not in self.readers:
                        new[topic.name, part.partition] = self._new_reader(topic, part.partition)
            starts = await list_offsets(self.cluster, dict.fromkeys(new, EARLIEST_TIMESTAMP)) if new else {}
            for partition, reader in new.items():
                self._read_new(reader, starts[partition].offset)
        except WarmlogError as error:
            _log.debug("new partitions are looked for later: %s", error)
        finally:
            self._finding = None

    def _read_new(self, reader: PartitionReader, start_offset: int) -> None:
        """Begin with the next read, if the one under way has an end."""
        assert self._fetcher is not None
        _log.info("%s-%d was added, and is read from offset %d", reader.topic, reader.partition, start_offset)
        reader.seek(start_offset)
        reader.until = start_offset if self._is_bounded else NO_LIMIT
        self.readers[reader.topic, reader.partition] = reader
        self._turns.append(reader)
        self._fetcher.add(reader)

    async def seek(self, points: Mapping[TopicPartition, Point]) -> None:
        """Continue from there in these partitions."""
        for partition, at in (await look_up_points(self.cluster, points, self._options.isolation)).items():
            self.seek_now(partition, at.offset, at.leader_epoch)
        self._changed.set()

    def seek_now(self, partition: TopicPartition, offset: int, epoch: int = NO_LEADER_EPOCH) -> None:
        """Continue from `offset` in one partition; see `PartitionReader.seek`."""
        reader = self.readers[partition]
        if reader is self._hand_reader:
            self._drop_hand()
        reader.seek(offset, epoch)
        self._changed.set()

    def give_back(self, partition: TopicPartition, offset: int) -> None:
        """Deliver again what was taken of one partition, from `offset` on."""
        self.seek_now(partition, offset, self.readers[partition].epoch)

    def position(self, partition: TopicPartition) -> int:
        """The offset that comes next: of the first record in hand, or what the reader says."""
        reader = self.readers[partition]
        if reader is self._hand_reader and (left := length_hint(self.hand)):
            return self._hand[-left].offset
        return reader.position

    def parsed_end(self, until: Where) -> Points:
        """Return where to end. ValueError if that is no point, or a mapping names a partition that is not read."""
        points = parse_where(until, name="until")
        fit_points(points, self.readers, "until", left_out=LATEST)
        return points

    async def ends(self, until: Points) -> dict[TopicPartition, int]:
        """Return the offset that `until` means in each partition, the latest if a mapping leaves it out."""
        points = fit_points(until, self.readers, "until", left_out=LATEST)
        found = await look_up_points(self.cluster, points, self._options.isolation)
        return {partition: at.offset for partition, at in found.items()}

    async def limit(self, until: Points | None) -> None:
        """Let every partition end there, from now on; None: never."""
        self._is_bounded, readers = until is not None, dict(self.readers)
        ends = {} if until is None else await self.ends(until)
        self._put_back_hand()
        for partition, reader in readers.items():
            reader.until = ends.get(partition, NO_LIMIT)
        self._changed.set()

    async def available(self) -> dict[TopicPartition, range]:
        """Return the offsets in the log of each partition, for readers of its isolation."""
        first = await self.ends(EARLIEST)
        end = await self.ends(LATEST)
        return {partition: range(first[partition], end[partition]) for partition in first}

    async def next_batch(self) -> Batch | None:
        """The next batch of any partition, waiting for one; None when every partition has reached its end."""
        self.cluster.home.check()
        await asyncio.sleep(0)  # lets the fetcher run even if the user awaits nothing else
        assert self._fetcher is not None
        while True:
            self._fetcher.arrived.clear()
            reader = self._next_reader()
            if reader is None:
                if all(reader.is_at_end for reader in self._turns):
                    return None
                if self._fetching is None or self._fetching.done():
                    raise ClientClosed("the consumer has failed: see the error in the log, and start a new one")
                await self._fetcher.arrived.wait()
            elif (batch := self.take(reader)) is not None:
                return batch
            elif reader.error is not None:
                await self._handle(reader)

    def take(self, reader: PartitionReader) -> Batch | None:
        """The next batch of this partition if one is here. Raises UnreadableBatch, and continues after it then."""
        try:
            return reader.take()
        finally:
            self._changed.set()

    def _next_reader(self) -> PartitionReader | None:
        """A partition that has something, in turns."""
        count = len(self._turns)
        for step in range(self._turn, self._turn + count):
            reader = self._turns[step % count]
            if reader.has_something:
                self._turn = (step + 1) % count
                return reader
        return None

    # --- records in hand --------------------------------------------------------------------------------------------

    async def next_hand(self) -> bool:
        """Take the records of the next batch in hand; False when every partition has reached its end."""
        batch = await self.next_batch()
        if batch is None:
            return False
        self._hand_reader = self.readers[batch.topic, batch.partition]
        self._hand = list(batch)
        self.hand = iter(self._hand)
        return True

    def _put_back_hand(self) -> None:
        """Leave the records in hand, the rest of a batch, to the next read."""
        if self._hand_reader is not None and (left := length_hint(self.hand)):
            self._hand_reader.put_back(self._hand[-left].offset)
        self._drop_hand()

    def _drop_hand(self) -> None:
        self._hand, self._hand_reader = [], None
        self.hand = iter(self._hand)

    # --- errors -----------------------------------------------------------------------------------------------------

    async def _handle(self, reader: PartitionReader) -> None:
        """Carry out the verdict on a partition's error: raise it, or find a new position."""
        error, reader.error = reader.error, None
        self._changed.set()
        assert error is not None
        policy = self._options.loss_policy(is_endless=reader.until == NO_LIMIT)
        verdict = decide(error, policy)
        if verdict.action is Action.LOCATE:
            assert isinstance(error, CorruptBatch)
            error = await self._locate(reader, error)
            verdict = decide(error, policy)
        is_recreated = isinstance(error, InconsistentTopicId)
        if is_recreated:
            try:
                error = await self._recreated(reader)
            except UnknownTopicOrPartition:
                if verdict.action is Action.RESET and reader.error is None:  # deleted again: the fetcher waits
                    return
                raise
        partition = (reader.topic, reader.partition)
        if verdict.action in (Action.RAISE, Action.RETRY):  # the fetcher has retried for as long as it may
            reader.error = await self._with_remedy(reader, error)
            raise reader.error or error
        if verdict.action is Action.RESET:
            await self.seek({partition: parse_point(self._options.on_out_of_range)})
        else:
            self.seek_now(partition, verdict.next_offset)
        if verdict.action is Action.RAISE_ONCE:
            raise error
        if is_recreated or isinstance(error, LogTruncated):
            policy_offset = f"its {self._options.on_out_of_range} offset, " if is_recreated else ""
            _log.warning("%s; continuing at %s%d", error, policy_offset, reader.position)

    async def _with_remedy(self, reader: PartitionReader, error: WarmlogError) -> WarmlogError | None:
        """`error` with what to do, to be raised until a seek; None if a later read may succeed."""
        if isinstance(error, LogTruncated):
            seek = "Seek" if error.diverging_offset is None else f"Seek to {error.diverging_offset}"
            return error.reworded(f"{error}. {seek}, or set on_out_of_range")
        if isinstance(error, InconsistentTopicId):
            return InconsistentTopicId(f"{error}. Seek to read the new one, or set on_out_of_range")
        if isinstance(error, OffsetOutOfRange):
            partition = (reader.topic, reader.partition)
            (first,) = (await list_offsets(self.cluster, {partition: EARLIEST_TIMESTAMP})).values()
            (end,) = (await list_offsets(self.cluster, {partition: LATEST_TIMESTAMP})).values()
            return OffsetOutOfRange(
                f"{reader.topic}-{reader.partition}: offset {reader.position} is not in the log, which goes from "
                f"{first.offset} to {end.offset} (the next to be written). Seek to one of these, or set on_out_of_range"
            )
        return None

    async def _recreated(self, reader: PartitionReader) -> InconsistentTopicId:
        """The error that names both ids; the next seek goes over to the new topic. UnknownTopicOrPartition if none."""
        (topic,) = await self.cluster.topics([reader.topic])
        text = (
            f"{reader.topic}-{reader.partition}: topic {reader.topic!r} was deleted and recreated: its id was "
            f"{UUID(bytes=reader.topic_id)} and is now {topic.topic_id}; position {reader.position} is of the old topic"
        )
        if reader.partition >= len(topic.partitions):
            reader.error = UnknownTopicOrPartition(f"{text}; it has only {partition_range(len(topic.partitions))}")
            raise reader.error
        reader.new_topic_id = topic.topic_id.bytes
        return InconsistentTopicId(text)

    async def _locate(self, reader: PartitionReader, error: CorruptBatch) -> UnreadableBatch:
        """`error`, which begins where the reader fetches, with the offset to continue at.

        The broker returns it if it knows of the damage; otherwise the offsets after it are tried.
        """
        damaged = reader.fetch_offset
        part, _ = await self._fetch_one(reader, damaged)
        if part.error_code and isinstance(found := error_in(part, damaged), UnreadableBatch):
            return found

        async def is_readable(offset: int) -> bool:
            part, payload = await self._fetch_one(reader, offset)
            first = first_header(part, payload, offset)
            if first is None or (self._options.verify_crc and not is_intact(first, payload)):
                return False
            return first.next_offset > offset

        end = max(reader.high_watermark, part.high_watermark, damaged + 1)
        next_offset = await next_readable(is_readable, damaged, end)
        return UnreadableBatch(str(error), reader.topic, reader.partition, damaged, next_offset)

    async def _fetch_one(self, reader: PartitionReader, offset: int) -> tuple[FetchedPartition, memoryview]:
        """What the broker has at `offset`: one batch, or an error."""
        wanted = FetchPartition(reader.topic, reader.partition, offset, 1, reader.topic_id)
        request = FetchRequest(0, 1, 1, [wanted], self._options.isolation)
        link = self.cluster.leader(reader.topic, reader.partition)
        if link is None:
            raise NotLeaderOrFollower(f"{reader.topic}-{reader.partition} has no leader now")
        response = await self.cluster.ask(request, link)
        assert isinstance(response.result, FetchResponse)
        (part,) = response.result.partitions
        return part, response.payload
