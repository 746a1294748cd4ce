"""Check one segment: every batch of its log, and its indexes against them, in one scan.

**Beside a running broker** files grow, are trimmed, renamed and removed. That must not be taken for damage:

* Indexes are read into memory before the size of the log is taken, so the batch of each entry is there.
* The newest segment may end with a batch that is being written, and with preallocated zeros. If its log continues with
  something that is no batch, it is read again a few times, with a pause. Only what stays the same is a finding: a batch
  that a crash has torn does.
* A segment whose files were replaced or removed while it was read (compaction, retention, a rebuilt index) is read
  again, and its earlier findings are discarded.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.directory.partition_files import NO_GAPS, Gaps
from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.index.transaction_index import TransactionIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords
from warmlog_broker.storage.segment.scan import Damage, Place, scan
from warmlog_broker.storage.segment.segment_files import (
    KINDS,
    LOG_KIND,
    OFFSET_INDEX_KIND,
    TIME_INDEX_KIND,
    TRANSACTION_INDEX_KIND,
    segment_file_name,
)
from warmlog_broker.storage.segment.segment_indexes import LEAST_STALE_BYTES
from warmlog_broker.storage.verify.indexes import OffsetIndexCheck, TimeIndexCheck, TransactionIndexCheck
from warmlog_broker.storage.verify.producers import ProducerReplay
from warmlog_broker.storage.verify.report import Report
from warmlog_protocol.batch import MAGIC_COLUMNS, MAGIC_ROWS, BatchHeader, RecordBatch, read_batch
from warmlog_protocol.batch.control import ControlType
from warmlog_protocol.batch.header import NO_LEADER_EPOCH
from warmlog_protocol.errors import CorruptBatch

TAIL_ATTEMPTS = 5
"""How often the end of the newest segment is read again before it counts as torn."""
PAUSE_S = 0.1
PROGRESS_BYTES = 4 * 1024 * 1024

Index = TypeVar("Index", OffsetIndex, TimeIndex)


def pause() -> None:
    """Give a broker the time to finish what it is writing."""
    time.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What is known of a log from elsewhere. None: unknown."""

    recovery_point: int | None = None
    """Side files cover the log up to here."""
    log_start_offset: int | None = None
    high_watermark: int | None = None
    topic_id: UUID | None = None
    has_dense_offsets: bool = False
    """Whether a gap between offsets is damage."""
    index_interval_bytes: int | None = None
    """How dense the index entries are."""
    check_record: Callable[[bytes | None, bytes | None], None] | None = None
    """Raises ValueError for a key and value that the topic cannot have."""


@dataclass(slots=True)
class LogWalk:
    """What the log of a partition holds, as far as a walk through its segments has come."""

    report: Report
    expected: Expectations
    pause: Callable[[], None] = pause
    base_offsets: list[int] = field(default_factory=list)
    epochs: LeaderEpochs | None = None
    """The content of leader-epoch-checkpoint; None if it cannot be read."""
    gaps: Gaps = NO_GAPS
    producers: ProducerReplay = field(default_factory=ProducerReplay)
    next_offset: int = 0
    """Where the log ends."""
    last_epoch: int = NO_LEADER_EPOCH
    last_magic: int = MAGIC_COLUMNS
    is_after_damage: bool = False
    """Whether the next offset is unknown."""
    is_end_known: bool = True
    """False if the newest log file cannot be read."""
    before_batch: Callable[[int], None] = lambda _base_offset: None
    """Called with the base offset of each batch before its checks."""

    @property
    def max_leader_epoch(self) -> int:
        return max(self.last_epoch, NO_LEADER_EPOCH if self.epochs is None else self.epochs.latest_epoch)

    def lose_track(self) -> None:
        """Batches are missing: the next offset and the producers are unknown from here on."""
        self.producers.lose_track()
        self.is_after_damage = True


class _AnyPlace(Place):
    """Accepts any batch: the verification reports its offsets, and still checks the rest of it."""

    def admit(self, header: BatchHeader, _records: FileRecords, _position: int, /) -> str:
        self.next_offset = header.next_offset
        return ""


