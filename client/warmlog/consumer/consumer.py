"""The consumer: reads batches, single records or Arrow, and fetches ahead in the background.

It starts where `start` says; with a group, where the group has committed, and it shares the partitions with the other
members.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

from warmlog import points
from warmlog.consumer.consumer_core import ConsumerCore
from warmlog.consumer.group.offsets import GroupMetadata, OffsetTransaction
from warmlog.consumer.iterators import ArrowIterator, BatchIterator, ItemIterator, Lease, RecordIterator, TableIterator
from warmlog.consumer.member import Member
from warmlog.consumer.offset_commits import Committable, OffsetCommits
from warmlog.consumer.options import ConsumerOptions, GroupOptions, OnPartitions, parse_isolation, parse_pattern
from warmlog.consumer.starting import GroupStart
from warmlog.errors import ClientClosed, InvalidConfig
from warmlog.records.batch import Batch, Record
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from warmlog_protocol.messages import NO_LEADER_EPOCH
from warmlog_transport.address import checked_bootstrap
from warmlog_transport.cluster import Throttled, is_interruption, not_open
from warmlog_transport.list_offsets import Unread, lags
from warmlog_transport.options import ConnectionKeywords, check_own_options, connection_options
from warmlog_transport.responses import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class Lag(NamedTuple):
    """What is not read yet: the offsets from the first record that is left on, and how long ago that was written.

    `seconds` is 0 if nothing is left, and None if that time is not known.
    """

    records: int
    seconds: float | None


class Consumer(Throttled):
    """Reads topics or single partitions. For one thread, and one iterator at a time.

    A time without a zone is local time, the process's; a time past the end of a partition means its end. Reading raises
    UnreadableBatch once for each damaged or lost range of offsets, and the next read continues after it.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        topics: Sequence[str] | None = None,
        partitions: Sequence[TopicPartition | str] | None = None,
        pattern: str | None = None,
        start: points.Where = "earliest",
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
        group: str | None = None,
        instance_id: str | None = None,
        assignor: str = "uniform",
        session_timeout_ms: int | None = None,
        rebalance_timeout_ms: int | None = None,
        commit: str = "auto",
        commit_interval_ms: int = 5_000,
        max_poll_interval_ms: int = 300_000,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        **connection: Unpack[ConnectionKeywords],
    ) -> None:
        """Read all partitions of `topics`, or these (topic, partition) pairs, or the topics that match `pattern`.

        Connects in `start`. `pattern` is a regular expression for the whole name, in the syntax that
        Python and RE2 share (the broker matches it for a group); topics that are created later, and
        internal ones, are not read.

        `start` is "earliest", "latest", an offset, text such as "-100" (in each partition the last hundred), "-10m" or
        "2026-11-20T08:00Z", a datetime, or a mapping from ("orders", 0) or "orders-0" to any of these, which leaves the
        others at "earliest"; see `warmlog.points`. To continue after a restart, store `positions()` and pass them.
        ValueError for anything else, and in `start` for a partition that is not read.

        With `isolation` "read_committed", records of aborted transactions are left out and "latest" is where the oldest
        open transaction begins. At most `prefetch_bytes` are fetched ahead. Reading raises the last error if a
        partition could not be fetched for `unavailable_timeout_ms`. `connection` sets fields of ConnectionOptions.

        `on_out_of_range`, "error", "earliest" or "latest", says what to do if the log no longer has the position. If
        the log was truncated below the position, as by a power cut with write.caching, "error" raises LogTruncated; the
        others continue where it was truncated, with a warning. If the topic was deleted and recreated, "error" raises
        InconsistentTopicId, which names both ids, and a seek goes over to the new topic; the others wait for the new
        topic and continue there, with a warning. Reading with an `until` always raises then.

        With `group`, the members of the group share the partitions; each partition is read by one of them, from where
        the group has committed, or from `start` if it has not. What is added while this consumer lives, partitions or
        topics that match `pattern`, is read from its beginning. Partitions are taken and given up between two batches,
        when the next one is asked for: `on_assigned` is called with those that are new, before they are read;
        `on_revoked` with those that are given up, or all on `close`, while commits are still possible; `on_lost` if
        they are another's already. They may be coroutine functions. With `partitions`, the consumer does not become a
        member, and only commits, to a group without any.

        `commit` "auto" commits, each `commit_interval_ms`, when partitions are given up and on `close`, what the loop
        has finished with: not the batch or record that it is handling. "manual" leaves that to `commit`.

        The member keeps its partitions while the program runs, whatever it does, if it asks for a batch within
        `max_poll_interval_ms`. One that is silent for `session_timeout_ms`, or takes longer than `rebalance_timeout_ms`
        to give up partitions (None: the broker's defaults), loses them; its next call raises MembershipLost, and the
        one after that joins again. With an `instance_id` it is a static member: its partitions wait for it during a
        restart; a second process with the same id takes over, and every call of the first raises FencedInstanceId.
        `assignor` is "uniform" or "range".
        """
        self._connection_options = connection_options(connection, Consumer)
        check_own_options(
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            prefetch_bytes=prefetch_bytes,
            verify_crc=verify_crc,
            max_decompressed_bytes=max_decompressed_bytes,
            unavailable_timeout_ms=unavailable_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            commit_interval_ms=commit_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
        )
        if sum(given is not None for given in (topics, partitions, pattern)) != 1:
            raise TypeError("give topics, partitions or pattern, and only one of them")
        callbacks = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        for_groups: dict[str, Any] = {
            "instance_id": instance_id,
            "session_timeout_ms": session_timeout_ms,
            "rebalance_timeout_ms": rebalance_timeout_ms,
            "commit": commit,
            "assignor": assignor,
            "commit_interval_ms": commit_interval_ms,
            "max_poll_interval_ms": max_poll_interval_ms,
            **callbacks,
        }
        if group is None:
            _refuse(for_groups, "a consumer with a group: give group, too")
        elif partitions is not None:
            _refuse(callbacks, "members of a group: give topics or pattern in place of partitions")
        points.parse_where(start)
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
            is_member=group is not None and partitions is None,
        )
        self._group = None if group is None else GroupOptions(group=group, **for_groups)
        self._bootstrap = checked_bootstrap(bootstrap)
        self._topics = None if topics is None else points.checked_topics(topics)
        self._pattern = None if pattern is None else parse_pattern(pattern)
        self._partitions = (
            None if partitions is None else [points.parse_partition(each, "partitions") for each in partitions]
        )
        self._start = start
        self._is_started = False
        self._closing: asyncio.Task[None] | None = None
        self._core: ConsumerCore | None = None
        self._lease = Lease()
        self._offset_commits: OffsetCommits | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect and look up where to start, or join the group.

        Raises BrokerUnavailable, UnknownTopicOrPartition with its name, ValueError if the mapping `start` names a
        partition that is not read, and the coordinator's refusal.
        """
        if self._is_started:
            raise ClientClosed("a consumer can be started only once: create another one")
        self._is_started = True
        core = ConsumerCore(self._bootstrap, self._options, self._connection_options)
        try:
            start = points.parse_where(self._start)
            if self._options.is_member:
                await core.start(None, (), None, points.EARLIEST)
                if self._topics is not None:
                    await core.cluster.topics(self._topics)  # raises for a misspelled name
            else:
                await core.start(self._topics, self._partitions, self._pattern, start)
            if self._group is not None:
                self._offset_commits = self._commits_of(self._group, core, start)
                await self._offset_commits.start()
        except BaseException:
            await self._stop(core, is_interrupted=False)
            raise
        self._core = core
        self._throttling = core.cluster
        return self

    def _commits_of(self, group: GroupOptions, core: ConsumerCore, start: points.Points) -> OffsetCommits:
        group_start = GroupStart(core.cluster, start, self._options.isolation)
        if not self._options.is_member:
            return OffsetCommits(core, group, group_start)
        return Member(core, group, group_start, topics=self._topics, pattern=self._pattern, bootstrap=self._bootstrap)

    async def close(self) -> None:
        """Commit what is finished, unless that is done by hand, leave the group and disconnect.

        What the loop is handling is not committed, also if the loop was left by `break`. Closing twice is allowed, and
        cancelling the call does not end what it has begun.

        `async with` calls it. If the block was cancelled, as by Ctrl-C, it waits about a second for the broker,
        and commits of on_revoked that have no response by then raise ClientClosed.
        """
        await self._close(is_interrupted=False)

    async def _close(self, *, is_interrupted: bool) -> None:
        if self._closing is None:
            if self._core is None:
                return
            self._core.cluster.home.check()
            stopping = self._stop(self._core, is_interrupted=is_interrupted)
            self._closing = asyncio.create_task(stopping, name="warmlog close")
        if asyncio.current_task() is not self._closing:  # on_revoked may call this
            await asyncio.shield(self._closing)

    async def _stop(self, core: ConsumerCore, *, is_interrupted: bool) -> None:
        try:
            core.end_reading()
            await asyncio.sleep(0)  # a loop with eager tasks begins this before `_closing` is set
            if self._offset_commits is not None:
                await self._offset_commits.stop(is_interrupted=is_interrupted)  # on_revoked may use this consumer
        finally:
            self._core = None
            await core.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        await self._close(is_interrupted=is_interruption(error))

    # --- reading ----------------------------------------------------------------------------------------------------

    def batches(self, until: points.Where | None = None) -> ItemIterator[Batch]:
        """Iterate over batches, without end or `until` every partition has reached that point.

        `until` is given like `start`, and exclusive. It is looked up at the first batch: "latest" is the high watermark
        then (with read_committed: the end of committed data), "-100" a hundred offsets before. A mapping leaves the
        others at "latest". ValueError at the call if a mapping names a partition that is not read; a member, whose
        partitions change, leaves such a name out.

        One iterator reads at a time, of whatever kind: the first step of a second one raises ConsumerBusy until the
        loop over the first was left or has raised, or `await iterator.aclose()`. What that has not delivered is
        delivered by the second.
        """
        return BatchIterator(self._open(), self._lease, until)

    def records(self, until: points.Where | None = None) -> ItemIterator[Record]:
        """Iterate over single records; `until` and one at a time as for `batches`."""
        return RecordIterator(self._open(), self._lease, until)

    def __aiter__(self) -> ItemIterator[Record]:
        return self.records()

    def arrow(
        self, until: points.Where | None = None, *, columns: Sequence[str] | None = None
    ) -> "ItemIterator[pa.RecordBatch]":
        """Iterate over Arrow record batches with these columns (see warmlog.arrow.reader); otherwise as `batches`.

        Raises ImportError, with what to install, without pyarrow.
        """
        return ArrowIterator(self._open(), self._lease, until, columns)

    async def to_arrow(self, until: points.Where = "latest", *, columns: Sequence[str] | None = None) -> "pa.Table":
        """Return everything up to `until` (as for `batches`) as one table with these columns: the fastest way to read.

        One partition after another is read over connections of the table's own, and converted in a thread; then the
        positions move after the table.
        Offsets that the log no longer has, a truncated log, and damaged or lost offsets (UnreadableBatch) raise and
        leave the positions where they were. ConsumerBusy while an iterator reads.
        """
        return await anext(self._table(until, columns))

    def _table(self, until: points.Where, columns: Sequence[str] | None) -> TableIterator:
        return TableIterator(self._open(), self._lease, until, columns)

    # --- the group --------------------------------------------------------------------------------------------------

    async def commit(self, what: Committable | None = None, *, metadata: str = "") -> None:
        """Commit for the group, and return when that is durable: the group continues after `what`.

        `what` is a batch, a record, or a mapping from ("orders", 0) or "orders-0" to the offset of the next record;
        None: everything that was delivered, the batch or record that is being handled included. `metadata` is kept with
        the offsets until the next commit. Raises StaleMemberEpoch if a partition is another member's now,
        MembershipLost, and OffsetMetadataTooLarge for more than the broker's offset.metadata.max.bytes.

        To commit together with records that are written, see `Transaction.commit_offsets`.
        """
        await self._commits().commit(what, metadata)

    async def _commit_within(self, transaction: OffsetTransaction, what: Committable | None, metadata: str) -> None:
        """As `commit`, when `transaction` commits."""
        await self._commits().commit(what, metadata, transaction)

    async def committed(
        self, partitions: Iterable[TopicPartition | str] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the offset that the group has committed for each of these partitions, or of those that are read.

        None if it has committed none.
        """
        found = await self._commits().committed(partitions)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in found.items()}

    async def committed_metadata(
        self, partitions: Iterable[TopicPartition | str] | None = None
    ) -> dict[TopicPartition, str | None]:
        """Return the metadata of the last commit for each of these partitions, or of those that are read.

        It is empty if the commit had none, as automatic ones; None if there was no commit.
        """
        found = await self._commits().committed(partitions)
        return {partition: at.metadata if at.offset >= 0 else None for partition, at in found.items()}

    def group_metadata(self) -> GroupMetadata:
        """Return the group, and this member's id and epoch in it."""
        return self._commits().metadata

    def pause(self, partitions: Iterable[TopicPartition | str] | None = None) -> None:
        """Deliver nothing of these partitions, or of all, until `resume`. They stay this consumer's."""
        self._open().hold_back(self._chosen(partitions), True)

    def resume(self, partitions: Iterable[TopicPartition | str] | None = None) -> None:
        """Deliver these partitions, or all, again."""
        self._open().hold_back(self._chosen(partitions), False)

    async def lag(self) -> dict[TopicPartition, Lag]:
        """Return for each partition that is read what was not delivered yet, in records and in seconds.

        The seconds are the age of the first record after the position; the records are the offsets from there on.
        """
        core = self._open()
        unread = [
            Unread(*partition, max(core.position(partition), log.start), log.stop)
            for partition, log in (await core.available()).items()
            if partition in core.readers
        ]
        found = await lags(core.cluster, unread, isolation=self._options.isolation)
        return {(each.topic, each.partition): Lag(*found[each][:2]) for each in unread}

    # --- positions --------------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[TopicPartition]:
        """The (topic, partition) pairs that are read. In a group, they change only when a batch is asked for."""
        return list(self._open().readers)

    def position(self, topic: str, partition: int) -> int:
        """Return the offset that is read next."""
        return self._open().position(self._checked(topic, partition))

    def positions(self) -> dict[str, int]:
        """Return the offset that is read next in each partition, as {"orders-0": 17}: JSON can hold it.

        Store them together with the results, and pass them as `start` to the next consumer: it continues there.
        """
        core = self._open()
        return {f"{topic}-{partition}": core.position((topic, partition)) for topic, partition in core.readers}

    async def available(self) -> dict[TopicPartition, range]:
        """Return the offsets that each partition has now, the end exclusive: the next offset to be written.

        With read_committed the end is that of committed data.
        """
        return await self._open().available()

    def position_epoch(self, topic: str, partition: int) -> int:
        """Return the leader epoch of what was read before `position`, to be stored with it; -1 while unknown."""
        return self._open().readers[self._checked(topic, partition)].epoch

    def seek(self, topic: str, partition: int, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Continue from `offset` in one partition.

        With the `leader_epoch` stored with it (`position_epoch`), reading notices if the log was truncated below
        `offset` since, and raises LogTruncated or does what `on_out_of_range` says.
        """
        self._open().seek_now(self._checked(topic, partition), points.checked_offset(offset), leader_epoch)

    async def seek_to(self, where: points.Where, partitions: Iterable[TopicPartition | str] | None = None) -> None:
        """Continue from a point, which is given like `start`, in these partitions or in all.

        A mapping leaves the partitions that it does not name where they are. ValueError if it names others.
        """
        await self._seek(points.parse_where(where, name="where"), partitions)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition | str] | None = None) -> None:
        """Continue from the first record, in these partitions or in all."""
        await self._seek(points.EARLIEST, partitions)

    async def seek_to_end(self, partitions: Iterable[TopicPartition | str] | None = None) -> None:
        """Continue from the next record to be written, in these partitions or in all."""
        await self._seek(points.LATEST, partitions)

    async def seek_to_committed(self) -> None:
        """Continue where the group has committed, in all partitions; where it has not, from where this reader began."""
        await self._commits().rewind()

    async def seek_to_time(
        self, when: datetime | int, partitions: Iterable[TopicPartition | str] | None = None
    ) -> None:
        """Continue from the first record at or after a time (an int: milliseconds since 1970), or from the end."""
        await self._seek(
            points.Point(points.PointKind.TIME, when) if isinstance(when, int) else points.parse_where(when), partitions
        )

    # --- within -----------------------------------------------------------------------------------------------------

    async def _seek(self, to: points.Points, partitions: Iterable[TopicPartition | str] | None) -> None:
        await self._open().seek(points.fit_points(to, self._chosen(partitions), "where", left_out=None))

    def _chosen(self, partitions: Iterable[TopicPartition | str] | None) -> list[TopicPartition]:
        if partitions is None:
            return list(self._open().readers)
        return [self._checked(*points.parse_partition(each, "partitions")) for each in partitions]

    def _checked(self, topic: str, partition: int) -> TopicPartition:
        if (topic, partition) not in self._open().readers:
            raise ValueError(f"this consumer does not read {topic}-{partition}")
        return topic, partition

    def _open(self) -> ConsumerCore:
        if self._core is None:
            raise not_open("Consumer", is_started=self._is_started)
        self._core.cluster.home.check()
        if isinstance(self._offset_commits, Member):
            self._offset_commits.check()
        return self._core

    def _commits(self) -> OffsetCommits:
        self._open()
        if self._offset_commits is None:
            raise InvalidConfig('this consumer has no group: give one, as in Consumer(…, group="etl")')
        return self._offset_commits


def _refuse(options: Mapping[str, object], whose: str) -> None:
    """TypeError for the first of these that is given: it would have no effect."""
    parameters = signature(Consumer).parameters
    for name, value in options.items():
        if value != parameters[name].default:
            raise TypeError(f"{name}={value!r} is for {whose}")
