"""The consumer: batches as the normal way to read, single records as the easy way, Arrow as the fast way.

It fetches ahead in the background. Its positions are its own: it starts where `start` says, and nothing is committed.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from warmlog.cluster.list_offsets import TopicPartition
from warmlog.cluster.options import connection_options
from warmlog.consumer.consumer_core import Subscription
from warmlog.consumer.iterators import ArrowIterator, BatchIterator, RecordIterator, read_table
from warmlog.consumer.options import ConsumerOptions, parse_isolation
from warmlog.consumer.positions import Points
from warmlog.errors import ClientClosed
from warmlog.records.batch import Batch, Record
from warmlog.times import datetime_of
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from warmlog_protocol.messages import NO_LEADER_EPOCH

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer:
    """Reads topics or single partitions. For one thread, and for one reader at a time.

    Where it speaks of a time, a datetime without a zone is UTC, and a time past the end of a partition is its end.
    Reading raises UnreadableBatch for offsets that are damaged or lost, once, and goes on after them when read from
    again.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        topics: Sequence[str] | None = None,
        partitions: Sequence[TopicPartition] | None = None,
        start: Points = "earliest",
        isolation: str = "read_uncommitted",
        max_bytes: int = 8 * 1024 * 1024,
        partition_max_bytes: int = 2 * 1024 * 1024,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        prefetch_bytes: int = 64 * 1024 * 1024,
        on_out_of_range: str = "error",
        verify_crc: bool = True,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        unavailable_timeout_ms: int = 120_000,
        **connection: int | str,
    ) -> None:
        """Of `topics` all partitions, or these (topic, partition) pairs. Nothing is connected before `start`.

        `start` is "earliest", "latest", a datetime, an offset, or a mapping from (topic, partition) to offsets, which
        leaves the others at "earliest". With `isolation` "read_committed", records of aborted transactions are left out
        and "latest" is where the oldest open one begins. `on_out_of_range` says where to go on when the log has lost
        the position: "error", "earliest" or "latest". Where the log was cut before the position, as a power cut does
        with write.caching, "error" raises LogTruncated; the others go on where it was cut, with a warning. The same
        goes for a topic that was deleted and made anew. With "error" reading raises InconsistentTopicId, which names
        both ids, and a seek goes over to the new topic; else the consumer waits for the new topic and warns when it
        goes on there. Reading up to some point always raises.
        Reading raises when a partition could not be fetched for `unavailable_timeout_ms`. At most `prefetch_bytes` are
        fetched ahead. `connection` may set any of the fields of ConnectionOptions.
        """
        if (topics is None) == (partitions is None):
            raise TypeError("either topics or partitions is needed, and not both")
        if isinstance(topics, str):
            raise TypeError(f"topics must be a list of names: topics=[{topics!r}]")
        self._options = ConsumerOptions(
            isolation=parse_isolation(isolation),
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            prefetch_bytes=prefetch_bytes,
            on_out_of_range=on_out_of_range,
            verify_crc=verify_crc,
            max_decompressed_bytes=max_decompressed_bytes,
            unavailable_timeout_ms=unavailable_timeout_ms,
        )
        self._connection_options = connection_options(connection)
        self._bootstrap = bootstrap
        self._topics = topics
        self._partitions = partitions
        self._start = start
        self._is_started = False
        self._subscription: Subscription | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect and find the start. Raises BrokerUnavailable and, naming it, UnknownTopicOrPartition."""
        if self._is_started:
            raise ClientClosed("a consumer can be started once")
        self._is_started = True
        subscription = Subscription(self._bootstrap, self._options, self._connection_options)
        try:
            await subscription.start(self._topics, self._partitions, self._start)
        except BaseException:
            await subscription.stop()
            raise
        self._subscription = subscription
        return self

    async def close(self) -> None:
        """Disconnect; closing twice is allowed."""
        if self._subscription is not None:
            subscription, self._subscription = self._open(), None
            await subscription.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def batches(self, until: Points | None = None) -> AsyncIterator[Batch]:
        """Batches, for ever or `until` every partition has reached that point.

        "latest" is the high watermark (of committed data, where only that is read) when the first batch is asked for;
        an offset, exclusive, counts for every partition, or a mapping gives one to some (the others never end); a
        datetime is the first record at or after it.
        """
        return BatchIterator(self._open(), until)

    def records(self, until: Points | None = None) -> AsyncIterator[Record]:
        """Records, for ever or `until` every partition has reached that point, as `batches` says."""
        return RecordIterator(self._open(), until)

    def __aiter__(self) -> AsyncIterator[Record]:
        return self.records()

    def arrow(
        self, until: Points | None = None, *, columns: Sequence[str] | None = None
    ) -> "AsyncIterator[pa.RecordBatch]":
        """Arrow record batches with these columns (see warmlog.arrow), ending as `batches` says.

        ImportError, naming what to install, without pyarrow.
        """
        return ArrowIterator(self._open(), until, columns)

    async def to_arrow(self, until: Points = "latest", *, columns: Sequence[str] | None = None) -> "pa.Table":
        """Everything up to `until`, which means what it does for `batches`, as one table with these columns.

        Partition after partition, read by a thread over a connection of its own: the fastest way there is. The
        positions are behind it then. Partitions that a mapping does not name are left alone. A range that the log has
        lost, a log that was cut, and damaged or lost offsets (UnreadableBatch says which) are errors that leave the
        positions where they were.
        """
        return await read_table(self._open(), until, columns, self._options, self._connection_options)

    # --- positions --------------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads."""
        return list(self._open().readers)

    def position(self, topic: str, partition: int) -> int:
        """The offset that is read next."""
        return self._open().position(self._place(topic, partition))

    def position_epoch(self, topic: str, partition: int) -> int:
        """The leader epoch of what was read before `position`, to be kept with it; -1 while it is not known."""
        return self._open().epoch(self._place(topic, partition))

    def seek(self, topic: str, partition: int, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Go on from `offset` in one partition.

        With the `leader_epoch` that was kept with it (`position_epoch`), reading raises LogTruncated, or goes on as
        `on_out_of_range` says, if the log was cut below `offset` since; without, the offset is taken as it is.
        """
        if offset < 0:
            raise ValueError(f"offset {offset}: a number from 0 on expected")
        self._open().seek_now(self._place(topic, partition), offset, leader_epoch)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the first record there is, in these partitions or in all."""
        await self._seek("earliest", partitions)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the next record to be written, in these partitions or in all."""
        await self._seek("latest", partitions)

    async def seek_to_time(self, when: datetime | int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the first record at or after a time (an int: milliseconds since 1970), or from the end."""
        if isinstance(when, int):
            when = datetime_of(when)
        await self._seek(when, partitions)

    # --- within -----------------------------------------------------------------------------------------------------

    async def _seek(self, to: Points, partitions: Iterable[TopicPartition] | None) -> None:
        subscription = self._open()
        places = subscription.readers if partitions is None else [self._place(*place) for place in partitions]
        await subscription.seek(to, list(places))

    def _place(self, topic: str, partition: int) -> TopicPartition:
        if (topic, partition) not in self._open().readers:
            raise ValueError(f"this consumer does not read {topic}-{partition}")
        return topic, partition

    def _open(self) -> Subscription:
        if self._subscription is None:
            raise ClientClosed("the consumer is closed" if self._is_started else "the consumer is not started")
        self._subscription.cluster.home.check()
        return self._subscription
