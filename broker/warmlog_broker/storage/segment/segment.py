"""One segment of a log: a `.log` file, its offset, time and transaction index, under one base offset.

`segment_files` has the names of the files; `must_roll` says when the next segment begins.

**Order of writing.** The batch goes to the `.log` first, then the index entries. If these fail, the append succeeds all
the same, because everything but the `.log` can be rebuilt from it.

**Durability.** `unflushed` lists what to sync for all writes so far to be durable: the `.log`, and the directory after
its creation; and the transaction index. The other indexes are not included while the segment is active, since their
entries are rebuilt from the restart point on, except when the next one is taken (`begin_restart_point`).
From `on_become_inactive` on they are, so that the flush which moves the recovery point past a segment has made its
indexes durable too.

**Damage.** Below the recovery point nothing is cut. A read of bytes that cannot be a batch raises DamagedLog (a
CorruptBatch) with file and position; batches after them can be read. Index files that are missing or wrong are rebuilt
from the log (see `segment_indexes` and `segment_lookup`).
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.partition_files import RestartPoint
from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex, TimestampOffset
from warmlog_broker.storage.index.transaction_index import AbortedTxn, TransactionIndex
from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.io.open_files import NamedFile, OpenFile, OpenFiles
from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords, FileSlice
from warmlog_broker.storage.segment.segment_files import KINDS, run_deletions, segment_file_name
from warmlog_broker.storage.segment.segment_indexes import IndexBuilder, IndexState, SegmentIndexes
from warmlog_broker.storage.segment.segment_lookup import SegmentLookup
from warmlog_protocol.batch.header import NO_TIMESTAMP
from warmlog_protocol.errors import WarmlogError

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__

_NOT_READ = -2
"""A timestamp that has not been read yet."""


class SegmentOffsetOverflow(WarmlogError):
    """An offset is below a segment's base offset, or more than 2^31 - 1 above it."""


class SegmentRead(NamedTuple):
    """The result of `LogSegment.read`. The batch at `position` holds the start offset, or is the first after it."""

    position: int
    slice: FileSlice | None
    """From `position` on; it may end within a batch. None if nothing may be read there."""
    is_first_batch_incomplete: bool
    first_offset: int
    """The base offset of the batch at `position`."""


class Unflushed(NamedTuple):
    """What must be synced for all writes to a segment so far to be durable."""

    files: tuple[OpenFile, ...]
    """The .log, and the index files of an inactive segment. fdatasync each."""
    is_directory_dirty: bool
    """The .log was created since the last flush: fsync the directory too."""
    log_writes: int
    index_writes: tuple[tuple[OffsetIndex | TimeIndex | TransactionIndex, int], ...]
    """For mark_flushed: the writes that the sync covers."""


