"""Cutting a log back to an offset, or emptying it to begin anew at another: what a follower does that was ahead.

The order of things, so that a crash at any moment leaves a log that opens as it was before, or as it is after:

1. Find the place to cut. A damaged log is refused here, and nothing has happened.
2. Write the file `truncation` (`truncation_file`), durably: from here on the log is a truncated one.
3. Take whole segments out, the newest first (renamed, unlinked later), then cut the one that holds the offset: its
   indexes before its log, so that no entry ever points behind the end.
4. Lower everything in memory: the end, the high watermark, the flushed offset, the log start; leader epochs that began
   later are forgotten, producer snapshots of later offsets removed, producers read again. A flush that was under way
   moves nothing when it comes back: its plan is from before.
5. Sync, and note in the file that the work is done. Only then the caller is told.
6. Once checkpoints with the lower offsets are on disk the file is removed (`checkpointed`).

A disk that refuses in steps 3 to 5 takes the log offline; the next start finishes.

A batch goes as a whole, and the log ends where the last one that stays ends, or where its last segment begins. So where
the offset lies within a batch, the log ends before that (Kafka lets it end at the offset, and leaves a hole), and a
follower fetches the whole batch again.

Readers: slices of a segment that was taken out stay readable. A slice that reaches behind the cut of a file raises
DamagedLog when it is read, also after other batches have been appended there, or its connection is closed.
"""

import logging
from dataclasses import replace
from pathlib import Path

from warmlog_broker.storage.directory.data_dir import LogOffsets
from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.directory.truncation_marker import Truncation, remove_truncation, write_truncation
from warmlog_broker.storage.log.bounds import Bounds
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.replay import restore_producers

logger = logging.getLogger(__name__)


class LogTruncation:
    """Truncates one log. `pending` is what the checkpoints do not know yet, if there is something."""

    __slots__ = ("_bounds", "_epochs", "_local", "_producers", "pending")

    def __init__(
        self,
        local: LocalLog,
        bounds: Bounds,
        epochs: LeaderEpochs,
        producers: ProducerStates,
        pending: Truncation | None,
    ) -> None:
        self._local = local
        self._bounds = bounds
        self._epochs = epochs
        self._producers = producers
        self.pending = pending

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """See Log.truncate_to."""
        local = self._local
        local.check_online()
        if offset < 0:
            raise ValueError(f"{local.directory}: cannot truncate to offset {offset}")
        if offset >= local.log_end_offset:
            self._epochs.truncate_from_end(local.log_end_offset)
            return False
        segment = local.segments.floor(offset)
        if segment is None:
            self.start_anew_at(offset, now_ms)
            return True
        end_offset = segment.lookup.end_before(offset)
        self._begin(Truncation(end_offset, min(end_offset, self._bounds.log_start_offset)))
        try:
            for later in reversed(local.segments.higher_segments(segment.base_offset)):
                local.segments.remove(later.base_offset)
                local.retire(later)
            local.unsynced.forget_segment(segment)
            segment.truncate_to(end_offset, now_ms)
            self._take_over(end_offset, now_ms)
            self._finish()
        except OSError as error:
            raise local.write_error("truncation", error, is_fatal=True) from error
        return True

    def start_anew_at(self, offset: int, now_ms: int, log_start_offset: int | None = None) -> None:
        """See Log.truncate_fully_and_start_at."""
        local = self._local
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
            self._take_over(offset, now_ms)
            self._bounds.begin_anew(log_start_offset)
            self._finish()
        except OSError as error:
            raise local.write_error("truncation", error, is_fatal=True) from error

    def checkpointed(self, offsets: LogOffsets) -> None:
        """Takes note that the data directory's checkpoints hold `offsets`, durably. OSError when the disk refuses.

        They may have been looked at before a truncation, and then they do not count.
        """
        pending, bounds = self.pending, self._bounds
        if pending is None or not pending.is_done or offsets.recovery_point > bounds.flushed.offset:
            return
        if bounds.log_start_offset > self._local.log_end_offset:
            return  # without the file, the log would be taken for one that has lost its end
        remove_truncation(self._local.directory)
        self.pending = None

    def finished(self) -> None:
        """What a crash had interrupted was finished by loading the log, and is durable."""
        if self.pending is not None and not self.pending.is_done:
            self._note_done(self._local.directory, self.pending)

    def _begin(self, truncation: Truncation) -> None:
        """The point from which on the log is a truncated one."""
        local = self._local
        logger.info("%s: truncation to %d (end %d)", local.key.directory_name, truncation.offset, local.log_end_offset)
        try:
            write_truncation(local.directory, truncation)
        except OSError as error:
            raise local.write_error("truncation", error) from error
        self.pending = truncation

    def _take_over(self, end_offset: int, now_ms: int) -> None:
        """Lowers what is known of the log to `end_offset`, where its files end now."""
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
            self._producers, local.snapshots, local.segments, end_offset, damage=local.damage, now_ms=now_ms
        )

    def _finish(self) -> None:
        local = self._local
        local.unsynced.add_directory(local.directory)
        plan = local.unsynced.plan(local.directory, local.active, self._epochs.take_changes(), local.end)
        assert plan is not None
        plan.run()
        local.unsynced.mark_synced(plan)
        self._epochs.has_unwritten_changes = True  # a flush that is under way may write the old ones behind us
        self._bounds.flushed = local.end
        assert self.pending is not None
        self._note_done(local.directory, self.pending)

    def _note_done(self, directory: Path, truncation: Truncation) -> None:
        done = truncation._replace(is_done=True)
        write_truncation(directory, done)
        self.pending = done
