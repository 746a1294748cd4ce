"""The consumer: reads batches, single records or Arrow, and fetches ahead in the background.

It starts where `start` says and commits no offsets.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Self, Unpack

from warmlog.cluster.address import checked_bootstrap
from warmlog.cluster.options import ConnectionKeywords, connection_options
from warmlog.cluster.responses import TopicPartition
from warmlog.consumer.consumer_core import ConsumerCore, Points
from warmlog.consumer.iterators import ArrowIterator, BatchIterator, RecordIterator, read_table
from warmlog.consumer.options import ConsumerOptions, parse_isolation
from warmlog.errors import ClientClosed
from warmlog.records.batch import Batch, Record
from warmlog.times import datetime_of
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from warmlog_protocol.messages import NO_LEADER_EPOCH

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer:
    """Reads topics or single partitions. For one thread, and one reader at a time.

    A datetime without a zone is UTC; a time past the end of a partition means its end. Reading raises UnreadableBatch
    once for each damaged or lost range of offsets, and the next read continues after it.
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
        **connection: Unpack[ConnectionKeywords],
    ) -> None:
        """Read all partitions of `topics`, or these (topic, partition) pairs. Connects in `start`.

        `start` is "earliest", "latest", a datetime, an offset, or a mapping from (topic, partition) to offsets, which
        leaves the others at "earliest". With `isolation` "read_committed", records of aborted transactions are left out
        and "latest" is where the oldest open transaction begins. At most `prefetch_bytes` are fetched ahead. Reading
        raises the last error if a partition could not be fetched for `unavailable_timeout_ms`. `connection` sets fields
        of ConnectionOptions.

        `on_out_of_range`, "error", "earliest" or "latest", says what to do if the log no longer has the position. If
        the log was truncated below the position, as by a power cut with write.caching, "error" raises LogTruncated; the
        others continue where it was truncated, with a warning. If the topic was deleted and recreated, "error" raises
        InconsistentTopicId, which names both ids, and a seek goes over to the new topic; the others wait for the new
        topic and continue there, with a warning. Reading with an `until` always raises then.
        """
        if (topics is None) == (partitions is None):
            raise TypeError("give either topics or partitions, and not both")
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
        self._connection_options = connection_options(connection, Consumer)
        self._bootstrap = checked_bootstrap(bootstrap)
        self._topics = topics
        self._partitions = partitions
        self._start = start
        self._is_started = False
        self._core: ConsumerCore | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect and look up where to start. Raises BrokerUnavailable, and UnknownTopicOrPartition with its name."""
        if self._is_started:
            raise ClientClosed("a consumer can be started only once: create another one")
        self._is_started = True
        core = ConsumerCore(self._bootstrap, self._options, self._connection_options)
        try:
            await core.start(self._topics, self._partitions, self._start)
        except BaseException:
            await core.stop()
            raise
        self._core = core
        return self

    async def close(self) -> None:
        """Disconnect; closing twice is allowed."""
        if self._core is not None:
            core, self._core = self._open(), None
            await core.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def batches(self, until: Points | None = None) -> AsyncIterator[Batch]:
        """Iterate over batches, without end or `until` every partition has reached that point.

        "latest" is the high watermark at the first batch (with read_committed: the end of committed data). An offset is
        exclusive and applies to every partition; a mapping gives offsets to some, and the others never end. A datetime
        is the first record at or after it.
        """
        return BatchIterator(self._open(), until)

    def records(self, until: Points | None = None) -> AsyncIterator[Record]:
        """Iterate over single records; `until` as for `batches`."""
        return RecordIterator(self._open(), until)

    def __aiter__(self) -> AsyncIterator[Record]:
        return self.records()

    def arrow(
        self, until: Points | None = None, *, columns: Sequence[str] | None = None
    ) -> "AsyncIterator[pa.RecordBatch]":
        """Iterate over Arrow record batches with these columns (see warmlog.arrow.reader); `until` as for `batches`.

        Raises ImportError, with what to install, without pyarrow.
        """
        return ArrowIterator(self._open(), until, columns)

    async def to_arrow(self, until: Points = "latest", *, columns: Sequence[str] | None = None) -> "pa.Table":
        """Return everything up to `until` (as for `batches`) as one table with these columns: the fastest way to read.

        A thread reads one partition after another over its own connection; then the positions move after the table.
        Partitions that a mapping does not name are not read. Offsets that the log no longer has, a truncated log, and
        damaged or lost offsets (UnreadableBatch) raise and leave the positions where they were.
        """
        return await read_table(self._open(), until, columns, self._options, self._connection_options)

    # --- positions --------------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[TopicPartition]:
        """The (topic, partition) pairs that are read."""
        return list(self._open().readers)

    def position(self, topic: str, partition: int) -> int:
        """Return the offset that is read next."""
        return self._open().position(self._checked(topic, partition))

    def position_epoch(self, topic: str, partition: int) -> int:
        """Return the leader epoch of what was read before `position`, to be stored with it; -1 while unknown."""
        return self._open().readers[self._checked(topic, partition)].epoch

    def seek(self, topic: str, partition: int, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Continue from `offset` in one partition.

        With the `leader_epoch` stored with it (`position_epoch`), reading notices if the log was truncated below
        `offset` since, and raises LogTruncated or does what `on_out_of_range` says.
        """
        if offset < 0:
            raise ValueError(f"offset {offset}: a number from 0 on expected")
        self._open().seek_now(self._checked(topic, partition), offset, leader_epoch)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue from the first record, in these partitions or in all."""
        await self._seek("earliest", partitions)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue from the next record to be written, in these partitions or in all."""
        await self._seek("latest", partitions)

    async def seek_to_time(self, when: datetime | int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue from the first record at or after a time (an int: milliseconds since 1970), or from the end."""
        if isinstance(when, int):
            when = datetime_of(when)
        await self._seek(when, partitions)

    # --- within -----------------------------------------------------------------------------------------------------

    async def _seek(self, to: Points, partitions: Iterable[TopicPartition] | None) -> None:
        core = self._open()
        await core.seek(to, core.readers if partitions is None else [self._checked(*each) for each in partitions])

    def _checked(self, topic: str, partition: int) -> TopicPartition:
        if (topic, partition) not in self._open().readers:
            raise ValueError(f"this consumer does not read {topic}-{partition}")
        return topic, partition

    def _open(self) -> ConsumerCore:
        if self._core is None:
            raise ClientClosed("the consumer is closed" if self._is_started else "the consumer is not started")
        self._core.cluster.home.check()
        return self._core
