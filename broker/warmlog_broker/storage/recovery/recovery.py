"""Checking a log after an unclean stop, and cutting off what the stop left half written.

The check begins at the restart point (`partition_files`), or without one at the beginning of the segment that has the
recovery point. What it leaves out of that segment is an `UncheckedRange`, which is checked in the background once the
broker serves.

Below the recovery point everything was on disk before the stop. An invalid batch there was damaged later: nothing is
cut, the damage is skipped and reported, and a read of it is refused. If the damage reaches up to the recovery point,
the log continues in a new segment that begins there: offsets that were acknowledged are not assigned again.

Above the recovery point, blocks may have reached the disk in any order. Files are synced and dropped from the page
cache first, so that the disk's content is checked: sizes, CRCs, magics, offsets without gaps, leader epochs that do not
fall. The log is cut at the first invalid batch. What is cut is kept for inspection in files ending in `.cut`: the rest
of that segment in `<base offset>.log.tail.cut`, later segments, renamed, in `<base offset>.log.cut`.
"""

import logging
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.directory.partition_files import NO_GAPS, UNMARKED, Gaps, RestartPoint
from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords
from warmlog_broker.storage.segment.scan import Damage, Place, header_at, scan
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_indexes import IndexBuilder
from warmlog_protocol.batch.header import MAGIC_COLUMNS, MAGIC_ROWS, NO_OFFSET, BatchHeader

logger = logging.getLogger(__name__)

CUT_SUFFIX = ".cut"

_MOST_OFFSETS = MAX_RELATIVE_OFFSET + 1
_STEP_BYTES = 1024 * 1024


class RecoveryReport(Struct):
    """What was found and done while loading a log."""

    was_clean: bool = True
    """The log had been closed cleanly, and none of it was read."""
    checked_bytes: int = 0
    checked_batches: int = 0
    cut_bytes: int = 0
    """Bytes above the recovery point that are no longer part of the log."""
    cut_reasons: list[str] = field(default_factory=list)
    kept_aside: list[Path] = field(default_factory=list)
    """Files that hold what was cut."""
    damage: list[Damage] = field(default_factory=list)
    """Damage below the recovery point: nothing was cut there."""
    rebuilt: list[str] = field(default_factory=list)
    """Side files that were missing or damaged, and why each was rebuilt."""

    @property
    def is_uneventful(self) -> bool:
        """Nothing was cut, damaged, missing or rebuilt."""
        return not (self.cut_bytes or self.cut_reasons or self.damage or self.rebuilt)

    def __str__(self) -> str:
        parts = ["clean" if self.was_clean else f"checked {self.checked_batches} batches, {self.checked_bytes} bytes"]
        if self.cut_reasons:
            parts.append(f"cut {self.cut_bytes} bytes ({'; '.join(self.cut_reasons)})")
        if self.kept_aside:
            parts.append(f"kept in {', '.join(str(path) for path in self.kept_aside)}")
        parts.extend(str(damage) for damage in self.damage)
        parts.extend(self.rebuilt)
        return "; ".join(parts)


class RecoveryRules(Struct, frozen=True):
    """What recovery must know of the log to check its batches."""

    recovery_point: int
    has_dense_offsets: bool = True
    """Whether a gap between offsets is damage, unless `gaps` allow it."""
    gaps: Gaps = NO_GAPS
    max_leader_epoch: int | None = None
    """No batch can have been written under a later epoch."""
    after_bytes: Callable[[int], None] = lambda _: None
    """Called with the size of each part that was checked."""


