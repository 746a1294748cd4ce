"""The offset index and the time index of one segment: verified when first used, and rebuilt if wrong.

A new segment has no index files: they are created with the first entry, or when the segment becomes inactive. Those of
a segment that was found on disk are opened and verified when first used, because they may be missing, empty, older or
newer than the log, or damaged. The check costs one scan from the last entry to the end of the log, mostly a few
headers. A wrong index is rebuilt from the log's headers, with a warning; so is one of which a lookup later finds an
entry that does not match its batch.
"""

import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from enum import Enum
from pathlib import Path
from typing import TypeVar

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.partition_files import RestartPoint
from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET, CorruptIndex
from warmlog_broker.storage.index.lazy_index import LazyIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex, TimestampOffset
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords
from warmlog_broker.storage.segment.scan import Damage, Place, scan
from warmlog_protocol.batch.header import CONTROL_BIT, LENGTH_OVERHEAD_BYTES, NO_TIMESTAMP, BatchHeader
from warmlog_protocol.errors import StorageError

logger = logging.getLogger(__name__)

Index = TypeVar("Index", OffsetIndex, TimeIndex)

REBUILT_SUFFIX = ".rebuilt"
"""Suffix of an index that is being rebuilt beside the old one; the next start removes one that a crash leaves."""
REBUILT_AT_ONCE_BYTES = 1024 * 1024
"""The indexes of a larger log are rebuilt in another thread, if the caller can wait: 1 MiB takes 2 to 50 ms."""
LEAST_STALE_BYTES = 1024 * 1024
"""If the log continues for longer than this after the last entry, entries are missing: intervals are some KiB."""


class LostIndex(StorageError):
    """An index must be rebuilt before the segment can be read, which takes long. `rebuild` does it."""

    def __init__(self, rebuild: "IndexRebuild", message: str) -> None:
        super().__init__(message)
        self.rebuild = rebuild


class IndexState(Enum):
    """The life of a segment's two indexes. What `SegmentIndexes` does in each state, and which one follows::

                   add                     make_room          finish                  a lookup
        NEW        creates both: ACTIVE    nothing            creates both: CLOSED    finds no entry
        ACTIVE     appends                 nothing            trims both: CLOSED      verifies each at its first use
        CLOSED     is not called           extends: ACTIVE    nothing                 the same

    A lookup that finds an index wrong rebuilds both, which leads back to the same state. `reset` leads to ACTIVE, and
    `resume` and `empty` too, or to NEW: the one if there is no entry, the other if there is no file.
    """

    NEW = "the files, if there are any, hold nothing of use"
    ACTIVE = "there is room for more entries, and the files need no sync"
    CLOSED = "the files have their entries and nothing else, and are synced with the log"


