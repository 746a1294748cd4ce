"""Opening a log that may exist already: from a directory of files to everything that `Log` keeps in memory.

The order of steps in `load_log`: what retention, compaction and truncation have left half done is finished or undone
first, as it decides which files belong to the log. Then the segments are checked, as they decide where the log ends.
Epochs and producers come last, as they are collected from batches between the log start and that end.

After a clean stop nothing is scanned and no index is opened: the log end offset is the recovery point that the stop
left, the last file must still have the size that it had then, and the producer state comes from the snapshot at the end
offset. Otherwise the log is checked from the recovery point on (`recovery`).

Index files without a log file are unlinked; all other files stay where they are.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from random import randrange
from uuid import UUID

from msgspec import Struct, field

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import CleanEnd, StoredState
from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME, LeaderEpochs, read_epochs
from warmlog_broker.storage.directory.partition_files import (
    METADATA_NAME,
    NO_GAPS,
    REMOVED_BELOW_NAME,
    RESTART_POINT_NAME,
    UNMARKED,
    Gaps,
    RestartPoint,
    Truncation,
    mark_row_gaps,
    pack_partition_metadata,
    read_gaps,
    read_removed_below,
    read_restart_point,
    stored_topic_id,
)
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.replay import restore_producers, walk_batches
from warmlog_broker.storage.producer.snapshots import SNAPSHOT_SUFFIX, ProducerSnapshots
from warmlog_broker.storage.recovery.recovery import (
    Recovered,
    RecoveryReport,
    RecoveryRules,
    UncheckedRange,
    recover_segments,
    set_aside,
)
from warmlog_broker.storage.segment.file_records import PRIVATE_SUFFIX
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND, segment_file_name, split_name
from warmlog_broker.storage.segment.segment_indexes import REBUILT_SUFFIX
from warmlog_broker.storage.segment.segment_swap import DELETED_SUFFIX, finish_swaps
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.errors import InconsistentTopicId, StorageError

logger = logging.getLogger(__name__)

LEFTOVER_SUFFIXES = (".txnindex.tmp", f"{RESTART_POINT_NAME}.tmp", PRIVATE_SUFFIX, REBUILT_SUFFIX)


class SegmentFactory(Struct, frozen=True):
    """Opens and creates the segments of one log."""

    directory: Path
    config: LogConfig
    open_files: OpenFiles

    def open(self, base_offset: int, now_ms: int) -> LogSegment:
        # Kafka allows up to segment.ms. On a compacted topic that may be more than roll_ms: each batch would roll then.
        jitter_ms = min(self.config.segment_jitter_ms, self.config.roll_ms)
        return LogSegment(
            self.directory,
            base_offset,
            config=self.config,
            open_files=self.open_files,
            now_ms=now_ms,
            roll_jitter_ms=randrange(jitter_ms) if jitter_ms else 0,  # noqa: S311
        )


class LoadRequest(Struct, frozen=True):
    """What is known of a log before its directory is read."""

    factory: SegmentFactory
    now_ms: int
    topic_id: UUID | None
    stored: StoredState
    max_leader_epoch: int | None = None
    truncation: Truncation | None = None
    """One for which `stored` was capped; it is finished if it is not done."""
    after_bytes: Callable[[int], None] = lambda _: None
    """Called with the size of each part that was checked."""
    is_start_known: bool = False
    """Whether the log start in `stored` is exact: then a first segment above it means that earlier ones are lost."""

    @property
    def directory(self) -> Path:
        return self.factory.directory

    def open_segment(self, base_offset: int) -> LogSegment:
        return self.factory.open(base_offset, self.now_ms)


class LoadedLog(Struct):
    """What `Log` is made of."""

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
    removed_below: int = 0
    """Of the log that this one was filled from."""
    unchecked: UncheckedRange | None = None
    """What recovery has left to a check in the background."""
    has_restart_point: bool = False
    """Whether there is one at the end of the log."""
    has_other_files: bool = False
    """Whether recovery has added or removed files: the first flush syncs the directory."""
    gaps: Gaps = NO_GAPS
    truncation: Truncation | None = None


class _Listing(Struct):
    """The files of a partition's directory, by what they are."""

    base_offsets: list[int] = field(default_factory=list)
    snapshot_offsets: list[int] = field(default_factory=list)
    retired_base_offsets: list[int] = field(default_factory=list)
    """Of segments that were waiting to be unlinked."""
    names: list[str] = field(default_factory=list)


