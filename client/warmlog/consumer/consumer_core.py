"""What a consumer has between `start` and `close`: its partitions, the fetcher, and the batch that comes next."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any, Protocol

from warmlog.consumer.fetcher import Changes, Fetcher, Turns
from warmlog.consumer.losses import Losses
from warmlog.consumer.options import ConsumerOptions
from warmlog.consumer.partition_reader import NO_LIMIT, PartitionReader, Place
from warmlog.consumer.starting import look_up_points
from warmlog.errors import ClientClosed, UnknownTopicOrPartition, WarmlogError
from warmlog.points import EARLIEST, LATEST, Point, Points, Where, fit_points, parse_where
from warmlog.records.batch import Batch
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, NO_LEADER_EPOCH
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import cancel
from warmlog_transport.list_offsets import list_offsets
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition, partition_range

_log = logging.getLogger("warmlog")


class Cursor:
    """How far the user has come in the items that a read has taken of one partition.

    Items are batches, records, Arrow batches or one table. The last one that was delivered is being handled until the
    next read; what came before it is finished. With n items of which `index` were delivered, item i at `starts[i]`:

    =========  =============  =================
    `index`    `delivered`    `finished`
    =========  =============  =================
    0          begun          begun
    1          starts[1]      begun
    i          starts[i]      starts[i - 1]
    n          end            starts[n - 1]; begun if n = 1
    =========  =============  =================

    An automatic commit commits `finished`, `commit()` what is `delivered`, and reading continues there.
    """

    __slots__ = ("_items", "_starts", "begun", "end", "reader", "settled")

    def __init__(
        self, reader: PartitionReader, begun: Place, end: Place, items: Iterator[object], starts: Sequence[int]
    ) -> None:
        """`begun` is the place before the first item, `end` the place after the last.

        Iterators take from `items`, also in other threads. Cursors of several partitions share the items of a table.
        """
        self.reader = reader
        self.begun = begun
        self.end = end
        self.settled = 0
        """How many of the items were delivered before the last commit by hand."""
        self._items = items
        self._starts = starts

    @property
    def index(self) -> int:
        return len(self._starts) - length_hint(self._items)

    @property
    def delivered(self) -> Place:
        return self._place(self.index)

    @property
    def finished(self) -> Place:
        """The place before the item that was delivered last."""
        return self._place(self.index - 1)

    def close(self) -> None:
        """Note with the reader whether something was delivered since the last commit by hand."""
        if self.index > self.settled:
            self.reader.is_uncommitted = True

    def cut(self, left: int) -> None:
        """Leave the last `left` items, which `items` no longer has, to the next read."""
        index = len(self._starts) - left
        self.end = self._place(index)
        self._starts = self._starts[:index]
        self.reader.put_back(self.end)

    def _place(self, index: int) -> Place:
        if index <= 0:
            return self.begun
        return self.end if index >= len(self._starts) else (self._starts[index], self.end[1])


class Group(Protocol):
    """What the core needs of its membership of a group."""

    @property
    def has_news(self) -> bool: ...

    @property
    def is_complete(self) -> bool: ...

    async def turn(self, *, waits: bool = False, for_all: bool = False) -> None:
        """Change what is read, between two batches. `waits`: until some is assigned; `for_all`: until all is."""
        ...


class ConsumerCore:
    """Reads some partitions. Batches of several partitions take turns."""

    def __init__(
        self, bootstrap: str | Sequence[str], options: ConsumerOptions, connection_options: ConnectionOptions
    ) -> None:
        self.options = options
        self._fetching: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._whole_topics: list[str] = []
        self._until: Points | None = None
        """Where the read under way ends."""
        self._turns = Turns()
        self._has_ended = False
        self._cursors: dict[PartitionReader, Cursor] = {}
        """Of the last read; several if it was a table."""
        changes = Changes()
        self.cluster = Cluster(bootstrap, connection_options, changes.leaders)
        self._fetcher = Fetcher(options, self.cluster, changes, self._turns, self._find_new_soon)
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.items: Iterator[Any] = iter(())
        """What the last read has taken and is not delivered: batches, records, Arrow batches or a table."""
        self.group: Group | None = None
        """Set if a group assigns the partitions."""
        self.keep_up: Callable[[], Awaitable[None]] | None = None
        """Gives an automatic commit that is due time to take place."""
        self.steps = 0
        """Rises with each read and each commit by hand."""
        self.is_waiting = False
        """Whether the user waits for a batch or a table."""
        self.given_up: set[TopicPartition] = set()
        """Partitions of which the user has what the next owner handles again. No transaction may commit it."""
        self.arrived = self._turns.arrived
        """Set when there may be something to deliver, or to do for the group."""
        self.losses = Losses(options, self.cluster)

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
            topics = [topic.name for topic in await self.cluster.topics_like(pattern)]
        names = list(topics) if topics is not None else sorted({topic for topic, _ in partitions or ()})
        known = {topic.name: topic for topic in await self.cluster.topics(names)}
        if topics is not None:
            partitions = [(topic.name, each.partition) for topic in known.values() for each in topic.partitions]
        for topic, partition in partitions or ():
            count = len(known[topic].partitions)
            if not 0 <= partition < count:
                raise UnknownTopicOrPartition(f"topic {topic!r} has {partition_range(count)}, not {partition}")
            self.readers[topic, partition] = self._new_reader(topic, partition, known[topic].topic_id.bytes)
        await self.seek(fit_points(start, self.readers, "start", left_out=EARLIEST))
        for reader in self.readers.values():
            self._read(reader, NO_LIMIT)
        self._whole_topics = [] if topics is None else names
        self._fetching = asyncio.create_task(self._fetcher.run(), name="warmlog consumer")

    def end_reading(self) -> None:
        """Deliver nothing more, also of what is here already."""
        self.put_back()
        self._has_ended = True
        self.arrived.set()

    async def stop(self) -> None:
        """End all tasks and connections."""
        await cancel(self._finding, self._fetching)
        await self.cluster.close()

    def _new_reader(self, topic: str, partition: int, topic_id: bytes) -> PartitionReader:
        return PartitionReader(
            topic,
            partition,
            topic_id,
            verify_crc=self.options.verify_crc,
            max_decompressed_bytes=self.options.max_decompressed_bytes,
        )

    # --- partitions that a group assigns ----------------------------------------------------------------------------

    def assign(self, topic: str, partition: int, topic_id: bytes) -> PartitionReader:
        """Have a reader for this partition; `read` makes it deliver."""
        reader = self.readers[topic, partition] = self._new_reader(topic, partition, topic_id)
        return reader

    async def ends_of_read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the read under way ends in partitions that are assigned; nothing if it has no end."""
        return {} if self._until is None else await self.ends(self._until, partitions)

    def read_assigned(self, readers: Iterable[PartitionReader], ends: Mapping[TopicPartition, int]) -> None:
        """Read those of these that are still assigned, up to `ends`."""
        for reader in readers:
            if reader not in self._turns and self.readers.get(reader.tp) is reader:
                self._read(reader, ends.get(reader.tp, NO_LIMIT))

    def _read(self, reader: PartitionReader, until: int) -> None:
        """Fetch and deliver this partition, up to `until`."""
        reader.until = until
        self._turns.add(reader)
        self._fetcher.add(reader)

    def revoke(self, partition: TopicPartition) -> None:
        """Read this partition no longer."""
        reader = self.readers.pop(partition)
        self._forget(reader)
        if reader.is_uncommitted:
            self.given_up.add(partition)
        self._turns.remove(reader)
        self._fetcher.remove(reader)

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
                if first is None or first.topic_id != topic.topic_id.bytes:  # deleted and recreated: see `Losses`
                    continue
                for part in topic.partitions:
                    tp = topic.name, part.partition
                    if tp not in self.readers:
                        new[tp] = self._new_reader(*tp, topic.topic_id.bytes)
            starts = await list_offsets(self.cluster, dict.fromkeys(new, EARLIEST_TIMESTAMP)) if new else {}
            for (name, number), reader in new.items():
                start_offset = starts[name, number].offset
                _log.info("%s-%d was added, and is read from offset %d", name, number, start_offset)
                reader.seek(start_offset)
                self.readers[name, number] = reader
                # It begins with the next read, if the one under way has an end.
                self._read(reader, NO_LIMIT if self._until is None else start_offset)
        except WarmlogError as error:
            _log.debug("new partitions are looked for later: %s", error)
        finally:
            self._finding = None

    async def seek(self, points: Mapping[TopicPartition, Point]) -> None:
        """Continue from there in these partitions."""
        for partition, at in (await look_up_points(self.cluster, points, self.options.isolation)).items():
            if partition in self.readers:  # a group may have taken it meanwhile
                self.seek_now(partition, at.offset, at.leader_epoch)

    def seek_now(self, partition: TopicPartition, offset: int, epoch: int = NO_LEADER_EPOCH) -> None:
        """Continue from `offset` in one partition; see `PartitionReader.seek`."""
        reader = self.readers[partition]
        self._forget(reader)
        self.move(reader, offset, epoch)

    def move(self, reader: PartitionReader, offset: int, epoch: int) -> None:
        """Have the reader continue there. A cursor of it stays as it is."""
        reader.seek(offset, epoch)
        self._look_at(reader)

    def _look_at(self, reader: PartitionReader) -> None:
        """See whether it wants data, has something to deliver, or is at its end: its position or end has changed."""
        self._fetcher.look_at(reader)
        self._turns.offer(reader)

    def parsed_end(self, until: Where) -> Points:
        """Return where to end. ValueError if that is no point, or a mapping names a partition that is not read."""
        points = parse_where(until, name="until")
        if self.group is None:  # else its partitions change
            fit_points(points, self.readers, "until", left_out=LATEST)
        return points

    async def ends(
        self, until: Points, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset that `until` means in these partitions or in each, the latest if a mapping omits it."""
        wanted = self.readers.keys() if partitions is None else partitions
        if self.group is not None and not isinstance(until, Point):
            until = {partition: point for partition, point in until.items() if partition in wanted}
        points = fit_points(until, wanted, "until", left_out=LATEST)
        found = await look_up_points(self.cluster, points, self.options.isolation)
        return {partition: at.offset for partition, at in found.items()}

    async def limit(self, until: Points | None) -> None:
        """Let every partition end there, from now on; None: never."""
        self._until = until
        if self.group is not None:
            await self.group.turn(waits=until is not None)
        readers = dict(self.readers)
        ends = {} if until is None else await self.ends(until)
        self.put_back()
        for partition, reader in readers.items():
            reader.until = ends.get(partition, NO_LIMIT)
            self._look_at(reader)

    def hold_back(self, partitions: Iterable[TopicPartition], is_held: bool) -> None:
        """Deliver nothing of these partitions, or deliver them again."""
        for partition in partitions:
            reader = self.readers[partition]
            if is_held:
                self.put_back(reader)
                reader.drop_ahead()
            reader.is_held = is_held
            self._look_at(reader)

    async def available(self) -> dict[TopicPartition, range]:
        """Return the offsets in the log of each partition, for readers of its isolation."""
        first = await self.ends(EARLIEST)
        end = await self.ends(LATEST)
        return {partition: range(first[partition], end[partition]) for partition in first if partition in end}

    def finish(self) -> None:
        """Count what was delivered as finished, and leave what was not to the next read."""
        self.steps += 1
        self.put_back()
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors = {}

    async def next_batch(self) -> Batch | None:
        """The next batch of any partition, waiting for one; None when every partition has reached its end.

        It is the one item of a new cursor, and not delivered yet: see `have`.
        """
        self.finish()
        while True:
            self.arrived.clear()
            if self._has_ended:
                raise ClientClosed("the consumer is closed")
            if self.group is not None and self.group.has_news:
                await self.group.turn()
            reader = self._turns.next()
            if reader is None:
                are_all = self.group is None or (self._until is not None and self.group.is_complete)
                if self._turns.is_at_end and are_all:
                    return None
                await self.wait()
                continue
            begun = reader.position, reader.epoch
            if (batch := self.take(reader)) is not None:
                self.have(reader, begun, [batch], [batch.base_offset])
                return batch
            if reader.error is not None:
                try:
                    await self.losses.handle(reader, self.seek)
                finally:
                    self._look_at(reader)

    async def wait(self) -> None:
        """Wait until a batch, an error or news of the group may be here."""
        if self._fetching is None or self._fetching.cancelled():
            raise ClientClosed("the consumer is closed")
        if self._fetching.done():
            raise ClientClosed("the consumer has failed: see the error in the log, and start a new one")
        self.is_waiting = True
        try:
            await self.arrived.wait()
        finally:
            self.is_waiting = False

    def take(self, reader: PartitionReader) -> Batch | None:
        """The next batch of this partition if one is here. Raises UnreadableBatch, and continues after it then."""
        try:
            return reader.take()
        finally:
            self._fetcher.look_at(reader)
            if reader.has_something:
                self._turns.offer(reader)

    # --- what was taken, and how far it is delivered -----------------------------------------------------------------

    def have(self, reader: PartitionReader, begun: Place, items: Sequence[object], starts: Sequence[int]) -> None:
        """Deliver these items next, which begin at `starts`; reading them began at `begun`."""
        self.items = iter(items)
        self._cursors = {reader: Cursor(reader, begun, (reader.position, reader.epoch), self.items, starts)}

    def split(self, items: Sequence[object], starts: Sequence[int]) -> None:
        """Deliver these items in place of the batch that was taken last."""
        ((reader, cursor),) = self._cursors.items()
        self.have(reader, cursor.begun, items, starts)

    def have_table(self, table: object, begun: Mapping[PartitionReader, Place]) -> None:
        """Deliver a table next; `begun` has where reading began in its partitions."""
        self.items = items = iter([table])
        self._cursors = {
            reader: Cursor(reader, place, (reader.position, reader.epoch), items, [place[0]])
            for reader, place in begun.items()
        }

    def put_back(self, reader: PartitionReader | None = None) -> None:
        """Leave what is not delivered to the next read; with `reader`, only if some of it is of this partition."""
        if reader is not None and reader not in self._cursors:
            return
        left = len(list(self.items))  # takes all at once: another thread may be taking one
        if left:
            for cursor in self._cursors.values():
                cursor.cut(left)
                self._look_at(cursor.reader)

    def _forget(self, reader: PartitionReader) -> None:
        """Continue where the reader is, or is sent."""
        self.put_back(reader)
        if (cursor := self._cursors.pop(reader, None)) is not None:
            cursor.close()

    # --- positions --------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int:
        """The offset that comes next."""
        return self.delivered(partition)[0]

    def delivered(self, partition: TopicPartition) -> Place:
        """The place after everything that was delivered."""
        reader = self.readers[partition]
        cursor = self._cursors.get(reader)
        return (reader.position, reader.epoch) if cursor is None else cursor.delivered

    def finished(self, partition: TopicPartition) -> Place:
        """The place before what the user is handling: what was delivered last, until the next read."""
        reader = self.readers[partition]
        cursor = self._cursors.get(reader)
        return (reader.position, reader.epoch) if cursor is None else cursor.finished

    def settle(self, partitions: Collection[TopicPartition]) -> None:
        """What was delivered of these is being committed, or will be delivered again."""
        for partition in partitions:
            reader = self.readers[partition]
            reader.is_uncommitted = False
            if (cursor := self._cursors.get(reader)) is not None:
                cursor.settled = cursor.index

    @property
    def progress(self) -> tuple[int, int]:
        """What changes when the user reads. Another thread may ask."""
        return self.steps, length_hint(self.items)
