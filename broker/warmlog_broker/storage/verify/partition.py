"""Check the files of partitions: logs batch by batch, and all side files against the logs.

`verify_partition` reads one partition's directory, `verify_data_directory` all of them and the checkpoints. Both only
read, with the broker's own readers, and may run beside a broker (see `segment`). Checkpoints, leader epochs and indexes
are read before their logs, because a log is never older than what is written about it. A broker repairs most findings
by itself, since everything but the `.log` files can be rebuilt.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from warmlog_broker.storage.directory.data_dir import HIGH_WATERMARKS_NAME, LOG_STARTS_NAME, RECOVERY_POINTS_NAME
from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME, LeaderEpochs, read_epochs
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.partition_files import (
    METADATA_NAME,
    REMOVED_BELOW_NAME,
    RESTART_POINT_NAME,
    STATE_NAMES,
    TRUNCATION_NAME,
    read_gaps,
    read_partition_metadata,
    read_removed_below,
    read_restart_point,
    read_truncation,
)
from warmlog_broker.storage.directory.topic_partition import TopicPartition, parse_directory_name
from warmlog_broker.storage.producer.producer_state import ProducerEntry
from warmlog_broker.storage.producer.snapshots import SNAPSHOT_SUFFIX
from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND, segment_file_name, split_name
from warmlog_broker.storage.verify.producers import read_snapshot
from warmlog_broker.storage.verify.report import Report, summarize
from warmlog_broker.storage.verify.segment import Expectations, LogWalk, SegmentVerification, pause
from warmlog_protocol.errors import CorruptBatch, StorageError

SEGMENT_ATTEMPTS = 4
"""How often a segment is read if its files are replaced meanwhile."""


@dataclass(slots=True)
class _Listing:
    base_offsets: list[int]
    snapshot_offsets: list[int]
    orphans: list[Path]
    others: list[str]


def verify_partition(
    directory: Path, expectations: Expectations, report: Report, *, pause: Callable[[], None] = pause
) -> LogWalk:
    """Check a partition's directory, add to `report`, and return what its log holds.

    FileNotFoundError if it does not exist (any more).
    """
    walk = LogWalk(report, expectations, pause)
    try:
        os.close(os.open(directory, os.O_RDONLY | os.O_CLOEXEC))  # an unreadable directory is a single finding
        _verify_files(directory, walk)
    except FileNotFoundError:
        raise
    except OSError as error:
        report.find_unreadable(directory, error, expected="a directory that can be read")
        walk.is_end_known = False
    report.counts.partitions += 1
    report.on_progress(report)
    return walk


def _verify_files(directory: Path, walk: LogWalk) -> None:
    report = walk.report
    walk.epochs = _read_epochs(directory, report)
    _check_topic_id(directory, walk.expected, report)
    with report.reading(directory / TRUNCATION_NAME, expected="a truncation"):
        read_truncation(directory)
    with report.reading(directory / REMOVED_BELOW_NAME, expected="an offset"):
        read_removed_below(directory)
    path = directory / RESTART_POINT_NAME
    if path.exists() and read_restart_point(directory) is None:
        report.find(path, expected="a restart point", found="a damaged file")
    listing = _list_files(directory)
    if listing.orphans:
        walk.pause()  # a broker removes the files of a segment one by one
    for path in filter(Path.exists, listing.orphans):
        report.find(path, expected="a log file with the same base offset", found="none")
    if listing.others:
        report.note(f"{directory}: not checked: {summarize(listing.others)}")
    walk.base_offsets = listing.base_offsets
    walk.gaps = read_gaps(directory)
    walk.next_offset = listing.base_offsets[0] if listing.base_offsets else 0
    snapshots = _Snapshots(directory, listing.snapshot_offsets, walk)
    walk.before_batch = snapshots.compare_up_to
    for base_offset, end_offset in zip_longest(listing.base_offsets, listing.base_offsets[1:]):
        _verify_segment(directory, base_offset, end_offset, walk, snapshots)
    snapshots.compare_up_to(walk.next_offset)
    if walk.is_end_known:
        snapshots.find_after_end()


def verify_data_directory(
    path: Path,
    report: Report,
    *,
    known: Mapping[TopicPartition, Expectations] | None = None,
    only: TopicPartition | None = None,
    pause: Callable[[], None] = pause,
) -> None:
    """Check all partitions of a data directory, or `only` one, and its checkpoints against them.

    `known` has expectations of some partitions; their offsets come from the checkpoints. As for a broker, the recovery
    point of a partition without one is 0.
    """
    recovery_points = _read_offsets(path / RECOVERY_POINTS_NAME, report)
    log_starts = _read_offsets(path / LOG_STARTS_NAME, report)
    high_watermarks = _read_offsets(path / HIGH_WATERMARKS_NAME, report)
    unused = []
    directories = path.iterdir() if only is None else [path / only.directory_name]
    for directory in sorted(entry for entry in directories if entry.is_dir()):
        name = parse_directory_name(directory.name)
        if name is None or name.mark:
            unused.append(directory.name)
            continue
        key = name.topic_partition
        expectations = replace(
            (known or {}).get(key, Expectations()),
            recovery_point=recovery_points.get(key, 0),
            log_start_offset=log_starts.get(key),
            high_watermark=high_watermarks.get(key),
        )
        try:
            walk = verify_partition(directory, expectations, report, pause=pause)
        except FileNotFoundError:
            report.note(f"{directory}: removed meanwhile")
            continue
        _check_offsets(path, key, walk)
    if unused:
        report.note(f"{path}: not checked, as no partitions in use: {summarize(unused)}")


def _check_offsets(data_directory: Path, key: TopicPartition, walk: LogWalk) -> None:
    """Find offsets in the checkpoints of `data_directory` that are outside of the log."""
    expected = walk.expected
    for name, offset, what in (
        (RECOVERY_POINTS_NAME, expected.recovery_point, "up to which it was on disk"),
        (LOG_STARTS_NAME, expected.log_start_offset, "from which it may be read"),
        (HIGH_WATERMARKS_NAME, expected.high_watermark, "up to which it was committed"),
    ):
        if walk.is_end_known and offset is not None and offset > walk.next_offset:
            walk.report.find(
                data_directory / name,
                offset=offset,
                expected=f"an offset of {key.directory_name}, which ends at {walk.next_offset}",
                found=f"{offset}, {what}",
            )


def _read_offsets(path: Path, report: Report) -> dict[TopicPartition, int]:
    with report.reading(path, expected="a checkpoint"):
        return read_offsets(path)
    return {}


def _read_epochs(directory: Path, report: Report) -> LeaderEpochs | None:
    path = directory / EPOCHS_NAME
    with report.reading(path, expected="leader epochs"):
        try:
            return LeaderEpochs(read_epochs(path))
        except FileNotFoundError:
            directory.stat()
    return None


def _check_topic_id(directory: Path, expectations: Expectations, report: Report) -> None:
    path = directory / METADATA_NAME
    try:
        with report.reading(path, expected="the topic's id"):
            topic_id = read_partition_metadata(path)
            if expectations.topic_id not in (None, topic_id):
                report.find(path, expected=f"topic id {expectations.topic_id}", found=str(topic_id))
    except FileNotFoundError:
        report.find(path, expected="the topic's id", found="no file")


def _list_files(directory: Path) -> _Listing:
    listing = _Listing([], [], [], [])
    sides = []
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())
    for name in names:
        base_offset, kind = split_name(name)
        if kind == LOG_KIND:
            listing.base_offsets.append(base_offset)
        elif kind == SNAPSHOT_SUFFIX:
            listing.snapshot_offsets.append(base_offset)
        elif kind in KINDS:
            sides.append((base_offset, name))
        elif name not in (EPOCHS_NAME, METADATA_NAME, RESTART_POINT_NAME, *STATE_NAMES):
            listing.others.append(name)
    bases = set(listing.base_offsets)
    for base_offset, name in sides:
        log_path = directory / segment_file_name(base_offset, LOG_KIND)
        if base_offset not in bases and not log_path.exists():  # it may have been created after the listing
            listing.orphans.append(directory / name)
    return listing


def _verify_segment(
    directory: Path, base_offset: int, end_offset: int | None, walk: LogWalk, snapshots: "_Snapshots"
) -> None:
    """Check one segment, again if its files were replaced meanwhile, or an index was trimmed at a roll."""
    snapshots.begin_segment(base_offset)
    next_offset = walk.next_offset
    following = [] if end_offset is None else [directory / segment_file_name(end_offset, LOG_KIND)]
    for _ in range(SEGMENT_ATTEMPTS):
        if following and not following[0].exists():
            end_offset, following = None, []  # the log was cut: this is the newest segment now
        segment = SegmentVerification(directory, base_offset, end_offset, walk)
        before = _identities(segment.paths + following)
        try:
            segment.run()
        except (FileNotFoundError, CorruptBatch) as error:
            walk.report.discard_findings_in(segment.paths)
            how = "cut" if isinstance(error, CorruptBatch) else "removed"
            walk.report.note(f"{segment.path(LOG_KIND)}: {how} meanwhile")
            walk.lose_track()
            walk.is_end_known = end_offset is not None
            return
        except OSError as error:
            walk.report.find_unreadable(segment.path(LOG_KIND), error, expected="a log file that can be read")
            walk.lose_track()
            walk.is_end_known = end_offset is not None
            if end_offset is not None:
                snapshots.compare_up_to(end_offset)  # the producers are unknown: snapshots are only read
            return
        if _identities(segment.paths + following) == before or not walk.report.has_findings_in(segment.paths):
            return
        walk.report.discard_findings_in(segment.paths)
        walk.next_offset, walk.is_after_damage = next_offset, True
        snapshots.begin_segment(base_offset, is_again=True)


def _identities(paths: list[Path]) -> list[tuple[int, int] | None]:
    """The inode of each file, and the size of those that do not grow with every append."""
    identities: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            found = path.stat()
            identities.append((found.st_ino, 0 if path.suffix == LOG_KIND else found.st_size))
        except OSError:
            identities.append(None)
    return identities


class _Snapshots:
    """The producer snapshots of a partition, each compared when the walk reaches its offset."""

    def __init__(self, directory: Path, offsets: list[int], walk: LogWalk) -> None:
        self._directory = directory
        self._pending = offsets
        self._all = set(offsets)
        self._walk = walk
        self._log_start_offset = walk.next_offset

    def begin_segment(self, base_offset: int, *, is_again: bool = False) -> None:
        """Called before a segment: if the producers are unknown, continue from a snapshot at its base offset."""
        is_first = base_offset == self._log_start_offset
        if not (is_first or is_again) and self._walk.producers.is_exact:
            return
        if base_offset in self._all:
            self._walk.producers.begin_with(self._read(base_offset))
        elif base_offset:
            self._walk.producers.lose_track()

    def compare_up_to(self, offset: int) -> None:
        """Compare the snapshots up to `offset` with the producers as they are now."""
        while self._pending and self._pending[0] <= offset:
            snapshot = self._pending.pop(0)
            entries = self._read(snapshot)
            if entries is None:
                continue
            self._walk.report.counts.snapshots += 1
            if snapshot >= self._log_start_offset:  # lower ones are of segments that are being removed
                self._walk.producers.compare(self._path(snapshot), entries, self._log_start_offset, self._walk.report)

    def find_after_end(self) -> None:
        """Report snapshots of offsets after the end of the log, which may have grown since it was read."""
        newest = max(_list_files(self._directory).base_offsets, default=0) if self._pending else 0
        for offset in (pending for pending in self._pending if pending > newest):
            self._walk.report.find(
                self._path(offset),
                offset=offset,
                expected=f"a snapshot at or below the end of the log, {self._walk.next_offset}",
                found="one above it",
            )
        self._pending = []

    def _path(self, offset: int) -> Path:
        return self._directory / segment_file_name(offset, SNAPSHOT_SUFFIX)

    def _read(self, offset: int) -> list[ProducerEntry] | None:
        """The entries; None if the file is gone or damaged. A damaged one is read twice, as it may be half written."""
        path = self._path(offset)
        with suppress(FileNotFoundError), self._walk.report.reading(path, expected="a producer snapshot"):
            try:
                return read_snapshot(path)
            except StorageError:
                self._walk.pause()
                return read_snapshot(path)
        return None
