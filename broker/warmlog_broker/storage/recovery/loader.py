"""Opening a log that may exist already: from a directory of files to everything that `Log` keeps in memory.

After a clean stop nothing is scanned and no index is opened: the log end offset is the recovery point that the stop
left, the last file must still have the size that it had then, and the producer state comes from the snapshot at the end
offset. Otherwise the log is checked from the recovery point on (`recovery`).

Leftovers: what retention and compaction have left half done is finished or undone first (`replacement`), indexes
without a log file are unlinked, whatever else there is stays where it is. A segment whose offsets are too far apart for
its indexes, which old versions of Kafka could write, is split (`overflow`).
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbelow
from uuid import UUID

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import CleanEnd, StoredState
from warmlog_broker.storage.directory.gap_marker import has_gaps
from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME, LeaderEpochs, read_epochs
from warmlog_broker.storage.directory.partition_metadata import METADATA_NAME, pack_partition_metadata, stored_topic_id
from warmlog_broker.storage.directory.truncation_marker import Truncation
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.replay import restore_producers, walk_batches
from warmlog_broker.storage.producer.snapshots import SUFFIX as SNAPSHOT_SUFFIX
from warmlog_broker.storage.producer.snapshots import ProducerSnapshots
from warmlog_broker.storage.record.file_records import PRIVATE_SUFFIX
from warmlog_broker.storage.recovery.recovery import RecoveryReport, RecoveryRules, recover_segments, set_aside
from warmlog_broker.storage.recovery.segment_overflow import split_overflowed
from warmlog_broker.storage.segment.segment import LogSegment, SegmentConfig
from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND
from warmlog_broker.storage.segment.segment_indexes import REBUILT_SUFFIX
from warmlog_broker.storage.segment.segment_swap import CLEANED_SUFFIX, DELETED_SUFFIX, finish_swaps
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.errors import InconsistentTopicId, StorageError

logger = logging.getLogger(__name__)

LEFTOVER_SUFFIXES = (".txnindex.tmp", PRIVATE_SUFFIX, REBUILT_SUFFIX)


@dataclass(frozen=True, slots=True)
class SegmentFactory:
    """Opens and creates the segments of one log."""

    directory: Path
    config: LogConfig
    open_files: OpenFiles
    random_below: Callable[[int], int] = randbelow
    """A random number below the one given: what is taken off segment.ms."""

    def open(self, base_offset: int, now_ms: int, suffix: str = "") -> LogSegment:
        """The segment with this base offset, created when it is not there."""
        config = self.config
        # Kafka allows up to segment.ms. On a compacted topic that may be more than roll_ms: each batch would roll then.
        jitter_ms = min(config.segment_jitter_ms, config.roll_ms)
        return LogSegment(
            self.directory,
            base_offset,
            config=SegmentConfig(
                index_interval_bytes=config.index_interval_bytes,
                max_index_bytes=config.segment_index_bytes,
                preallocate_bytes=config.segment_bytes if config.preallocate and not suffix else 0,
            ),
            open_files=self.open_files,
            now_ms=now_ms,
            roll_jitter_ms=self.random_below(jitter_ms) if jitter_ms else 0,
            suffix=suffix,
        )


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What is known of a log before its directory is looked into."""

    factory: SegmentFactory
    now_ms: int
    topic_id: UUID | None
    stored: StoredState
    max_leader_epoch: int | None = None
    truncation: Truncation | None = None
    """One that `stored` was capped for, and that is to be finished if it is not done."""
    is_start_known: bool = False
    """Whether the log start in `stored` is what it was: a first segment above it means that earlier ones are lost."""

    @property
    def directory(self) -> Path:
        return self.factory.directory

    def open_segment(self, base_offset: int) -> LogSegment:
        return self.factory.open(base_offset, self.now_ms)

    def open_cleaned_segment(self, base_offset: int) -> LogSegment:
        return self.factory.open(base_offset, self.now_ms, suffix=CLEANED_SUFFIX)


