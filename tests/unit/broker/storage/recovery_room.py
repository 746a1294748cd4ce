"""The recovery of one segment."""

from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.recovery.recovery import RecoveryPlace, RecoveryReport, RecoveryRules, recover_segment
from warmlog_broker.storage.segment.segment import LogSegment


def recover(segment: LogSegment) -> RecoveryReport:
    """Nothing of it is known to have been on disk."""
    report = RecoveryReport()
    is_cut = recover_segment(segment, place_of(segment, segment.base_offset, report), report)
    assert is_cut == bool(report.cut_bytes) == bool(report.cut_reasons)
    return report


def place_of(segment: LogSegment, recovery_point: int, report: RecoveryReport) -> RecoveryPlace:
    rules = RecoveryRules(recovery_point, has_dense_offsets=False)
    return RecoveryPlace(segment.base_offset, rules, LeaderEpochs(), report)
