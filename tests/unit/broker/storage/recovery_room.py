"""The recovery of one segment."""

from pathlib import Path

from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.recovery.recovery import (
    RecoveryPlace,
    RecoveryReport,
    RecoveryRules,
    SegmentRecovery,
    recover_segment,
)
from warmlog_broker.storage.segment.segment import LogSegment


def recover(segment: LogSegment, keep_cut_bytes_in: Path | None = None) -> SegmentRecovery:
    """Nothing of it is known to have been on disk."""
    report = RecoveryReport()
    return recover_segment(segment, place_of(segment, segment.base_offset, report), report, keep_cut_bytes_in)


def place_of(segment: LogSegment, recovery_point: int, report: RecoveryReport) -> RecoveryPlace:
    rules = RecoveryRules(recovery_point, has_dense_offsets=False)
    return RecoveryPlace(segment.base_offset, rules, LeaderEpochs(), report)