class SegmentIndexes:
    __slots__ = (
        "_entries_left",
        "_offset_index",
        "_records",
        "_time_index",
        "base_offset",
        "config",
        "offset",
        "rebuilding",
        "state",
        "time",
        "was_rebuilt",
    )

    def __init__(
        self,
        offset_path: Path | str,
        time_path: Path | str,
        base_offset: int,
        *,
        records: FileRecords,
        config: LogConfig,
        open_files: OpenFiles,
    ) -> None:
        """Opens no file. If the log has no data there can be no entries, whatever the files hold."""
        self.offset = LazyIndex(offset_path, OffsetIndex, base_offset, open_files, config.segment_index_bytes)
        self.time = LazyIndex(time_path, TimeIndex, base_offset, open_files, config.segment_index_bytes)
        self.base_offset = base_offset
        self.was_rebuilt = False
        """Whether side files were missing or damaged: others may be too."""
        self._records = records
        self.config = config
        self.state = IndexState.CLOSED if records.size_bytes else IndexState.NEW
        self._offset_index: OffsetIndex | None = None  # set once verified
        self._time_index: TimeIndex | None = None
        self._entries_left = 0
        """A number of entries for which each index has room; 0 if that is not known."""
        self.rebuilding: IndexRebuild | None = None
        """A rebuild in another thread."""

    def for_offsets(self, *, defers_rebuild: bool = False) -> OffsetIndex | None:
        """The offset index, verified; None in a new segment without an entry.

        It is rebuilt if its file is missing, cut or wrong; with `defers_rebuild`, LostIndex if that takes long.
        """
        index = self._offset_index
        if index is None or index.is_lost:
            try:
                self._offset_index = self._verified(self.offset, index, self._check_last_entry)
            except CorruptIndex as error:
                if defers_rebuild and self._records.size_bytes > REBUILT_AT_ONCE_BYTES:
                    self.rebuilding = self.rebuilding or IndexRebuild(self, self._records, str(error))
                    reason = f"{self._records.path}: its indexes are being rebuilt: {error}"
                    raise LostIndex(self.rebuilding, reason) from None
                self.rebuild(str(error))
        return self._offset_index

    def for_times(self) -> TimeIndex | None:
        """The time index, verified; None in a new segment without an entry."""
        index = self._time_index
        if index is None or index.is_lost:
            self.for_offsets()
            try:
                self._time_index = self._verified(self.time, self._time_index, self._check_last_timestamps)
            except CorruptIndex as error:
                self.rebuild(str(error))
        return self._time_index

    def are_full(self) -> bool:
        """Whether the segment must be rolled because an index has no room for another entry. Opens nothing."""
        if self._entries_left > 0 or self.state is IndexState.NEW:
            return False
        max_entries = self.config.segment_index_bytes // OffsetIndex.entry_bytes
        max_time_entries = self.config.segment_index_bytes // TimeIndex.entry_bytes - 1
        offset_index, time_index = self._offset_index, self._time_index
        if offset_index is None or time_index is None:
            return self.offset.count_entries() >= max_entries or self.time.count_entries() >= max_time_entries
        self._entries_left = min(max_entries - offset_index.entries, max_time_entries - time_index.entries)
        return self._entries_left <= 0

    def make_room(self) -> None:
        """Open, verify and extend both indexes for appends."""
        if self.state is not IndexState.CLOSED:
            return
        for index in (self.for_offsets(), self.for_times()):
            assert index is not None
            if index.file_bytes < self.config.segment_index_bytes:
                index.resize(self.config.segment_index_bytes)
        self.state = IndexState.ACTIVE

    def add(self, last_offset: int, position: int, largest: TimestampOffset) -> None:
        """Add an entry to each index, for the batch at `position`. `largest` is the segment's largest timestamp so far.

        OSError from the disk; the entry may then be missing, which only makes later lookups scan more.
        """
        if self.state is IndexState.NEW:
            self._create()
        offset_index, time_index = self._offset_index, self._time_index
        if offset_index is None or time_index is None:
            return  # the files are gone: the next lookup rebuilds them
        if self._entries_left <= 0 and (offset_index.is_full or time_index.is_full):
            _extend(offset_index)
            _extend(time_index)
        self._entries_left -= 1
        try:
            offset_index.append(last_offset, position)
            time_index.maybe_append(largest.timestamp_ms, largest.offset)
        except FileNotFoundError:
            self._drop()
            raise

    def finish(self, largest: TimestampOffset) -> None:
        if self.state is IndexState.NEW and self._records.size_bytes:
            self._create()
        if self.state is not IndexState.ACTIVE:
            return
        self.state = IndexState.CLOSED
        offset_index, time_index = self._offset_index, self._time_index
        if offset_index is None or time_index is None or offset_index.is_lost or time_index.is_lost:
            logger.warning("%s: an index is gone or was cut, the next lookup rebuilds it", self._records.path)
            self._drop()
            return
        try:
            if time_index.entries >= time_index.max_entries:
                time_index.resize(time_index.file_bytes + time_index.entry_bytes)
            time_index.maybe_append(largest.timestamp_ms, largest.offset, is_last=True)
            offset_index.trim()
            time_index.trim()
        except FileNotFoundError:
            logger.warning("%s: an index is gone, the next lookup rebuilds it", self._records.path)
            self._drop()
        except OSError:
            self.state = IndexState.ACTIVE
            raise

    def resume(self, point: RestartPoint) -> "IndexBuilder | None":
        """Keep the entries that were on disk at `point`, and return what adds those after it; None if some are gone."""
        self._drop()
        if not point.index_entries:
            self.state = IndexState.NEW
        else:
            try:
                offset_index = self.offset.resume(point.index_entries)
                time_index = self.time.resume(point.timeindex_entries)
                offset_index.sanity_check()
                time_index.sanity_check()
            except (CorruptIndex, FileNotFoundError) as error:
                logger.warning("%s: %s", self._records.path, error)
                return None
            last = offset_index.entry(point.index_entries - 1)
            if last.position != point.index_position or time_index.last_entry.timestamp_ms > point.largest_timestamp:
                return None
            self._offset_index, self._time_index = offset_index, time_index
            self.state = IndexState.ACTIVE
        builder = IndexBuilder(self)
        builder.largest = TimestampOffset(point.largest_timestamp, point.offset_of_largest)
        builder.bytes_since_last_entry = point.position - point.index_position
        return builder

    def write_out(self) -> tuple[int, int, int]:
        """Write the entries that are in memory; return how many each index has, and the last position in the first.

        CorruptIndex if an index is missing or was not used yet; OSError from the disk.
        """
        if self.state is IndexState.NEW:
            return 0, 0, 0
        offset_index, time_index = self._offset_index, self._time_index
        if offset_index is None or time_index is None or offset_index.is_lost or time_index.is_lost:
            raise CorruptIndex(f"{self._records.path}: its indexes are not in use")
        offset_index.write_out()
        time_index.write_out()
        position = offset_index.lookup(offset_index.last_offset).position
        return offset_index.entries, time_index.entries, position

    def reset(self) -> "IndexBuilder":
        """Empty both indexes and make room, whatever the files held before, and return what adds entries."""
        self._drop()
        self._create()
        return IndexBuilder(self)

    def empty(self) -> "IndexBuilder":
        """As `reset`, but the first entry creates files that do not exist."""
        self._drop()
        self.state = IndexState.NEW
        if self.offset.file_exists() or self.time.file_exists():
            self._create()
        return IndexBuilder(self)

    def truncate_to(self, offset: int) -> None:
        """Drop all entries at `offset` and after it; both indexes have room again."""
        for index in (self.for_offsets(), self.for_times()):
            if index is not None:
                index.truncate_to(offset)
        self.make_room()

    def rebuild(self, reason: str) -> None:
        """Rebuild both indexes from the headers in the log, sync them, and warn.

        Damage in the log is skipped; the first batch after it gets an entry, so that lookups reach it.
        """
        logger.warning("%s: rebuilding the indexes from the log: %s", self._records.path, reason)
        was_active = self.state is IndexState.ACTIVE
        self.was_rebuilt = True
        builder = self.reset()
        for found in scan(self._records, 0, place_in_segment(self.base_offset)):
            if isinstance(found, Damage):
                logger.error("no index entries for damage: %s", found.cause())
                builder.must_index_next_batch()
            else:
                builder.add(*found)
        builder.finish()
        for index in (self.offset.get(), self.time.get()):
            os.fdatasync(index.open_file())
            index.mark_synced(index.writes)
        if was_active:
            self.make_room()

    def loaded(self) -> list[OffsetIndex | TimeIndex]:
        return [index for index in (self.offset.loaded, self.time.loaded) if index is not None]

    def beside(self, records: FileRecords) -> "SegmentIndexes":
        """New indexes of `records`, which is this segment's log, in files beside the segment's own."""
        return SegmentIndexes(
            f"{self.offset.path}{REBUILT_SUFFIX}",
            f"{self.time.path}{REBUILT_SUFFIX}",
            self.base_offset,
            records=records,
            config=self.config,
            open_files=OpenFiles(),
        )

    def take(self, rebuilt: "SegmentIndexes", end_position: int) -> None:
        """Replace the files by those of `rebuilt`, the indexes of the log up to `end_position`.

        If the log has been closed or cut since, `rebuilt` is removed. OSError if the disk refuses: the next lookup then
        rebuilds the indexes.
        """
        if self.offset.is_closed or self._records.size_bytes < end_position:
            rebuilt.remove()
            return
        self._drop()
        rebuilt.offset.path.replace(self.offset.path)
        rebuilt.time.path.replace(self.time.path)
        self._offset_index, self._time_index = self.offset.get(), self.time.get()
        self.was_rebuilt = True
        if self.state is IndexState.ACTIVE:
            self.state = IndexState.CLOSED
            self.make_room()
            builder = IndexBuilder(self)
            builder.largest = self._time_index.last_entry
            for header, position in self._records.batches(end_position):
                builder.add(header, position)

    def remove(self) -> None:
        """Unlink both files, if they exist. OSError if the disk refuses."""
        self.offset.delete()
        self.time.delete()

    def _create(self) -> None:
        """Create empty files with room; existing ones belong to no batch."""
        self._offset_index, self._time_index = self.offset.get(), self.time.get()
        self._offset_index.reset()
        self._time_index.reset()
        self._entries_left = 0
        self.state = IndexState.ACTIVE

    def _drop(self) -> None:
        self.offset.forget()
        self.time.forget()
        self._offset_index = self._time_index = None
        self._entries_left = 0

    def _verified(self, lazy: LazyIndex[Index], verified: Index | None, check: Callable[[Index], None]) -> Index | None:
        """Open and verify the index of `lazy` unless it is `verified` already; CorruptIndex if it must be rebuilt."""
        if verified is not None:
            if verified.is_lost:
                raise CorruptIndex(f"{lazy.path} is gone, or was cut")
            return verified
        if self.state is IndexState.NEW:
            return None
        if not lazy.file_exists():
            raise CorruptIndex(f"{lazy.path} is missing")
        index = lazy.get()
        index.sanity_check()
        check(index)
        return index

    def _check_last_entry(self, index: OffsetIndex) -> None:
        """CorruptIndex if the last entry does not match its batch, or much of the log is after it."""
        last = index.lookup(index.last_offset)
        if last.position >= self._records.size_bytes:
            raise CorruptIndex(f"{index.path}: last entry {last} in a log of {self._records.size_bytes} bytes")
        stale_from = last.position + max(LEAST_STALE_BYTES, 2 * self.config.index_interval_bytes)
        try:
            for header, position in self._records.batches(last.position):
                if position == last.position and index.entries and header.last_offset > last.offset:
                    raise CorruptIndex(f"{index.path}: last entry {last}, but offset {header.last_offset} is there")
                if position > stale_from:
                    raise CorruptIndex(f"{index.path}: no entries after position {last.position}")
        except DamagedLog:
            return  # log or index may be damaged: a lookup of an offset there finds out

    def _check_last_timestamps(self, index: TimeIndex) -> None:
        """CorruptIndex if the last batches are later than the last entry says, or end before its offset."""
        offset_index = self._offset_index
        assert offset_index is not None
        last = index.last_entry
        last_offset = self.base_offset
        try:
            for header, _ in self._records.batches(offset_index.lookup(offset_index.last_offset).position):
                last_offset = header.last_offset
                if header.max_timestamp_ms > last.timestamp_ms:
                    raise CorruptIndex(
                        f"{index.path}: last entry {last}, but offset {last_offset} has {header.max_timestamp_ms}"
                    )
        except DamagedLog:
            return
        if last.offset > last_offset:
            raise CorruptIndex(f"{index.path}: last entry {last}, but the log ends with offset {last_offset}")


