"""The two indexes of one segment, and how far they may be believed.

A new segment has no index files: they are created with the first entry, or when the segment becomes inactive. Those
of a segment that was found on disk are opened when first used, and verified then, for they may be missing, empty, of
another age than the log, or damaged. The check costs one scan from the last entry to the end of the log, mostly a few
headers. What does not pass is rebuilt from the log's headers, with a warning. An entry that turns out to be wrong
later, because another batch lies at its position, makes the segment call `rebuild` too.
"""

import logging
import os
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET, CorruptIndex
from warmlog_broker.storage.index.lazy_index import LazyIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.record.batch_scan import DamagedLog
from warmlog_broker.storage.record.damage import walk_around_damage
from warmlog_broker.storage.record.file_records import FileRecords
from warmlog_protocol.errors import StorageError

logger = logging.getLogger(__name__)

REBUILT_SUFFIX = ".rebuilt"
"""Of an index that is being rebuilt beside the one that is there; what a crash leaves is removed at the next start."""
REBUILT_AT_ONCE_BYTES = 1024 * 1024
"""The indexes of a larger log are rebuilt by another thread, where the caller can wait: 1 MiB takes 2 to 50 ms."""
LEAST_STALE_BYTES = 1024 * 1024
"""A log that goes on for longer than this behind the last entry has lost entries. (Intervals of some KiB are usual.)"""


class LostIndex(StorageError):
    """An index has to be rebuilt before the segment can be read, which takes long. `rebuild` is what does it."""

    def __init__(self, rebuild: "IndexRebuild", message: str) -> None:
        super().__init__(message)
        self.rebuild = rebuild


@dataclass(frozen=True, slots=True)
class SegmentConfig:
    """What a segment needs of the topic's settings."""

    index_interval_bytes: int = 4096
    """After how many bytes of log an index entry is made: index.interval.bytes."""
    max_index_bytes: int = 10_485_760
    """Room of each index while the segment is active: segment.index.bytes."""
    preallocate_bytes: int = 0
    """Size that a new .log file gets at once; 0 for no preallocation."""


