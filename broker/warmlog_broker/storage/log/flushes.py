"""Making one log durable: what a flush has to do, what is known once it is done, and the last flush of all.

The recovery point moves here, and nowhere else while the log is in use.
"""

import logging

from warmlog_broker.storage.directory.data_dir import CleanEnd
from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.io.os_errors import is_shortage
from warmlog_broker.storage.log.bounds import Bounds
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.producer.producer_state import ProducerStates

logger = logging.getLogger(__name__)


class LogFlushes:
    """The flushes of one log; `Log` says what they raise."""

    __slots__ = ("_are_epochs_missing", "_bounds", "_epochs", "_local", "_producers")

    def __init__(self, local: LocalLog, bounds: Bounds, epochs: LeaderEpochs, producers: ProducerStates) -> None:
        self._local = local
        self._bounds = bounds
        self._epochs = epochs
        self._producers = producers
        self._are_epochs_missing = False

    @property
    def is_due(self) -> bool:
        """See `Log.is_flush_due`."""
        local = self._local
        return local.log_end_offset - self._bounds.flushed.offset >= local.factory.config.flush_messages

    def prepare(self) -> FlushPlan | None:
        """See `Log.prepare_flush`."""
        local = self._local
        if local.failure:
            raise local.offline()
        epochs = self._epochs.take_changes()
        try:
            return local.unsynced.plan(local.directory, local.active, epochs, local.end, local.truncations)
        except OSError:  # for want of a descriptor, it may be: the next plan has them
            self._epochs.has_unwritten_changes = epochs is not None
            raise

    def mark(self, plan: FlushPlan) -> int:
        """See `Log.mark_flushed`."""
        local, bounds = self._local, self._bounds
        local.unsynced.mark_synced(plan)
        if plan.epochs is not None:
            self._note_epochs(plan)
        if plan.truncations == local.truncations and plan.end.offset >= bounds.flushed.offset:
            bounds.flushed = plan.end
        return bounds.flushed.offset

    def _note_epochs(self, plan: FlushPlan) -> None:
        """Whether they are on disk; says so once when they are not, as the next flush tries again."""
        trouble = plan.epochs_trouble
        if trouble:
            self._epochs.has_unwritten_changes = True
            if not self._are_epochs_missing:
                logger.warning("%s: leader epochs were not written: %s", self._local.directory, trouble)
        self._are_epochs_missing = bool(trouble)

    def put_back(self, plan: FlushPlan) -> None:
        """See `Log.put_back`."""
        self._local.unsynced.put_back(plan)
        if plan.epochs is not None:
            self._epochs.has_unwritten_changes = True

    def after_recovery(self) -> None:
        """Makes durable what recovery has changed; only after that may anybody rely on the log. OSError from the disk.

        A producer snapshot that a full disk has no room for is left out: the next start reads more batches then.
        """
        local = self._local
        try:
            self._take_missing_snapshot(sync=True)
        except OSError as error:
            if not is_shortage(error):
                raise
            logger.warning("%s: no producer snapshot was taken: %s", local.directory, error)
        local.unsynced.add_directory(local.directory)
        self._run(sync=True)

    def close(self, *, sync: bool) -> CleanEnd:
        """See `Log.close`."""
        local = self._local
        local.settle()
        end = CleanEnd(local.log_end_offset, local.active.size_bytes)
        self._take_missing_snapshot(sync=sync)
        self._run(sync=sync)
        local.segments.close(sync=sync)
        local.failure = "closed"
        return end

    def _take_missing_snapshot(self, *, sync: bool) -> None:
        if self._local.log_end_offset not in self._local.snapshots:
            self._local.take_snapshot(self._producers, sync=sync)

    def _run(self, *, sync: bool) -> None:
        """Flushes here and now; without `sync` the caller syncs the file system."""
        plan = self.prepare()
        if plan is None:
            return
        if sync:
            plan.run()
        else:
            plan.write_side_files()
        self.mark(plan)
