"""The files beside a log, and those of a data directory: indexes, producer snapshots, checkpoints, partition.metadata.

Each has a line for each entry. `.index` and `.timeindex` files are compared with the log.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from warmlog.cli.dump.findings import (
    INDEX_MISMATCH,
    OFFSET_NOT_FOUND,
    OUT_OF_ORDER_TIMESTAMP,
    TIMESTAMP_MISMATCH,
    Findings,
)
from warmlog.cli.dump.log_file import base_offset_of, batch_at, headers_of, open_segment_file
from warmlog.cli.dump.view import View
from warmlog.cli.terminal.output import remark
from warmlog_broker.storage.directory.leader_epochs import read_epochs
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.partition_files import read_partition_metadata
from warmlog_broker.storage.index.offset_index import OffsetIndex, OffsetPosition
from warmlog_broker.storage.index.time_index import TimeIndex, TimestampOffset
from warmlog_broker.storage.index.transaction_index import VERSION, TransactionIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.producer.producer_state import ProducerEntry
from warmlog_broker.storage.producer.snapshots import unpack_snapshot
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_broker.storage.segment.segment_files import LOG_KIND, OFFSET_INDEX_KIND
from warmlog_protocol.batch.header import NO_OFFSET, NO_TIMESTAMP
from warmlog_protocol.errors import CorruptBatch, StorageError


def dump_offset_index(path: Path, view: View, findings: Findings) -> Iterator[str]:
    """Yield the entries; add a finding for each that does not point to its batch."""
    with ExitStack() as stack:
        index = stack.enter_context(_open(OffsetIndex, path))
        if not index.entries:
            yield f"{path} is empty."
            return
        log = _open_log(path, stack, findings)
        for entry in index:
            if log is not None:
                _check_offset_entry(path, entry, log, view.max_message_bytes, findings)
            if not view.is_check_only:
                yield f"offset: {entry.offset} position: {entry.position}"


def dump_time_index(path: Path, view: View, findings: Findings) -> Iterator[str]:
    """Yield the entries; add a finding for each without a batch, with a wrong timestamp, or out of order."""
    with ExitStack() as stack:
        time_index = stack.enter_context(_open(TimeIndex, path))
        log = _open_log(path, stack, findings)
        index_path = path.with_suffix(OFFSET_INDEX_KIND)
        index = stack.enter_context(_open(OffsetIndex, index_path)) if index_path.exists() else None
        previous_ms = NO_TIMESTAMP
        for entry in time_index:
            if log is not None:
                position = 0 if index is None else index.lookup(entry.offset).position
                _check_time_entry(path, entry, previous_ms, log, position, findings)
            if not view.is_check_only:
                yield f"timestamp: {entry.timestamp_ms} offset: {entry.offset}"
            previous_ms = entry.timestamp_ms


def check_sanity(path: Path) -> Iterator[str]:
    """Make only the check that decides at a start whether an index is rebuilt. Raises CorruptIndex."""
    is_offset_index = path.suffix == OFFSET_INDEX_KIND
    with _open(OffsetIndex, path) if is_offset_index else _open(TimeIndex, path) as index:
        if is_offset_index and not index.entries:
            yield f"{path} is empty."
            return
        index.sanity_check()
    yield f"{path} passed sanity check."


def _check_offset_entry(
    path: Path, entry: OffsetPosition, log: FileRecords, max_message_bytes: int, findings: Findings
) -> None:
    header, _ = next(headers_of(log, entry.position), (None, -1))
    if header is not None and header.size_bytes > max_message_bytes:
        findings.remark(
            path,
            f"offset {entry.offset} was not checked: the batch at position {entry.position} has "
            f"{header.size_bytes} bytes, more than --max-message-size = {max_message_bytes}",
        )
        return
    found = -1 if header is None else header.last_offset
    if found != entry.offset:
        findings.note(INDEX_MISMATCH, path, entry.offset, found)


def _check_time_entry(
    path: Path, entry: TimestampOffset, previous_ms: int, log: FileRecords, position: int, findings: Findings
) -> None:
    placed = ((header, at) for header, at in headers_of(log, position) if header.last_offset >= entry.offset)
    header, at = next(placed, (None, -1))
    found_offset = -1 if header is None else header.last_offset
    if header is None or found_offset != entry.offset:
        findings.note(OFFSET_NOT_FOUND, path, entry.offset, found_offset)
        return
    try:
        largest_ms = max(batch_at(log, header, at).timestamps_ms(), default=NO_TIMESTAMP)
    except CorruptBatch as error:
        findings.remark(log.path, f"position {at}: {error}")
        return
    if largest_ms != entry.timestamp_ms:
        findings.note(TIMESTAMP_MISMATCH, path, entry.timestamp_ms, largest_ms)
    if previous_ms >= entry.timestamp_ms:
        findings.note(OUT_OF_ORDER_TIMESTAMP, path, entry.timestamp_ms, previous_ms)


def _open_log(path: Path, stack: ExitStack, findings: Findings) -> FileRecords | None:
    log_path = path.with_suffix(LOG_KIND)
    try:
        return stack.enter_context(closing(open_segment_file(log_path)))
    except FileNotFoundError:
        findings.remark(path, f"its entries were not checked, as {log_path.name} is not in the same directory")
        return None


Index = TypeVar("Index", OffsetIndex, TimeIndex)


def _open(kind: type[Index], path: Path) -> Index:
    return kind(path, base_offset_of(path), open_files=OpenFiles(), is_writable=False)


def dump_other(path: Path, findings: Findings) -> Iterator[str]:
    """Yield a line for each entry of a file that is compared with no other; remark on one of an unknown kind.

    Raises StorageError for a malformed file; of a damaged snapshot it adds a finding.
    """
    if path.suffix == ".txnindex":
        for entry in TransactionIndex.open_read_only(path, base_offset_of(path), OpenFiles()):
            yield (
                f"version: {VERSION} producerId: {entry.producer_id} firstOffset: {entry.first_offset}"
                f" lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
            )
    elif path.suffix == ".snapshot":
        try:
            yield from map(_producer_line, unpack_snapshot(path.read_bytes(), now_ms=0))
        except StorageError as error:
            findings.remark(path, f"the snapshot is damaged: {error}")
    elif path.name == "leader-epoch-checkpoint":
        for epoch, start_offset in read_epochs(path):
            yield f"epoch: {epoch} startOffset: {start_offset}"
    elif path.name.endswith("-offset-checkpoint"):
        for partition, offset in read_offsets(path).items():
            yield f"topic: {partition.topic} partition: {partition.partition} offset: {offset}"
    elif path.name == "partition.metadata":
        yield f"topicId: {read_partition_metadata(path)}"
    else:
        remark(f"Ignoring unknown file {path}")


def _producer_line(entry: ProducerEntry) -> str:
    first_offset = entry.transaction_first_offset
    transaction = "OptionalLong.empty" if first_offset == NO_OFFSET else f"OptionalLong[{first_offset}]"
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.epoch} coordinatorEpoch: {entry.coordinator_epoch}"
        f" currentTxnFirstOffset: {transaction} lastTimestamp: {entry.last_timestamp_ms} "
    )
    if not entry.batches:
        return line
    last = entry.batches[-1]
    return (
        f"{line}firstSequence: {last.first_sequence} lastSequence: {last.last_sequence} lastOffset: {last.last_offset}"
        f" offsetDelta: {last.offset_delta} timestamp: {last.timestamp_ms}"
    )
