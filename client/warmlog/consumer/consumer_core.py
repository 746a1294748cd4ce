"""What a consumer has between `start` and `close`: its partitions, the fetcher, and the batch that comes next."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from uuid import UUID

from warmlog.cluster.cluster import Cluster, Topic
from warmlog.cluster.list_offsets import TopicPartition, list_offsets
from warmlog.cluster.options import ConnectionOptions
from warmlog.consumer.fetcher import Fetcher
from warmlog.consumer.options import ConsumerOptions
from warmlog.consumer.partition_reader import NO_LIMIT, PartitionReader
from warmlog.consumer.positions import Points, resolve
from warmlog.errors import (
    ClientClosed,
    CorruptBatch,
    InconsistentTopicId,
    LogTruncated,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    UnreadableBatch,
)
from warmlog.records.batch import Batch, Record
from warmlog.records.damage_search import error_in, first_header, is_intact, next_readable
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


class Subscription:
    """Reads some partitions. Batches of several partitions take turns."""

    def __init__(
        self, bootstrap: str | Sequence[str], options: ConsumerOptions, connection_options: ConnectionOptions
    ) -> None:
        self._options = options
        self._changed = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._fetcher: Fetcher | None = None
        self._turns: list[PartitionReader] = []
        self._turn = 0
        self._hand: list[Record] = []
        self._hand_reader: PartitionReader | None = None
        self.cluster = Cluster(bootstrap, connection_options, self._changed.set)
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.hand: Iterator[Record] = iter(self._hand)

    async def start(
        self, topics: Sequence[str] | None, partitions: Sequence[TopicPartition] | None, start: Points
    ) -> None:
        """Connect, find the partitions and where to start. Raises UnknownTopicOrPartition, BrokerUnavailable."""
        await self.cluster.start()
        names = list(topics) if topics is not None else sorted({topic for topic, _ in partitions or ()})
        known = {topic.name: topic for topic in await self.cluster.topics(names)}
        places = _every_partition(known.values()) if topics is not None else list(partitions or ())
        for topic, partition in places:
            count = len(known[topic].partitions)
            if not 0 <= partition < count:
                raise UnknownTopicOrPartition(f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}")
            self.readers[topic, partition] = PartitionReader(
                topic,
                partition,
                known[topic].topic_id.bytes,
                verify_crc=self._options.verify_crc,
                max_decompressed_bytes=self._options.max_decompressed_bytes,
            )
        await self.seek(start, places)
        if isinstance(start, Mapping):
            await self.seek("earliest", [place for place in places if place not in start])
        self._turns = list(self.readers.values())
        self._fetcher = Fetcher(self._options, self.cluster, self._changed, self._turns)
        self._fetching = asyncio.create_task(self._fetcher.run(), name="warmlog consumer")

    async def stop(self) -> None:
        """End all tasks and connections."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        await self.cluster.close()

    async def seek(self, to: Points, places: Iterable[TopicPartition]) -> None:
        """Go on from there in these partitions."""
        for place, at in (await resolve(self.cluster, to, places, self._options.isolation)).items():
            self.seek_now(place, at.offset, at.leader_epoch)
        self._changed.set()

    def seek_now(self, place: TopicPartition, offset: int, epoch: int = NO_LEADER_EPOCH) -> None:
        """Go on from `offset` in one partition; see `PartitionReader.seek`."""
        reader = self.readers[place]
        if reader is self._hand_reader:
            self._drop_hand()
        reader.seek(offset, epoch)
        self._changed.set()

    def epoch(self, place: TopicPartition) -> int:
        """The leader epoch that goes with `position`; -1 while it is not known."""
        return self.readers[place].epoch

    def position(self, place: TopicPartition) -> int:
        """The offset that comes next: of the first record in hand, or what the reader says."""
        reader = self.readers[place]
        if reader is self._hand_reader and (left := length_hint(self.hand)):
            return self._hand[-left].offset
        return reader.position

    async def ends(self, until: Points) -> dict[TopicPartition, int]:
        """The offset that `until` means in each partition. ValueError where it names one that is not read here."""
        if isinstance(until, Mapping) and (strangers := sorted(until.keys() - self.readers.keys())):
            raise ValueError(f"until names {strangers}, which this consumer does not read: it would never end")
        found = await resolve(self.cluster, until, self.readers, self._options.isolation)
        return {place: at.offset for place, at in found.items()}

    async def limit(self, until: Points | None) -> None:
        """Let every partition end there, from now on; None: never."""
        ends = {} if until is None else await self.ends(until)
        self._put_back_hand()
        for place, reader in self.readers.items():
            reader.until = ends.get(place, NO_LIMIT)
        self._changed.set()

    async def next_batch(self) -> Batch | None:
        """The next batch of any partition, waiting for one; None when every partition has reached its end."""
        self.cluster.home.check()
        await asyncio.sleep(0)  # so that the fetcher goes on even if the user never waits for anything else
        assert self._fetcher is not None
        while True:
            self._fetcher.arrived.clear()
            reader = self._next_reader()
            if reader is None:
                if all(reader.is_at_end for reader in self._turns):
                    return None
                if self._fetching is None or self._fetching.done():
                    raise ClientClosed("the consumer has failed; the log says why")
                await self._fetcher.arrived.wait()
            elif (batch := self.take(reader)) is not None:
                return batch
            elif reader.error is not None:
                await self._handle(reader)

    def take(self, reader: PartitionReader) -> Batch | None:
        """The next batch of this partition if one is here. Raises UnreadableBatch, and goes on behind it then."""
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
        """Whoever reads next gets the rest of the batch whose records were read one by one."""
        if self._hand_reader is not None and (left := length_hint(self.hand)):
            self._hand_reader.put_back(self._hand[-left].offset)
        self._drop_hand()

    def _drop_hand(self) -> None:
        self._hand, self._hand_reader = [], None
        self.hand = iter(self._hand)

    # --- errors -----------------------------------------------------------------------------------------------------

    async def _handle(self, reader: PartitionReader) -> None:
        """Raise a partition's error, or go on where the options say so. What can be skipped is skipped then."""
        error, reader.error = reader.error, None
        self._changed.set()
        assert error is not None
        if isinstance(error, LogTruncated):
            await self._handle_truncated(reader, error)
        elif isinstance(error, OffsetOutOfRange):
            await self._handle_out_of_range(reader)
        elif isinstance(error, InconsistentTopicId):
            await self._handle_made_anew(reader)
        elif isinstance(error, CorruptBatch):
            unreadable = await self._extent(reader, error)
            self.seek_now((reader.topic, reader.partition), unreadable.next_offset)
            raise unreadable
        else:
            raise error

    async def _handle_out_of_range(self, reader: PartitionReader) -> None:
        policy = self._options.on_out_of_range
        places = [(reader.topic, reader.partition)]
        if policy != "error":
            await self.seek(policy, places)
            return
        (first,) = (await list_offsets(self.cluster, dict.fromkeys(places, EARLIEST_TIMESTAMP))).values()
        (end,) = (await list_offsets(self.cluster, dict.fromkeys(places, LATEST_TIMESTAMP))).values()
        reader.error = OffsetOutOfRange(
            f"{reader.topic}-{reader.partition}: offset {reader.position} is not in the log, which goes from "
            f"{first.offset} to {end.offset} (the next to be written). Seek to one of these, or set on_out_of_range"
        )
        raise reader.error

    async def _handle_truncated(self, reader: PartitionReader, error: LogTruncated) -> None:
        """Raise it, or, with a policy, go on where the log was cut; by the policy itself only if that is not known."""
        place, diverging_offset = (reader.topic, reader.partition), error.diverging_offset
        if not self._options.goes_on:
            seek = "Seek" if diverging_offset is None else f"Seek to {diverging_offset}"
            reader.error = error.reworded(f"{error}. {seek}, or set on_out_of_range")
            raise reader.error
        if diverging_offset is None:
            await self.seek(self._options.on_out_of_range, [place])
        else:
            self.seek_now(place, diverging_offset)
        _log.warning("%s; going on at %d", error, reader.position)

    async def _handle_made_anew(self, reader: PartitionReader) -> None:
        """The topic was deleted, and another has its name. Offsets of the old one mean nothing in it."""
        goes_on = self._options.goes_on and reader.is_endless
        try:
            (topic,) = await self.cluster.topics([reader.topic])
        except UnknownTopicOrPartition:
            if goes_on:  # that one is gone as well: the fetcher waits for the next
                return
            raise
        place = f"{reader.topic}-{reader.partition}"
        text = (
            f"{place}: topic {reader.topic!r} was deleted and made anew: its id was {UUID(bytes=reader.topic_id)} and "
            f"is {topic.topic_id} now, and position {reader.position} means nothing in it"
        )
        if reader.partition >= len(topic.partitions):
            reader.error = UnknownTopicOrPartition(f"{text}; it has partitions 0 to {len(topic.partitions) - 1} only")
            raise reader.error
        reader.new_topic_id = topic.topic_id.bytes
        if goes_on:
            await self.seek(self._options.on_out_of_range, [(reader.topic, reader.partition)])
            _log.warning("%s; going on at its %s offset, %d", text, self._options.on_out_of_range, reader.position)
            return
        reader.error = InconsistentTopicId(f"{text}. Seek to go on in the new one, or set on_out_of_range")
        raise reader.error

    async def _extent(self, reader: PartitionReader, error: CorruptBatch) -> UnreadableBatch:
        """`error`, which begins where the reader fetches, with the offset at which reading goes on.

        The broker says it where it knows of the damage; otherwise the offsets after it are tried.
        """
        if isinstance(error, UnreadableBatch):
            return error
        damaged = reader.fetch_offset
        part, _ = await self._fetch_one(reader, damaged)
        if part.error_code and isinstance(told := error_in(part, damaged), UnreadableBatch):
            return told

        async def is_readable(offset: int) -> bool:
            part, payload = await self._fetch_one(reader, offset)
            first = first_header(part, payload, offset)
            if first is None or (self._options.verify_crc and not is_intact(first, payload)):
                return False
            return first.next_offset > offset

        end = max(reader.high_watermark, part.high_watermark, damaged + 1)
        return UnreadableBatch(
            str(error),
            topic=reader.topic,
            partition=reader.partition,
            base_offset=damaged,
            next_offset=await next_readable(is_readable, damaged, end),
        )

    async def _fetch_one(self, reader: PartitionReader, offset: int) -> tuple[FetchedPartition, memoryview]:
        """What the broker has at `offset`: one batch, or an error."""
        asked = FetchPartition(reader.topic, reader.partition, offset, 1, reader.topic_id)
        request = FetchRequest(0, 1, 1, [asked], self._options.isolation)
        link = self.cluster.leader(reader.topic, reader.partition)
        if link is None:
            raise NotLeaderOrFollower(f"{reader.topic}-{reader.partition} has no leader now")
        answer = await self.cluster.ask(request, link)
        assert isinstance(answer.result, FetchResponse)
        (part,) = answer.result.partitions
        return part, answer.payload


def _every_partition(topics: Iterable[Topic]) -> list[TopicPartition]:
    return [(topic.name, partition.partition) for topic in topics for partition in topic.partitions]
