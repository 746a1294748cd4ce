"""The segments of one log in one directory, and the disk under them: rolling, removing segments, failing.

`LocalLog` knows files: which segments there are, where the log ends, what is not synced, which files wait to be
unlinked. `LogBounds` knows what of it may be read, `LogAppender` what clients may append.

A failed write or flush ends the log: `fail` notes the first reason, and everything after raises StorageError until a
restart has checked what the disk holds. A disk that is merely full is no such failure: the append is refused, nothing
of it remains, and the next may succeed.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition, marked_directory_name
from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.io.os_errors import (
    SyncNotBegun,
    is_read_only,
    is_resource_exhaustion,
    out_of_memory,
    storage_error,
)
from warmlog_broker.storage.log.flush_plan import Unsynced, sync_directory_if_there
from warmlog_broker.storage.producer.txn_index_recovery import verify_transaction_index
from warmlog_broker.storage.recovery.loader import LoadedLog, SegmentFactory
from warmlog_broker.storage.recovery.recovery import UncheckedRange
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_broker.storage.segment.scan import Damage
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS, DelayedDeletions, segment_file_name
from warmlog_broker.storage.segment.segment_swap import DELETED_SUFFIX, Replacement
from warmlog_broker.storage.segment.segments import LogOffsetMetadata
from warmlog_protocol.batch import ControlType, EndTxnMarker
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.errors import FencedLeaderEpoch, OffsetOutOfRange, StorageError

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # a third of the time that a NamedTuple takes, at each flush


ReadBound = Literal["log_end", "high_watermark", "committed"]


class LogBounds:
    """What of a log may be read, and what of it is durable. All but the log start are exclusive ends::

        log start offset <= high watermark <= log end offset
        log start offset <= last stable offset <= high watermark
        log start offset <= recovery point <= log end offset      (with write.caching the log start may be ahead of it)

    The high watermark and the flushed offset, which is the recovery point, never go back while nothing is truncated.
    Both are kept with their position in the files, which bounds a read without a search.
    """

    def __init__(self, local: "LocalLog", log_start_offset: int, high_watermark: int) -> None:
        """All that the log holds is durable. `high_watermark` is as it was stored."""
        self._local = local
        self.log_start_offset = log_start_offset
        """The first offset that may be read."""
        self.flushed = local.end
        """All below it is on disk."""
        self.high_watermark = LogOffsetMetadata(max(log_start_offset, min(high_watermark, local.log_end_offset)))
        """Consumers may read below it. See `located_high_watermark` for its position."""

    @property
    def located_high_watermark(self) -> LogOffsetMetadata:
        """The high watermark with its position; message-only if that cannot be found."""
        if self.high_watermark.is_message_only:
            self.high_watermark = self._local.locate(self.high_watermark.offset)
        return self.high_watermark

    @property
    def lasting_offset(self) -> int:
        """Below it the log is committed and flushed: the two differ with write.caching."""
        return min(self.high_watermark.offset, self.flushed.offset)

    @property
    def last_stable_offset(self) -> int:
        """The end (exclusive) of what a read_committed reader may read.

        Each transaction that began below it has ended with a marker below the high watermark. Raising the log start
        raises it too.
        """
        unstable = self._local.producers.transactions.first_unstable_offset(self.high_watermark.offset)
        if unstable is None:
            return self.high_watermark.offset
        return min(self.high_watermark.offset, max(unstable, self.log_start_offset))

    @property
    def last_stable(self) -> LogOffsetMetadata:
        offset = self.last_stable_offset
        return self.located_high_watermark if offset == self.high_watermark.offset else self._local.locate(offset)

    def end_of(self, bound: ReadBound) -> LogOffsetMetadata:
        if bound == "high_watermark":
            return self.located_high_watermark
        return self._local.end if bound == "log_end" else self.last_stable

    def raise_high_watermark(self, offset: int) -> int:
        """Raises the high watermark to `offset`, at most to the log end offset, and returns what it is then.

        It never goes back: a lower offset changes nothing.
        """
        if offset > self.high_watermark.offset:
            if offset == self.flushed.offset:
                self.high_watermark = self.flushed
            elif offset >= self._local.log_end_offset:
                self.high_watermark = self._local.end
            else:
                self.high_watermark = LogOffsetMetadata(offset)
        return self.high_watermark.offset

    def raise_log_start(self, offset: int) -> bool:
        """Remove the records below `offset`; False if they are gone already. Retention removes their files.

        OffsetOutOfRange above the high watermark.
        """
        if offset > self.high_watermark.offset:
            raise OffsetOutOfRange(
                f"{self._local.key.directory_name}: {offset} is above the high watermark {self.high_watermark.offset}"
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self._local.epochs.truncate_from_start(offset)
        return True

    def copied_up_to(self, end_offset: int) -> None:
        """Note that a copy which was taken over is on disk up to `end_offset`."""
        if end_offset > self.flushed.offset:
            self.flushed = LogOffsetMetadata(end_offset)

    def truncated(self) -> None:
        """The log ends earlier than it did: lower what is above its end."""
        end = self._local.end
        if self.high_watermark.offset >= end.offset:
            self.high_watermark = end
        if self.flushed.offset >= end.offset:
            self.flushed = end
        self.log_start_offset = min(self.log_start_offset, end.offset)

    def emptied(self, log_start_offset: int) -> None:
        """The log is empty: everything is at its end, except a log start that batches to come will reach."""
        self.high_watermark = self.flushed = self._local.end
        self.log_start_offset = log_start_offset

    def rolled(self) -> None:
        """A new segment has begun: a high watermark at the log end offset is in that one."""
        if self.high_watermark.offset >= self._local.log_end_offset:
            self.high_watermark = self._local.end

    def forget_positions(self, base_offsets: Collection[int]) -> None:
        """Segments were replaced: offsets that were found in one of them must be found again."""
        if self.high_watermark.segment_base_offset in base_offsets:
            self.high_watermark = LogOffsetMetadata(self.high_watermark.offset)
        if self.flushed.segment_base_offset in base_offsets:
            self.flushed = LogOffsetMetadata(self.flushed.offset)


class LocalLog:
    """The files of one log. `active` is always the last of `segments`."""

    def __init__(self, key: TopicPartition, factory: SegmentFactory, loaded: LoadedLog) -> None:
        self.key = key
        self.directory = factory.directory
        self.factory = factory
        self.segments = loaded.segments
        self.active = loaded.segments.active
        self.log_end_offset = loaded.log_end_offset
        """The offset that the next record gets."""
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.snapshots = loaded.snapshots
        # Recovery changes the files of segments, and leaves it to the first flush to sync them.
        self.unsynced = Unsynced(() if loaded.report.was_clean else list(self.segments)[:-1])
        if loaded.is_new_directory:
            self.unsynced.add_directory(self.directory.parent)
        if loaded.has_other_files:
            self.unsynced.add_directory(self.directory)
        self.damage = tuple(loaded.report.damage)
        """Damage below the recovery point: reads there are refused."""
        self.unchecked = loaded.unchecked
        """What recovery has left to a check in the background; see `note_checked`."""
        self.gaps = loaded.gaps
        self.truncations = 0
        """How often the log was cut: a flush plan from before a cut says nothing about the log after it."""
        self.failure = ""
        """Why the log is offline, or closed, or deleted; empty while it is not."""
        self.may_have_gaps = loaded.gaps.everywhere or loaded.first_dirty_offset > 0 or factory.config.is_compacted
        """Whether a batch that the log does not hold may have been compacted away."""
        self.replacement: Replacement | None = None
        """One that is under way; see `finish_replacement`."""
        self.on_failed: Callable[[], None] = lambda: None
        """Called when `failure` is set for an error."""
        self.on_retired: Callable[[LocalLog], None] = lambda _: None
        """Called when files begin to wait to be unlinked: see `take_due_deletions`."""
        self._deletions = DelayedDeletions()
        self.bounds = LogBounds(self, loaded.log_start_offset, loaded.high_watermark)

    def take_over(self, original: "LocalLog") -> None:
        """Take over what is known of the files of `original`, of which these are copies, not on disk yet."""
        self.damage = _found_in(self.directory, original.damage)
        self.may_have_gaps = original.may_have_gaps
        self.on_retired = original.on_retired
        self.bounds.flushed = LogOffsetMetadata(original.bounds.flushed.offset)
        self.bounds.raise_high_watermark(original.bounds.high_watermark.offset)

    @property
    def config(self) -> LogConfig:
        """The topic's settings as they are now."""
        return self.factory.config

    @property
    def end(self) -> LogOffsetMetadata:
        active = self.active
        return _new_tuple(LogOffsetMetadata, (self.log_end_offset, active.base_offset, active.records.size_bytes))

    def locate(self, offset: int) -> LogOffsetMetadata:
        """`offset` with the position of the batch that holds it; message-only if that cannot be found."""
        return self.end if offset == self.log_end_offset else self.segments.locate(offset)

    def load_transaction_index(self, segment: LogSegment) -> None:
        """Verify or rebuild a segment's transaction index, which must be done before its use. OSError from the disk."""
        verify_transaction_index(segment, self.segments, self.snapshots, damage=self.damage)

    # Failing

    def check_online(self) -> None:
        """Raise StorageError if the log has failed or was closed."""
        if self.failure:
            raise StorageError(f"{self.key.directory_name} is offline: {self.failure}")

    def fail(self, reason: str) -> None:
        """See `Log.fail`."""
        if not self.failure:
            self.failure = reason
            logger.error("%s is offline until a restart has checked it: %s", self.key.directory_name, reason)
            self.segments.close_handles()
            if self.replacement is not None:
                self.replacement.close_handles()
            self.on_failed()

    def write_error(self, what: str, error: OSError, *, is_fatal: bool = False) -> StorageError:
        """The error to raise for `error`. The log goes offline unless the disk is merely full or read-only."""
        reason = f"{what} failed in {self.directory}: {error}"
        if is_fatal or not (is_resource_exhaustion(error) or is_read_only(error)):
            self.fail(reason)
            return StorageError(reason)
        return storage_error(reason, error)

    def note_checked(self, checked: UncheckedRange, damage: Sequence[Damage]) -> bool:
        """Note the damage that the check of `checked` has found; return False if that has changed since."""
        segment = self.segments.get(checked.base_offset)
        is_current = self.unchecked is checked and segment is not None and segment.size_bytes >= checked.end_position
        self.unchecked = None
        if not is_current:
            return False
        known = {(each.path, each.position) for each in self.damage}
        self.damage += tuple(each for each in damage if (each.path, each.position) not in known)
        return True

    # Writing

    def write(
        self,
        header: BatchHeader,
        prefix: bytes,
        covered: bytes | memoryview,
        first_offset: int,
        leader_epoch: int,
        now_ms: int,
    ) -> LogSegment:
        """Write a batch, `prefix` and `covered`, at `first_offset`, and move the log end past it; return its segment.

        Raises FencedLeaderEpoch for an epoch older than the log's newest, or StorageError; the log is then as it was
        before, unless the disk has failed. Not durable on return.
        """
        if leader_epoch < self.epochs.latest_epoch:
            raise FencedLeaderEpoch(
                f"{self.key.directory_name}: {leader_epoch} is older than {self.epochs.latest_epoch}"
            )
        last_offset = first_offset + header.last_offset_delta
        max_timestamp_ms = header.max_timestamp_ms
        size_bytes = len(prefix) + len(covered)
        segment = self.active
        try:
            if segment.must_roll(last_offset, max_timestamp_ms, size_bytes, self.factory.config, now_ms):
                segment = self.roll(now_ms, first_offset)
            segment.append(last_offset, max_timestamp_ms, prefix, covered)
        except OSError as error:
            raise self.write_error("append", error) from error
        except MemoryError as error:  # before or after the write, which is unknown
            raise self._take_back(first_offset, self.log_end_offset, out_of_memory(), now_ms) from error
        self.log_end_offset = last_offset + 1
        if leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(leader_epoch, first_offset)
        return segment

    def write_ahead(self, headers: Sequence[BatchHeader], pieces: Sequence[bytes | memoryview]) -> FileRecords | None:
        """Write batches that `write` is called for next, in one call, if they fit into the active segment.

        Returns the file, of which `FileRecords.end_ahead` is called then.
        """
        segment, size_bytes = self.active, sum(map(len, pieces))
        max_timestamp_ms = max(header.max_timestamp_ms for header in headers)
        try:
            if segment.must_roll(headers[-1].last_offset, max_timestamp_ms, size_bytes, self.factory.config, 0):
                return None
            segment.records.write_ahead(pieces)
        except OSError:
            return None  # `write` finds the same, and says so
        return segment.records

    def write_marker(
        self,
        header: BatchHeader,
        marker: EndTxnMarker,
        prefix: bytes,
        covered: bytes | memoryview,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """As `write`, for a marker, whose header has its final offset: it ends its producer's transaction.

        An abort gets its entry in the transaction index. If that cannot be written, the marker is taken back: without
        it, aborted records would be read as committed (KAFKA-7866).
        """
        if marker.control_type is ControlType.ABORT:
            try:
                self.load_transaction_index(self.active)
            except OSError as error:
                raise self.write_error("append", error) from error
        end_offset = self.log_end_offset
        segment = self.write(header, prefix, covered, header.base_offset, leader_epoch, now_ms)
        try:
            aborted = self.producers.aborted_by(header, marker.control_type)
            if aborted is not None:
                segment.add_aborted(aborted)
        except (OSError, MemoryError) as error:
            reason = error if isinstance(error, OSError) else out_of_memory()
            raise self._take_back(header.base_offset, end_offset, reason, now_ms) from error
        try:
            self.producers.end_transaction(header, marker, now_ms)
        except MemoryError as error:
            raise self.cannot_remember() from error

    def cannot_remember(self) -> StorageError:
        """Take the log offline as its producers' state lacks a batch, which would be appended again if repeated."""
        return self.write_error("append", out_of_memory(), is_fatal=True)

    def _take_back(self, first_offset: int, end_offset: int, error: OSError, now_ms: int) -> StorageError:
        """Return the error to raise if the last batch, at `first_offset`, cannot stay; the log ends at `end_offset`.

        If only space or memory ran out, the batch is cut off. Otherwise, or if it cannot be cut, the log goes offline.
        """
        if is_resource_exhaustion(error):
            try:
                self.active.truncate_to(first_offset, now_ms)
            except OSError as second_error:
                error = second_error
            except MemoryError:
                error = out_of_memory()
            else:
                self.log_end_offset = max(end_offset, self.active.base_offset)
                self.epochs.truncate_from_end(first_offset)
                return self.write_error("append", error)
        return self.write_error("append", error, is_fatal=True)

    # Rolling

    def roll_if_overdue(self, now_ms: int) -> bool:
        """Roll an active segment that has data and has been active for longer than `segment.ms` by the clock."""
        if not self.active.is_overdue(self.config.roll_ms, now_ms):
            return False
        self.roll(now_ms)
        return True

    def roll(self, now_ms: int, expected_next_offset: int = 0) -> LogSegment:
        """Close the active segment and begin a new one, whose base offset is the log end offset or the expected one.

        An empty active segment with that base offset is replaced. The next flush makes the old segment's indexes and
        its producer snapshot durable. StorageError from the disk; a full disk leaves the old segment active.
        """
        self.check_online()
        base_offset = max(self.log_end_offset, expected_next_offset)
        old = self.active
        if base_offset < old.base_offset or (base_offset == old.base_offset and old.size_bytes):
            raise StorageError(f"{self.directory}: no segment can begin at {base_offset}, {old!r} is active")
        is_replaced = base_offset == old.base_offset
        try:
            if is_replaced:
                self.retire(old, keeps_snapshot=True)
            else:
                self.take_snapshot(base_offset)
                old.on_become_inactive()
                for kind in KINDS:  # an attempt to roll may have left them
                    (self.directory / segment_file_name(base_offset, kind)).unlink(missing_ok=True)
            new = self.factory.open(base_offset, now_ms)
        except OSError as error:
            raise self.write_error("roll", error, is_fatal=is_replaced) from error
        if not is_replaced:
            self.unsynced.add_segment(old)
        self.active = new
        self.segments.add(new)
        self.log_end_offset = base_offset
        self.bounds.rolled()
        return new

    def take_snapshot(self, offset: int) -> None:
        """Write the producer state at the log end; no batch is between that and `offset`. The next flush syncs it."""
        self.producers.end_offset = offset
        path = self.snapshots.take(self.producers)
        self.unsynced.add_directory(self.directory)
        self.unsynced.add_snapshot(path)

    # Removing and replacing segments

    def drop_segments(self, segments: Iterable[LogSegment], reason: str) -> None:
        """Take `segments`, none of them the active one, out of the log; StorageError from the disk."""
        self.finish_replacement()
        try:
            for segment in segments:
                self.segments.remove(segment.base_offset)
                self.retire(segment)
        except OSError as error:
            raise self.write_error(reason, error) from error

    def begin_replacement(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> Replacement:
        """Begin to replace `old`, closed segments, by `new`, flushed `.cleaned` ones; see `segment_swap`."""
        self.check_online()
        self.finish_replacement()
        if self.active in old:
            raise ValueError(f"{self.active} is appended to and cannot be replaced")

        def retire(segment: LogSegment, keeps_snapshot: bool) -> None:
            # No old file may be unlinked before the new names are durable, however short the delay is.
            self._deletions.add(partial(sync_directory_if_there, self.directory))
            self.retire(segment, keeps_snapshot=keeps_snapshot)

        try:
            self.replacement = Replacement(self.segments, new, old, directory=self.directory, retire=retire)
        except OSError as error:
            raise self.write_error("a replacement", error) from error
        return self.replacement

    def advance(self, replacement: Replacement) -> bool:
        """Take the next step of `replacement`; True once all are taken. StorageError from the disk."""
        self.check_online()
        try:
            is_done = replacement.advance()
        except OSError as error:
            raise self.write_error("a replacement", error, is_fatal=True) from error
        self.unsynced.add_directory(self.directory)
        self.bounds.forget_positions(replacement.old_base_offsets)
        if is_done and self.replacement is replacement:
            self.replacement = None
        return is_done

    def finish_replacement(self) -> None:
        """Complete a replacement that is under way, before the segments are changed in another way."""
        replacement = self.replacement
        while replacement is not None and self.replacement is replacement:
            try:
                replacement.sync()
            except SyncNotBegun as error:  # the next call continues from here
                raise self.write_error("a replacement", error) from error
            except OSError as error:
                raise self.write_error("a replacement", error, is_fatal=True) from error
            self.advance(replacement)

    def retire(self, segment: LogSegment, *, keeps_snapshot: bool = False) -> None:
        """Rename a segment's files and producer snapshot, to be unlinked after `file.delete.delay.ms`.

        They are unlinked now if the disk is too full for another name.
        """
        self.unsynced.forget_segment(segment)
        try:
            segment.change_suffix("", DELETED_SUFFIX)
            snapshot = None
            if not keeps_snapshot:
                snapshot = self.snapshots.mark_deleted(segment.base_offset, DELETED_SUFFIX)
        except OSError as error:
            if not is_resource_exhaustion(error):
                raise
            segment.delete()
            if not keeps_snapshot:
                self.snapshots.remove(segment.base_offset)
            return
        self._deletions.add(segment.delete)
        self.on_retired(self)
        if snapshot is not None:
            self._deletions.add(partial(snapshot.unlink, missing_ok=True))

    def take_due_deletions(self, elapsed_ms: int) -> list[Callable[[], None]]:
        """The unlinking that is due, for `run_deletions` in any thread.

        `elapsed_ms` is a clock that never goes back. `file.delete.delay.ms` is counted from the first call after the
        files were renamed, so call it regularly while `has_deletions`.
        """
        return self._deletions.take_due(elapsed_ms, self.factory.config.file_delete_delay_ms)

    @property
    def has_deletions(self) -> bool:
        """Whether files wait to be unlinked."""
        return len(self._deletions) > 0

    # The end

    def leave(self, reason: str, *, sync: bool) -> Path:
        """Close all files and rename the directory, so that no start finds it; return the new path.

        With `sync` the new name is durable on return. `reason` is why the log is offline after that. OSError from the
        disk.
        """
        self.segments.close_handles()
        if self.replacement is not None:
            self.replacement.close_handles()
        self.failure = reason
        target = self.directory.with_name(marked_directory_name(self.key, "delete"))
        self.directory.rename(target)
        if sync:
            sync_directory(target.parent)
        return target

    def rename_directory(self, directory: Path) -> None:
        """Rename the directory within its parent; making that durable is left to the caller. OSError from the disk.

        Other threads may only be reading and syncing files that are open.
        """
        self.directory.rename(directory)
        self.directory = self.snapshots.directory = directory
        self.factory = replace(self.factory, directory=directory)
        self.segments.update_directory(directory)
        self.damage = _found_in(directory, self.damage)
        self.unsynced.add_directory(directory.parent)


def _found_in(directory: Path, damage: Iterable[Damage]) -> tuple[Damage, ...]:
    """`damage` of files of the same names in `directory`."""
    return tuple(replace(each, path=directory / each.path.name) for each in damage)