class IndexRebuild:
    """A rebuild of a segment's indexes in another thread, while the log is in use.

    The owner of the log calls `begin`, and `finish` once the future is done. All waiters share one rebuild.
    """

    def __init__(self, indexes: SegmentIndexes, records: FileRecords, reason: str) -> None:
        self._indexes = indexes
        self._reason = reason
        self._end_position = records.size_bytes
        self._records = FileRecords(records.path, OpenFiles(), self._end_position, is_writable=False)
        self._records.open_file()  # now, because the segment may be renamed later
        self._rebuilt = indexes.beside(self._records)
        self._done: Future[None] | None = None

    def begin(self, threads: Executor) -> "Future[None]":
        """Start the rebuild in one of `threads`, unless it has begun. The future holds an OSError from the disk."""
        if self._done is None:
            self._done = threads.submit(self._rebuilt.rebuild, self._reason)
        return self._done

    def finish(self) -> None:
        """Move the files into place if the rebuild succeeded and they still fit. Idempotent. OSError from the disk."""
        done = self._done
        if self._indexes.rebuilding is not self or done is None or not done.done():
            return
        self._indexes.rebuilding = None
        self._records.close_handles()
        if done.cancelled() or done.exception() is not None:
            self._rebuilt.remove()
            return
        for index in (self._rebuilt.offset, self._rebuilt.time):
            index.close_handles()
        self._indexes.take(self._rebuilt, self._end_position)