class SegmentIndexes:
    """Offset index and time index of one segment: opened late, verified, rebuilt when they are wrong."""

    __slots__ = (
        "_config",
        "_entries_left",
        "_has_room",
        "_is_new",
        "_max_offset_entries",
        "_max_time_entries",
        "_offset_index",
        "_records",
        "_time_index",
        "base_offset",
        "offset",
        "rebuilding",
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
        config: SegmentConfig,
        open_files: OpenFiles,
    ) -> None:
        """No file is opened, or looked for. Where the log has no data there can be no entries, whatever lies there."""
        max_bytes = config.max_index_bytes
        self.offset: LazyIndex[OffsetIndex] = LazyIndex(
            offset_path,
            OffsetIndex,
            lambda path: OffsetIndex(path, base_offset, open_files=open_files, max_index_bytes=max_bytes),
        )
        self.time: LazyIndex[TimeIndex] = LazyIndex(
            time_path,
            TimeIndex,
            lambda path: TimeIndex(path, base_offset, open_files=open_files, max_index_bytes=max_bytes),
        )
        self.base_offset = base_offset
        self.was_rebuilt = False
        """Whether side files were missing or damaged: others may be too."""
        self._records = records
        self._config = config
        self._max_offset_entries = max_bytes // OffsetIndex.entry_bytes
        self._max_time_entries = max_bytes // TimeIndex.entry_bytes - 1
        self._is_new = records.size_bytes == 0
        self._offset_index: OffsetIndex | None = None  # once they are verified
        self._time_index: TimeIndex | None = None
        self._has_room = False
        self._entries_left = 0
        """Each index has room for as many entries, or more; 0 when that is not known."""
        self.rebuilding: IndexRebuild | None = None
        """The rebuild that is under way in another thread."""

    @property
    def has_room(self) -> bool:
        """Whether the files have room for entries to come, as while the segment is active: then they need no sync."""
        return self._has_room

    def for_offsets(self, *, defers_rebuild: bool = False) -> OffsetIndex | None:
        """The offset index, verified; None while no entry has been made in a new segment.

        It is rebuilt if its file is missing, cut or wrong. With `defers_rebuild` that is LostIndex if it takes long.
        """
        index = self._offset_index
        if index is None or index.is_lost:
            self._settle(self._why_not_offsets(), defers_rebuild)
        return self._offset_index

    def for_times(self) -> TimeIndex | None:
        """The time index, verified; None while no entry has been made in a new segment."""
        index = self._time_index
        if index is None or index.is_lost:
            self.for_offsets()
            self._settle(self._why_not_times())
        return self._time_index

    def are_full(self) -> bool:
        """Whether the segment must be rolled because an index has no room for another entry. Opens nothing."""
        if self._entries_left > 0 or self._is_new:
            return False
        offset_index, time_index = self._offset_index, self._time_index
        if offset_index is None or time_index is None:
            entries, time_entries = self.offset.count_entries(), self.time.count_entries()
            return entries >= self._max_offset_entries or time_entries >= self._max_time_entries
        self._entries_left = min(
            self._max_offset_entries - offset_index.entries, self._max_time_entries - time_index.entries
        )
        return self._entries_left <= 0

    def make_room(self) -> None:
        """Opens, verifies and extends both indexes of a segment that is going to be appended to."""
        if self._has_room or self._is_new:
            return
        for index in (self.for_offsets(), self.for_times()):
            assert index is not None
            if index.file_bytes < self._config.max_index_bytes:
                index.resize(self._config.max_index_bytes)
        self._has_room = True

    def add(self, last_offset: int, position: int, largest: TimestampOffset) -> None:
        """One entry in each index: the batch at `position` ends with `last_offset`, `largest` is the segment's so far.

        OSError from the disk; then the entry may be missing, which costs later lookups a longer scan and nothing else.
        """
        if self._is_new:
            self._create()
        offset_index, time_index = self._offset_index, self._time_index
        if offset_index is None or time_index is None:
            return  # the files are gone: whoever looks something up rebuilds them
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
        """The last entry of the time index, and both files trimmed. They are to be synced now."""
        if self._is_new:
            if not self._records.size_bytes:
                return
            self._create()
        if not self._has_room:
            return
        self._has_room = False
        offset_index, time_index = self._offset_index, self._time_index
        if offset_index is None or time_index is None or offset_index.is_lost or time_index.is_lost:
            logger.warning("%s: an index is gone or was cut, and is rebuilt when it is used", self._records.path)
            self._drop()
            return
        try:
            if time_index.entries >= time_index.max_entries:
                time_index.resize(time_index.file_bytes + time_index.entry_bytes)
            time_index.maybe_append(largest.timestamp_ms, largest.offset, is_last=True)
            offset_index.trim()
            time_index.trim()
        except FileNotFoundError:
            logger.warning("%s: an index is gone, and is rebuilt when it is used", self._records.path)
            self._drop()
        except OSError:
            self._has_room = True
            raise

    def reset(self) -> None:
        """Both indexes without an entry and with room for new ones, whatever the files held before."""
        self._drop()
        self._is_new = True
        self._create()

    def truncate_to(self, offset: int) -> None:
        """Drops all entries at `offset` and after it; both indexes have room again."""
        for index in (self.for_offsets(), self.for_times()):
            if index is not None:
                index.truncate_to(offset)
        self.make_room()

    def rebuild(self, reason: str) -> None:
        """Makes both indexes anew from the headers in the log, syncs them, and warns.

        Damage in the middle of the log is left out; the first batch behind it gets an entry, so that it can be reached.
        """
        logger.warning("%s: rebuilding the indexes from the log: %s", self._records.path, reason)
        had_room = self._has_room
        self.was_rebuilt = True
        self.reset()
        builder = IndexBuilder(self, self._config.index_interval_bytes)
        for step in walk_around_damage(self._records, 0, self.base_offset, self.base_offset + MAX_RELATIVE_OFFSET):
            if step.damage is not None:
                logger.error("no index entries for damage: %s", step.damage)
                builder.must_index_next_batch()
            header = step.header
            builder.add(header.last_offset, header.max_timestamp_ms, step.position, header.size_bytes)
        builder.finish()
        for index in (self.offset.get(), self.time.get()):
            os.fdatasync(index.open_file().fd)
            index.mark_synced(index.writes)
        if had_room:
            self.make_room()

    def loaded(self) -> list[OffsetIndex | TimeIndex]:
        """The indexes that have been opened."""
        return [index for index in (self.offset.loaded, self.time.loaded) if index is not None]

    def beside(self, records: FileRecords) -> "SegmentIndexes":
        """The indexes of `records`, which is this segment's log, in files with a suffix beside the segment's own."""
        return SegmentIndexes(
            f"{self.offset.path}{REBUILT_SUFFIX}",
            f"{self.time.path}{REBUILT_SUFFIX}",
            self.base_offset,
            records=records,
            config=self._config,
            open_files=OpenFiles(),
        )

    def take(self, made: "SegmentIndexes", end_position: int) -> None:
        """Puts the files of `made`, the indexes of the log up to `end_position`, in the place of its own.

        Removes them where the log has been closed or cut since. OSError when the disk refuses: then the indexes are
        rebuilt when they are used next.
        """
        if self.offset.is_closed or self._records.size_bytes < end_position:
            made.remove()
            return
        self._drop()
        made.offset.path.replace(self.offset.path)
        made.time.path.replace(self.time.path)
        self._offset_index, self._time_index = self.offset.get(), self.time.get()
        self.was_rebuilt = True
        if self._has_room:
            self._has_room = False
            self.make_room()
            builder = IndexBuilder(self, self._config.index_interval_bytes)
            builder.largest = self._time_index.last_entry
            for header, position in self._records.batches(end_position):
                builder.add(header.last_offset, header.max_timestamp_ms, position, header.size_bytes)

    def remove(self) -> None:
        """Unlinks both files, where they are there. OSError when the disk refuses."""
        self.offset.delete()
        self.time.delete()

    def _create(self) -> None:
        """New, empty files with room; what lay there belongs to no batch."""
        self._offset_index, self._time_index = self.offset.get(), self.time.get()
        self._offset_index.reset()
        self._time_index.reset()
        self._is_new = False
        self._entries_left = 0
        self._has_room = True

    def _drop(self) -> None:
        """Both files are gone, or are others now: what is known of them is forgotten."""
        self.offset.forget()
        self.time.forget()
        self._offset_index = self._time_index = None
        self._entries_left = 0

    def _settle(self, reason: str, defers_rebuild: bool = False) -> None:
        """Rebuilds both indexes if there is a `reason` to."""
        if not reason:
            return
        if defers_rebuild and self._records.size_bytes > REBUILT_AT_ONCE_BYTES:
            if self.rebuilding is None:
                self.rebuilding = IndexRebuild(self, self._records, reason)
            raise LostIndex(self.rebuilding, f"{self._records.path}: its indexes are being rebuilt: {reason}")
        self.rebuild(reason)

    def _why_not_offsets(self) -> str:
        """Why the offset index must be rebuilt; empty when it is verified, or there is none yet."""
        if self._offset_index is not None:
            return f"{self.offset.path} is gone, or was cut"
        if self._is_new:
            return ""
        try:
            if not self.offset.file_exists():
                raise CorruptIndex(f"{self.offset.path} is missing")
            index = self.offset.get()
            index.sanity_check()
            self._look_behind_last_entry(index)
        except CorruptIndex as error:
            return str(error)
        self._offset_index = index
        return ""

    def _why_not_times(self) -> str:
        """As `_why_not_offsets`, once the offset index is verified."""
        if self._time_index is not None:
            return f"{self.time.path} is gone, or was cut" if self._time_index.is_lost else ""
        if self._is_new:
            return ""
        try:
            if not self.time.file_exists():
                raise CorruptIndex(f"{self.time.path} is missing")
            index = self.time.get()
            index.sanity_check()
            assert self._offset_index is not None
            self._compare_with_last_batches(index, self._offset_index)
        except CorruptIndex as error:
            return str(error)
        self._time_index = index
        return ""

    def _look_behind_last_entry(self, index: OffsetIndex) -> None:
        """CorruptIndex when the last entry does not point at its batch, or much of the log lies behind it."""
        last = index.lookup(index.last_offset)
        if last.position >= self._records.size_bytes:
            raise CorruptIndex(f"{index.path}: last entry {last} in a log of {self._records.size_bytes} bytes")
        stale_from = last.position + max(LEAST_STALE_BYTES, 2 * self._config.index_interval_bytes)
        try:
            for header, position in self._records.batches(last.position):
                if position == last.position and index.entries and header.last_offset > last.offset:
                    raise CorruptIndex(f"{index.path}: last entry {last}, and offset {header.last_offset} lies there")
                if position > stale_from:
                    raise CorruptIndex(f"{index.path}: no entries for what lies behind position {last.position}")
        except DamagedLog:
            return  # either of them may be damaged: the segment finds out when an offset there is asked for

    def _compare_with_last_batches(self, index: TimeIndex, offset_index: OffsetIndex) -> None:
        """CorruptIndex when the last batches are later than the last entry says, or end before its offset."""
        last = index.last_entry
        last_offset = self.base_offset
        try:
            for header, _ in self._records.batches(offset_index.lookup(offset_index.last_offset).position):
                last_offset = header.last_offset
                if header.max_timestamp_ms > last.timestamp_ms:
                    raise CorruptIndex(
                        f"{index.path}: last entry {last}, and offset {last_offset} has {header.max_timestamp_ms}"
                    )
        except DamagedLog:
            return
        if last.offset > last_offset:
            raise CorruptIndex(f"{index.path}: last entry {last}, and the log ends with offset {last_offset}")


