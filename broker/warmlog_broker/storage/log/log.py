"""One partition's log: appending, reading, looking up, rolling, flushing, giving up what is old.

A Log is made of its files (`local_log`), the offsets between which it is read (`bounds`), the leader epochs and the
producers. Readers see what lies below the high watermark. The recovery point is the flushed offset: all below it is on
disk. The high watermark is stored here and decided by the partition: what the checkpoint says at first, and then what
`update_high_watermark` is told.

One thread calls a Log. Flush plans run in others (`prepare_flush`, `mark_flushed`), and the slices that `read` gives
out may be read anywhere and at any time: they hold their file open.

A failed write or flush ends the log: `fail` notes the first reason, and everything after raises StorageError until a
restart has checked what the disk holds. A disk that is merely full is no such failure: the append is refused, nothing
of it remains, and the next may succeed.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import randbelow
from typing import Self
from uuid import UUID

from warmlog_broker.storage.config import MAX_INT64, LogConfig
from warmlog_broker.storage.directory.data_dir import NEVER_STORED, CleanEnd, LogOffsets, StoredState
from warmlog_broker.storage.directory.leader_epochs import EpochEnd
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.directory.truncation_marker import cap_at_truncation
from warmlog_broker.storage.index.lazy_index import LazyIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.log.appender import AppendInfo, LogAppends
from warmlog_broker.storage.log.bounds import Bounds, ReadBound
from warmlog_broker.storage.log.compaction import Compaction
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.flushes import LogFlushes
from warmlog_broker.storage.log.follower_appender import FollowerAppends
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.log.reader import FetchData, LogReads, learn_timestamps, search_max_timestamp, search_time
from warmlog_broker.storage.log.retention import give_up_old_segments, raise_log_start_for_retention
from warmlog_broker.storage.log.truncation import LogTruncation
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard
from warmlog_broker.storage.record.validation import CheckedBatch
from warmlog_broker.storage.recovery.loader import LoadedLog, LoadRequest, SegmentFactory, load_log
from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata
from warmlog_broker.storage.segment.rolling import is_overdue
from warmlog_broker.storage.segment.segment import LogSegment, TimeSearch, TimestampAndOffset
from warmlog_broker.storage.segment.splits import Extent
from warmlog_protocol.batch import ControlType, EndTxnMarker
from warmlog_protocol.batch.header import NO_TIMESTAMP, Buffer
from warmlog_protocol.errors import OffsetOutOfRange, PolicyViolation
from warmlog_protocol.messages import HIGH_WATERMARK

logger = logging.getLogger(__name__)


class Log:
    """The log of one partition. Use `open`."""

    def __init__(self, key: TopicPartition, factory: SegmentFactory, loaded: LoadedLog) -> None:
        self.key = key
        self.topic_id = loaded.topic_id
        self.directory = factory.directory
        self.config = factory.config
        self.recovery_report = loaded.report
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self._local = LocalLog(key, factory, loaded)
        self._bounds = Bounds(self._local, loaded.producers, loaded.log_start_offset, loaded.high_watermark)
        self._truncation = LogTruncation(self._local, self._bounds, loaded.epochs, loaded.producers, loaded.truncation)
        self._appends = LogAppends(self._local, self._bounds, self.epochs, self.producers)
        self.compaction = Compaction(self._local, self._bounds, loaded.producers, loaded.first_dirty_offset)
        self._reads = LogReads(self._local, self._bounds, self.compaction)
        self._flushes = LogFlushes(self._local, self._bounds, self.epochs, self.producers)
        self._follower = FollowerAppends(self._local, self._bounds, loaded.epochs, loaded.producers)

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
        random_below: Callable[[int], int] = randbelow,
    ) -> Self:
        """Opens the log in `directory`, or creates it, and recovers it unless `stored` says how it was left.

        On return all that the log holds is durable, except a new log's empty files, which its first flush syncs. What
        was found and done is in `recovery_report`. `is_start_known`: the log start in `stored` is from a checkpoint.
        `max_leader_epoch` is the newest epoch that the partition has had, if known. Raises InconsistentTopicId when the
        directory belongs to another topic id, and StorageError when the disk does not do its part.
        """
        factory = SegmentFactory(directory, config, open_files, random_below)
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
            )
            log = cls(key, factory, load_log(request))
            log._after_load()
        except OSError as error:
            raise storage_error(f"{directory}: the log cannot be opened: {error}", error) from error
        return log

    @classmethod
    def take_over(cls, source: "Log", directory: Path, now_ms: int) -> Self:
        """The log on `directory`, which holds a copy of all of `source`'s files, with all that `source` knows.

        `source` is not to be used any more. Nothing is scanned, and what the copy lacks of being durable is the
        caller's business: the recovery point is `source`'s until then. OSError from the disk.
        """
        local = source._local
        end = CleanEnd(local.log_end_offset, local.active.size_bytes)
        offsets = source.offsets._replace(recovery_point=local.log_end_offset)
        factory = replace(local.factory, directory=directory)
        stored, pending = StoredState(offsets, end), source._truncation.pending
        request = LoadRequest(factory, now_ms, source.topic_id, stored, truncation=pending, is_start_known=True)
        loaded = load_log(request)
        loaded.producers, loaded.epochs = source.producers, source.epochs
        loaded.epochs.has_unwritten_changes = True
        log = cls(source.key, factory, loaded)
        log._local.take_over(local)
        log._bounds.take_over(source._bounds)
        log._appends.take_over(source._appends)
        log.compaction.take_over(source.compaction)
        return log

    def _after_load(self) -> None:
        """Only after this may anybody rely on the log."""
        report = self.recovery_report
        if not report.is_uneventful:
            logger.warning("%s: %s", self.key.directory_name, report)
        if not report.was_clean:
            self._flushes.after_recovery()
        self._truncation.finished()

    # Offsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._bounds.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._local.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Below it, consumers may read."""
        return self._bounds.high_watermark.offset

    @property
    def recovery_point(self) -> int:
        """The flushed offset: all below it is on disk."""
        return self._bounds.flushed.offset

    @property
    def last_stable_offset(self) -> int:
        """Below it, readers that want only committed records may read: no transaction that began below it is open."""
        return self._bounds.last_stable_offset

    def end_of(self, bound: ReadBound) -> LogOffsetMetadata:
        """Where reading ends for `bound`, with its place; message-only when the place cannot be found."""
        return self._bounds.end_of(bound)

    @property
    def offsets(self) -> LogOffsets:
        """What the data directory's checkpoints keep of this log; a failed one has it too."""
        return LogOffsets(
            self.recovery_point, self.log_start_offset, self.high_watermark, self.compaction.first_dirty_offset
        )

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch that anything was appended under, or that `begin_epoch` was told; -1 without any."""
        return self.epochs.latest_epoch

    @property
    def size_bytes(self) -> int:
        return self._local.segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._local.segments)

    @property
    def active_segment_bytes(self) -> int:
        return self._local.active.size_bytes

    @property
    def active_indexes(self) -> tuple[LazyIndex[OffsetIndex], LazyIndex[TimeIndex]]:
        """Of the active segment: what the warm keeper looks after."""
        indexes = self._local.active.indexes
        return indexes.offset, indexes.time

    @property
    def failure(self) -> str:
        """Why the log is offline; empty while it is not."""
        return self._local.failure

    @property
    def is_flush_due(self) -> bool:
        """Whether `flush.messages` records are unflushed."""
        return self._flushes.is_due

    def begin_epoch(self, epoch: int) -> None:
        """Notes that a leader with this epoch appends from the log end offset on. An older one changes nothing."""
        if epoch >= self.epochs.latest_epoch:
            self.epochs.assign(epoch, self._local.log_end_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Raises the high watermark to `offset`, at most to the log end offset, and returns what it is then.

        It never goes back: a lower offset changes nothing.
        """
        return self._bounds.raise_high_watermark(offset)

    def raise_log_start_offset(self, offset: int) -> bool:
        """Gives up the records below `offset`; False when they are gone already. Segments go at the next retention.

        OffsetOutOfRange above the high watermark.
        """
        is_raised = self._bounds.raise_log_start(offset)
        if is_raised:
            self.epochs.truncate_from_start(offset)
        return is_raised

    def delete_records(self, offset: int) -> int:
        """Gives up the records below `offset`, or below the high watermark for -1; returns the log start offset.

        Not durable on return: it is once the checkpoint of log starts has been written. Raises OffsetOutOfRange above
        the high watermark, and PolicyViolation where the topic's cleanup.policy does not delete.
        """
        self._local.check_online()
        if "delete" not in self.config.cleanup_policy:
            raise PolicyViolation(
                f"{self.key.directory_name}: cleanup.policy is {self.config.cleanup_policy}, which deletes no records"
            )
        if offset < HIGH_WATERMARK:
            raise OffsetOutOfRange(f"{self.key.directory_name}: there is no offset {offset}")
        self.raise_log_start_offset(self.high_watermark if offset == HIGH_WATERMARK else offset)
        return self.log_start_offset

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Where the batches of `epoch`, or of the newest known one below it, end. StorageError while offline."""
        self._local.check_online()
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def divergence(self, offset: int, epoch: int) -> EpochEnd | None:
        """Where the log was cut since a batch of `epoch` was read from before `offset`; None if it holds that batch.

        (-1, -1) when the epochs do not tell. None below the log start, too: there a read is out of range.
        """
        found = self.epochs.divergence(offset, epoch, self.log_end_offset)
        if found is None or offset < self.log_start_offset or self._reads.is_of_epoch(offset - 1, epoch):
            return None
        return found

    # Appending

    def append_as_leader(
        self, batch: CheckedBatch, *, leader_epoch: int, now_ms: int, guard: VerificationGuard = NO_GUARD
    ) -> AppendInfo:
        """Appends a client's batch that `check_batch` has passed. It is not durable on return: see `prepare_flush`.

        A batch that its producer sent before is not appended again: the answer says where it lies. A transactional one
        needs `guard` (see `start_verification`) unless its transaction is open. Raises InvalidTimestamp,
        RecordListTooLarge, OutOfOrderSequence, DuplicateSequence (appended before, too long ago to say where),
        InvalidProducerEpoch, InvalidTxnState, FencedLeaderEpoch (the log has seen a newer leader), or StorageError.
        None of them leaves anything behind.
        """
        return self._appends.append_as_leader(batch, leader_epoch, now_ms, guard)

    def append_as_follower(self, batches: Buffer, *, now_ms: int) -> AppendInfo:
        """Appends what another log holds, as it lies there: whole batches with their offsets and leader epochs.

        A piece of a batch at the end is left out. Not durable on return; the high watermark stays. Raises CorruptBatch,
        OffsetsOutOfOrder (within the buffer), UnexpectedAppendOffset (below the log end) or FencedLeaderEpoch, and
        nothing was appended; or StorageError, and then batches may have been appended: the log end says which. See
        `follower`.
        """
        return self._follower.append(batches, now_ms)

    def append_end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        control_type: ControlType,
        coordinator_epoch: int,
        *,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Appends the marker with which a coordinator ends a producer's transaction: ControlType.COMMIT or ABORT.

        It is appended also where the producer has none open, for a coordinator may have to repeat it. Not durable on
        return. Raises InvalidProducerEpoch, TransactionCoordinatorFenced (a newer coordinator has written a marker),
        FencedLeaderEpoch or StorageError; none of them leaves anything behind, but for a disk that fails: then the log
        is offline, and the transaction as it was.
        """
        marker = EndTxnMarker(control_type, coordinator_epoch)
        return self._appends.append_end_transaction(producer_id, producer_epoch, marker, leader_epoch, now_ms)

    def start_verification(self, producer_id: int, sequence: int, epoch: int, now_ms: int) -> VerificationGuard:
        """What to append a transactional batch with, once the coordinator has said that its transaction is going on.

        To be called before the coordinator is asked; NO_GUARD when it need not be, because the transaction is open.
        """
        return self.producers.start_verification(producer_id, sequence, epoch, now_ms)

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

        At most `max_bytes`, or with `min_one_batch` the first batch if it is larger. With the bound "committed" they
        come with the aborted transactions that they may belong to: to leave those out is the reader's part. Raises
        OffsetOutOfRange; DamagedLog, which names file, position and the next offset, where records are damaged or lost;
        LostIndex when an index must be rebuilt first.
        """
        return self._reads.read(start_offset, max_bytes, bound, min_one_batch)

    def are_offsets_dense_from(self, offset: int) -> bool:
        """Whether a gap between batches behind `offset` is damage: neither compaction nor a copy can have left it."""
        return self._reads.are_offsets_dense_from(offset)

    def find_extents(self, start_offset: int, end_offset: int, target_bytes: int) -> Iterator[tuple[list[Extent], int]]:
        """Where `[start_offset, end_offset)` can be cut, as far as it may be read: see `splitting`."""
        return self._reads.find_extents(start_offset, end_offset, target_bytes)

    def learn_timestamps(self) -> Iterator[None]:
        """Reads each largest timestamp that is not known yet; between two the caller may let others have the log."""
        return learn_timestamps(self._local.segments)

    def search_time(self, timestamp_ms: int, from_offset: int = 0) -> tuple[TimeSearch, int] | None:
        """For the first record from `from_offset` on with this timestamp or a later one; None when there is none.

        The search is through one segment, and may be run in any thread. If it finds nothing, the returned offset is
        where to search next; if its slice was cut meanwhile, nothing that it found counts.
        """
        return search_time(self._local.segments, timestamp_ms, *self._searchable(from_offset))

    def search_max_timestamp(self, from_offset: int = 0) -> tuple[TimeSearch, int] | None:
        """As `search_time`, for the first record with the largest timestamp in the log; None when no record has one."""
        return search_max_timestamp(self._local.segments, *self._searchable(from_offset))

    def _searchable(self, from_offset: int) -> tuple[int, int]:
        self._local.check_online()
        end_offset = self.log_end_offset
        return min(max(from_offset, self.log_start_offset), end_offset), end_offset

    def earliest(self) -> TimestampAndOffset:
        """The log start offset with its epoch."""
        start = self.log_start_offset
        return TimestampAndOffset(NO_TIMESTAMP, start, self.epochs.epoch_at(start))

    def latest(self, bound: ReadBound = "high_watermark") -> TimestampAndOffset:
        """The end of what may be read, with the latest epoch."""
        return TimestampAndOffset(NO_TIMESTAMP, self._bounds.end_of(bound).offset, self.epochs.latest_epoch)

    # Rolling

    def roll(self, now_ms: int, expected_next_offset: int = 0) -> LogSegment:
        """Closes the active segment and begins a new one, whose base offset is the log end offset or the expected one.

        An empty active segment with that base offset is replaced. The next flush makes the old segment's indexes and
        its producer snapshot durable. StorageError when the disk refuses; a full disk leaves the old segment active.
        """
        new = self._local.roll(now_ms, expected_next_offset, self.producers)
        self._bounds.rolled()
        return new

    def maybe_roll_by_time(self, now_ms: int) -> bool:
        """Rolls an active segment that has data and has been active for longer than `segment.ms` by the clock."""
        if not is_overdue(self._local.active, segment_ms=self.config.roll_ms, now_ms=now_ms):
            return False
        self.roll(now_ms)
        return True

    # Flushing

    def prepare_flush(self) -> FlushPlan | None:
        """What to sync for everything appended until now to be durable; None when it is.

        Run the plan in any thread, then call `mark_flushed` here, or `fail` when it raised.
        """
        return self._flushes.prepare()

    def mark_flushed(self, plan: FlushPlan) -> int:
        """Takes note that `plan` has run: the recovery point moves, and is returned. The high watermark does not."""
        return self._flushes.mark(plan)

    def put_back(self, plan: FlushPlan) -> None:
        """`plan` has raised SyncNotBegun: the next one is for all that it was for."""
        self._flushes.put_back(plan)

    def fail(self, reason: str) -> None:
        """Takes the log offline: everything after raises StorageError with the first reason. Files stay as they are."""
        self.compaction.stop()
        self._local.fail(reason)

    def when_failed(self, call: Callable[[], None]) -> None:
        """`call` is called, in place of what was to be called before, as soon as the log fails: see `fail`."""
        self._local.on_failed = call

    # Truncation

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Drops everything from the batch that holds `offset` on; False, and no change, when the log ends before it.

        Durable on return. The log start and the high watermark go back with the end if they must. Below the first
        segment the log begins anew at `offset`. CorruptBatch where damage hides the place, and nothing has changed;
        StorageError when the disk refuses, and the log is offline. See `truncation`.
        """
        self.compaction.truncated(offset)
        return self._truncation.truncate_to(offset, now_ms)

    def truncate_fully_and_start_at(self, offset: int, now_ms: int, log_start_offset: int | None = None) -> None:
        """Drops everything, epochs and producers too; the next batch gets `offset`, or a later one. Durable on return.

        `log_start_offset`, if given, is where the log may be read from once it holds that: within the batch to come.
        """
        self.compaction.truncated(offset)
        self._truncation.start_anew_at(offset, now_ms, log_start_offset)

    def checkpointed(self, offsets: LogOffsets) -> None:
        """Takes note that the data directory's checkpoints hold `offsets`, durably. OSError when the disk refuses."""
        self._truncation.checkpointed(offsets)

    # Retention

    def raise_log_start_for_retention(self, now_ms: int) -> int | None:
        """Raises the log start to the end of the segments that retention no longer keeps; None if it keeps all.

        Returns what to store before `delete_old_segments` is called: a crash would leave a log that seems to have lost
        its first segments otherwise.
        """
        return raise_log_start_for_retention(self._local, self._bounds, self.epochs, now_ms)

    def delete_old_segments(self, now_ms: int, *, below: int = MAX_INT64) -> int:
        """Gives up the segments that retention no longer keeps and that end at `below` or before; returns how many.

        Their files are renamed now, and to be unlinked (`take_due_deletions`) after `file.delete.delay.ms`.
        """
        return give_up_old_segments(self._local, self._bounds, self.epochs, self.producers, now_ms, below)

    def take_due_deletions(self, elapsed_ms: int) -> list[Callable[[], None]]:
        """The unlinking that is due, for `run_deletions` in any thread.

        `elapsed_ms` is a clock that never goes back. `file.delete.delay.ms` is counted from the first call after the
        files were renamed, so call it regularly while `has_deletions`.
        """
        return self._local.take_due_deletions(elapsed_ms)

    @property
    def has_deletions(self) -> bool:
        """Whether files wait to be unlinked."""
        return self._local.has_deletions

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
        """Puts `new`, flushed segments with names in `.cleaned`, in the place of `old`. StorageError from the disk."""
        self._local.begin_replacement(new, old)
        self._local.settle()

    # The rest

    def update_config(self, config: LogConfig) -> None:
        """Takes over changed settings. What belongs to a segment's files holds from the next segment on."""
        self.compaction.update_config(config)
        self.config = config
        self._local.factory = replace(self._local.factory, config=config)

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers that were not seen for that long; returns how many."""
        return self.producers.expire(now_ms, expiration_ms)

    def close(self, *, sync: bool = True) -> CleanEnd | None:
        """Makes everything durable and closes all files. Returns what the clean-shutdown marker says of the log.

        None for a log that has failed: it must be checked at the next start. With `sync` False the caller syncs the
        file system before it writes checkpoints and marker. OSError when the disk refuses.
        """
        if self._local.failure:
            return None
        self.compaction.stop()
        return self._flushes.close(sync=sync)

    def copied_up_to(self, end_offset: int) -> None:
        """Takes note that a copy which was taken over is on disk up to `end_offset`."""
        if end_offset > self.recovery_point:
            self._bounds.flushed = LogOffsetMetadata(end_offset)

    def rename_directory(self, target: Path) -> None:
        """Gives the directory another name, in the same place; its durability is the caller's. OSError from the disk.

        Nothing of the log may be under way in another thread but reads and flushes of open files.
        """
        self.directory.rename(target)
        self.directory = target
        self._local.moved_to(target)

    def leave(self) -> Path:
        """As `delete`, for a log whose copy is in use elsewhere: the name is not synced. OSError from the disk."""
        return self._local.leave("moved to another data directory", sync=False)

    def delete(self) -> Path:
        """Closes the log and renames its directory, durably, so that it is found no more; returns the new path.

        Whoever keeps house removes that directory after `file.delete.delay.ms`. Slices in other hands stay readable.
        """
        self.compaction.stop()
        return self._local.delete()