class RecoveryPlace(Place):
    """Where recovery is in a log: below the recovery point damage is stepped over, above it the log is cut."""

    def __init__(self, next_offset: int, rules: RecoveryRules, epochs: LeaderEpochs, report: RecoveryReport) -> None:
        super().__init__(next_offset, rules.recovery_point)
        self._last_magic = MAGIC_COLUMNS
        self.rules = rules
        self._epochs = epochs
        self._report = report
        self._base_offset = next_offset
        self.lacks_epochs = False
        """Whether the file of epochs stops too early: it lacks that of a batch that was flushed together with it."""

    def enter(self, segment: LogSegment) -> None:
        """Note that the next batch is in `segment`."""
        self._base_offset = segment.base_offset

    @property
    def is_above_recovery_point(self) -> bool:
        return self.next_offset >= self.end_offset

    def admit(self, header: BatchHeader, records: FileRecords, position: int, /) -> str:
        base_offset = header.base_offset
        next_offset = base_offset + header.last_offset_delta + 1
        continues = base_offset == self.next_offset and header.partition_leader_epoch == self._epochs.latest_epoch
        if not continues or not self._base_offset <= base_offset < next_offset <= self._base_offset + _MOST_OFFSETS:
            reason = self._why_not(header, records, position)
            if reason:
                return reason
            self.learn_epoch(header)
        self.next_offset = next_offset
        self._last_magic = header.magic
        return ""

    def _why_not(self, header: BatchHeader, records: FileRecords, position: int) -> str:
        base_offset, expected = header.base_offset, self.next_offset
        if not 0 <= base_offset - self._base_offset <= header.last_offset - self._base_offset <= MAX_RELATIVE_OFFSET:
            return f"offsets {base_offset} to {header.last_offset} are outside of this segment"
        reason = "" if base_offset == expected else f"base offset {base_offset}, expected {expected}"
        if base_offset < expected:
            return reason
        if reason and self._is_gap_damage(header):
            if not self._follows_hole(records, header, position):
                return reason
            self._report.damage.append(Damage(records.path, position, position, expected, base_offset, reason))
        if self.is_above_recovery_point:
            epoch, latest, most = header.partition_leader_epoch, self._epochs.latest_epoch, self.rules.max_leader_epoch
            if epoch < latest:
                return f"leader epoch {epoch} after {latest}"
            if most is not None and epoch > most:
                return f"leader epoch {epoch}, the partition's newest is {most}"
        return ""

    def learn_epoch(self, header: BatchHeader) -> None:
        """Take over the epoch of a batch."""
        latest = self._epochs.latest_epoch
        self._epochs.learn(header.partition_leader_epoch, header.base_offset, self.rules.max_leader_epoch)
        if self._epochs.latest_epoch != latest and header.base_offset < self.rules.recovery_point:
            self.lacks_epochs = True

    def take_back(self, next_offset: int) -> None:
        self._epochs.truncate_from_end(next_offset)
        self.next_offset = next_offset

    def is_hole(self, end: int) -> bool:
        """Whether batches are lost if a segment ends here and the next one begins at `end`."""
        follows_rows = self._last_magic == MAGIC_ROWS
        return self.rules.has_dense_offsets and not (follows_rows and end <= self.rules.gaps.rows_up_to)

    def _is_gap_damage(self, header: BatchHeader) -> bool:
        if not self.rules.has_dense_offsets:
            return False
        if not self.rules.gaps.allow(header):
            return True
        crosses_recovery_point = self.next_offset < self.end_offset < header.base_offset
        return self.rules.gaps == UNMARKED and (self.is_above_recovery_point or crosses_recovery_point)

    def _follows_hole(self, records: FileRecords, header: BatchHeader, position: int) -> bool:
        """Whether batches are missing below the recovery point and this one comes after them.

        The next batch has to confirm that, as no CRC covers the base offset.
        """
        if not self.next_offset < header.base_offset <= self.end_offset:
            return False
        following = header_at(records, position + header.size_bytes)
        return following is not None and following.base_offset == header.next_offset


class UncheckedRange(Struct, frozen=True):
    """What a recovery has left out: the batches of one segment below the restart point."""

    path: Path
    base_offset: int
    end_position: int
    rules: RecoveryRules
    """The recovery point is the restart point."""

    def check(self, after_bytes: Callable[[int], None]) -> list[Damage]:
        """Read all of it and return the damage, in any thread. FileNotFoundError if the segment is gone.

        `after_bytes` is called after each batch with its size.
        """
        report = RecoveryReport()
        place = RecoveryPlace(self.base_offset, self.rules, LeaderEpochs(), report)
        with closing(FileRecords(self.path, OpenFiles(), self.end_position, is_writable=False)) as records:
            for found in scan(records, 0, place, checks_crc=True):
                if isinstance(found, Damage):
                    report.damage.append(found)
                else:
                    after_bytes(found[0].size_bytes)
        return report.damage