class IndexRebuild:
    """The rebuild of a segment's indexes by another thread, while the log is in use.

    The owner of the log calls `begin`, and `finish` once what that returned is done. All who wait share one rebuild.
    """

    def __init__(self, indexes: SegmentIndexes, records: FileRecords, reason: str) -> None:
        self._indexes = indexes
        self._reason = reason
        self._end_position = records.size_bytes
        self._records = FileRecords(records.path, OpenFiles(), self._end_position, is_writable=False, is_new=False)
        self._records.open_file()  # by its name now: it may be renamed meanwhile
        self._made = indexes.beside(self._records)
        self._done: Future[None] | None = None

    def begin(self, threads: Executor) -> "Future[None]":
        """Has the files made by one of `threads`, unless that has begun. OSError from the disk comes as the result."""
        if self._done is None:
            self._done = threads.submit(self._made.rebuild, self._reason)
        return self._done

    def finish(self) -> None:
        """Put the files in place if they were made and still fit; again, do nothing. OSError from the disk."""
        done = self._done
        if self._indexes.rebuilding is not self or done is None or not done.done():
            return
        self._indexes.rebuilding = None
        self._records.close_handles()
        if done.cancelled() or done.exception() is not None:
            self._made.remove()
            return
        for index in (self._made.offset, self._made.time):
            index.close_handles()
        self._indexes.take(self._made, self._end_position)


