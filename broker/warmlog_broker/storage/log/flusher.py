"""Making one log durable. The recovery point moves here, and nowhere else while the log is in use.

**Restart points.** After some MiB, and when the log is no longer written to, a flush also syncs the indexes of the
active segment and a snapshot of the producers. Once the checkpoint of the recovery point covers that, the next flush
writes the file `restart-point` and removes older snapshots: so at any time the file names a snapshot that is there.
"""

import logging
from typing import NamedTuple

from warmlog_broker.storage.directory.data_dir import CleanEnd
from warmlog_broker.storage.directory.partition_files import RestartPoint
from warmlog_broker.storage.index.abstract_index import CorruptIndex
from warmlog_broker.storage.io.os_errors import is_read_only, is_resource_exhaustion
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_protocol.batch.header import NO_OFFSET

RESTART_BYTES = 32 * 1024 * 1024
RESTART_BATCHES = 8192
"""A restart point is taken after so many bytes or batches: what a start after a crash reads in some 0.1 s."""
RESTART_BYTES_A_PRODUCER = 32 * 1024
RESTART_BATCHES_A_PRODUCER = 8
"""With many producers, whose states are written with each at some 1 µs, they are rarer: 1 % of the time of appends."""
IDLE_BYTES = 256 * 1024
IDLE_BATCHES = 64
"""In a log that is no longer written to, one is taken after so much: less takes a start 1 ms."""

logger = logging.getLogger(__name__)


class _Place(NamedTuple):
    """The end of the active segment when a restart point was taken."""

    segment: LogSegment
    position: int
    writes: int
    due_position: int
    """The next one is due after this position, or after `due_writes`."""
    due_writes: int

    @classmethod
    def at(cls, segment: LogSegment, position: int, writes: int, producers: int) -> "_Place":
        due_position = position + RESTART_BYTES + producers * RESTART_BYTES_A_PRODUCER
        due_writes = writes + RESTART_BATCHES + producers * RESTART_BATCHES_A_PRODUCER
        return cls(segment, position, writes, due_position, due_writes)


