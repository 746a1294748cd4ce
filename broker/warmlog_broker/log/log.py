"""One partition's log: appending, reading, looking up, rolling, flushing, giving up what is old.

Offsets, all exclusive ends but the first::

    log start offset <= high watermark <= log end offset
    log start offset <= recovery point <= log end offset

Readers see what lies below the high watermark. The recovery point is the flushed offset: all below it is on disk. With
one replica the partition moves the high watermark to it after each flush; with `write.caching` it follows each append.

One thread calls a Log. Flush plans run in others (`prepare_flush`, `mark_flushed`), and the slices that `read` gives
out may be read anywhere and at any time: they hold their file open.

A failed write or flush ends the log: `fail` notes the first reason, and everything after raises StorageError until a
restart has checked what the disk holds. A disk that is merely full is no such failure: the append is refused, nothing
of it remains, and the next may succeed.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import randbelow
from typing import Literal, NamedTuple, Self
from uuid import UUID

from warmlog_broker.log.checkpoints import sync_directory
from warmlog_broker.log.config import LogConfig
from warmlog_broker.log.directory import NEVER_STORED, CleanEnd, LogOffsets, StoredState
from warmlog_broker.log.duplicates import find_duplicate
from warmlog_broker.log.flush import FlushPlan, Unsynced
from warmlog_broker.log.loading import LoadedLog, LoadRequest, SegmentFactory, load_log
from warmlog_broker.log.offset_metadata import LogOffsetMetadata
from warmlog_broker.log.open_files import OpenFiles
from warmlog_broker.log.producer_state import RememberedBatch
from warmlog_broker.log.reading import FetchData, find_by_timestamp, find_max_timestamp, locate, read_segments
from warmlog_broker.log.retention import DELETED_SUFFIX, DueDeletions, deletable_segments
from warmlog_broker.log.segment import LogSegment, TimestampAndOffset, segment_file_name
from warmlog_broker.log.shortage import is_shortage
from warmlog_broker.log.topic_partition import TopicPartition, deleted_directory_name
from warmlog_broker.log.validation import CheckedBatch, check_fits_segment, check_timestamps, stamp
from warmlog_protocol.batch.header import CRC_START, NO_TIMESTAMP, placement_prefix
from warmlog_protocol.errors import (
    CorruptBatch,
    FencedLeaderEpoch,
    OffsetOutOfRange,
    StorageError,
)

logger = logging.getLogger(__name__)

ReadBound = Literal["log_end", "high_watermark", "committed"]

_new_tuple = tuple.__new__  # a third of the time that a NamedTuple takes, at each append


class AppendInfo(NamedTuple):
    """Where a batch lies in the log. `append_time_ms` is -1 unless the topic takes the time of appending."""

    first_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


class Log:
    """The log of one partition. Use `open`."""

    def __init__(self, key: TopicPartition, factory: SegmentFactory, loaded: LoadedLog, now_ms: int) -> None:
        self.key = key
        self.topic_id = loaded.topic_id
        self.directory = factory.directory
        self.config = factory.config
        self.recovery_report = loaded.report
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.last_flush_ms = now_ms
        self._factory = factory
        self._segments = loaded.segments
        self._active = loaded.segments.active
        self._snapshots = loaded.snapshots
        self._damage = tuple(loaded.report.damage)
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._flushed = self.log_end_metadata
        self._high_watermark = LogOffsetMetadata(loaded.log_start_offset)
        self._last_append_time_ms = NO_TIMESTAMP
        self._failure = ""
        self._deletions = DueDeletions()
        self._unsynced = Unsynced(loaded.unsynced_segments)
        if loaded.is_new_directory:
            self._unsynced.add_directory(self.directory.parent)

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
        max_leader_epoch: int | None = None,
        random_below: Callable[[int], int] = randbelow,
    ) -> Self:
        """Opens the log in `directory`, or creates it, and recovers it unless `stored` says how it was left.

        On return all that the log holds is durable, except a new log's empty files, which its first flush syncs. What
        was found and done is in `recovery_report`. `max_leader_epoch` is the newest epoch that the partition has had,
        if known. Raises InconsistentTopicId when the directory belongs to another topic id, and StorageError when the
        disk does not do its part.
        """
        factory = SegmentFactory(directory, config, open_files, random_below)
        try:
            log = cls(key, factory, load_log(LoadRequest(factory, now_ms, topic_id, stored, max_leader_epoch)), now_ms)
            log._after_load(now_ms)
        except OSError as error:
            raise StorageError(f"{directory}: the log cannot be opened: {error}") from error
        log.update_high_watermark(stored.offsets.high_watermark)
        return log

    def _after_load(self, now_ms: int) -> None:
        """Makes durable what recovery has changed; only after that may anybody rely on the log."""
        report = self.recovery_report
        if not report.is_uneventful:
            logger.warning("%s: %s", self.key.directory_name, report)
        if report.was_clean:
            return
        if self._log_end_offset not in self._snapshots:
            try:
                self._take_snapshot(sync=True)
            except OSError as error:
                if not is_shortage(error):
                    raise
                logger.warning("%s: no producer snapshot was taken: %s", self.directory, error)
        self._unsynced.add_directory(self.directory)
        plan = self.prepare_flush()
        if plan is not None:
            plan.run()
            self.mark_flushed(plan, now_ms)

    # Offsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """Below it, consumers may read."""
        return self._high_watermark.offset

    @property
    def recovery_point(self) -> int:
        """The flushed offset: all below it is on disk."""
        return self._flushed.offset

    @property
    def last_stable_offset(self) -> int:
        """Below it, readers that want only committed records may read: no transaction that began below it is open."""
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self._high_watermark.offset
        return min(self._high_watermark.offset, max(unstable, self._log_start_offset))

    @property
    def log_end_metadata(self) -> LogOffsetMetadata:
        active = self._active
        return LogOffsetMetadata(self._log_end_offset, active.base_offset, active.size_bytes)

    @property
    def high_watermark_metadata(self) -> LogOffsetMetadata:
        """Message-only when the place cannot be found."""
        if self._high_watermark.is_message_only:
            self._high_watermark = self._locate(self._high_watermark.offset)
        return self._high_watermark

    @property
    def last_stable_metadata(self) -> LogOffsetMetadata:
        offset = self.last_stable_offset
        return self.high_watermark_metadata if offset == self.high_watermark else self._locate(offset)

    @property
    def offsets(self) -> LogOffsets:
        """What the data directory's checkpoints keep of this log; a failed one has it too."""
        return LogOffsets(self.recovery_point, self.log_start_offset, self.high_watermark)

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch that anything was appended under, or that `begin_epoch` was told; -1 without any."""
        return self.epochs.latest_epoch

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def active_segment_bytes(self) -> int:
        return self._active.size_bytes

    @property
    def failure(self) -> str:
        """Why the log is offline; empty while it is not."""
        return self._failure

    @property
    def is_flush_due(self) -> bool:
        """Whether `flush.messages` records are unflushed."""
        return self._log_end_offset - self._flushed.offset >= self.config.flush_messages

    def begin_epoch(self, epoch: int) -> None:
        """Notes that a leader with this epoch appends from the log end offset on. An older one changes nothing."""
        if epoch >= self.epochs.latest_epoch:
            self.epochs.assign(epoch, self._log_end_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Raises the high watermark to `offset`, at most to the log end offset, and returns what it is then.

        It never goes back: a lower offset changes nothing.
        """
        if offset > self._high_watermark.offset:
            if offset >= self._log_end_offset:
                self._high_watermark = self.log_end_metadata
            elif offset == self._flushed.offset:
                self._high_watermark = self._flushed
            else:
                self._high_watermark = LogOffsetMetadata(offset)
        return self._high_watermark.offset

    def raise_log_start_offset(self, offset: int) -> bool:
        """Gives up the records below `offset`; False when they are gone already. Segments go at the next retention.

        OffsetOutOfRange above the high watermark.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.key.directory_name}: {offset} is above the high watermark {self.high_watermark}"
            )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    # Appending

    def append_as_leader(self, batch: CheckedBatch, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Appends a client's batch that `check_batch` has passed. It is not durable on return: see `prepare_flush`.

        A batch that its producer sent before is not appended again: the answer says where it lies. Raises
        InvalidTimestamp, RecordListTooLarge, OutOfOrderSequence, DuplicateSequence (appended before, too long ago to
        say where), InvalidProducerEpoch, InvalidTxnState, FencedLeaderEpoch (the log has seen a newer leader), or
        StorageError. None of them leaves anything behind.
        """
        if self._failure:
            raise self._offline()
        header, covered = batch
        config = self.config
        has_producer = header.producer_id >= 0
        if has_producer:
            duplicate = find_duplicate(self.producers, header, self._segments, self._log_start_offset)
            if duplicate is not None:
                return self._original(duplicate)
        append_time_ms = NO_TIMESTAMP
        if config.takes_append_time:
            append_time_ms = self._last_append_time_ms = max(now_ms, self._last_append_time_ms)
            header, covered = stamp(batch, append_time_ms)
        else:
            check_timestamps(header, config, now_ms)

        first_offset = self._log_end_offset
        last_offset = first_offset + header.last_offset_delta
        size_bytes = CRC_START + len(covered)
        segment = self._segment_for(size_bytes, last_offset, header.max_timestamp_ms, now_ms)
        if leader_epoch < self.epochs.latest_epoch:
            raise FencedLeaderEpoch(
                f"{self.key.directory_name}: {leader_epoch} is older than {self.epochs.latest_epoch}"
            )
        prefix = placement_prefix(header, first_offset, leader_epoch)
        try:
            position = segment.append(last_offset, header.max_timestamp_ms, last_offset, prefix, covered)
        except OSError as error:
            raise self._write_error("append", error) from error
        self._log_end_offset = last_offset + 1
        if leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(leader_epoch, first_offset)
        if has_producer:
            self.producers.update(header, first_offset, now_ms)
        if config.write_caching:
            end = (last_offset + 1, segment.base_offset, position + size_bytes)
            self._high_watermark = _new_tuple(LogOffsetMetadata, end)
        return _new_tuple(AppendInfo, (first_offset, last_offset, append_time_ms, self._log_start_offset, False))

    def _original(self, batch: RememberedBatch) -> AppendInfo:
        append_time_ms = batch.timestamp_ms if self.config.takes_append_time else NO_TIMESTAMP
        return AppendInfo(batch.first_offset, batch.last_offset, append_time_ms, self._log_start_offset, True)

    def _segment_for(self, size_bytes: int, last_offset: int, max_timestamp_ms: int, now_ms: int) -> LogSegment:
        """The active segment, a new one if the batch must not go into the one that was."""
        config = self.config
        check_fits_segment(size_bytes, config)
        if self._active.should_roll(
            incoming_bytes=size_bytes,
            incoming_last_offset=last_offset,
            incoming_max_timestamp_ms=max_timestamp_ms,
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            now_ms=now_ms,
        ):
            self.roll(now_ms)
        return self._active

    # Reading

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        bound: ReadBound = "high_watermark",
        min_one_batch: bool = True,
    ) -> FetchData:
        """The batches from the one that holds `start_offset` on, below `bound`, from one segment.

        At most `max_bytes`, or with `min_one_batch` the first batch if it is larger. Raises OffsetOutOfRange, or
        CorruptBatch, which names file and position, where the log is damaged.
        """
        if self._failure:
            raise self._offline()
        if not self._log_start_offset <= start_offset <= self._log_end_offset:
            raise OffsetOutOfRange(
                f"{self.key.directory_name}: offset {start_offset} is not between {self._log_start_offset} and "
                f"{self._log_end_offset}"
            )
        end = self._bound_metadata(bound)
        if start_offset >= end.offset:
            return FetchData(end if start_offset == end.offset else self._locate(start_offset), [], 0, False)
        for damage in self._damage:
            if damage.first_offset <= start_offset < damage.next_offset:
                raise CorruptBatch(str(damage))
        return read_segments(
            self._segments,
            start_offset,
            max_bytes,
            end,
            min_one_batch=min_one_batch,
            has_dense_offsets=self.config.has_dense_offsets,
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """The first record with this timestamp or a later one; None when there is none."""
        self._check_online()
        return find_by_timestamp(self._segments, timestamp_ms, self._log_start_offset, self._log_end_offset)

    def max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp in the log; None when no record has one."""
        self._check_online()
        return find_max_timestamp(self._segments, self._log_start_offset, self._log_end_offset)

    def earliest(self) -> TimestampAndOffset:
        """The log start offset with its epoch."""
        start = self._log_start_offset
        return TimestampAndOffset(NO_TIMESTAMP, start, self.epochs.epoch_at(start))

    def latest(self, bound: ReadBound = "high_watermark") -> TimestampAndOffset:
        """The end of what may be read, with the latest epoch."""
        return TimestampAndOffset(NO_TIMESTAMP, self._bound_metadata(bound).offset, self.epochs.latest_epoch)

    def _bound_metadata(self, bound: ReadBound) -> LogOffsetMetadata:
        if bound == "high_watermark":
            return self.high_watermark_metadata
        return self.log_end_metadata if bound == "log_end" else self.last_stable_metadata

    def _locate(self, offset: int) -> LogOffsetMetadata:
        """`offset` with the place of the batch that holds it; message-only when that cannot be found."""
        return self.log_end_metadata if offset == self._log_end_offset else locate(self._segments, offset)

    # Rolling

    def roll(self, now_ms: int, expected_next_offset: int = 0) -> LogSegment:
        """Closes the active segment and begins a new one, whose base offset is the log end offset or the expected one.

        An empty active segment with that base offset is replaced. The next flush makes the old segment's indexes and
        its producer snapshot durable. StorageError when the disk refuses; a full disk leaves the old segment active.
        """
        self._check_online()
        base_offset = max(self._log_end_offset, expected_next_offset)
        old = self._active
        if base_offset < old.base_offset or (base_offset == old.base_offset and old.size_bytes):
            raise StorageError(f"{self.directory}: no segment can begin at {base_offset}, {old!r} is active")
        is_replaced = base_offset == old.base_offset
        try:
            if is_replaced:
                self._retire(old, now_ms)
            else:
                self._take_snapshot(sync=False)
                old.on_become_inactive()
                self._remove_leftovers(base_offset)
            new = self._factory.open(base_offset, now_ms)
        except OSError as error:
            raise self._write_error("roll", error, is_fatal=is_replaced) from error
        if not is_replaced:
            self._unsynced.add_segment(old)
        self._active = new
        self._segments.add(new)
        self._log_end_offset = base_offset
        if self.high_watermark >= base_offset:
            self._high_watermark = self.log_end_metadata
        return new

    def maybe_roll_by_time(self, now_ms: int) -> bool:
        """Rolls an active segment that has data and has been active for longer than `segment.ms` by the clock.

        Appends roll by the records' timestamps; this is for logs that nobody appends to.
        """
        active = self._active
        if not active.size_bytes or now_ms - active.created_ms <= self.config.segment_ms - active.roll_jitter_ms:
            return False
        self.roll(now_ms)
        return True

    def _take_snapshot(self, *, sync: bool) -> None:
        self.producers.end_offset = self._log_end_offset
        path = self._snapshots.take(self.producers, sync=sync)
        self._unsynced.add_directory(self.directory)
        if not sync:
            self._unsynced.add_snapshot(path)

    def _remove_leftovers(self, base_offset: int) -> None:
        """Unlinks files of a segment that begins at `base_offset`, which an attempt to roll may have left."""
        for kind in (".log", ".index", ".timeindex", ".txnindex"):
            path = self.directory / segment_file_name(base_offset, kind)
            if path.exists():
                logger.warning("%s is left over and removed", path)
                path.unlink()

    # Flushing

    def prepare_flush(self) -> FlushPlan | None:
        """What to sync for everything appended until now to be durable; None when it is.

        Run the plan in any thread, then call `mark_flushed` here, or `fail` when it raised.
        """
        self._check_online()
        return self._unsynced.plan(self.directory, self._active, self.epochs.take_changes(), self.log_end_metadata)

    def mark_flushed(self, plan: FlushPlan, now_ms: int) -> int:
        """Takes note that `plan` has run without an error, and returns the flushed offset.

        Moves the recovery point; the high watermark is the partition's business.
        """
        self._unsynced.mark_synced(plan)
        if not plan.are_epochs_written:
            self.epochs.has_unwritten_changes = True
        if plan.end.offset >= self._flushed.offset:
            self._flushed = plan.end
        self.last_flush_ms = now_ms
        return self._flushed.offset

    def fail(self, reason: str) -> None:
        """Takes the log offline: everything after raises StorageError with the first reason. Files stay as they are."""
        if not self._failure:
            self._failure = reason
            logger.error("%s is offline until a restart has checked it: %s", self.key.directory_name, reason)
            self._segments.close_handles()

    def _check_online(self) -> None:
        if self._failure:
            raise self._offline()

    def _offline(self) -> StorageError:
        return StorageError(f"{self.key.directory_name} is offline: {self._failure}")

    def _write_error(self, what: str, error: OSError, *, is_fatal: bool = False) -> StorageError:
        """The error to raise when the disk refused. Unless it is merely full, the log is offline from now on."""
        reason = f"{what} failed in {self.directory}: {error}"
        if is_fatal or not is_shortage(error):
            self.fail(reason)
        return StorageError(reason)

    # Retention

    def delete_old_segments(self, now_ms: int) -> int:
        """Gives up the segments that retention no longer keeps, and returns how many that were.

        Their files are renamed now, and to be unlinked (`take_due_deletions`) after `file.delete.delay.ms`.
        """
        self._check_online()
        segments = list(self._segments)
        deletable = deletable_segments(
            segments,
            log_start_offset=self._log_start_offset,
            log_end_offset=self._log_end_offset,
            high_watermark=self.high_watermark,
            config=self.config,
            now_ms=now_ms,
        )
        if not deletable:
            return 0
        if len(deletable) == len(segments):
            self.roll(now_ms)
        kept = self._segments.higher(deletable[-1][0].base_offset)
        assert kept is not None
        self.raise_log_start_offset(kept.base_offset)
        try:
            for segment, reason in deletable:
                logger.info("%s: segment %d goes (%s)", self.key.directory_name, segment.base_offset, reason)
                self._segments.remove(segment.base_offset)
                self._retire(segment, now_ms)
        except OSError as error:
            raise self._write_error("retention", error) from error
        return len(deletable)

    def take_due_deletions(self, now_ms: int) -> list[Callable[[], None]]:
        """The unlinking that is due, for `run_deletions` in any thread."""
        return self._deletions.take_due(now_ms)

    @property
    def next_deletion_ms(self) -> int | None:
        """When `take_due_deletions` has something to give; None when nothing waits."""
        return self._deletions.next_due_ms

    def _retire(self, segment: LogSegment, now_ms: int) -> None:
        """Renames a segment's files, and its producer snapshot, and has them unlinked later.

        A disk may be too full for another name; then they are unlinked now.
        """
        self._unsynced.forget_segment(segment)
        due_ms = now_ms + self.config.file_delete_delay_ms
        try:
            segment.change_suffix("", DELETED_SUFFIX)
            snapshot = self._snapshots.mark_deleted(segment.base_offset, DELETED_SUFFIX)
        except OSError as error:
            if not is_shortage(error):
                raise
            segment.delete()
            self._snapshots.remove(segment.base_offset)
            return
        self._deletions.add(due_ms, [segment.delete])
        if snapshot is not None:
            self._deletions.add(due_ms, [lambda: snapshot.unlink(missing_ok=True)])

    # The rest

    def update_config(self, config: LogConfig) -> None:
        """Takes over changed settings. What belongs to a segment's files holds from the next segment on."""
        self.config = config
        self._factory = replace(self._factory, config=config)

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers that were not seen for that long; returns how many."""
        return self.producers.expire(now_ms, expiration_ms)

    def close(self, now_ms: int, *, sync: bool = True) -> CleanEnd | None:
        """Makes everything durable and closes all files. Returns what the clean-shutdown marker says of the log.

        None for a log that has failed: it must be checked at the next start. With `sync` False the caller syncs the
        file system before it writes checkpoints and marker. OSError when the disk refuses.
        """
        if self._failure:
            return None
        end = CleanEnd(self._log_end_offset, self._active.size_bytes)
        if self._log_end_offset not in self._snapshots:
            self._take_snapshot(sync=sync)
        plan = self.prepare_flush()
        if plan is not None:
            if sync:
                plan.run()
            else:
                plan.write_side_files()
            self.mark_flushed(plan, now_ms)
        self._segments.close(sync=sync)
        self._failure = "closed"
        return end

    def delete(self) -> Path:
        """Closes the log and renames its directory, durably, so that it is found no more; returns the new path.

        Whoever keeps house removes that directory after `file.delete.delay.ms`. Slices in other hands stay readable.
        """
        self._segments.close_handles()
        self._failure = "deleted"
        target = self.directory.with_name(deleted_directory_name(self.key))
        self.directory.rename(target)
        sync_directory(target.parent)
        return target