@dataclass(slots=True)
class LoadedLog:
    """What `Log` begins with."""

    segments: LogSegments
    log_start_offset: int
    log_end_offset: int
    producers: ProducerStates
    snapshots: ProducerSnapshots
    epochs: LeaderEpochs
    report: RecoveryReport
    topic_id: UUID | None
    is_new_directory: bool
    high_watermark: int = 0
    """As it was stored."""
    first_dirty_offset: int = 0
    unsynced_segments: list[LogSegment] = field(default_factory=list)
    """Segments, the active one apart, that recovery has changed: the first flush syncs them."""
    has_gaps: bool = False
    """See `gaps`."""
    truncation: Truncation | None = None


@dataclass(slots=True)
class _Listing:
    """The files of a partition's directory, by what they are."""

    base_offsets: list[int] = field(default_factory=list)
    snapshot_offsets: list[int] = field(default_factory=list)
    retired_base_offsets: list[int] = field(default_factory=list)
    """Of segments that were waiting to be unlinked."""


def load_log(request: LoadRequest) -> LoadedLog:
    """Loads, checks and repairs, or creates. Damage is not an error but in the report.

    OSError when the disk does not answer, InconsistentTopicId when the directory belongs to another topic id.
    """
    is_new_directory = _make_directory(request.directory)
    topic_id = settle_topic_id(request.directory, request.topic_id)
    stored, log_start_offset = request.stored, request.stored.offsets.log_start_offset
    listing = _list_directory(request.directory, request.factory.open_files)
    report = RecoveryReport(was_clean=stored.clean_end is not None)
    segments = [request.open_segment(base_offset) for base_offset in listing.base_offsets]
    segments = split_overflowed(segments, request.open_cleaned_segment, report)
    epochs, are_epochs_lost = _read_epochs(request, report)
    cutting = request.truncation if request.truncation is not None and not request.truncation.is_done else None
    if cutting is not None:
        segments = _go_on_cutting(request, cutting, segments, listing, epochs, report)
    unsynced: list[LogSegment] = []
    end_offset = stored.offsets.recovery_point
    if not segments:
        end_offset = _first_offset(stored, is_new_directory, report)
        segments = [request.open_segment(end_offset)]
    elif not _is_as_left(segments[-1], stored.clean_end, report):
        segments, end_offset = _recover(request, segments, epochs, report)
        unsynced = segments
    if end_offset < log_start_offset and not (request.truncation and request.truncation.is_full):
        set_aside(segments, f"they end at {end_offset}, before the log start {log_start_offset}", report)
        end_offset = log_start_offset
        segments = [request.open_segment(end_offset)]
        unsynced = []
    if cutting is not None and end_offset > cutting.offset:
        segments[-1].truncate_to(cutting.offset, request.now_ms)
        end_offset = cutting.offset
    loaded = LoadedLog(
        segments=_in_order(segments),
        log_start_offset=_log_start(request, segments[0].base_offset, listing, report),
        log_end_offset=end_offset,
        producers=ProducerStates(end_offset),
        snapshots=ProducerSnapshots(request.directory, listing.snapshot_offsets),
        epochs=epochs,
        report=report,
        topic_id=topic_id,
        is_new_directory=is_new_directory,
        high_watermark=stored.offsets.high_watermark,
        first_dirty_offset=stored.offsets.first_dirty_offset,
        unsynced_segments=[segment for segment in unsynced if segment is not segments[-1]],
        truncation=request.truncation,
        has_gaps=has_gaps(request.directory),
    )
    _restore_epochs(loaded, are_epochs_lost, request.max_leader_epoch)
    _restore_producers(loaded, request.now_ms)
    return loaded


def _make_directory(directory: Path) -> bool:
    """Creates the partition's directory; False when it was there."""
    try:
        directory.mkdir()
    except FileExistsError:
        return False
    return True


def _first_offset(stored: StoredState, is_new_directory: bool, report: RecoveryReport) -> int:
    """Where a log without a single segment begins: never below what was given out and flushed."""
    report.was_clean = True
    recovery_point, log_start_offset = stored.offsets.recovery_point, stored.offsets.log_start_offset
    if is_new_directory or recovery_point <= log_start_offset:
        return log_start_offset
    report.rebuilt.append(f"no log file is left: the log goes on at its recovery point {recovery_point}")
    return recovery_point