class IndexBuilder:
    """Makes the entries of a segment that is walked through from its start."""

    def __init__(self, indexes: SegmentIndexes, index_interval_bytes: int) -> None:
        self.largest = TimestampOffset(NO_TIMESTAMP, indexes.base_offset)
        """The largest timestamp so far, and the last offset of the batch that has it."""
        self.next_offset = indexes.base_offset
        self.bytes_since_last_entry = 0
        self._indexes = indexes
        self._interval_bytes = index_interval_bytes
        self._has_failed = False

    def add(self, last_offset: int, max_timestamp_ms: int, position: int, size_bytes: int) -> None:
        """The next batch: an entry if enough bytes lie between it and the last one that has an entry."""
        if max_timestamp_ms > self.largest.timestamp_ms:
            self.largest = TimestampOffset(max_timestamp_ms, last_offset)
        self.next_offset = last_offset + 1
        if self.bytes_since_last_entry > self._interval_bytes and not self._has_failed:
            try:
                self._indexes.add(last_offset, position, self.largest)
                self.bytes_since_last_entry = 0
            except OSError as error:
                self._fail(error)
        self.bytes_since_last_entry += size_bytes

    def must_index_next_batch(self) -> None:
        """The next batch cannot be reached from the one before it."""
        self.bytes_since_last_entry = self._interval_bytes + 1

    def finish(self) -> None:
        """The last entry of the time index; both files trimmed."""
        try:
            self._indexes.finish(self.largest)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """A full disk must not keep a log from being read: without entries, lookups scan it."""
        logger.warning("%s: index entries are missing: %s", self._indexes.offset.path, error)
        self._has_failed = True


def _extend(index: OffsetIndex | TimeIndex) -> None:
    """Room for more than `segment.index.bytes`, which a rebuild may need when that setting was greater before."""
    index.resize(2 * index.file_bytes + 2 * index.entry_bytes)