def load_log(request: LoadRequest) -> LoadedLog:
    """Load, check and repair a log, or create it. Damage is not an error but in the report.

    OSError from the disk, InconsistentTopicId if the directory belongs to another topic id.
    """
    is_new_directory = not request.directory.is_dir()
    if is_new_directory:
        request.directory.mkdir()
    topic_id = store_topic_id(request.directory, request.topic_id)
    listing = _list_directory(request.directory)
    report = RecoveryReport(was_clean=request.stored.clean_end is not None)
    segments = [request.open_segment(base_offset) for base_offset in listing.base_offsets]
    epochs, are_epochs_lost = _read_epochs(request, report)
    gaps = read_gaps(request.directory)
    unfinished = None if request.truncation is None or request.truncation.is_done else request.truncation
    if unfinished is not None:
        segments = _resume_truncation(request, unfinished, segments, listing, epochs, report)
    if not segments:
        # Never begin below an offset that was assigned and flushed.
        report.was_clean = True
        offsets = request.stored.offsets
        first_offset = offsets.log_start_offset
        if not is_new_directory and offsets.recovery_point > first_offset:
            first_offset = offsets.recovery_point
            report.rebuilt.append(f"no log file is left: the log continues at its recovery point {first_offset}")
        found = Recovered([request.open_segment(first_offset)], first_offset)
    elif _is_as_left(segments[-1], request.stored.clean_end, report):
        found = Recovered(segments, request.stored.offsets.recovery_point)
    else:
        found = _recover(request, segments, epochs, gaps, report, listing)
    found = _not_before_log_start(request, found, report)
    if unfinished is not None and found.end_offset > unfinished.offset:
        found.segments[-1].truncate_to(unfinished.offset, request.now_ms)
        found = found._replace(end_offset=unfinished.offset)
    if gaps == UNMARKED:
        gaps = Gaps(rows_up_to=found.end_offset)
        try:
            mark_row_gaps(request.directory, found.end_offset)
        except OSError as error:  # a full disk: the log can be read all the same, and the next start marks it
            logger.warning("%s: the mark of its gaps could not be written: %s", request.directory, error)
    has_point = RESTART_POINT_NAME in listing.names if report.was_clean else found.restart_offset == found.end_offset
    loaded = LoadedLog(
        segments=LogSegments(found.segments),
        log_start_offset=_log_start(request, found.segments[0].base_offset, listing, report),
        log_end_offset=found.end_offset,
        producers=ProducerStates(found.end_offset),
        snapshots=ProducerSnapshots(request.directory, listing.snapshot_offsets),
        epochs=epochs,
        report=report,
        topic_id=topic_id,
        is_new_directory=is_new_directory,
        high_watermark=request.stored.offsets.high_watermark,
        first_dirty_offset=request.stored.offsets.first_dirty_offset,
        removed_below=read_removed_below(request.directory) if REMOVED_BELOW_NAME in listing.names else 0,
        truncation=request.truncation,
        unchecked=found.unchecked,
        has_restart_point=has_point,
        gaps=gaps,
    )
    _restore_epochs(loaded, are_epochs_lost or found.lacks_epochs, request.max_leader_epoch)
    end_offset = loaded.log_end_offset
    was_replayed = restore_producers(
        loaded.producers, loaded.snapshots, loaded.segments, end_offset, damage=report.damage, now_ms=request.now_ms
    )
    if was_replayed and report.was_clean:
        reason = (
            f"the producer snapshot at {end_offset} was missing or damaged: producers were collected from the batches"
        )
        report.rebuilt.append(reason)
        logger.warning("%s: %s", request.directory, reason)
    is_as_found = report.is_uneventful and set(loaded.snapshots.offsets) == set(listing.snapshot_offsets)
    loaded.has_other_files = not (report.was_clean or is_as_found)
    return loaded


def _not_before_log_start(request: LoadRequest, found: Recovered, report: RecoveryReport) -> Recovered:
    """Set aside segments that end before the log start, unless a truncation has left them so, and begin there."""
    log_start_offset = request.stored.offsets.log_start_offset
    is_emptied = request.truncation is not None and request.truncation.is_full
    if found.end_offset >= log_start_offset or is_emptied:
        return found
    set_aside(found.segments, f"they end at {found.end_offset}, before the log start {log_start_offset}", report)
    return Recovered([request.open_segment(log_start_offset)], log_start_offset)