class IndexBuilder:
    """Adds the index entries of a segment that is scanned from its start."""

    def __init__(self, indexes: SegmentIndexes) -> None:
        self.largest = TimestampOffset(NO_TIMESTAMP, indexes.base_offset)
        """The largest timestamp so far, and the last offset of the batch that has it."""
        self.bytes_since_last_entry = 0
        self.has_batches = False
        self.has_control_batches = False
        """If so, the transaction index may need entries."""
        self._indexes = indexes
        self._interval_bytes = indexes.config.index_interval_bytes
        self._has_failed = False

    def add(self, header: BatchHeader, position: int) -> None:
        """Add the next batch: it gets an entry if enough bytes are between it and the last one that has an entry."""
        self.has_batches = True
        if header.max_timestamp_ms > self.largest.timestamp_ms:
            self.largest = TimestampOffset(header.max_timestamp_ms, header.last_offset)
        if header.attributes & CONTROL_BIT:
            self.has_control_batches = True
        if self.bytes_since_last_entry > self._interval_bytes and not self._has_failed:
            try:
                self._indexes.add(header.last_offset, position, self.largest)
                self.bytes_since_last_entry = 0
            except OSError as error:
                self._fail(error)
        self.bytes_since_last_entry += header.batch_length + LENGTH_OVERHEAD_BYTES

    def must_index_next_batch(self) -> None:
        """Give the next batch an entry, because it cannot be reached from the batch before it."""
        self.bytes_since_last_entry = self._interval_bytes + 1

    def finish(self) -> None:
        try:
            self._indexes.finish(self.largest)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """A full disk must not prevent reads: without entries, lookups scan the log."""
        logger.warning("%s: index entries are missing: %s", self._indexes.offset.path, error)
        self._has_failed = True


def place_in_segment(base_offset: int) -> Place:
    """Return the place at the start of a segment of which only the base offset is known."""
    return Place(base_offset, base_offset + MAX_RELATIVE_OFFSET + 1)


def _extend(index: OffsetIndex | TimeIndex) -> None:
    """Make room for more than `segment.index.bytes`, which a rebuild may need if that setting was greater before."""
    index.resize(2 * index.file_bytes + 2 * index.entry_bytes)
