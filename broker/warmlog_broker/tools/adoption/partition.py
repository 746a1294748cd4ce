"""Copying a partition that Kafka wrote, so that it can be served here.

`.log` files of closed segments may be hard-linked instead of copied: a log gets a file of its own before it is written
to (`FileRecords.make_private`). The newest `.log` and everything else is always copied. The copy is verified, batch by
batch; wrong index files and snapshots are rebuilt. Only the files of segments, snapshots, leader epochs and the topic's
id are copied.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import LogOffsets, StoredState
from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME
from warmlog_broker.storage.directory.partition_files import METADATA_NAME, mark_row_gaps, pack_partition_metadata
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.copy_bytes import copy_bytes
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.producer.snapshots import SNAPSHOT_SUFFIX
from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND, base_offsets_in, segment_file_name
from warmlog_broker.storage.verify.partition import verify_partition
from warmlog_broker.storage.verify.rebuild import rebuild_partition
from warmlog_broker.storage.verify.report import Finding, Report
from warmlog_broker.storage.verify.segment import Expectations, LogWalk
from warmlog_broker.tools.adoption.kafka_directory import KafkaPartition
from warmlog_protocol.errors import WarmlogError


class AdoptionRefused(WarmlogError):
    """A partition cannot be adopted; nothing was changed. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class AdoptedLog:
    """A verified copy of a partition."""

    key: TopicPartition
    offsets: LogOffsets
    """For the checkpoints: all of the log is on disk, and may be read."""
    summary: LogWalk
    log_bytes: int
    linked_files: int
    remarks: tuple[str, ...]


def check_partition(source: KafkaPartition) -> None:
    """Verify a partition in Kafka's directory, without writing. AdoptionRefused unless it can be adopted."""
    report = Report()
    summary = verify_partition(source.path, _expectations(source), report)
    _refuse(source, [finding for finding in report.findings if _is_of_log(finding)], summary)


def bytes_to_copy(source: KafkaPartition, *, is_linked: bool) -> int:
    """Return the most bytes of disk space that `copy_partition` can take."""
    linked = _closed_logs(source) if is_linked else set()
    return sum(path.stat().st_size for path in _files(source) if path.name not in linked)


def copy_partition(
    source: KafkaPartition,
    target: Path,
    topic_id: UUID,
    *,
    is_linked: bool,
    recovers_at_ms: int | None,
    on_copied: Callable[[int], None],
) -> AdoptedLog:
    """Create the directory `target` with a partition's files, durably, and verify it.

    With `recovers_at_ms`, the present time, the copy is recovered as a broker's start would recover it. OSError from
    the disk; AdoptionRefused if files cannot be linked, or the log is damaged or has an open transaction.
    """
    target.mkdir()
    closed = _closed_logs(source) if is_linked else set()
    for path in _files(source):
        if path.name in closed:
            _link(path, target / path.name)
        else:
            with open(path, "rb", buffering=0) as original, open((target / path.name), "xb", buffering=0) as copy:
                found = os.fstat(original.fileno())
                copy_bytes(original.fileno(), copy.fileno(), found.st_size, on_copied)
                os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
                os.fsync(copy.fileno())
    replace_file(target / METADATA_NAME, pack_partition_metadata(topic_id))
    sync_directory(target)
    remarks = [] if recovers_at_ms is None else _recover(target, source, recovers_at_ms)
    report = Report()
    summary = verify_partition(target, _expectations(source), report)
    beside = [finding for finding in report.findings if not _is_of_log(finding)]
    if beside and not report.suppressed:
        with_snapshots = any(finding.path.endswith(SNAPSHOT_SUFFIX) for finding in beside)
        rebuilt = rebuild_partition(target, LogConfig(), with_snapshots=with_snapshots)
        remarks += [*(f"rebuilt: {finding}" for finding in beside), *rebuilt.remarks]
        report = Report()
        summary = verify_partition(target, _expectations(source), report)
    _refuse(source, report.findings, summary)
    end, high_watermark = summary.next_offset, source.high_watermark
    if high_watermark is not None and high_watermark < end:
        remarks.append(f"offsets from {high_watermark} to {end - 1}, above Kafka's high watermark, become readable")
    mark_row_gaps(target, end)
    log_start = max(source.log_start_offset or 0, summary.base_offsets[0])
    offsets = LogOffsets(end, log_start, end)
    return AdoptedLog(source.key, offsets, summary, report.counts.log_bytes, len(closed), tuple(remarks))


def _recover(target: Path, source: KafkaPartition, now_ms: int) -> list[str]:
    """Recover a copy of a log that was not closed; return remarks about that."""
    offsets = LogOffsets(source.recovery_point or 0, source.log_start_offset or 0, source.high_watermark or 0)
    log = Log.open(
        target,
        key=source.key,
        config=LogConfig(),
        open_files=OpenFiles(),
        now_ms=now_ms,
        stored=StoredState(offsets, None),
    )
    log.close()
    return [] if log.recovery_report.is_uneventful else [str(log.recovery_report)]


def _closed_logs(source: KafkaPartition) -> set[str]:
    """The names of the `.log` files that are never written again."""
    return {segment_file_name(base, LOG_KIND) for base in base_offsets_in(source.path)[:-1]}


def _expectations(source: KafkaPartition) -> Expectations:
    return Expectations(source.recovery_point, source.log_start_offset, source.high_watermark)


def _is_of_log(finding: Finding) -> bool:
    return finding.path.endswith(LOG_KIND)


def _refuse(source: KafkaPartition, findings: list[Finding], summary: LogWalk) -> None:
    """Refuse a log that is damaged, has an open transaction, which nothing here could end, or is too short."""
    name = source.key.directory_name
    if findings:
        more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise AdoptionRefused(f"{name} is damaged: {findings[0]}{more}")
    if not summary.base_offsets:
        raise AdoptionRefused(f"{source.path} has no log file")
    if open_transactions := summary.producers.states.transactions.open:
        listed = ", ".join(
            f"of producer {producer_id} from offset {offset} on"
            for producer_id, offset in sorted(open_transactions.items())
        )
        raise AdoptionRefused(
            f"{name} has a transaction open: {listed}. Let Kafka run until it is committed, aborted or timed out, and "
            f"stop it cleanly"
        )
    end, recovery_point = summary.next_offset, source.recovery_point
    if recovery_point is not None and end < recovery_point:
        raise AdoptionRefused(f"{name} ends at offset {end}, but Kafka had flushed it up to {recovery_point}")


def _files(source: KafkaPartition) -> list[Path]:
    """The files to copy. AdoptionRefused if Kafka was interrupted while it replaced segments."""
    bases = {f"{base:020d}" for base in base_offsets_in(source.path)}
    files = []
    for path in sorted(source.path.iterdir()):
        stem, kind = path.name[:20], path.name[20:]
        if path.name.endswith(".swap"):
            raise AdoptionRefused(
                f"{path}: Kafka was interrupted while it compacted. Start it once and stop it cleanly"
            )
        if path.name == EPOCHS_NAME or (kind in KINDS and stem in bases) or kind == SNAPSHOT_SUFFIX:
            files.append(path)
    return files


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        raise AdoptionRefused(
            f"{source} cannot be linked to {target.parent}: {error.strerror}. Copy it instead"
        ) from None
    with open(target, "rb", buffering=0) as linked:
        os.fsync(linked.fileno())
