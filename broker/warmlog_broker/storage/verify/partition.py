"""Checking the files of partitions: logs batch by batch, and everything beside them against the logs.

`verify_partition` reads one partition's directory, `verify_data_directory` all of them and the checkpoints above. Both
only read, by the readers that the broker uses, and may run while a broker uses the files (how: `segment_verification`).
Checkpoints, leader epochs and indexes are read before the logs that they speak of, as a log is ahead of what is written
about it and never behind. What a report calls a finding is for somebody to look at; a broker repairs most of it by
itself, as everything but the `.log` files can be rebuilt.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from warmlog_broker.storage.directory.data_dir import HIGH_WATERMARKS_NAME, LOG_STARTS_NAME, RECOVERY_POINTS_NAME
from warmlog_broker.storage.directory.gap_marker import GAPS_NAME, has_gaps
from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME, NO_EPOCH, LeaderEpochs, read_epochs
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.partition_metadata import METADATA_NAME, read_partition_metadata
from warmlog_broker.storage.directory.topic_partition import TopicPartition, parse_directory_name
from warmlog_broker.storage.directory.truncation_marker import TRUNCATION_NAME, read_truncation
from warmlog_broker.storage.producer.producer_state import ProducerEntry
from warmlog_broker.storage.producer.snapshots import SUFFIX as SNAPSHOT_SUFFIX
from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND, segment_file_name
from warmlog_broker.storage.verify.producers import read_snapshot
from warmlog_broker.storage.verify.report import Report, in_short
from warmlog_broker.storage.verify.segment import LogWalk, SegmentVerification, pause
from warmlog_protocol.errors import StorageError

LOOKS_AT_A_SEGMENT = 4
"""How often a segment is read again because its files were replaced meanwhile."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """What is known of a log from elsewhere. None: not known."""

    recovery_point: int | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None
    topic_id: UUID | None = None
    has_dense_offsets: bool = False
    """Whether a gap between offsets is damage."""
    index_interval_bytes: int | None = None


@dataclass(slots=True)
class PartitionSummary:
    """What the log of a partition turned out to hold."""

    directory: Path
    base_offsets: list[int] = field(default_factory=list)
    next_offset: int = 0
    """Where the log ends."""
    is_end_known: bool = True
    """Whether it does: not when the newest log file cannot be read."""
    max_leader_epoch: int = NO_EPOCH
    max_producer_id: int = -1
    open_transactions: dict[int, int] = field(default_factory=dict)
    """Producer ids, and from which offset on each has a transaction open."""


@dataclass(slots=True)
class _Listing:
    base_offsets: list[int]
    snapshot_offsets: list[int]
    orphans: list[Path]
    others: list[str]


def verify_partition(
    directory: Path, expectations: Expectations, report: Report, *, pause: Callable[[], None] = pause
) -> PartitionSummary:
    """Checks a partition's directory and adds to `report`. FileNotFoundError when it is not there (any more)."""
    summary = PartitionSummary(directory)
    try:
        os.close(os.open(directory, os.O_RDONLY | os.O_CLOEXEC))  # if it may not be read, that is all to be found
        _verify_files(summary, expectations, report, pause)
    except FileNotFoundError:
        raise
    except OSError as error:
        report.find_unreadable(directory, error, expected="a directory that can be read")
        summary.is_end_known = False
    report.counts.partitions += 1
    report.on_progress(report)
    return summary


def _verify_files(
    summary: PartitionSummary, expectations: Expectations, report: Report, pause: Callable[[], None]
) -> None:
    directory = summary.directory
    epochs = _read_epochs(directory, report)
    _check_topic_id(directory, expectations, report)
    _check_truncation(directory, report)
    listing = _list_files(directory)
    summary.base_offsets = listing.base_offsets
    if listing.orphans:
        pause()  # a broker takes the files of a segment away one by one
    for path in filter(Path.exists, listing.orphans):
        report.find(path, expected="a log file with the same base offset", found="none")
    if listing.others:
        report.note(f"{directory}: not looked at: {in_short(listing.others)}")
    walk = LogWalk(
        report,
        epochs,
        expectations.recovery_point,
        index_interval_bytes=expectations.index_interval_bytes,
        wants_dense_offsets=expectations.has_dense_offsets and not has_gaps(directory),
        pause=pause,
    )
    walk.next_offset = listing.base_offsets[0] if listing.base_offsets else 0
    snapshots = _Snapshots(directory, listing.snapshot_offsets, walk)
    walk.before_batch = snapshots.come_to
    for number, base_offset in enumerate(listing.base_offsets):
        following = listing.base_offsets[number + 1 :]
        _verify_segment(directory, base_offset, following[0] if following else None, walk, snapshots)
    snapshots.come_to(walk.next_offset)
    summary.is_end_known = walk.is_end_known
    if walk.is_end_known:
        snapshots.find_behind_end()
    summary.next_offset = walk.next_offset
    summary.max_leader_epoch = max(walk.last_epoch, NO_EPOCH if epochs is None else epochs.latest_epoch)
    summary.max_producer_id = walk.producers.max_producer_id
    summary.open_transactions = walk.producers.open_transactions


