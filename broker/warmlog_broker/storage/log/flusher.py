"""Making one log durable. The recovery point moves here, and nowhere else while the log is in use.

**Restart points.** After some MiB, and when the log is no longer written to, a flush also syncs the indexes of the
active segment and a snapshot of the producers. Once the checkpoint of the recovery point covers that, the next flush
writes the file `restart-point` and removes older snapshots: so at any time the file names a snapshot that is there.
"""

import logging
from typing import NamedTuple

from warmlog_broker.storage.directory.data_dir import CleanEnd
from warmlog_broker.storage.directory.restart_point import RestartPoint
from warmlog_broker.storage.index.abstract_index import CorruptIndex
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_broker.storage.log.bounds import LogBounds
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_protocol.batch.header import NO_OFFSET

RESTART_BYTES = 32 * 1024 * 1024
RESTART_BATCHES = 8192
"""A restart point is taken after so many bytes or batches: what a start after a crash reads in some 0.1 s."""
RESTART_BYTES_A_PRODUCER = 4096
"""With many producers, whose states are written with each, they are rarer."""
IDLE_BYTES = 256 * 1024
IDLE_BATCHES = 64
"""In a log that is no longer written to, one is taken after so much: less takes a start 1 ms."""

logger = logging.getLogger(__name__)


class _Place(NamedTuple):
    """The end of the active segment when a restart point was taken."""

    segment: LogSegment
    position: int = 0
    writes: int = 0


class LogFlusher:
    """The flushes of one log."""

    __slots__ = (
        "_are_epochs_missing",
        "_bounds",
        "_epochs",
        "_idle_end",
        "_is_point_wanted",
        "_last_point",
        "_local",
        "_pending_points",
        "_point_to_write",
        "_truncations",
    )

    def __init__(self, local: LocalLog, bounds: LogBounds, *, has_restart_point: bool) -> None:
        """`has_restart_point`: whether there is one at the end of the log."""
        self._local = local
        self._bounds = bounds
        self._epochs = local.epochs
        self._are_epochs_missing = False
        active = local.active
        self._last_point = _Place(active)
        if has_restart_point:
            self._last_point = _Place(active, active.size_bytes, active.records.writes)
        self._is_point_wanted = False
        self._pending_points: list[RestartPoint] = []
        """Those that no checkpoint covers yet, oldest first."""
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
        local, last = self._local, self._last_point
        if local.failure:
            raise local.offline()
        records = local.active.records
        if (
            records.size_bytes - last.position > RESTART_BYTES
            or records.writes - last.writes > RESTART_BATCHES
            or self._is_point_wanted
            or local.active is not last.segment
        ):
            self._take_restart_point()
        epochs = self._epochs.take_changes()
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
            self._note_epochs(plan)
        if plan.truncations == local.truncations and plan.end.offset >= bounds.flushed.offset:
            bounds.flushed = plan.end
        if plan.restart_point is not None:
            pending = [point.offset for point in self._pending_points]
            local.snapshots.remove_strays([*local.segments.base_offsets, plan.restart_point.offset, *pending])
        return bounds.flushed.offset

    def _note_epochs(self, plan: FlushPlan) -> None:
        """Note whether they are on disk, with one warning if they are not; the next flush tries again."""
        error = plan.epochs_error
        if error:
            self._epochs.has_unwritten_changes = True
            if not self._are_epochs_missing:
                logger.warning("%s: leader epochs were not written: %s", self._local.directory, error)
        self._are_epochs_missing = bool(error)

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
        local, last = self._local, self._last_point
        end, previous_end = local.log_end_offset, self._idle_end
        self._idle_end = end
        if local.failure or end != previous_end or end != self._bounds.flushed.offset:
            return False
        if local.active is not last.segment:
            last = self._last_point = _Place(local.active)
        records = local.active.records
        is_much = records.writes - last.writes >= IDLE_BATCHES or records.size_bytes - last.position >= IDLE_BYTES
        self._is_point_wanted |= is_much
        return is_much

    def checkpointed(self, recovery_point: int) -> bool:
        """Note that the checkpoints have `recovery_point`; return whether the next plan writes a restart point."""
        covered = [point for point in self._pending_points if point.offset <= recovery_point]
        if not covered or self._are_epochs_missing:
            return False
        del self._pending_points[: len(covered)]
        if self._truncations != self._local.truncations:
            self._pending_points.clear()
            return False
        self._point_to_write = covered[-1]
        return True

    def _take_restart_point(self) -> None:
        """Take a restart point at the end of the log, if it is time for one. The next plan syncs what it names."""
        local, last = self._local, self._last_point
        active, records = local.active, local.active.records
        if active is not last.segment or records.size_bytes < last.position:
            last = self._last_point = _Place(active)
        producers = len(local.producers)
        is_due = (
            self._is_point_wanted
            or records.size_bytes - last.position > RESTART_BYTES + producers * RESTART_BYTES_A_PRODUCER
            or records.writes - last.writes > RESTART_BATCHES + producers
        )
        if not is_due:
            return
        self._is_point_wanted = False
        self._last_point = _Place(active, records.size_bytes, records.writes)
        if self._truncations != local.truncations:
            self._truncations = local.truncations
            self._pending_points.clear()
            self._point_to_write = None
        try:
            local.take_snapshot(sync=False)
            self._pending_points.append(active.begin_restart_point(local.log_end_offset))
        except CorruptIndex as error:
            logger.info("%s: no restart point: %s", local.directory, error)
        except OSError as error:
            if not is_resource_exhaustion(error):
                raise
            logger.warning("%s: no restart point was taken: %s", local.directory, error)

    @property
    def _is_at_restart_point(self) -> bool:
        local = self._local
        records = local.active.records
        is_at_end = (local.active, records.size_bytes, records.writes) == self._last_point
        return is_at_end and local.log_end_offset in local.snapshots

    # Opening and closing

    def after_recovery(self) -> None:
        """Make durable what recovery has changed; the log may be used only after this. OSError from the disk.

        A full disk leaves out the producer snapshot: the next start reads more batches then.
        """
        if self._is_at_restart_point:
            return
        self._local.unsynced.add_directory(self._local.directory)
        self._is_point_wanted = True
        self._run(sync=True)

    def close(self, *, sync: bool) -> CleanEnd:
        """See `Log.close`."""
        local = self._local
        local.finish_replacement()
        end = CleanEnd(local.log_end_offset, local.active.size_bytes)
        self._is_point_wanted = not self._is_at_restart_point
        self._run(sync=sync)
        if self._pending_points:  # the checkpoint that covers it is written after this
            self._point_to_write = self._pending_points.pop()
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
            plan.write_side_files(sync=False)
        self.mark_flushed(plan)
