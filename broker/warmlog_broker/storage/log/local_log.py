"""The segments of one log in one directory, and the disk under them: rolling, giving segments up, failing.

What this knows is files: which segments there are, where the log ends, what is not synced, which files wait to be
unlinked. What of it may be read, whose epochs and sequences it holds, and what clients may append is `Log`'s business.

A failed write or flush ends the log: `fail` notes the first reason, and everything after raises StorageError until a
restart has checked what the disk holds. A disk that is merely full is no such failure.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from warmlog_broker.storage.directory.topic_partition import TopicPartition, deleted_directory_name
from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.io.os_errors import SyncNotBegun, is_read_only, is_shortage, out_of_memory, storage_error
from warmlog_broker.storage.log.flush_plan import Unsynced
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.txn_index_recovery import verify_transaction_index
from warmlog_broker.storage.record.damage import Damage
from warmlog_broker.storage.recovery.loader import LoadedLog, SegmentFactory
from warmlog_broker.storage.segment.delayed_deletion import DueDeletions
from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS, segment_file_name
from warmlog_broker.storage.segment.segment_swap import DELETED_SUFFIX, Replacement
from warmlog_protocol.errors import StorageError

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # a third of the time that a NamedTuple takes, at each flush


class LocalLog:
    """The files of one log. `active` is always the last of `segments`, and `log_end_offset` where it ends."""

    __slots__ = (
        "_deletions",
        "active",
        "damage",
        "directory",
        "factory",
        "failure",
        "has_gaps",
        "key",
        "log_end_offset",
        "may_have_gaps",
        "on_failed",
        "on_replaced",
        "replacement",
        "segments",
        "snapshots",
        "truncations",
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
        self.snapshots = loaded.snapshots
        self.unsynced = Unsynced(loaded.unsynced_segments)
        if loaded.is_new_directory:
            self.unsynced.add_directory(self.directory.parent)
        self.damage = tuple(loaded.report.damage)
        """What was found below the recovery point: reads there are refused."""
        self.has_gaps = loaded.has_gaps
        """Whether batches need not follow one another: see `gaps`."""
        self.truncations = 0
        """How often the log was cut: a flush plan from before a cut says nothing of the log after it."""
        self.failure = ""
        """Why the log is offline, or closed, or deleted; empty while it is not."""
        self.may_have_gaps = loaded.has_gaps or loaded.first_dirty_offset > 0 or factory.config.is_compacted
        """Whether a batch that the log does not hold may have been compacted away."""
        self.replacement: Replacement | None = None
        """New segments that are on their way in; see `settle`."""
        self.on_replaced: Callable[[Collection[int]], None] = _nobody_cares
        """Called with the base offsets of segments in whose place others are now."""
        self.on_failed: Callable[[], None] = lambda: None
        """Called when `failure` is set for an error."""
        self._deletions = DueDeletions()

    def take_over(self, original: "LocalLog") -> None:
        """Take over what is known of the files of `original`, of which these are copies."""
        self.damage = _found_in(self.directory, original.damage)
        self.may_have_gaps = original.may_have_gaps

    @property
    def end(self) -> LogOffsetMetadata:
        """The log end offset and its place."""
        active = self.active
        return _new_tuple(LogOffsetMetadata, (self.log_end_offset, active.base_offset, active.records.size_bytes))

    def locate(self, offset: int) -> LogOffsetMetadata:
        """`offset` with the place of the batch that holds it; message-only when that cannot be found."""
        return self.end if offset == self.log_end_offset else self.segments.locate(offset)

    def settle_transactions(self, segment: LogSegment, now_ms: int = 0) -> None:
        """To be called before the transaction index of a segment is used; OSError when the disk refuses."""
        if not segment.transactions.is_verified:
            verify_transaction_index(segment, self.segments, self.snapshots, damage=self.damage, now_ms=now_ms)

    # Failing

    def check_online(self) -> None:
        """StorageError once the log has failed, or was closed."""
        if self.failure:
            raise self.offline()

    def offline(self) -> StorageError:
        """The error that says why nothing is done any more."""
        return StorageError(f"{self.key.directory_name} is offline: {self.failure}")

    def fail(self, reason: str) -> None:
        """Takes the log offline: everything after raises StorageError with the first reason. Files stay as they are."""
        if not self.failure:
            self.failure = reason
            logger.error("%s is offline until a restart has checked it: %s", self.key.directory_name, reason)
            self.segments.close_handles()
            if self.replacement is not None:
                self.replacement.close_handles()
            self.on_failed()

    def write_error(self, what: str, error: OSError, *, is_fatal: bool = False) -> StorageError:
        """The error to raise when the disk refused. Unless it is merely full or read-only, the log is offline then."""
        reason = f"{what} failed in {self.directory}: {error}"
        if is_fatal or not (is_shortage(error) or is_read_only(error)):
            self.fail(reason)
            return StorageError(reason)
        return storage_error(reason, error)

    def take_back(self, first_offset: int, error: OSError, now_ms: int) -> StorageError:
        """The error to raise when what must go with the last batch, at `first_offset`, could not be written.

        The log end has moved behind that batch, so nothing can be written over it (KAFKA-7866). Where the disk is
        merely full the batch is cut off again, and the log ends as before; otherwise the log is offline.
        """
        if is_shortage(error):
            try:
                self.active.truncate_to(first_offset, now_ms)
            except OSError as second_error:
                error = second_error
            except MemoryError:
                error = out_of_memory()
            else:
                self.log_end_offset = first_offset
                return self.write_error("append", error)
        return self.write_error("append", error, is_fatal=True)

    # Rolling

    def roll(self, now_ms: int, expected_next_offset: int, producers: ProducerStates) -> LogSegment:
        """Closes the active segment and begins a new one, whose base offset is the log end offset or the expected one.

        An empty active segment with that base offset is replaced. The next flush makes the old segment's indexes and
        its producer snapshot durable. StorageError when the disk refuses; a full disk leaves the old segment active.
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
                self.take_snapshot(producers, sync=False, offset=base_offset)
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
        return new

    def take_snapshot(self, producers: ProducerStates, *, sync: bool, offset: int | None = None) -> None:
        """Writes the producer state at the log end, from where there is nothing up to `offset`, if that is given.

        Without `sync` the next flush makes it durable.
        """
        producers.end_offset = self.log_end_offset if offset is None else offset
        path = self.snapshots.take(producers, sync=sync)
        self.unsynced.add_directory(self.directory)
        if not sync:
            self.unsynced.add_snapshot(path)

    def _remove_leftovers(self, base_offset: int) -> None:
        """Unlinks files of a segment that begins at `base_offset`, which an attempt to roll may have left."""
        for kind in KINDS:
            path = self.directory / segment_file_name(base_offset, kind)
            if path.exists():
                logger.warning("%s is left over and removed", path)
                path.unlink()

    # Giving segments up

    def give_up(self, segments: Iterable[LogSegment], reason: str) -> None:
        """Takes `segments`, none of them the active one, out of the log; StorageError when the disk refuses."""
        self.settle()
        try:
            for segment in segments:
                self.segments.remove(segment.base_offset)
                self.retire(segment)
        except OSError as error:
            raise self.write_error(reason, error) from error

    def begin_replacement(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> Replacement:
        """Announces `new`, flushed `.cleaned` segments, in the place of `old`, closed ones; see `replacement`."""
        self.check_online()
        self.settle()
        if self.active in old:
            raise ValueError(f"{self.active} is appended to and cannot be replaced")

        def retire(segment: LogSegment, keeps_snapshot: bool) -> None:
            # Before the new names are durable nothing of the old may be unlinked, however short the delay is.
            self._deletions.add(partial(_sync_if_there, self.directory))
            self.retire(segment, keeps_snapshot=keeps_snapshot)

        try:
            self.replacement = Replacement(self.segments, new, old, directory=self.directory, retire=retire)
        except OSError as error:
            raise self.write_error("a replacement", error) from error
        return self.replacement

    def advance(self, replacement: Replacement) -> bool:
        """Takes the next step of `replacement`; True once all are taken. StorageError when the disk refuses."""
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

    def settle(self) -> None:
        """Completes a replacement that is under way, before the segments are changed in another way."""
        replacement = self.replacement
        while replacement is not None and self.replacement is replacement:
            try:
                replacement.sync()
            except SyncNotBegun as error:  # whoever comes next goes on from here
                raise self.write_error("a replacement", error) from error
            except OSError as error:
                raise self.write_error("a replacement", error, is_fatal=True) from error
            self.advance(replacement)

    def retire(self, segment: LogSegment, *, keeps_snapshot: bool = False) -> None:
        """Renames a segment's files, and its producer snapshot, and has them unlinked after `file.delete.delay.ms`.

        A disk may be too full for another name; then they are unlinked now.
        """
        self.unsynced.forget_segment(segment)
        try:
            segment.change_suffix("", DELETED_SUFFIX)
            snapshot = None
            if not keeps_snapshot:
                snapshot = self.snapshots.mark_deleted(segment.base_offset, DELETED_SUFFIX)
        except OSError as error:
            if not is_shortage(error):
                raise
            segment.delete()
            if not keeps_snapshot:
                self.snapshots.remove(segment.base_offset)
            return
        self._deletions.add(segment.delete)
        if snapshot is not None:
            self._deletions.add(partial(snapshot.unlink, missing_ok=True))

    def take_due_deletions(self, elapsed_ms: int) -> list[Callable[[], None]]:
        """See `Log.take_due_deletions`."""
        return self._deletions.take_due(elapsed_ms, self.factory.config.file_delete_delay_ms)

    @property
    def has_deletions(self) -> bool:
        """Whether files wait to be unlinked."""
        return len(self._deletions) > 0

    # The end

    def delete(self) -> Path:
        """Closes all files and renames the directory, durably, so that it is found no more; returns the new path."""
        return self.leave("deleted", sync=True)

    def leave(self, reason: str, *, sync: bool) -> Path:
        """As `delete`, with another reason, and with `sync` False not durably."""
        self.segments.close_handles()
        if self.replacement is not None:
            self.replacement.close_handles()
        self.failure = reason
        target = self.directory.with_name(deleted_directory_name(self.key))
        self.directory.rename(target)
        if sync:
            sync_directory(target.parent)
        return target

    def moved_to(self, directory: Path) -> None:
        """The directory has been renamed to `directory`."""
        self.directory = self.snapshots.directory = directory
        self.factory = replace(self.factory, directory=directory)
        self.segments.update_directory(directory)
        self.damage = _found_in(directory, self.damage)
        self.unsynced.add_directory(directory.parent)


def _found_in(directory: Path, damage: Iterable[Damage]) -> tuple[Damage, ...]:
    """`damage` of files of the same names in `directory`."""
    return tuple(replace(each, path=directory / each.path.name) for each in damage)


def _nobody_cares(_base_offsets: Collection[int]) -> None:
    pass


def _sync_if_there(directory: Path) -> None:
    """Syncs a directory that may have been renamed or removed meanwhile."""
    try:
        sync_directory(directory)
    except FileNotFoundError:
        if directory.exists():
            raise