def verify_data_directory(
    path: Path,
    report: Report,
    *,
    known: Mapping[TopicPartition, Expectations] | None = None,
    pause: Callable[[], None] = pause,
) -> None:
    """Checks all partitions of a data directory, and its checkpoints against them.

    `known` says more about some partitions; their offsets are taken from the checkpoints.
    """
    recovery_points = _read_offsets(path / RECOVERY_POINTS_NAME, report)
    log_starts = _read_offsets(path / LOG_STARTS_NAME, report)
    high_watermarks = _read_offsets(path / HIGH_WATERMARKS_NAME, report)
    unused = []
    for directory in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        name = parse_directory_name(directory.name)
        if name is None or name.mark:
            unused.append(directory.name)
            continue
        key = name.topic_partition
        expectations = replace(
            (known or {}).get(key, Expectations()),
            recovery_point=recovery_points.get(key),
            log_start_offset=log_starts.get(key),
            high_watermark=high_watermarks.get(key),
        )
        try:
            summary = verify_partition(directory, expectations, report, pause=pause)
        except FileNotFoundError:
            report.note(f"{directory}: it was removed meanwhile")
            continue
        check_offsets(path, key, expectations, summary, report)
    if unused:
        report.note(f"{path}: not looked at, as no partitions in use: {in_short(unused)}")


def check_offsets(
    data_directory: Path, key: TopicPartition, expected: Expectations, summary: PartitionSummary, report: Report
) -> None:
    """Finds offsets in the checkpoints of `data_directory` that lie outside the log that they speak of."""
    for name, offset, what in (
        (RECOVERY_POINTS_NAME, expected.recovery_point, "was on disk"),
        (LOG_STARTS_NAME, expected.log_start_offset, "may be read"),
        (HIGH_WATERMARKS_NAME, expected.high_watermark, "was committed"),
    ):
        if summary.is_end_known and offset is not None and offset > summary.next_offset:
            report.find(
                data_directory / name,
                offset=offset,
                expected=f"an offset of {key.directory_name}, which ends at {summary.next_offset}",
                found=f"{offset}, up to which it {what}"
                if name != LOG_STARTS_NAME
                else f"{offset}, from which it {what}",
            )


def _read_offsets(path: Path, report: Report) -> dict[TopicPartition, int]:
    try:
        return read_offsets(path)
    except (StorageError, OSError) as error:
        report.find_unreadable(path, error, expected="a checkpoint")
        return {}


def _read_epochs(directory: Path, report: Report) -> LeaderEpochs | None:
    path = directory / EPOCHS_NAME
    try:
        return LeaderEpochs(read_epochs(path))
    except FileNotFoundError:
        directory.stat()
        return None
    except (StorageError, OSError) as error:
        report.find_unreadable(path, error, expected="leader epochs")
        return None


def _check_topic_id(directory: Path, expectations: Expectations, report: Report) -> None:
    path = directory / METADATA_NAME
    try:
        topic_id = read_partition_metadata(path)
    except FileNotFoundError:
        report.find(path, expected="the topic's id", found="no file")
        return
    except (StorageError, OSError) as error:
        report.find_unreadable(path, error, expected="the topic's id")
        return
    if expectations.topic_id not in (None, topic_id):
        report.find(path, expected=f"topic id {expectations.topic_id}", found=str(topic_id))


def _check_truncation(directory: Path, report: Report) -> None:
    try:
        read_truncation(directory)
    except (StorageError, OSError) as error:
        report.find_unreadable(directory / TRUNCATION_NAME, error, expected="a truncation")


