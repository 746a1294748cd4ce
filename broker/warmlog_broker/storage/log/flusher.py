"""Making one log durable. The recovery point moves here, and nowhere else while the log is in use."""

import logging

from warmlog_broker.storage.directory.data_dir import CleanEnd
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_broker.storage.log.bounds import LogBounds
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.local_log import LocalLog

logger = logging.getLogger(__name__)


class LogFlusher:
    """The flushes of one log."""

    __slots__ = ("_are_epochs_missing", "_bounds", "_epochs", "_local")

    def __init__(self, local: LocalLog, bounds: LogBounds) -> None:
        self._local = local
        self._bounds = bounds
        self._epochs = local.epochs
        self._are_epochs_missing = False

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
        if local.failure:
            raise local.offline()
        epochs = self._epochs.take_changes()
        try:
            return local.unsynced.plan(local.directory, local.active, epochs, local.end, local.truncations)
        except OSError:  # perhaps out of descriptors: the next plan has them
            self._epochs.has_unwritten_changes = epochs is not None
            raise

    def mark_flushed(self, plan: FlushPlan) -> int:
        """Note that `plan` has run: the recovery point moves, and is returned. The high watermark does not."""
        local, bounds = self._local, self._bounds
        local.unsynced.mark_synced(plan)
        if plan.epochs is not None:
            self._note_epochs(plan)
        if plan.truncations == local.truncations and plan.end.offset >= bounds.flushed.offset:
            bounds.flushed = plan.end
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

    def after_recovery(self) -> None:
        """Make durable what recovery has changed; the log may be used only after this. OSError from the disk.

        A full disk leaves out the producer snapshot: the next start reads more batches then.
        """
        local = self._local
        try:
            self._take_missing_snapshot(sync=True)
        except OSError as error:
            if not is_resource_exhaustion(error):
                raise
            logger.warning("%s: no producer snapshot was taken: %s", local.directory, error)
        local.unsynced.add_directory(local.directory)
        self._run(sync=True)

    def close(self, *, sync: bool) -> CleanEnd:
        """See `Log.close`."""
        local = self._local
        local.finish_replacement()
        end = CleanEnd(local.log_end_offset, local.active.size_bytes)
        self._take_missing_snapshot(sync=sync)
        self._run(sync=sync)
        local.segments.close(sync=sync)
        local.failure = "closed"
        return end

    def _take_missing_snapshot(self, *, sync: bool) -> None:
        if self._local.log_end_offset not in self._local.snapshots:
            self._local.take_snapshot(sync=sync)

    def _run(self, *, sync: bool) -> None:
        """Flush in this thread; without `sync` the caller syncs the file system."""
        plan = self.prepare()
        if plan is None:
            return
        if sync:
            plan.run()
        else:
            plan.write_side_files()
        self.mark_flushed(plan)
