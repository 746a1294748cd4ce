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

Steps 2 and 5 wait for the disk, four syncs, and touch files only: `Cut.write_down` and `Cut.sync` may run in any
thread, in between `begin`, `carry_out` and `end`, as long as nothing is appended.

Batches are removed as a whole: the log ends after the last one that stays, or where its last segment begins. If the
offset is within a batch, the log ends before that batch (Kafka lets it end at the offset, and leaves a hole), and a
follower fetches the whole batch again.

Readers: slices of a segment that was taken out stay readable. A slice that reaches past the cut of a file raises
DamagedLog when it is read, also after other batches have been appended there, or its connection is closed.
"""

import logging
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from warmlog_broker.storage.directory.data_dir import LogOffsets
from warmlog_broker.storage.directory.partition_files import (
    Truncation,
    remove_restart_point,
    remove_truncation,
    write_removed_below,
    write_truncation,
)
from warmlog_broker.storage.log.compaction import LogCompaction
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.producer.replay import restore_producers
from warmlog_broker.storage.segment.segment import LogSegment

logger = logging.getLogger(__name__)


class Cut(Struct):
    """One truncation under way."""

    directory: Path
    truncation: Truncation
    segment: LogSegment | None
    """What is to be cut; None if everything goes."""
    removed_below: int = 0
    """What the log that is to fill this one has removed below; 0 if that is known already."""
    plan: FlushPlan | None = None

    def write_down(self) -> None:
        """In any thread: write down, durably, what is to be cut: from here on a crash finishes it. OSError."""
        if self.removed_below:
            write_removed_below(self.directory, self.removed_below)
        write_truncation(self.directory, self.truncation)
        remove_restart_point(self.directory)

    def sync(self) -> None:
        """In any thread: make what was cut durable, and note that it is done. OSError."""
        assert self.plan is not None
        self.plan.run()
        self.truncation = self.truncation._replace(is_done=True)
        write_truncation(self.directory, self.truncation)


class LogTruncation:
    """Truncates one log. `pending` is a truncation that the checkpoints do not know yet."""

    def __init__(self, local: LocalLog, compaction: LogCompaction, pending: Truncation | None) -> None:
        self._local = local
        self._bounds = local.bounds
        self._compaction = compaction
        self._epochs = local.epochs
        self.pending = pending

    def begin(self, offset: int) -> Cut | None:
        """Return what is to be cut: all that follows the last batch before `offset`; None if the log ends before it.

        The log start and the high watermark go back with the end if they must. Below the first segment the log is
        emptied and begins at `offset`. CorruptBatch if damage hides the position, and nothing has changed.
        """
        local = self._local
        self._compaction.truncated(offset)
        local.check_online()
        if offset < 0:
            raise ValueError(f"{local.directory}: cannot truncate to offset {offset}")
        if offset >= local.log_end_offset:
            self._epochs.truncate_from_end(local.log_end_offset)
            return None
        segment = local.segments.floor(offset)
        if segment is None:
            return self.begin_fully(offset)
        while (last := segment.lookup.last_before(offset)) is None:  # the segment before may end with a gap
            lower = local.segments.lower(segment.base_offset)
            if lower is None:
                break
            segment = lower
        end_offset = segment.base_offset if last is None else last.next_offset
        truncation = Truncation(end_offset, min(end_offset, self._bounds.log_start_offset))
        return Cut(local.directory, truncation, local.segments.floor(end_offset))

    def begin_fully(self, offset: int, log_start_offset: int | None = None, removed_below: int = 0) -> Cut:
        """As `begin`, for everything, epochs and producers too: the next batch gets `offset`, or a later one.

        `log_start_offset`, if given, is where the log may be read from once it holds that: within the batch to come.
        The log is then filled by one that has `removed_below` that.
        """
        local = self._local
        self._compaction.truncated(offset)
        local.check_online()
        log_start_offset = offset if log_start_offset is None else log_start_offset
        if not 0 <= offset <= log_start_offset:
            raise ValueError(f"{local.directory}: a log cannot begin at {offset} and be read from {log_start_offset}")
        news = removed_below if removed_below > self._compaction.copied_removed_below else 0
        return Cut(local.directory, Truncation(offset, log_start_offset, is_full=True), None, news)

    def carry_out(self, cut: Cut, now_ms: int) -> None:
        """Take out what is written down, and lower what is known of the log. OSError."""
        local, (end_offset, log_start_offset, *_) = self._local, cut.truncation
        logger.info("%s: truncation to %d (end %d)", local.key.directory_name, end_offset, local.log_end_offset)
        self.pending, local.unchecked = cut.truncation, None
        self._compaction.copied_removed_below = max(self._compaction.copied_removed_below, cut.removed_below)
        base_offset = -1 if cut.segment is None else cut.segment.base_offset
        for later in reversed(local.segments.higher_segments(base_offset)):
            local.segments.remove(later.base_offset)
            local.retire(later)
        if cut.segment is not None:
            local.unsynced.forget_segment(cut.segment)
            cut.segment.truncate_to(end_offset, now_ms)
        else:
            local.segments.add(local.factory.open(end_offset, now_ms))
            self._epochs.clear()
            for snapshot in local.snapshots.offsets:
                local.snapshots.remove(snapshot)
        self._lower_to(end_offset, now_ms)
        if cut.segment is None:
            self._bounds.emptied(log_start_offset)
        local.unsynced.add_directory(local.directory)
        cut.plan = local.unsynced.plan(local.directory, local.active, self._epochs.take_changes(), local.end)

    def end(self, cut: Cut) -> None:
        """Note that `cut` is durable: only now the caller may be told."""
        assert cut.plan is not None
        self._local.unsynced.mark_synced(cut.plan)
        self._epochs.has_unwritten_changes = True  # a flush that is under way may write the old ones after this
        self._bounds.flushed = cut.plan.end
        self.pending = cut.truncation

    def end_at_start(self, now_ms: int) -> None:
        """Let a log that waits for the batch that holds its start end there, durably: none may come. OSError."""
        if self._local.log_end_offset < self._bounds.log_start_offset:
            cut = self.begin_fully(self._bounds.log_start_offset)
            cut.write_down()
            self.carry_out(cut, now_ms)
            cut.sync()
            self.end(cut)

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
