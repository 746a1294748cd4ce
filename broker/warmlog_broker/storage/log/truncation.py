"""Cutting a log back to an offset, or emptying it to begin at another, as a follower does that was ahead.

The order of steps, so that a crash at any moment leaves a log that opens as it was before, or as it is after:

1. Find the place to cut. A damaged log is refused here, and nothing has happened.
2. Write the file `truncation` (`partition_files`), durably: from here on the log counts as truncated.
3. Take whole segments out, the newest first (renamed, unlinked later), then cut the one that holds the offset: its
   indexes before its log, so that no entry ever points past the end.
4. Lower everything in memory: the end, the high watermark, the flushed offset, the log start; leader epochs that began
   later are forgotten, producer snapshots of later offsets removed, producers read again. A flush that was under way
   moves nothing when it is done: its plan is from before.
5. Sync, and note in the file that the work is done. Only then the caller is told.
6. Once checkpoints with the lower offsets are on disk the file is removed (`checkpointed`).

A disk that refuses in steps 3 to 5 takes the log offline; the next start finishes.

Batches are removed as a whole: the log ends after the last one that stays, or where its last segment begins. If the
offset is within a batch, the log ends before that batch (Kafka lets it end at the offset, and leaves a hole), and a
follower fetches the whole batch again.

Readers: slices of a segment that was taken out stay readable. A slice that reaches past the cut of a file raises
DamagedLog when it is read, also after other batches have been appended there, or its connection is closed.
"""

import logging

from msgspec.structs import replace

from warmlog_broker.storage.directory.data_dir import LogOffsets
from warmlog_broker.storage.directory.partition_files import (
    Truncation,
    remove_restart_point,
    remove_truncation,
    write_truncation,
)
from warmlog_broker.storage.log.compaction import LogCompaction
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.producer.replay import restore_producers

logger = logging.getLogger(__name__)


class LogTruncation:
    """Truncates one log. `pending` is a truncation that the checkpoints do not know yet."""

    __slots__ = ("_bounds", "_compaction", "_epochs", "_local", "pending")

    def __init__(self, local: LocalLog, compaction: LogCompaction, pending: Truncation | None) -> None:
        self._local = local
        self._bounds = local.bounds
        self._compaction = compaction
        self._epochs = local.epochs
        self.pending = pending

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Drop everything from the batch that holds `offset` on; False, and no change, if the log ends before it.

        Durable on return. The log start and the high watermark go back with the end if they must. Below the first
        segment the log is emptied and begins at `offset`. CorruptBatch if damage hides the position, and nothing has
        changed; StorageError from the disk, and the log is offline.
        """
        local = self._local
        self._compaction.truncated(offset)
        local.check_online()
        if offset < 0:
            raise ValueError(f"{local.directory}: cannot truncate to offset {offset}")
        if offset >= local.log_end_offset:
            self._epochs.truncate_from_end(local.log_end_offset)
            return False
        segment = local.segments.floor(offset)
        if segment is None:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        end_offset = segment.lookup.end_before(offset)
        self._begin(Truncation(end_offset, min(end_offset, self._bounds.log_start_offset)))
        try:
            for later in reversed(local.segments.higher_segments(segment.base_offset)):
                local.segments.remove(later.base_offset)
                local.retire(later)
            local.unsynced.forget_segment(segment)
            segment.truncate_to(end_offset, now_ms)
            self._lower_to(end_offset, now_ms)
            self._finish()
        except OSError as error:
            raise local.write_error("truncation", error, is_fatal=True) from error
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int, log_start_offset: int | None = None) -> None:
        """Drop everything, epochs and producers too; the next batch gets `offset`, or a later one. Durable on return.

        `log_start_offset`, if given, is where the log may be read from once it holds that: within the batch to come.
        """
        local = self._local
        self._compaction.truncated(offset)
        local.check_online()
        log_start_offset = offset if log_start_offset is None else log_start_offset
        if not 0 <= offset <= log_start_offset:
            raise ValueError(f"{local.directory}: a log cannot begin at {offset} and be read from {log_start_offset}")
        self._begin(Truncation(offset, log_start_offset, is_full=True))
        try:
            for segment in reversed(list(local.segments)):
                local.segments.remove(segment.base_offset)
                local.retire(segment)
            local.segments.add(local.factory.open(offset, now_ms))
            self._epochs.clear()
            for snapshot in local.snapshots.offsets:
                local.snapshots.remove(snapshot)
            self._lower_to(offset, now_ms)
            self._bounds.emptied(log_start_offset)
            self._finish()
        except OSError as error:
            raise local.write_error("truncation", error, is_fatal=True) from error

    def checkpointed(self, offsets: LogOffsets) -> None:
        """Note that the data directory's checkpoints hold `offsets`, durably. OSError from the disk.

        Offsets that were read before a truncation do not count.
        """
        pending, bounds = self.pending, self._bounds
        if pending is None or not pending.is_done or offsets.recovery_point > bounds.flushed.offset:
            return
        if bounds.log_start_offset > self._local.log_end_offset:
            return  # without the file, the next start would assume that the log has lost its end
        remove_restart_point(self._local.directory)  # a flush from before the truncation may have written it
        remove_truncation(self._local.directory)
        self.pending = None

    def finished(self) -> None:
        """Note, durably, that the work of a truncation is done: now, or at a start after a crash."""
        if self.pending is not None and not self.pending.is_done:
            done = self.pending._replace(is_done=True)
            write_truncation(self._local.directory, done)
            self.pending = done

    def _begin(self, truncation: Truncation) -> None:
        """Write down the truncation: from here on a crash finishes it."""
        local = self._local
        logger.info("%s: truncation to %d (end %d)", local.key.directory_name, truncation.offset, local.log_end_offset)
        try:
            write_truncation(local.directory, truncation)
            remove_restart_point(local.directory)
        except OSError as error:
            raise local.write_error("truncation", error) from error
        self.pending = truncation
        local.unchecked = None

    def _lower_to(self, end_offset: int, now_ms: int) -> None:
        """Lower what is known of the log to `end_offset`, where its files end now."""
        local = self._local
        local.active = local.segments.active
        local.log_end_offset = end_offset
        local.truncations += 1
        local.damage = tuple(
            replace(damage, next_offset=min(damage.next_offset, end_offset))
            for damage in local.damage
            if damage.first_offset < end_offset
        )
        self._bounds.truncated()
        self._epochs.truncate_from_end(end_offset)
        restore_producers(
            local.producers, local.snapshots, local.segments, end_offset, damage=local.damage, now_ms=now_ms
        )

    def _finish(self) -> None:
        local = self._local
        local.unsynced.add_directory(local.directory)
        plan = local.unsynced.plan(local.directory, local.active, self._epochs.take_changes(), local.end)
        assert plan is not None
        plan.run()
        local.unsynced.mark_synced(plan)
        self._epochs.has_unwritten_changes = True  # a flush that is under way may write the old ones after this
        self._bounds.flushed = local.end
        self.finished()