def _log_start(request: LoadRequest, first_base_offset: int, listing: _Listing, report: RecoveryReport) -> int:
    """Where the log may be read from: as stored, or at its first segment if retention has removed those before.

    Retention stores the log start before it removes a segment. If it could not, and a crash followed, the retired files
    show that the segments are not lost.
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


def store_topic_id(directory: Path, topic_id: UUID | None) -> UUID | None:
    """Return the topic's id, as the caller or the file in `directory` says; InconsistentTopicId if they disagree.

    A missing or damaged file is written, durably except its name.
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


def _list_directory(directory: Path) -> _Listing:
    """Sort the files, and finish or remove leftovers."""
    listing = _Listing()
    indexes = []
    names = _file_names(directory)
    retired = f"{LOG_KIND}{DELETED_SUFFIX}"
    listing.retired_base_offsets += [split_name(name)[0] for name in names if name.endswith(retired)]
    if finish_swaps(directory, names):
        names = _file_names(directory)
    listing.names = names
    for name in names:
        base_offset, kind = split_name(name)
        if name.endswith(LEFTOVER_SUFFIXES):
            (directory / name).unlink()
        elif kind == LOG_KIND:
            listing.base_offsets.append(base_offset)
        elif kind == SNAPSHOT_SUFFIX:
            listing.snapshot_offsets.append(base_offset)
        elif kind in KINDS:
            indexes.append((base_offset, name))
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


def _restart_point(request: LoadRequest, segment: LogSegment, listing: _Listing) -> RestartPoint | None:
    """Return the restart point, if it can be one of `segment`, which has the recovery point, as it is."""
    if request.truncation is not None or RESTART_POINT_NAME not in listing.names:
        return None
    point = read_restart_point(request.directory)
    is_usable = (
        point is not None
        and point.offset <= request.stored.offsets.recovery_point
        and point.offset in listing.snapshot_offsets
        and point.segment == segment.base_offset
        and point.position <= segment.size_bytes
    )
    return point if is_usable else None


def _recover(
    request: LoadRequest,
    segments: list[LogSegment],
    epochs: LeaderEpochs,
    gaps: Gaps,
    report: RecoveryReport,
    listing: _Listing,
) -> Recovered:
    """Check the log from the restart point or the recovery point on."""
    recovery_point = request.stored.offsets.recovery_point
    first = max((n for n, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
    point = _restart_point(request, segments[first], listing)
    rules = RecoveryRules(
        recovery_point,
        has_dense_offsets=not (
            request.factory.config.is_compacted or request.stored.offsets.first_dirty_offset or gaps.everywhere
        ),
        gaps=gaps,
        max_leader_epoch=request.max_leader_epoch,
        after_bytes=request.after_bytes,
    )
    epochs.truncate_from_end(max(recovery_point, segments[first].base_offset))
    checked = recover_segments(segments[first:], rules, epochs, report, point)
    segments = segments[:first] + checked.segments
    end_offset = checked.end_offset
    if end_offset < recovery_point:
        segments[-1].on_become_inactive()
        segments.append(request.open_segment(recovery_point))
        end_offset = recovery_point
    return checked._replace(segments=segments, end_offset=end_offset)


def _resume_truncation(
    request: LoadRequest,
    truncation: Truncation,
    segments: list[LogSegment],
    listing: _Listing,
    epochs: LeaderEpochs,
    report: RecoveryReport,
) -> list[LogSegment]:
    """Continue a truncation that a crash interrupted; return the segments that stay. The last one must still be cut."""
    report.rebuilt.append(
        f"a truncation to {truncation.offset}{' with nothing before it' * truncation.is_full} was finished"
    )
    kept = [] if truncation.is_full else [segment for segment in segments if segment.base_offset <= truncation.offset]
    for segment in reversed(segments[len(kept) :]):
        segment.delete()
    if truncation.is_full:
        for snapshot in listing.snapshot_offsets:
            (request.directory / segment_file_name(snapshot, SNAPSHOT_SUFFIX)).unlink(missing_ok=True)
        listing.snapshot_offsets.clear()
        epochs.clear()
    return kept or [request.open_segment(truncation.offset)]


def _restore_epochs(loaded: LoadedLog, are_lost: bool, max_epoch: int | None) -> None:
    """Limit the epochs to what the log holds now, and collect from the batches those that their file does not know.

    That is all of them if the file is lost or stops too early; or the first ones, if the log start had been raised
    without being checkpointed, and is now where it was before.
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
