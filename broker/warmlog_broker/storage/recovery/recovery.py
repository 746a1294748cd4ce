"""Checking a log after an unclean stop, and cutting off what the stop left half written.

Below the recovery point everything was on disk before the stop. An invalid batch there was damaged later: nothing is
cut, the damage is skipped and reported, and a read of it is refused. If the damage reaches up to the recovery point,
the log continues in a new segment that begins there: offsets that were acknowledged are not assigned again.

Above the recovery point, blocks may have reached the disk in any order. Files are synced and dropped from the page
cache first, so that the disk's content is checked: sizes, CRCs, magics, offsets without gaps, leader epochs that do not
fall. The log is cut at the first invalid batch. What is cut is kept for inspection in files ending in `.cut`: the rest
of that segment in `<base offset>.log.tail.cut`, later segments, renamed, in `<base offset>.log.cut`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_broker.storage.record.batch_scan import DamagedLog
from warmlog_broker.storage.record.damage import Damage, find_after_damage, header_at
from warmlog_broker.storage.segment.segment import LogSegment, SegmentRecovery
from warmlog_protocol.batch.header import MAGIC_COLUMNS, BatchHeader

logger = logging.getLogger(__name__)

CUT_SUFFIX = ".cut"


@dataclass(slots=True)
class RecoveryReport:
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


@dataclass(frozen=True, slots=True)
class RecoveryRules:
    """What recovery must know of the log to check its batches."""

    recovery_point: int
    has_dense_offsets: bool = True
    """See LogConfig.has_dense_offsets."""
    max_leader_epoch: int | None = None
    """No batch can have been written under a later epoch."""


class SegmentCheck:
    """Checks the batches of one segment for `LogSegment.recover`."""

    def __init__(
        self,
        segment: LogSegment,
        expected_offset: int,
        rules: RecoveryRules,
        epochs: LeaderEpochs,
        report: RecoveryReport,
    ) -> None:
        self.segment = segment
        self.expected_offset = expected_offset
        """Where the next batch should begin; after the check, where the segment ends."""
        self.rules = rules
        self.epochs = epochs
        self.report = report
        self.wants_dense_offsets = rules.has_dense_offsets
        """Whether a gap below the recovery point is damage: not after rows, which Kafka may have compacted."""

    def on_batch(self, header: BatchHeader, position: int, _read_batch: Callable[[], bytes]) -> None:
        """Accept a batch whose CRC is right; DamagedLog if it cannot be at this position."""
        reason = self._why_out_of_place(header)
        if reason:
            if not self._follows_hole(header, position):
                raise DamagedLog(str(self.segment.path), position, reason)
            self._note_damage(position, position, header.base_offset, reason)
        self.epochs.learn(header.partition_leader_epoch, header.base_offset, self.rules.max_leader_epoch)
        self.expected_offset = header.next_offset
        self.wants_dense_offsets = self.rules.has_dense_offsets and header.magic == MAGIC_COLUMNS
        self.report.checked_batches += 1
        self.report.checked_bytes += header.size_bytes

    def step_over(self, error: DamagedLog) -> int | None:
        """The position at which the check continues after damage below the recovery point; None to cut there."""
        recovery_point = self.rules.recovery_point
        if self.expected_offset >= recovery_point:
            return None
        records = self.segment.records
        following = find_after_damage(records, error.position, self.expected_offset, recovery_point)
        position, offset = following or (records.size_bytes, recovery_point)
        self._note_damage(error.position, position, offset, error.reason)
        self.expected_offset = offset
        return position

    def _note_damage(self, position: int, end_position: int, next_offset: int, reason: str) -> None:
        self.report.damage.append(
            Damage(self.segment.path, position, end_position, self.expected_offset, next_offset, reason)
        )

    def _follows_hole(self, header: BatchHeader, position: int) -> bool:
        """Whether batches are missing below the recovery point and this one comes after them.

        The next batch has to confirm that, as no CRC covers the base offset.
        """
        if not self.expected_offset < header.base_offset <= self.rules.recovery_point:
            return False
        following = header_at(self.segment.records, position + header.size_bytes)
        return following is not None and following.base_offset == header.next_offset

    def _why_out_of_place(self, header: BatchHeader) -> str:
        base_offset, expected, rules = header.base_offset, self.expected_offset, self.rules
        if base_offset < expected:
            return f"base offset {base_offset}, expected {expected}"
        if base_offset > expected and rules.has_dense_offsets:
            crosses_recovery_point = expected < rules.recovery_point < base_offset
            if expected >= rules.recovery_point or crosses_recovery_point or header.magic == MAGIC_COLUMNS:
                return f"base offset {base_offset}, expected {expected}"
        if expected >= rules.recovery_point:
            return self._why_epoch_impossible(header.partition_leader_epoch)
        return ""

    def _why_epoch_impossible(self, epoch: int) -> str:
        latest, most = self.epochs.latest_epoch, self.rules.max_leader_epoch
        if epoch < latest:
            return f"leader epoch {epoch} after {latest}"
        if most is not None and epoch > most:
            return f"leader epoch {epoch}, the partition's newest is {most}"
        return ""


@dataclass(slots=True)
class Recovered:
    """What is left of a log after the check."""

    segments: list[LogSegment]
    """The checked segments that stay, in order."""
    end_offset: int
    """Where the log ends; at or above the recovery point only if nothing below it was lost."""


def recover_segments(
    segments: list[LogSegment], rules: RecoveryRules, epochs: LeaderEpochs, report: RecoveryReport
) -> Recovered:
    """Check `segments`, those from the recovery point on, rebuild their indexes and cut the log if necessary.

    Changes are not synced on return. OSError if the disk cannot be read.
    """
    report.was_clean = False
    for segment in segments:
        segment.records.drop_cache()
    expected_offset = segments[0].base_offset
    check: SegmentCheck | None = None
    for number, segment in enumerate(segments):
        if segment.base_offset != expected_offset:
            reason = f"segment {segment.base_offset} does not follow offset {expected_offset}"
            must_follow = expected_offset >= rules.recovery_point and rules.has_dense_offsets
            if must_follow or (segment.base_offset > rules.recovery_point and not _begin_as_named(segments[number:])):
                set_aside(segments[number:], reason, report)
                if expected_offset < rules.recovery_point:
                    _note_hole(segments[number - 1], expected_offset, rules.recovery_point, report)
                return Recovered(segments[:number], expected_offset)
            if check is None or check.wants_dense_offsets:
                _note_hole(segments[number - 1], expected_offset, segment.base_offset, report)
            expected_offset = segment.base_offset
        check, result = _check_and_cut(segment, expected_offset, rules, epochs, report)
        expected_offset = check.expected_offset
        if result.cut_bytes:
            report.cut_bytes += result.cut_bytes
            report.cut_reasons.append(result.reason)
            if result.kept_in is not None:
                report.kept_aside.append(result.kept_in)
            set_aside(segments[number + 1 :], f"they follow a cut at offset {expected_offset}", report)
            return Recovered(segments[: number + 1], expected_offset)
    if expected_offset < rules.recovery_point:
        _note_hole(segments[-1], expected_offset, rules.recovery_point, report)
    return Recovered(segments, expected_offset)


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


def _check_and_cut(
    segment: LogSegment, expected_offset: int, rules: RecoveryRules, epochs: LeaderEpochs, report: RecoveryReport
) -> tuple[SegmentCheck, SegmentRecovery]:
    """Recover one segment and keep what is cut, unless the disk is too full for that."""
    kept_in = free_path(segment.path.with_name(f"{segment.path.name}.tail{CUT_SUFFIX}"))
    checked_bytes, checked_batches, damage_count = report.checked_bytes, report.checked_batches, len(report.damage)
    check = SegmentCheck(segment, expected_offset, rules, epochs, report)
    try:
        return check, segment.recover(check.on_batch, step_over=check.step_over, keep_cut_bytes_in=kept_in)
    except OSError as error:
        if not is_resource_exhaustion(error):
            raise
        logger.warning("%s: what is cut there cannot be kept: %s", segment.path, error)
        kept_in.unlink(missing_ok=True)
    report.checked_bytes, report.checked_batches = checked_bytes, checked_batches
    del report.damage[damage_count:]
    epochs.truncate_from_end(expected_offset)
    check = SegmentCheck(segment, expected_offset, rules, epochs, report)
    return check, segment.recover(check.on_batch, step_over=check.step_over)


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