class Recovered(NamedTuple):
    """What a log has after it was checked, or found as it was left."""

    segments: list[LogSegment]
    """Those that stay, in order, one at least."""
    end_offset: int
    """Where the log ends; at or above the recovery point only if nothing below it was lost."""
    unchecked: UncheckedRange | None = None
    restart_offset: int = NO_OFFSET
    """Where the check began, if that was at a restart point."""
    lacks_epochs: bool = False
    """Whether epochs from before that are unknown."""


def recover_segments(
    segments: list[LogSegment],
    rules: RecoveryRules,
    epochs: LeaderEpochs,
    report: RecoveryReport,
    point: RestartPoint | None = None,
) -> Recovered:
    """Check `segments`, those from the recovery point on, rebuild their indexes and cut the log if necessary.

    The check begins at `point`, if it is given and leads to a batch in the first segment. Changes are not synced on
    return. OSError if the disk cannot be read.
    """
    report.was_clean = False
    first = segments[0]
    resumed = None if point is None else _resume(first, point)
    for segment in segments:
        start = resumed.position if resumed is not None and segment is first else 0
        if start < segment.size_bytes or not start:
            segment.records.drop_cache(start)
    place = RecoveryPlace(first.base_offset if resumed is None else resumed.offset, rules, epochs, report)
    if resumed is not None and resumed.last is not None:
        place.learn_epoch(resumed.last)
    recovered = _recover_in_order(segments, rules, place, report, resumed)._replace(lacks_epochs=place.lacks_epochs)
    if resumed is None:
        return recovered
    unchecked = None
    if resumed.position:
        below = replace(rules, recovery_point=resumed.offset)
        unchecked = UncheckedRange(first.path, first.base_offset, resumed.position, below)
    return recovered._replace(unchecked=unchecked, restart_offset=resumed.offset)


class Resumed(NamedTuple):
    """Where the check of the first segment begins, by its restart point, and what adds index entries from there on."""

    offset: int
    position: int
    builder: IndexBuilder
    last: BatchHeader | None
    """The batch before, if there is one."""


def _resume(segment: LogSegment, point: RestartPoint) -> Resumed | None:
    """Return where to resume; None unless indexes and batches are as `point` says."""
    builder = segment.indexes.resume(point)
    if builder is None:
        return None
    end_position, next_offset, last = point.index_position, point.segment, None
    try:
        for header, position in segment.records.batches(point.index_position, point.position):
            end_position, next_offset, last = position + header.size_bytes, header.next_offset, header
    except DamagedLog:
        return None
    is_there = (end_position, next_offset) == (point.position, point.offset)
    return Resumed(point.offset, point.position, builder, last) if is_there else None


def _recover_in_order(
    segments: list[LogSegment],
    rules: RecoveryRules,
    place: RecoveryPlace,
    report: RecoveryReport,
    resumed: Resumed | None,
) -> Recovered:
    for number, segment in enumerate(segments):
        expected_offset = place.next_offset
        if resumed is None and segment.base_offset != expected_offset:
            reason = f"segment {segment.base_offset} does not follow offset {expected_offset}"
            is_marked = rules.gaps != UNMARKED and not place.is_hole(segment.base_offset)
            must_follow = place.is_above_recovery_point and rules.has_dense_offsets and not is_marked
            if must_follow or (segment.base_offset > rules.recovery_point and not _begin_as_named(segments[number:])):
                set_aside(segments[number:], reason, report)
                if not place.is_above_recovery_point:
                    _note_hole(segments[number - 1], expected_offset, rules.recovery_point, report)
                return Recovered(segments[:number], expected_offset)
            if place.is_hole(segment.base_offset):
                _note_hole(segments[number - 1], expected_offset, segment.base_offset, report)
            place.next_offset = segment.base_offset
        is_cut = recover_segment(segment, place, report, resumed)
        resumed = None
        if number < len(segments) - 1:
            segment.on_become_inactive()
        if is_cut:
            set_aside(segments[number + 1 :], f"they follow a cut at offset {place.next_offset}", report)
            return Recovered(segments[: number + 1], place.next_offset)
    if not place.is_above_recovery_point:
        _note_hole(segments[-1], place.next_offset, rules.recovery_point, report)
    return Recovered(segments, place.next_offset)