def _log_start(request: LoadRequest, first_base_offset: int, listing: _Listing, report: RecoveryReport) -> int:
    """Where the log may be read from: as stored, or at its first segment if retention has removed those before.

    Retention stores the log start before it removes a segment. Only if it could not, and a crash followed, do the
    removed segments say that they are not lost.
    """
    stored, log_start_offset = request.stored, request.stored.offsets.log_start_offset
    if first_base_offset <= log_start_offset:
        return log_start_offset
    was_removed = stored.clean_end is None and any(
        log_start_offset <= base_offset < first_base_offset for base_offset in listing.retired_base_offsets
    )
    if was_removed or not request.is_start_known:
        return first_base_offset
    report.rebuilt.append(
        f"the log starts at {log_start_offset} and its first segment at {first_base_offset}: segments are missing"
    )
    return log_start_offset


def settle_topic_id(directory: Path, topic_id: UUID | None) -> UUID | None:
    """The topic's id, as the caller and the file in `directory` say; InconsistentTopicId when they disagree.

    A file that is missing or damaged is written, durably but for its name.
    """
    path = directory / METADATA_NAME
    stored_id = stored_topic_id(path)
    if topic_id is None:
        return stored_id
    if stored_id is None:
        replace_file(path, pack_partition_metadata(topic_id))
    elif stored_id != topic_id:
        raise InconsistentTopicId(f"{directory} belongs to the topic with id {stored_id}, not {topic_id}")
    return topic_id


def _in_order(segments: list[LogSegment]) -> LogSegments:
    ordered = LogSegments()
    for segment in segments:
        ordered.add(segment)
    return ordered


def _list_directory(directory: Path, open_files: OpenFiles) -> _Listing:
    """Sorts the files, and sees to the leftovers."""
    listing = _Listing()
    indexes = []
    names = _file_names(directory)
    retired = f"{LOG_KIND}{DELETED_SUFFIX}"
    listing.retired_base_offsets += [int(name[:20]) for name in names if name[:20].isdecimal() and name[20:] == retired]
    if finish_swaps(directory, names, open_files):
        names = _file_names(directory)
    for name in names:
        stem, suffix = name[:20], name[20:]
        if name.endswith(LEFTOVER_SUFFIXES):
            (directory / name).unlink()
        elif not stem.isdecimal() or len(stem) != 20:
            continue
        elif suffix == LOG_KIND:
            listing.base_offsets.append(int(stem))
        elif suffix == SNAPSHOT_SUFFIX:
            listing.snapshot_offsets.append(int(stem))
        elif suffix in KINDS:
            indexes.append((int(stem), name))
    listing.base_offsets.sort()
    bases = set(listing.base_offsets)
    for base_offset, name in indexes:
        if base_offset not in bases:
            logger.warning("%s belongs to no log file and is removed", directory / name)
            (directory / name).unlink()
    return listing


def _file_names(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.is_file()]


def _read_epochs(request: LoadRequest, report: RecoveryReport) -> tuple[LeaderEpochs, bool]:
    """The leader epochs in the file, and whether they must be collected from the batches instead."""
    path = request.directory / EPOCHS_NAME
    try:
        epochs = LeaderEpochs(read_epochs(path))
        if request.max_leader_epoch is not None and epochs.latest_epoch > request.max_leader_epoch:
            raise StorageError(
                f"{path}: at most epoch {request.max_leader_epoch} expected, {epochs.latest_epoch} found"
            )
        return epochs, False
    except FileNotFoundError:
        return LeaderEpochs(), True
    except StorageError as error:
        report.rebuilt.append(f"leader epochs were collected from the batches: {error}")
        return LeaderEpochs(), True