class SegmentVerification:
    """The check of the segment of `directory` with `base_offset`."""

    def __init__(self, directory: Path, base_offset: int, end_offset: int | None, walk: LogWalk) -> None:
        """`end_offset` is the next segment's base offset, None for the newest segment."""
        self.directory = directory
        self.base_offset = base_offset
        self.walk = walk
        self.report = walk.report
        self.is_newest = end_offset is None
        self._end_offset = base_offset + MAX_RELATIVE_OFFSET + 1
        if end_offset is not None:
            self._end_offset = min(end_offset, self._end_offset)
        self._reported_bytes = self._largest_batch_bytes = 0

    def path(self, kind: str) -> Path:
        return self.directory / segment_file_name(self.base_offset, kind)

    @property
    def paths(self) -> list[Path]:
        return [self.path(kind) for kind in KINDS]

    def run(self) -> None:
        """Check everything. FileNotFoundError if there is no log file (any more)."""
        offsets_path, times_path = self.path(OFFSET_INDEX_KIND), self.path(TIME_INDEX_KIND)
        with ExitStack() as stack:
            offsets = self._open_index(OffsetIndex, OFFSET_INDEX_KIND, stack)
            times = self._open_index(TimeIndex, TIME_INDEX_KIND, stack)
            aborted = self._read_transaction_index()
            records = stack.enter_context(closing(self._open_log()))
            if records.size_bytes > (LEAST_STALE_BYTES if self.is_newest else 0):
                for index, path in ((offsets, offsets_path), (times, times_path)):
                    if index is None and not path.exists():
                        self.report.find(path, expected="an index of the log beside it", found="no file")
            self._offsets = None if offsets is None else OffsetIndexCheck(offsets_path, offsets, self.report)
            self._times = None if times is None else TimeIndexCheck(times_path, times, self.report)
            self._transactions = TransactionIndexCheck(self.path(TRANSACTION_INDEX_KIND), aborted, self.report)
            log_bytes = self._walk_log(records)
            if self._offsets is not None:
                self._offsets.finish(log_bytes)
                self._find_stale_index(self._offsets, log_bytes)
            if self._times is not None:
                self._times.finish(must_end_with_largest=not self.is_newest)
            self._transactions.finish()
        self.report.counts.segments += 1

    def _open_log(self) -> FileRecords:
        return FileRecords.open_read_only(self.path(LOG_KIND), OpenFiles())

    def _open_index(self, index_class: type[Index], kind: str, stack: ExitStack) -> Index | None:
        path = self.path(kind)
        with suppress(FileNotFoundError), self.report.reading(path, expected="an index"):
            index = index_class(path, self.base_offset, open_files=OpenFiles(), is_writable=False)
            stack.enter_context(index)
            if not (self.is_newest and index.is_padded):
                index.sanity_check()
            return index
        return None

    def _read_transaction_index(self) -> TransactionIndex | tuple[()]:
        path = self.path(TRANSACTION_INDEX_KIND)
        with suppress(FileNotFoundError), self.report.reading(path, expected="aborted transactions"):
            index = TransactionIndex.open_read_only(path, self.base_offset, OpenFiles())
            index.sanity_check()
            return index
        return ()

    # Walking

    def _walk_log(self, records: FileRecords) -> int:
        """Check each batch; return where the last one ends."""
        end_position = 0
        place = _AnyPlace(max(self.walk.next_offset, self.base_offset), self._end_offset)
        for found in scan(records, 0, place, checks_crc=True):
            if not isinstance(found, Damage):
                header, position = found
                self._on_batch(records, header, position)
                end_position = position + header.size_bytes
            elif self.is_newest and self._is_being_written(found.position):
                break
            else:
                self._find_damage(found, is_at_end=found.end_position >= records.size_bytes)
        return end_position

    def _is_being_written(self, position: int) -> bool:
        """Whether the newest log may end at `position`: by now a batch, nothing or preallocated zeros are there.

        Batches appended since the scan began are left to the next verification.
        """
        for attempt in range(TAIL_ATTEMPTS):
            if attempt:
                self.walk.pause()
            with closing(self._open_log()) as records:
                try:
                    if records.end_without_zeros(position) > position:
                        next(records.batches(position, checks_crc=True))
                except DamagedLog:  # also if the zeros were cut off meanwhile, as the segment was rolled
                    continue
                return True
        return False

    def _find_damage(self, damage: Damage, *, is_at_end: bool) -> None:
        self.report.find(
            damage.path,
            position=damage.position,
            offset=damage.first_offset,
            expected="a valid batch",
            found=f"{damage.reason} ({damage.end_position - damage.position} bytes cannot be read)",
        )
        self.walk.lose_track()
        if not is_at_end:
            for check in (self._offsets, self._times, self._transactions):
                if check is not None:
                    check.skip_to(damage.end_position, damage.next_offset)

    def _on_batch(self, records: FileRecords, header: BatchHeader, position: int) -> None:
        self._check_offsets(header, position)
        self.walk.before_batch(header.base_offset)
        self._check_epoch(header, position)
        batch = read_batch(records.read(position, header.size_bytes), verify_crc=False)
        self._check_body(batch, position)
        self._follow_producers(batch, position)
        for check in (self._offsets, self._times):
            if check is not None:
                check.on_batch(header, position)
        walk, counts = self.walk, self.report.counts
        walk.next_offset = max(walk.next_offset, header.next_offset)
        walk.last_epoch = max(walk.last_epoch, header.partition_leader_epoch)
        walk.last_magic = header.magic
        walk.is_after_damage = False
        counts.batches += 1
        counts.records += header.record_count
        counts.log_bytes += header.size_bytes
        self._largest_batch_bytes = max(self._largest_batch_bytes, header.size_bytes)
        if position - self._reported_bytes >= PROGRESS_BYTES:
            self._reported_bytes = position
            self.report.on_progress(self.report)

    # Checks of a batch

    def _find(self, header: BatchHeader, position: int, expected: str, found: str) -> None:
        self.report.find(
            self.path(LOG_KIND), position=position, offset=header.base_offset, expected=expected, found=found
        )

    def _check_offsets(self, header: BatchHeader, position: int) -> None:
        walk = self.walk
        if header.base_offset < self.base_offset or header.last_offset >= self._end_offset:
            expected = f"offsets from {self.base_offset} to {self._end_offset - 1}"
            self._find(header, position, expected, f"{header.base_offset} to {header.last_offset}")
        elif header.base_offset < walk.next_offset:
            self._find(header, position, f"an offset from {walk.next_offset} on", str(header.base_offset))
        elif header.base_offset > walk.next_offset and not walk.is_after_damage:
            self.report.counts.offset_gaps += 1
            walk.producers.is_thinned = True
            may_be_kafkas = header.base_offset <= walk.gaps.rows_up_to and MAGIC_ROWS in (walk.last_magic, header.magic)
            if walk.expected.has_dense_offsets and not (walk.gaps.everywhere or may_be_kafkas):
                self._find(header, position, f"offset {walk.next_offset}", f"{header.base_offset}: a gap")

    def _check_epoch(self, header: BatchHeader, position: int) -> None:
        walk, epoch = self.walk, header.partition_leader_epoch
        if epoch < 0:
            return
        if epoch < walk.last_epoch:
            self._find(header, position, f"leader epoch {walk.last_epoch} or a later one", str(epoch))
            return
        if walk.epochs is None or not walk.epochs.entries:
            return
        recovery_point = walk.expected.recovery_point
        is_covered = not self.is_newest if recovery_point is None else header.next_offset <= recovery_point
        if header.base_offset < walk.epochs.entries[0].start_offset or not is_covered:
            return
        known = walk.epochs.epoch_at(header.base_offset)
        if known != epoch:
            self._find(header, position, f"leader epoch {known}, as leader-epoch-checkpoint says", str(epoch))

    def _check_body(self, batch: RecordBatch, position: int) -> None:
        header = batch.header
        if not header.record_count:
            return
        try:
            columns = batch.columns
            if columns.header_lengths is not None:
                batch.headers()
        except CorruptBatch as error:
            self._find(header, position, f"{header.record_count} records", str(error))
            return
        if self.walk.expected.check_record is not None and not header.is_control:
            for offset, key, value in zip(batch.offsets(), batch.keys(), batch.values(), strict=True):
                try:
                    self.walk.expected.check_record(key, value)
                except ValueError as error:
                    path, expected = self.path(LOG_KIND), "a record that this topic may have"
                    self.report.find(path, position=position, offset=offset, expected=expected, found=str(error))
        if header.is_log_append_time:
            return
        deltas = columns.timestamp_deltas_ms
        largest_ms = columns.base_timestamp_ms + deltas.largest()
        is_whole = header.record_count == header.last_offset_delta + 1
        if largest_ms > header.max_timestamp_ms or (is_whole and largest_ms != header.max_timestamp_ms):
            self._find(header, position, f"max timestamp {largest_ms}, of its records", str(header.max_timestamp_ms))
        if header.magic == MAGIC_COLUMNS and is_whole and not deltas.zeros():
            self._find(header, position, "a record with the base timestamp", "all are later")

    def _follow_producers(self, batch: RecordBatch, position: int) -> None:
        header = batch.header
        try:
            control_type, derived = self.walk.producers.on_batch(batch)
        except CorruptBatch as error:
            found = f"{error} (a control batch of producer {header.producer_id})"
            self._find(header, position, "a control record", found)
            return
        if control_type is ControlType.ABORT:
            recovery_point = self.walk.expected.recovery_point
            self._transactions.on_abort(
                header,
                derived,
                is_thinned=self.walk.producers.is_thinned,
                may_be_missing=recovery_point is not None and header.next_offset > recovery_point,
            )

    def _find_stale_index(self, offsets: OffsetIndexCheck, log_bytes: int) -> None:
        """Report an index that ends long before its log: it has lost entries, so lookups there are slow."""
        interval_bytes = self.walk.expected.index_interval_bytes
        if interval_bytes is None:
            return
        position = 0 if offsets.last is None else offsets.last.position
        may_be_left_out = max(LEAST_STALE_BYTES, 2 * interval_bytes) + 2 * self._largest_batch_bytes
        if log_bytes - position > may_be_left_out:
            self.report.find(
                self.path(OFFSET_INDEX_KIND),
                expected=f"entries after position {position}",
                found=f"none up to the end of the log at {log_bytes}",
            )