class LogSegment:
    """A segment. Only the last one of a log, the active one, is appended to. One thread uses it at a time."""

    __slots__ = (
        "_first_batch_timestamp_ms",
        "_index_interval_bytes",
        "_is_directory_dirty",
        "_is_ready_for_appends",
        "_is_restart_point_due",
        "_largest",
        "_suffix",
        "base_offset",
        "bytes_since_last_index_entry",
        "created_ms",
        "directory",
        "indexes",
        "lookup",
        "records",
        "roll_jitter_ms",
        "transactions",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        config: LogConfig,
        open_files: OpenFiles,
        now_ms: int,
        roll_jitter_ms: int = 0,
        suffix: str = "",
    ) -> None:
        """Open the segment in `directory`, or create it (one empty .log file and no index).

        An existing segment costs one stat; its files are opened when they are needed. `roll_jitter_ms`, drawn by the
        caller for each segment, is subtracted from segment.ms. One with a suffix is not preallocated: it is written
        once.
        """
        log, offset_index, time_index, transaction_index = (
            f"{directory}/{segment_file_name(base_offset, kind, suffix)}" for kind in KINDS
        )
        self.directory = directory
        self.base_offset = base_offset
        self._suffix = suffix
        preallocate_bytes = config.segment_bytes if config.preallocate and not suffix else 0
        self.records = records = FileRecords.open(log, open_files, preallocate_bytes=preallocate_bytes)
        self.indexes = SegmentIndexes(
            offset_index, time_index, base_offset, records=records, config=config, open_files=open_files
        )
        self.transactions = TransactionIndex(transaction_index, base_offset, open_files)
        self.transactions.is_verified = records.is_new
        self.lookup = SegmentLookup(base_offset, records, self.indexes)
        self.created_ms = now_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.bytes_since_last_index_entry = 0
        self._index_interval_bytes = config.index_interval_bytes
        self._is_directory_dirty = records.is_new
        self._is_ready_for_appends = False
        self._is_restart_point_due = False
        self._largest: TimestampOffset | None = None
        self._first_batch_timestamp_ms = _NOT_READ

    def __repr__(self) -> str:
        return f"LogSegment({self.path}, {self.size_bytes} bytes)"

    @property
    def path(self) -> Path:
        return self.records.path

    @property
    def size_bytes(self) -> int:
        return self.records.size_bytes

    # Appending

    def append(self, last_offset: int, max_timestamp_ms: int, prefix: bytes, covered: bytes | memoryview) -> int:
        """Append one batch (its first 21 bytes, and the rest) and return its position. Not durable on return.

        SegmentOffsetOverflow if `last_offset` does not fit; OSError if the disk refuses. In both cases the segment is
        as it was before.
        """
        if not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
            raise SegmentOffsetOverflow(f"{self.path}: offset {last_offset} does not fit")
        if not self._is_ready_for_appends:
            self.indexes.make_room()
            self._largest = self.max_timestamp
            self._is_ready_for_appends = True
        position = self.records.append(prefix, covered)
        largest = self._largest
        if largest is None or max_timestamp_ms > largest[0]:
            largest = self._largest = _new_tuple(TimestampOffset, (max_timestamp_ms, last_offset))
        if position == 0:
            self._first_batch_timestamp_ms = max_timestamp_ms
        if self.bytes_since_last_index_entry > self._index_interval_bytes:
            try:
                self.indexes.add(last_offset, position, largest)
                self.bytes_since_last_index_entry = 0
            except OSError as error:
                logger.warning("%s: no index entry for offset %d: %s", self.path, last_offset, error)
        self.bytes_since_last_index_entry += len(prefix) + len(covered)
        return position

    def must_roll(
        self, last_offset: int, max_timestamp_ms: int, size_bytes: int, config: LogConfig, now_ms: int
    ) -> bool:
        """Whether a batch of `size_bytes` that ends with `last_offset` needs a new segment, by the settings of now.

        It does if this one would grow too large, is too old, has a full index, or if the offset is too far from the
        base offset. An empty segment is never too large or too old: another would be no better.
        """
        present_bytes = self.records.size_bytes
        return (
            present_bytes > max(config.segment_bytes - size_bytes, 0)
            or not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
            or self.indexes.are_full()
            or (
                present_bytes > 0
                and self.time_waited_for_roll_ms(now_ms, max_timestamp_ms) > config.roll_ms - self.roll_jitter_ms
            )
        )

    def time_waited_for_roll_ms(self, now_ms: int, max_timestamp_ms: int) -> int:
        """The age that segment.ms limits: from the first batch's timestamp to the incoming one's.

        So a stream of old records never rolls by time (KAFKA-4099). If the first batch has no timestamp, it is the time
        since the segment was created or opened.
        """
        first_ms = self.first_batch_timestamp_ms()
        return now_ms - self.created_ms if first_ms is None or first_ms < 0 else max_timestamp_ms - first_ms

    def is_overdue(self, segment_ms: int, now_ms: int) -> bool:
        """Whether a segment that has data has been active for longer than `segment_ms` by the clock.

        Appends roll by the records' timestamps; this is for logs without appends.
        """
        return self.size_bytes > 0 and now_ms - self.created_ms > segment_ms - self.roll_jitter_ms

    def add_aborted(self, aborted: AbortedTxn) -> None:
        """Add an entry to the transaction index, for a marker that was appended; OSError if the disk refuses."""
        is_first = not self.transactions.entries
        self.transactions.append(aborted)
        if is_first:
            self._is_directory_dirty = True

    def first_batch_timestamp_ms(self) -> int | None:
        """The first batch's max timestamp, -1 if it has none or is damaged; None for an empty segment. Read once."""
        if self._first_batch_timestamp_ms == _NOT_READ:
            if self.size_bytes == 0:
                return None
            try:
                header, _ = next(self.records.batches())
                self._first_batch_timestamp_ms = header.max_timestamp_ms
            except DamagedLog:
                self._first_batch_timestamp_ms = NO_TIMESTAMP  # the age is then counted from the segment's creation
        return self._first_batch_timestamp_ms

    def on_become_inactive(self) -> None:
        """Add the last entry of the time index and trim all files; call it before the next segment is opened.

        OSError if the disk refuses; then call it again. From here on `unflushed` covers the index files.
        """
        if self.indexes.state is not IndexState.CLOSED:
            self.indexes.finish(self.max_timestamp)
            self._is_ready_for_appends = False
        self.records.trim()

    # Reading

    def read(
        self,
        start_offset: int,
        max_size_bytes: int,
        *,
        max_position: int | None,
        min_one_batch: bool,
        defers_rebuild: bool = False,
    ) -> SegmentRead | None:
        """Find the batch that holds `start_offset`, or the first one after it; None if there is none.

        The result has at most `max_size_bytes`, or with `min_one_batch` the first batch if it is larger, and nothing
        from `max_position` on; None for `max_position` means to find the batch but read nothing. A lost index is
        rebuilt; with `defers_rebuild`, LostIndex if that takes long.
        """
        if max_size_bytes < 0:
            raise ValueError(f"max_size_bytes {max_size_bytes} is negative")
        found = self.lookup.find_batch(start_offset, defers_rebuild=defers_rebuild)
        if found is None:
            return None
        position, batch_bytes = found.position, found.size_bytes
        if min_one_batch and max_size_bytes < batch_bytes:
            max_size_bytes = batch_bytes
        size_bytes = 0 if max_position is None else min(max_position - position, max_size_bytes)
        if size_bytes <= 0:
            return SegmentRead(position, None, False, found.base_offset)
        part = self.records.slice(position, size_bytes)
        return SegmentRead(position, part, max_size_bytes < batch_bytes, found.base_offset)

    def fetch_upper_bound_offset(self, position: int, size_bytes: int) -> int | None:
        """The offset of the first index entry at or after `position + size_bytes`; None if there is none."""
        index = self.indexes.for_offsets()
        entry = None if index is None else index.fetch_upper_bound(position, size_bytes)
        return None if entry is None else entry.offset

    # Times

    @property
    def max_timestamp(self) -> TimestampOffset:
        """The largest timestamp, -1 if there is none, and the last offset of the batch that has it.

        For a segment that was found on disk, the first use reads the time index.
        """
        largest = self._largest
        if largest is None:
            index = self.indexes.for_times()
            largest = TimestampOffset(NO_TIMESTAMP, self.base_offset) if index is None else index.last_entry
            self._largest = largest
        return largest

    @property
    def knows_max_timestamp(self) -> bool:
        return self._largest is not None

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp in the segment; -1 if no record has one."""
        return self.max_timestamp.timestamp_ms

    @property
    def largest_timestamp_ms(self) -> int:
        """`max_timestamp_ms`, or if no record has one, when the .log was last modified: for retention by time."""
        largest_ms = self.max_timestamp_ms
        return largest_ms if largest_ms >= 0 else self.modified_ms

    @property
    def modified_ms(self) -> int:
        return self.path.stat().st_mtime_ns // 1_000_000

    # Recovery and truncation

    def end_recovery(self, builder: IndexBuilder, from_offset: int | None = None) -> None:
        """Take over what `builder`, to which each batch was added, knows; the transaction index must be rebuilt.

        Its entries depend on earlier segments too. With `from_offset` the batches before it were not looked at, and
        their entries stay.
        """
        transactions = self.transactions
        if from_offset is None:
            transactions.reset()
            transactions.is_verified = not builder.has_control_batches
        else:
            transactions.right_below = from_offset
            transactions.truncate_to(from_offset)
        is_left = self.indexes.state is IndexState.NEW if from_offset is None else not builder.has_batches
        if not is_left:
            builder.finish()
        transactions.needs_rebuild |= builder.has_control_batches
        self._largest = builder.largest
        self.bytes_since_last_index_entry = builder.bytes_since_last_entry
        self._first_batch_timestamp_ms = _NOT_READ
        self._is_ready_for_appends = False

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Drop the batch that holds `offset` and all after it; returns the number of bytes dropped. Nothing is synced.

        A batch is dropped as a whole. A segment that is then empty counts as created at `now_ms`.
        """
        found = self.lookup.find_batch(offset)
        self.indexes.truncate_to(offset)
        self.transactions.truncate_to(offset)
        dropped_bytes = 0 if found is None else self.records.truncate_to(found.position)
        if self.size_bytes == 0:
            self.created_ms = now_ms
            self._first_batch_timestamp_ms = _NOT_READ
        self.bytes_since_last_index_entry = 0
        self._largest = self.lookup.largest_timestamp()
        return dropped_bytes

    # Flushing

    def unflushed(self) -> Unflushed | None:
        """What to sync for all writes so far to be durable; None if they are."""
        records, is_directory_dirty = self.records, self._is_directory_dirty
        files: tuple[OpenFile, ...] = (
            (records.open_file(),) if is_directory_dirty or records.has_unflushed_writes() else ()
        )
        indexes: list[OffsetIndex | TimeIndex] = []
        if self.indexes.state is not IndexState.ACTIVE or self._is_restart_point_due:
            indexes = self.indexes.loaded()
        elif not self.transactions.has_unsynced_writes:  # it is the active segment, as in most flushes
            return _new_tuple(Unflushed, (files, is_directory_dirty, records.writes, ())) if files else None
        dirty = [index for index in (self.transactions, *indexes) if index.has_unsynced_writes]
        if not (files or dirty):
            return None
        files += tuple(index.open_file() for index in dirty)
        return Unflushed(files, is_directory_dirty, records.writes, tuple((index, index.writes) for index in dirty))

    def begin_restart_point(self, offset: int) -> RestartPoint:
        """Return the restart point at the segment's end, which has `offset`, once the next `unflushed` was synced.

        CorruptIndex if an index must be rebuilt first; OSError from the disk.
        """
        largest = self.max_timestamp
        entries = self.indexes.write_out()
        self._is_restart_point_due = True
        return RestartPoint(offset, self.base_offset, self.size_bytes, *entries, *largest)

    def mark_flushed(self, unflushed: Unflushed) -> None:
        """Note that all of `unflushed`, the directory included, was synced without an error."""
        self.records.mark_synced(unflushed.log_writes)
        for index, writes in unflushed.index_writes:
            index.mark_synced(writes)
        if unflushed.is_directory_dirty:
            self._is_directory_dirty = False
        self._is_restart_point_due = False

    def flush(self) -> None:
        """Make everything durable now; OSError if the disk refuses."""
        unflushed = self.unflushed()
        if unflushed is None:
            return
        for file in unflushed.files:
            os.fdatasync(file.fd)
        if unflushed.is_directory_dirty:
            sync_directory(self.directory)
        self.mark_flushed(unflushed)

    # The files together

    def path_of(self, kind: str) -> Path:
        """The segment's file of that kind; see `segment_files`."""
        return self.directory / segment_file_name(self.base_offset, kind, self._suffix)

    def change_suffix(self, old: str, new: str) -> None:
        """Rename the files, such as from "" to ".deleted": the .log first, and of the others those that exist."""
        if self._suffix != old:
            raise ValueError(f"{self.path} does not end with the suffix {old!r}")
        self._suffix = new
        for kind, file in self._files():
            file.rename_to(self.path_of(kind))

    def update_directory(self, directory: Path) -> None:
        """Note that the partition's directory has been renamed to `directory`."""
        self.directory = directory
        for kind, file in self._files():
            file.moved_to(self.path_of(kind))

    def delete(self) -> None:
        """Unlink all files that exist, the .log first, then raise the first error. The segment is closed.

        Existing slices stay readable.
        """
        run_deletions(file.delete for _, file in self._files())

    def close(self, *, sync: bool = True) -> None:
        """Finish the indexes, trim, sync and close everything. Closing again is harmless.

        A segment that was only read is not written to, and one that was not used is not touched at all. Without `sync`
        the caller must sync the file system.
        """
        if self.records.is_closed:
            return
        self.on_become_inactive()
        if sync:
            self.flush()
        self.indexes.offset.close()
        self.indexes.time.close()
        self.transactions.close_handles()
        self.records.close()

    def close_handles(self) -> None:
        for _, file in self._files():
            file.close_handles()

    def _files(self) -> Iterable[tuple[str, NamedFile]]:
        return zip(KINDS, (self.records, self.indexes.offset, self.indexes.time, self.transactions), strict=True)