def _is_as_left(active: LogSegment, clean_end: CleanEnd | None, report: RecoveryReport) -> bool:
    """Whether the log was closed cleanly and its last segment is what it was then."""
    if clean_end is None:
        return False
    is_empty = clean_end.end_offset == active.base_offset
    if (
        active.size_bytes == clean_end.active_segment_bytes
        and active.base_offset <= clean_end.end_offset
        and is_empty == (active.size_bytes == 0)
    ):
        return True
    report.rebuilt.append(
        f"{active.path} has {active.size_bytes} bytes, the clean stop left {clean_end.active_segment_bytes} "
        f"and the end offset {clean_end.end_offset}: the log is checked"
    )
    return False


def _recover(
    request: LoadRequest, segments: list[LogSegment], epochs: LeaderEpochs, report: RecoveryReport
) -> tuple[list[LogSegment], int]:
    """Checks from the recovery point on; returns all segments that stay and the offset at which the log ends."""
    recovery_point = request.stored.offsets.recovery_point
    first = max((n for n, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
    rules = RecoveryRules(
        recovery_point,
        has_dense_offsets=request.factory.config.has_dense_offsets
        and not request.stored.offsets.first_dirty_offset
        and not has_gaps(request.directory),
        max_leader_epoch=request.max_leader_epoch,
    )
    epochs.truncate_from_end(max(recovery_point, segments[first].base_offset))
    checked = recover_segments(segments[first:], rules, epochs, report)
    segments = segments[:first] + checked.segments
    end_offset = checked.end_offset
    if end_offset < recovery_point:
        segments[-1].on_become_inactive()
        segments.append(request.open_segment(recovery_point))
        end_offset = recovery_point
    return segments, end_offset


def _go_on_cutting(
    request: LoadRequest,
    cutting: Truncation,
    segments: list[LogSegment],
    listing: _Listing,
    epochs: LeaderEpochs,
    report: RecoveryReport,
) -> list[LogSegment]:
    """Goes on with a truncation that a crash interrupted; the segments that stay. The last one is still to be cut."""
    report.rebuilt.append(f"a truncation to {cutting.offset}{' with nothing before it' * cutting.is_full} was finished")
    kept = [] if cutting.is_full else [segment for segment in segments if segment.base_offset <= cutting.offset]
    for segment in reversed(segments[len(kept) :]):
        segment.delete()
    if cutting.is_full:
        for snapshot in listing.snapshot_offsets:
            (request.directory / f"{snapshot:020d}{SNAPSHOT_SUFFIX}").unlink(missing_ok=True)
        listing.snapshot_offsets.clear()
        epochs.clear()
    return kept or [request.open_segment(cutting.offset)]


def _restore_epochs(loaded: LoadedLog, are_lost: bool, max_epoch: int | None) -> None:
    """Fits the epochs to what the log holds now, and collects from the batches those that their file does not know.

    That is all of them when the file gave nothing; or the first ones, when the log start had been raised without being
    checkpointed, and is now where it was before.
    """
    epochs = loaded.epochs
    known = () if are_lost else epochs.entries
    start_offset, end_offset = loaded.log_start_offset, known[0].start_offset if known else loaded.log_end_offset
    if (are_lost or known) and start_offset < end_offset:
        logger.warning("%s is collected from the batches", loaded.snapshots.directory / EPOCHS_NAME)
        epochs.clear()
        for _, header, _ in walk_batches(loaded.segments, start_offset, loaded.log_end_offset, loaded.report.damage):
            if header.base_offset >= end_offset:
                break
            epochs.learn(header.partition_leader_epoch, header.base_offset, max_epoch)
        for entry in known:
            epochs.learn(*entry, max_epoch)
    epochs.truncate_from_start(loaded.log_start_offset)
    epochs.truncate_from_end(loaded.log_end_offset)


def _restore_producers(loaded: LoadedLog, now_ms: int) -> None:
    """Producer state at the log end offset."""
    snapshots, end_offset = loaded.snapshots, loaded.log_end_offset
    was_replayed = restore_producers(
        loaded.producers, snapshots, loaded.segments, end_offset, damage=loaded.report.damage, now_ms=now_ms
    )
    if was_replayed and loaded.report.was_clean:
        reason = (
            f"the producer snapshot at {end_offset} was missing or damaged: producers were collected from the batches"
        )
        loaded.report.rebuilt.append(reason)
        logger.warning("%s: %s", snapshots.directory, reason)
