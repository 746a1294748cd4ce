"""One partition's log: its files, the offsets between which it is read, its leader epochs and producers.

Each part of a Log has a public face of its own, and callers use that: `log.appender`, `log.reader`, `log.flusher` and
so on. What is here concerns several parts at once: opening, settings, failing, closing.

Readers see what is below the high watermark. The recovery point is the flushed offset: all below it is on disk. The
high watermark is stored here and decided by the partition: first what the checkpoint says, then what
`bounds.raise_high_watermark` is told.

One thread calls a Log. Flush plans run in others, and the slices that `reader.read` returns may be read anywhere and at
any time: they hold their file open.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self
from uuid import UUID

from msgspec.structs import replace

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import NEVER_STORED, CleanEnd, LogOffsets, StoredState
from warmlog_broker.storage.directory.partition_files import cap_at_truncation
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.log.appender import FollowerAppender, LogAppender
from warmlog_broker.storage.log.compaction import LogCompaction
from warmlog_broker.storage.log.flusher import LogFlusher
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.log.reader import LogReader
from warmlog_broker.storage.log.retention import LogRetention
from warmlog_broker.storage.log.truncation import LogTruncation
from warmlog_broker.storage.recovery.loader import LoadedLog, LoadRequest, SegmentFactory, load_log

logger = logging.getLogger(__name__)


class Log:
    """The log of one partition. Use `open`."""

    def __init__(self, key: TopicPartition, factory: SegmentFactory, loaded: LoadedLog) -> None:
        self.key = key
        self.topic_id = loaded.topic_id
        self.recovery_report = loaded.report
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.local = LocalLog(key, factory, loaded)
        """The segments, the disk under them, and whether the log works."""
        self.bounds = self.local.bounds
        self.appender = LogAppender(self.local)
        self.follower = FollowerAppender(self.local)
        self.flusher = LogFlusher(self.local, has_restart_point=loaded.has_restart_point)
        self.compaction = LogCompaction(self.local, loaded.first_dirty_offset, loaded.removed_below)
        self.reader = LogReader(self.local, self.compaction)
        self.retention = LogRetention(self.local)
        self.truncation = LogTruncation(self.local, self.compaction, loaded.truncation)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        key: TopicPartition,
        config: LogConfig,
        open_files: OpenFiles,
        now_ms: int,
        topic_id: UUID | None = None,
        stored: StoredState = NEVER_STORED,
        is_start_known: bool = False,
        max_leader_epoch: int | None = None,
        after_bytes: Callable[[int], None] = lambda _: None,
    ) -> Self:
        """Open the log in `directory`, or create it, and recover it unless `stored` says how it was left.

        On return all that the log holds is durable, except a new log's empty files, which its first flush syncs. What
        was found and done is in `recovery_report`. `is_start_known`: the log start in `stored` is from a checkpoint.
        `max_leader_epoch` is the newest epoch that the partition has had, if known. `after_bytes` is called with the
        size of each part that was checked. Raises InconsistentTopicId if the
        directory belongs to another topic id, and StorageError if the disk fails.
        """
        factory = SegmentFactory(directory, config, open_files)
        try:
            stored, truncation = cap_at_truncation(directory, stored)
            request = LoadRequest(
                factory,
                now_ms,
                topic_id,
                stored,
                max_leader_epoch,
                truncation,
                is_start_known=is_start_known and truncation is None,
                after_bytes=after_bytes,
            )
            log = cls(key, factory, load_log(request))
            report = log.recovery_report
            if not report.is_uneventful:
                logger.warning("%s: %s", key.directory_name, report)
            if not report.was_clean:
                log.flusher.after_recovery(report.checked_bytes, report.checked_batches)
            log.truncation.finished()
        except OSError as error:
            raise storage_error(f"{directory}: the log cannot be opened: {error}", error) from error
        return log

    @classmethod
    def take_over(cls, source: "Log", directory: Path, now_ms: int) -> Self:
        """Return the log on `directory`, which has a copy of all of `source`'s files, with all that `source` knows.

        `source` must not be used any more. Nothing is scanned, and making the copy durable is left to the caller: the
        recovery point is `source`'s until then. OSError from the disk.
        """
        local = source.local
        end = CleanEnd(local.log_end_offset, local.active.size_bytes)
        offsets = source.offsets._replace(recovery_point=local.log_end_offset)
        factory = replace(local.factory, directory=directory)
        stored, pending = StoredState(offsets, end), source.truncation.pending
        request = LoadRequest(factory, now_ms, source.topic_id, stored, truncation=pending, is_start_known=True)
        loaded = load_log(request)
        loaded.producers, loaded.epochs = source.producers, source.epochs
        loaded.epochs.has_unwritten_changes = True
        log = cls(source.key, factory, loaded)
        log.local.take_over(local)
        log.appender.last_append_time_ms = source.appender.last_append_time_ms
        log.compaction.compacted_below = source.compaction.compacted_below
        return log

    @property
    def size_bytes(self) -> int:
        """The size of all its segments, without their indexes."""
        return self.local.segments.size_bytes

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.bounds.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.local.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Consumers may read below it."""
        return self.bounds.high_watermark.offset

    @property
    def recovery_point(self) -> int:
        """The flushed offset: all below it is on disk."""
        return self.bounds.flushed.offset

    @property
    def offsets(self) -> LogOffsets:
        """What the data directory's checkpoints keep of this log, also of one that has failed."""
        return LogOffsets(
            self.recovery_point, self.log_start_offset, self.high_watermark, self.compaction.first_dirty_offset
        )

    def begin_epoch(self, epoch: int) -> None:
        """Note that a leader with this epoch appends from the log end offset on. An older one changes nothing."""
        if epoch >= self.epochs.latest_epoch:
            self.epochs.assign(epoch, self.local.log_end_offset)

    def update_config(self, config: LogConfig) -> None:
        """Take over changed settings. What belongs to a segment's files applies from the next segment on."""
        self.compaction.update_config(config)
        self.local.factory = replace(self.local.factory, config=config)

    def fail(self, reason: str) -> None:
        """Take the log offline: everything after raises StorageError with the first reason. Files stay as they are."""
        self.compaction.stop()
        self.local.fail(reason)

    def close(self, *, sync: bool = True) -> CleanEnd | None:
        """Make everything durable and close all files. Return what the clean-shutdown marker says of the log.

        None for a log that has failed: it must be checked at the next start. With `sync` False the caller syncs the
        file system before it writes checkpoints and marker. OSError from the disk.
        """
        if self.local.failure:
            return None
        self.compaction.stop()
        return self.flusher.close(sync=sync)

    def delete(self) -> Path:
        """Close the log and rename its directory, durably, so that no start finds it; return the new path.

        Housekeeping removes that directory after `file.delete.delay.ms`. Slices that were read stay readable.
        """
        self.compaction.stop()
        return self.local.leave("deleted", sync=True)