class LogFlusher:
    def __init__(self, local: LocalLog, *, has_restart_point: bool) -> None:
        """`has_restart_point`: whether there is one at the end of the log."""
        self._local = local
        self._bounds = local.bounds
        self._epochs = local.epochs
        self._are_epochs_missing = False
        self._last_point = self._place_at_end() if has_restart_point else _Place.at(local.active, 0, 0, 0)
        self._is_point_wanted = False
        self._pending_point: RestartPoint | None = None
        """One that no checkpoint covers yet: until then no other becomes due, so that there is one a second at most."""
        self._point_to_write: RestartPoint | None = None
        self._truncations = local.truncations
        self._idle_end = NO_OFFSET
        """Where the log ended at the last call of `wants_restart_point`."""

    @property
    def is_due(self) -> bool:
        """Whether `flush.messages` records are unflushed."""
        local = self._local
        return local.log_end_offset - self._bounds.flushed.offset >= local.factory.config.flush_messages

    def prepare(self) -> FlushPlan | None:
        """Return what to sync for everything appended until now to be durable; None if it is.

        Run the plan in any thread, then call `mark_flushed` here; `put_back` if it raised SyncNotBegun, or `Log.fail`
        after any other error.
        """
        local = self._local
        local.check_online()
        last, records = self._place_in_active(), local.active.records
        is_due = records.size_bytes > last.due_position or records.writes > last.due_writes
        if self._is_point_wanted or (is_due and self._pending_point is None):
            self._take_restart_point()
        epochs = self._epochs.take_changes() if self._epochs.has_unwritten_changes else None
        try:
            plan = local.unsynced.plan(local.directory, local.active, epochs, local.end, local.truncations)
        except OSError:  # perhaps out of descriptors: the next plan has them
            self._epochs.has_unwritten_changes = epochs is not None
            raise
        if self._point_to_write is not None and self._truncations == local.truncations:
            plan = plan or FlushPlan(local.directory, local.end, (), truncations=local.truncations)
            plan.restart_point, self._point_to_write = self._point_to_write, None
        return plan

    def mark_flushed(self, plan: FlushPlan) -> int:
        """Note that `plan` has run: the recovery point moves, and is returned. The high watermark does not."""
        local, bounds = self._local, self._bounds
        local.unsynced.mark_synced(plan)
        if plan.epochs is not None:
            if plan.epochs_error:  # one warning; the next flush tries again
                self._epochs.has_unwritten_changes = True
                if not self._are_epochs_missing:
                    logger.warning("%s: leader epochs were not written: %s", local.directory, plan.epochs_error)
            self._are_epochs_missing = bool(plan.epochs_error)
        if plan.truncations == local.truncations and plan.end.offset >= bounds.flushed.offset:
            bounds.flushed = plan.end
        if plan.restart_point is not None:
            points = [point.offset for point in (plan.restart_point, self._pending_point) if point is not None]
            local.snapshots.remove_strays([*local.segments.base_offsets, *points])
        return bounds.flushed.offset

    def put_back(self, plan: FlushPlan) -> None:
        """Merge a plan that has raised SyncNotBegun into the next one."""
        self._local.unsynced.put_back(plan)
        if plan.epochs is not None:
            self._epochs.has_unwritten_changes = True

    # Restart points

    def wants_restart_point(self) -> bool:
        """Have the next plan take a restart point if the log has been idle since the last call, after much was written.

        Returns whether it will.
        """
        local = self._local
        end, previous_end = local.log_end_offset, self._idle_end
        self._idle_end = end
        if local.failure or end != previous_end or end != self._bounds.flushed.offset:
            return False
        last, records = self._place_in_active(), local.active.records
        is_much = records.writes - last.writes >= IDLE_BATCHES or records.size_bytes - last.position >= IDLE_BYTES
        self._is_point_wanted |= is_much
        return is_much

    def checkpointed(self, recovery_point: int) -> bool:
        """Note that the checkpoints have `recovery_point`; return whether the next plan writes a restart point."""
        point = self._pending_point
        if point is None or point.offset > recovery_point or self._are_epochs_missing:
            return False
        self._pending_point = None
        if self._truncations == self._local.truncations:
            self._point_to_write = point
        return self._point_to_write is not None

    def _place_in_active(self) -> _Place:
        """Return where the last restart point was taken in the active segment; its beginning if none was."""
        if self._local.active is not self._last_point.segment:
            self._last_point = _Place.at(self._local.active, 0, 0, len(self._local.producers))
        return self._last_point

    def _place_at_end(self) -> _Place:
        active = self._local.active
        return _Place.at(active, active.size_bytes, active.records.writes, len(self._local.producers))

    def _take_restart_point(self) -> None:
        """Take a restart point at the end of the log. The next plan syncs what it names."""
        local = self._local
        self._is_point_wanted = False
        self._last_point = self._place_at_end()
        if self._truncations != local.truncations:
            self._truncations = local.truncations
            self._pending_point = self._point_to_write = None
        try:
            local.take_snapshot(local.log_end_offset)
            self._pending_point = local.active.begin_restart_point(local.log_end_offset)
        except CorruptIndex as error:
            logger.info("%s: no restart point: %s", local.directory, error)
        except OSError as error:
            if not (is_resource_exhaustion(error) or is_read_only(error)):
                raise
            logger.warning("%s: no restart point was taken: %s", local.directory, error)

    @property
    def _is_at_restart_point(self) -> bool:
        local = self._local
        return self._place_at_end()[:3] == self._last_point[:3] and local.log_end_offset in local.snapshots

    # Opening and closing

    def after_recovery(self, checked_bytes: int, checked_batches: int) -> None:
        """Make durable what recovery has changed; the log may be used only after this. OSError from the disk.

        There is a restart point then, unless little was checked and no file has changed. A full disk leaves it out,
        too: the next start reads more batches. Epochs of batches that were checked are written if the file lacks them,
        since the next start may begin after these batches.
        """
        is_much = checked_batches >= IDLE_BATCHES or checked_bytes >= IDLE_BYTES
        is_changed = is_much or not self._local.unsynced.is_empty
        self._is_point_wanted = is_changed and not self._is_at_restart_point
        if self._is_point_wanted or self._epochs.has_found_below(self._local.log_end_offset):
            self._run(sync=True)

    def close(self, *, sync: bool) -> CleanEnd:
        """See `Log.close`."""
        local = self._local
        local.finish_replacement()
        end = CleanEnd(local.log_end_offset, local.active.size_bytes)
        self._is_point_wanted = not self._is_at_restart_point
        self._run(sync=sync)
        if self._pending_point is not None:  # the checkpoint that covers it is written after this
            self._point_to_write, self._pending_point = self._pending_point, None
            self._run(sync=sync)
        local.segments.close(sync=sync)
        local.failure = "closed"
        return end

    def _run(self, *, sync: bool) -> None:
        """Flush in this thread; without `sync` the caller syncs the file system."""
        plan = self.prepare()
        if plan is None:
            return
        if sync:
            plan.run()
        else:
            plan.stage_side_files()
            plan.place_side_files()
        self.mark_flushed(plan)