def _begin_as_named(segments: list[LogSegment]) -> bool:
    """Whether the first batch of these can be in a segment of its name. If not, that says nothing about the log's end.

    Compaction leaves segments without batches, which say nothing either.
    """
    segment = next((each for each in segments if each.size_bytes), segments[0])
    try:
        header = next(segment.records.batches(), (None,))[0]
    except DamagedLog:
        return False
    return header is not None and header.base_offset >= segment.base_offset


def recover_segment(
    segment: LogSegment, place: RecoveryPlace, report: RecoveryReport, resumed: Resumed | None = None
) -> bool:
    """Check every batch, rebuild both indexes, and cut the log before the first batch above the recovery point that is
    not valid; return whether it was cut.

    Damage below that stays; both are added to `report`. The transaction index is emptied, because its entries depend on
    earlier segments too. What is cut is copied to a new file beside the log, unless the disk is too full. Only that
    copy is synced on return. With `resumed` nothing before that is looked at.
    """
    records, start = segment.records, 0 if resumed is None else resumed.position
    builder = segment.indexes.empty() if resumed is None else resumed.builder
    place.enter(segment)
    valid_bytes, reason = records.size_bytes, ""
    batches = damaged_bytes = 0
    counted_up_to = start
    for found in scan(records, start, place, checks_crc=True):
        if isinstance(found, tuple):
            header, position = found
            builder.add(header, position)
            batches += 1
            if position - counted_up_to >= _STEP_BYTES:
                place.rules.after_bytes(position - counted_up_to)
                counted_up_to = position
        elif found.first_offset < place.end_offset:
            report.damage.append(found)
            damaged_bytes += found.end_position - found.position
            builder.must_index_next_batch()
        else:
            valid_bytes, reason = found.position, str(found.cause())
    place.rules.after_bytes(valid_bytes - counted_up_to)
    report.checked_batches += batches
    report.checked_bytes += valid_bytes - start - damaged_bytes
    if reason:
        report.cut_reasons.append(reason)
        kept_in = free_path(Path(f"{segment.path}.tail{CUT_SUFFIX}"))
        try:
            if keep_bytes(records, valid_bytes, kept_in):
                report.kept_aside.append(kept_in)
        except OSError as error:
            if not is_resource_exhaustion(error):
                raise
            logger.warning("%s: what is cut there cannot be kept: %s", segment.path, error)
            kept_in.unlink(missing_ok=True)
    report.cut_bytes += records.truncate_to(valid_bytes)
    segment.end_recovery(builder, None if resumed is None else resumed.offset)
    return bool(reason)


def keep_bytes(records: FileRecords, start: int, copy: Path) -> bool:
    """Copy the bytes from `start` on, without zeros at their end, to the new file `copy`, and sync that.

    False, and no file, if there are only zeros. FileExistsError if `copy` exists.
    """
    end = records.end_without_zeros(start)
    if end == start:
        return False
    with copy.open("xb") as target:
        for position in range(start, end, _STEP_BYTES):
            target.write(records.read(position, min(_STEP_BYTES, end - position)))
        target.flush()
        os.fsync(target.fileno())
    return True


def set_aside(segments: list[LogSegment], reason: str, report: RecoveryReport) -> None:
    """Take whole segments out of the log by renaming their files; empty ones are deleted."""
    for segment in segments:
        report.cut_bytes += segment.size_bytes
        if segment.size_bytes:
            free = free_path(segment.path.with_name(segment.path.name + CUT_SUFFIX))
            segment.change_suffix("", free.name.removeprefix(segment.path.name))
            segment.close_handles()
            report.kept_aside.append(free)
        else:
            segment.delete()
    if segments:
        names = ", ".join(str(segment.base_offset) for segment in segments)
        report.cut_reasons.append(f"segments {names} were set aside: {reason}")


def free_path(path: Path) -> Path:
    """`path`, or, if that exists, the first of `path.2`, `path.3`, … that does not."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def _note_hole(segment: LogSegment, first_offset: int, next_offset: int, report: RecoveryReport) -> None:
    """Report offsets below the recovery point that are missing after the end of `segment`."""
    end = segment.size_bytes
    report.damage.append(Damage(segment.path, end, end, first_offset, next_offset, "the end of the segment is missing"))
