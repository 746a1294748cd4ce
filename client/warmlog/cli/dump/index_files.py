"""`.index` and `.timeindex` files: a line for each entry, each compared with the segment's log."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from warmlog.cli.dump.findings import Findings, note_pair
from warmlog.cli.dump.segment_file import INDEX_SUFFIX, LOG_SUFFIX, SegmentFile, base_offset_of
from warmlog_broker.log.offset_index import OffsetIndex
from warmlog_broker.log.open_files import OpenFiles
from warmlog_broker.log.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from warmlog_protocol.errors import CorruptBatch


def dump_offset_index(path: Path, findings: Findings, *, is_check_only: bool) -> Iterator[str]:
    """The entries; those that do not lead to the batch that they name are noted."""
    with ExitStack() as stack:
        index = stack.enter_context(_offset_index(path))
        if not index.entries:
            yield f"{path} is empty."
            return
        log = _open_log(path, stack, findings)
        for entry in index:
            if log is not None:
                placed = log.header_at(entry.position)
                found = -1 if placed is None else placed.header.last_offset
                if found != entry.offset:
                    note_pair(findings.index_mismatches, path, entry.offset, found)
            if not is_check_only:
                yield f"offset: {entry.offset} position: {entry.position}"


def dump_time_index(path: Path, findings: Findings, *, is_check_only: bool) -> Iterator[str]:
    """The entries; those that do not name a batch, or not its largest timestamp, or not in order, are noted."""
    with ExitStack() as stack:
        time_index = stack.enter_context(_time_index(path))
        log = _open_log(path, stack, findings)
        index_path = path.with_suffix(INDEX_SUFFIX)
        index = stack.enter_context(_offset_index(index_path)) if index_path.exists() else None
        previous_ms = NO_TIMESTAMP
        for entry in time_index:
            if log is not None:
                position = 0 if index is None else index.lookup(entry.offset).position
                _check_time_entry(path, entry, previous_ms, log, position, findings)
            if not is_check_only:
                yield f"timestamp: {entry.timestamp_ms} offset: {entry.offset}"
            previous_ms = entry.timestamp_ms


def check_sanity(path: Path) -> Iterator[str]:
    """The index's own check alone, the one that decides at a start whether it is rebuilt. Raises CorruptIndex."""
    with _offset_index(path) if path.suffix == INDEX_SUFFIX else _time_index(path) as index:
        index.sanity_check()
    yield f"{path} passed sanity check."


def _check_time_entry(
    path: Path, entry: TimestampOffset, previous_ms: int, log: SegmentFile, position: int, findings: Findings
) -> None:
    placed = next((each for each in log.headers(position) if each.header.last_offset >= entry.offset), None)
    found_offset = -1 if placed is None else placed.header.last_offset
    if placed is None or found_offset != entry.offset:
        note_pair(findings.offsets_not_found, path, entry.offset, found_offset)
        return
    try:
        largest_ms = max(log.batch(placed).timestamps_ms(), default=NO_TIMESTAMP)
    except CorruptBatch as error:
        findings.remark(log.path, f"position {placed.position}: {error}")
        return
    if largest_ms != entry.timestamp_ms:
        note_pair(findings.timestamp_mismatches, path, entry.timestamp_ms, largest_ms)
    if previous_ms >= entry.timestamp_ms:
        note_pair(findings.out_of_order_timestamps, path, entry.timestamp_ms, previous_ms)


def _open_log(path: Path, stack: ExitStack, findings: Findings) -> SegmentFile | None:
    log_path = path.with_suffix(LOG_SUFFIX)
    try:
        return stack.enter_context(SegmentFile(log_path))
    except FileNotFoundError:
        findings.remark(path, f"{log_path.name} is not beside it, so its entries were not checked")
        return None


def _offset_index(path: Path) -> OffsetIndex:
    return OffsetIndex(path, base_offset_of(path), open_files=OpenFiles(), is_writable=False)


def _time_index(path: Path) -> TimeIndex:
    return TimeIndex(path, base_offset_of(path), open_files=OpenFiles(), is_writable=False)
