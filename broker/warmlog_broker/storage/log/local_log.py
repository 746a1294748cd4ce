"""The segments of one log in one directory, and the disk under them: rolling, removing segments, failing.

This knows files: which segments there are, where the log ends, what is not synced, which files wait to be unlinked.
`LogBounds` knows what of it may be read, `LogAppender` what clients may append.

A failed write or flush ends the log: `fail` notes the first reason, and everything after raises StorageError until a
restart has checked what the disk holds. A disk that is merely full is no such failure.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition, deleted_directory_name
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
from warmlog_broker.storage.record.scan import Damage
from warmlog_broker.storage.recovery.loader import LoadedLog, SegmentFactory
from warmlog_broker.storage.recovery.recovery import UncheckedRange
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS, DelayedDeletions, segment_file_name
from warmlog_broker.storage.segment.segment_swap import DELETED_SUFFIX, Replacement
from warmlog_broker.storage.segment.segments import LogOffsetMetadata
from warmlog_protocol.batch import ControlType, EndTxnMarker
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.errors import FencedLeaderEpoch, StorageError

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # a third of the time that a NamedTuple takes, at each flush


class LocalLog:
    """The files of one log. `active` is always the last of `segments`."""

    __slots__ = (
        "_deletions",
        "active",
        "damage",
        "directory",
        "epochs",
        "factory",
        "failure",
        "has_gaps",
        "key",
        "log_end_offset",
        "may_have_gaps",
        "on_failed",
        "on_replaced",
        "on_rolled",
        "producers",
        "replacement",
        "segments",
        "snapshots",
        "truncations",
        "unchecked",
        "unsynced",
    )

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
        self.unsynced = Unsynced(loaded.unsynced_segments)
        if loaded.is_new_directory:
            self.unsynced.add_directory(self.directory.parent)
        self.damage = tuple(loaded.report.damage)
        """Damage below the recovery point: reads there are refused."""
        self.unchecked = loaded.unchecked
        """What recovery has left to a check in the background; see `note_checked`."""
        self.has_gaps = loaded.has_gaps
        """Whether batches need not follow one another: see `partition_files`."""
        self.truncations = 0
        """How often the log was cut: a flush plan from before a cut says nothing about the log after it."""
        self.failure = ""
        """Why the log is offline, or closed, or deleted; empty while it is not."""
        self.may_have_gaps = loaded.has_gaps or loaded.first_dirty_offset > 0 or factory.config.is_compacted
        """Whether a batch that the log does not hold may have been compacted away."""
        self.replacement: Replacement | None = None
        """One that is under way; see `finish_replacement`."""
        self.on_rolled: Callable[[], None] = lambda: None
        self.on_replaced: Callable[[Collection[int]], None] = lambda _: None
        """Called with the base offsets of segments that were replaced."""
        self.on_failed: Callable[[], None] = lambda: None
        """Called when `failure` is set for an error."""
        self._deletions = DelayedDeletions()

    def take_over(self, original: "LocalLog") -> None:
        """Take over what is known of the files of `original`, of which these are copies."""
        self.damage = _found_in(self.directory, original.damage)
        self.may_have_gaps = original.may_have_gaps

    @property
    def config(self) -> LogConfig:
        """The topic's settings as they are now."""
        return self.factory.config

    @property
    def end(self) -> LogOffsetMetadata:
        """The log end offset and its position."""
        active = self.active
        return _new_tuple(LogOffsetMetadata, (self.log_end_offset, active.base_offset, active.records.size_bytes))

    def locate(self, offset: int) -> LogOffsetMetadata:
        """`offset` with the position of the batch that holds it; message-only if that cannot be found."""
        return self.end if offset == self.log_end_offset else self.segments.locate(offset)

    def load_transaction_index(self, segment: LogSegment, now_ms: int = 0) -> None:
        """Verify or rebuild a segment's transaction index, which must be done before its use. OSError from the disk."""
        if not segment.transactions.is_verified:
            verify_transaction_index(segment, self.segments, self.snapshots, damage=self.damage, now_ms=now_ms)

    # Failing

    def check_online(self) -> None:
        """Raise StorageError if the log has failed or was closed."""
        if self.failure:
            raise self.offline()

    def offline(self) -> StorageError:
        """The error that says why the log is offline."""
        return StorageError(f"{self.key.directory_name} is offline: {self.failure}")

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
        segment, config = self.active, self.factory.config
        if segment.must_roll(
            last_offset,
            max_timestamp_ms,
            size_bytes,
            segment_bytes=config.segment_bytes,
            segment_ms=config.roll_ms,
            now_ms=now_ms,
        ):
            segment = self.roll(now_ms, first_offset)
        try:
            segment.append(last_offset, max_timestamp_ms, last_offset, prefix, covered)
        except OSError as error:
            raise self.write_error("append", error) from error
        except MemoryError as error:  # before or after the write, which is unknown
            raise self._take_back(first_offset, self.log_end_offset, out_of_memory(), now_ms) from error
        self.log_end_offset = last_offset + 1
        if leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(leader_epoch, first_offset)
        return segment

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
                self.load_transaction_index(self.active, now_ms)
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
                self.retire(old)
            else:
                self.take_snapshot(sync=False, offset=base_offset)
                old.on_become_inactive()
                self._remove_leftovers(base_offset)
            new = self.factory.open(base_offset, now_ms)
        except OSError as error:
            raise self.write_error("roll", error, is_fatal=is_replaced) from error
        if not is_replaced:
            self.unsynced.add_segment(old)
        self.active = new
        self.segments.add(new)
        self.log_end_offset = base_offset
        self.on_rolled()
        return new

    def take_snapshot(self, *, sync: bool, offset: int | None = None) -> None:
        """Write the producer state at the log end, or at `offset`, if no batches are between the two.

        Without `sync` the next flush makes it durable.
        """
        self.producers.end_offset = self.log_end_offset if offset is None else offset
        path = self.snapshots.take(self.producers, sync=sync)
        self.unsynced.add_directory(self.directory)
        if not sync:
            self.unsynced.add_snapshot(path)

    def _remove_leftovers(self, base_offset: int) -> None:
        """Unlink files of a segment that begins at `base_offset`, which an attempt to roll may have left."""
        for kind in KINDS:
            path = self.directory / segment_file_name(base_offset, kind)
            if path.exists():
                logger.warning("%s is left over and removed", path)
                path.unlink()

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
        self.on_replaced(replacement.old_base_offsets)
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
        target = self.directory.with_name(deleted_directory_name(self.key))
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