def _list_files(directory: Path) -> _Listing:
    listing = _Listing([], [], [], [])
    sides = []
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())
    for name in names:
        stem, kind = name[:20], name[20:]
        if not (len(stem) == 20 and stem.isascii() and stem.isdigit()):
            if name not in (EPOCHS_NAME, METADATA_NAME, TRUNCATION_NAME, GAPS_NAME):
                listing.others.append(name)
        elif kind == LOG_KIND:
            listing.base_offsets.append(int(stem))
        elif kind == SNAPSHOT_SUFFIX:
            listing.snapshot_offsets.append(int(stem))
        elif kind in KINDS:
            sides.append((int(stem), name))
        else:
            listing.others.append(name)
    bases = set(listing.base_offsets)
    for base_offset, name in sides:
        log_path = directory / segment_file_name(base_offset, LOG_KIND)
        if base_offset not in bases and not log_path.exists():  # it may have come while the directory was read
            listing.orphans.append(directory / name)
    return listing


def _verify_segment(
    directory: Path, base_offset: int, end_offset: int | None, walk: LogWalk, snapshots: "_Snapshots"
) -> None:
    """Checks one segment, again when its files were replaced meanwhile, or an index trimmed because it rolled."""
    snapshots.begin_segment(base_offset)
    next_offset = walk.next_offset
    for _ in range(LOOKS_AT_A_SEGMENT):
        segment = SegmentVerification(directory, base_offset, end_offset, walk, is_newest=end_offset is None)
        before = _identities(segment.paths)
        try:
            segment.run()
        except FileNotFoundError:
            walk.report.without_files(segment.paths)
            walk.report.note(f"{segment.path(LOG_KIND)}: it was removed meanwhile")
            walk.is_after_damage = True
            walk.producers.lose_track()
            return
        except OSError as error:
            walk.lose_segment(segment.path(LOG_KIND), error, is_newest=end_offset is None)
            if end_offset is not None:
                snapshots.come_to(end_offset)  # while nothing is known of the producers: they are only read
            return
        if _identities(segment.paths) == before or not snapshots.has_findings_in(segment.paths):
            return
        walk.report.without_files(segment.paths)
        walk.next_offset, walk.is_after_damage = next_offset, True
        snapshots.begin_segment(base_offset, is_again=True)


def _identities(paths: list[Path]) -> list[tuple[int, int] | None]:
    """Which files are behind these names at this moment, and how large those are that do not grow with every append."""
    identities: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            found = path.stat()
            identities.append((found.st_ino, 0 if path.suffix == LOG_KIND else found.st_size))
        except OSError:
            identities.append(None)
    return identities


class _Snapshots:
    """The producer snapshots of a partition, each compared when the walk comes to its offset."""

    def __init__(self, directory: Path, offsets: list[int], walk: LogWalk) -> None:
        self._directory = directory
        self._pending = offsets
        self._all = set(offsets)
        self._walk = walk
        self._log_start_offset = 0
        self._is_started = False

    def begin_segment(self, base_offset: int, *, is_again: bool = False) -> None:
        """Before a segment: where nothing is known of the producers, a snapshot at its base offset says it."""
        if not self._is_started:
            self._log_start_offset = base_offset
        is_unknown = not self._is_started or is_again or not self._walk.producers.is_exact
        self._is_started = True
        if not is_unknown:
            return
        if base_offset in self._all:
            self._walk.producers.begin_with(self._read(base_offset))
        elif base_offset:
            self._walk.producers.lose_track()

    def come_to(self, offset: int) -> None:
        """Compares the snapshots up to `offset` with the producers as they are now."""
        while self._pending and self._pending[0] <= offset:
            snapshot = self._pending.pop(0)
            entries = self._read(snapshot)
            if entries is None:
                continue
            self._walk.report.counts.snapshots += 1
            if snapshot >= self._log_start_offset:  # below are those of segments that are being removed
                self._walk.producers.compare(self._path(snapshot), entries, self._log_start_offset, self._walk.report)

    def find_behind_end(self) -> None:
        """Snapshots that speak of offsets which the log does not have."""
        for offset in self._pending:
            self._walk.report.find(
                self._path(offset),
                offset=offset,
                expected=f"a snapshot at or below the end of the log, {self._walk.next_offset}",
                found="one above it",
            )
        self._pending = []

    def has_findings_in(self, paths: list[Path]) -> bool:
        names = {str(path) for path in paths}
        return any(finding.path in names for finding in self._walk.report.findings)

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"

    def _read(self, offset: int) -> list[ProducerEntry] | None:
        """The entries; None when the file has gone. A damaged one is looked at again: it may be half written."""
        path = self._path(offset)
        for is_last_look in (False, True):
            try:
                return read_snapshot(path)
            except FileNotFoundError:
                return None
            except StorageError as error:
                if is_last_look:
                    self._walk.report.find_unreadable(path, error, expected="a producer snapshot")
                else:
                    self._walk.pause()
            except OSError as error:
                self._walk.report.find_unreadable(path, error, expected="a producer snapshot")
                return None
        return None
