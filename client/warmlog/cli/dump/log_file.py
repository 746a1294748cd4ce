"""`.log` files: a line for each batch and, if requested, one for each record."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from warmlog.cli.dump.findings import NON_CONSECUTIVE, Findings
from warmlog.cli.dump.view import View
from warmlog.cli.terminal.exits import CommandFailed
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords
from warmlog_protocol.batch import (
    HEADER_BYTES,
    MAGIC_ROWS,
    NO_SEQUENCE,
    BatchHeader,
    RecordBatch,
    check_crc,
    read_batch,
    read_header,
)
from warmlog_protocol.batch.control import read_control_type, read_end_txn_marker
from warmlog_protocol.batch.header import SEQUENCE_MASK
from warmlog_protocol.errors import CorruptBatch


def base_offset_of(path: Path) -> int:
    """Return the offset in the name of a segment's file. CommandFailed for another kind of name."""
    stem = path.name.partition(".")[0]
    if not (stem.isascii() and stem.isdigit()):
        raise CommandFailed(f"{path}: expected a name that is the base offset, like 00000000000000000000.log")
    return int(stem)


def open_segment_file(path: Path) -> FileRecords:
    """Open the `.log` file at its present size: later appends are not seen. FileNotFoundError if it is missing."""
    return FileRecords.open_read_only(path, OpenFiles())


def headers_of(file: FileRecords, position: int = 0, end: int | None = None) -> Iterator[tuple[BatchHeader, int]]:
    """Yield (header, position) of the batches between `position` and `end`, up to the first bytes that are not a batch.

    The reader refuses an offset that goes back; this continues there, to show what is in the file.
    """
    end = file.size_bytes if end is None else min(end, file.size_bytes)
    next_position = -1
    while 0 <= position < end and position != next_position:
        next_position = position
        try:
            for header, at in file.batches(position, end):
                yield header, at
                position = at + header.size_bytes
        except DamagedLog:
            continue


def batch_at(file: FileRecords, header: BatchHeader, position: int) -> RecordBatch:
    """Read the batch without checking its CRC. CorruptBatch if the file has become shorter."""
    return read_batch(file.read(position, header.size_bytes), verify_crc=False)


def _why_no_batch(file: FileRecords, position: int) -> str:
    """Say why there is no complete batch at `position`, which is before the end of the file."""
    left_bytes = file.size_bytes - position
    head = file.read(position, min(HEADER_BYTES, left_bytes))
    if not any(head):
        return f"zeros, as in a file that was preallocated or not closed; {left_bytes} bytes are left"
    try:
        header = read_header(head)
    except CorruptBatch as error:
        return str(error)
    return f"the batch should have {header.size_bytes} bytes, but only {left_bytes} are left"


def dump_log(path: Path, view: View, findings: Findings) -> Iterator[str]:
    """Yield the lines of one file."""
    yield f"Log starting offset: {base_offset_of(path)}"
    with closing(open_segment_file(path)) as file:
        yield from _batch_lines(file, view, findings)


def _batch_lines(file: FileRecords, view: View, findings: Findings) -> Iterator[str]:
    position = 0
    previous_offset = -1
    has_offset = False
    for header, at in headers_of(file, end=view.max_bytes):
        position = at + header.size_bytes
        if view.offset is not None and not header.base_offset <= view.offset <= header.last_offset:
            continue
        has_offset = True
        batch = batch_at(file, header, at)
        yield _batch_line(batch, at)
        if not view.is_deep:
            continue
        try:
            for offset, line in _record_lines(batch, view):
                if view.offset not in (None, offset):
                    continue
                yield line
                if previous_offset not in (-1, offset - 1):
                    findings.note(NON_CONSECUTIVE, file.path, previous_offset, offset)
                previous_offset = offset
        except CorruptBatch as error:
            findings.remark(file.path, f"position {at}: {error}")
    if view.offset is not None and not has_offset:
        raise CommandFailed(f"{file.path}: no batch has offset {view.offset}")
    if view.max_bytes is None and position < file.size_bytes:
        yield f"Found {file.size_bytes - position} invalid bytes at the end of {file.path.name}"
        findings.remark(file.path, f"position {position}: {_why_no_batch(file, position)}")


def _batch_line(batch: RecordBatch, position: int) -> str:
    """Return the line of one batch, in Kafka's words."""
    header = batch.header
    try:
        check_crc(header, batch.buffer)
        is_valid = "true"
    except CorruptBatch:
        is_valid = "false"
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count}"
        f" baseSequence: {header.base_sequence} lastSequence: {header.last_sequence}"
        f" producerId: {header.producer_id} producerEpoch: {header.producer_epoch}"
        f" partitionLeaderEpoch: {header.partition_leader_epoch}"
        f" isTransactional: {str(header.is_transactional).lower()} isControl: {str(header.is_control).lower()}"
        f" deleteHorizonMs: {_delete_horizon(batch)}"
        f" position: {position} {_clock(header)}: {header.max_timestamp_ms} size: {header.size_bytes}"
        f" magic: {header.magic} compresscodec: {_codec(header)} crc: {header.crc}"
        f" isvalid: {is_valid}"
    )


def _record_lines(batch: RecordBatch, view: View) -> Iterator[tuple[int, str]]:
    """Yield each record's offset and line. CorruptBatch if the body is malformed."""
    header = batch.header
    clock = _clock(header)
    records = zip(batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(), batch.headers(), strict=True)
    for offset, timestamp_ms, key, value, headers in records:
        line = ""
        if not view.skips_metadata:
            names = ",".join(name for name, _ in headers)
            line = (
                f"| offset: {offset} {clock}: {timestamp_ms} keySize: {_size(key)} valueSize: {_size(value)}"
                f" sequence: {_sequence(header, offset)} headerKeys: [{names}]"
            )
            line += _control_text(key, value) if header.is_control else ""
        if view.shows_data and not header.is_control:
            key_text, value_text = view.decode(key, value)
            if key_text is not None:
                line += f"{' ' if line else '| '}key: {key_text}"
            if value_text is not None:
                line += f" payload: {value_text}"
        yield offset, line


def _sequence(header: BatchHeader, offset: int) -> int:
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + offset - header.base_offset) & SEQUENCE_MASK


def _delete_horizon(batch: RecordBatch) -> str:
    """When compaction may drop the batch's tombstones: rows store it in the header, columns before their data."""
    header = batch.header
    if not header.has_delete_horizon:
        return "OptionalLong.empty"
    if header.magic == MAGIC_ROWS:
        return f"OptionalLong[{header.base_timestamp_ms}]"
    try:
        return f"OptionalLong[{batch.columns.delete_horizon_ms}]"
    except CorruptBatch:
        return "OptionalLong[?]"


def _clock(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _codec(header: BatchHeader) -> str:
    try:
        return header.codec.label
    except CorruptBatch:
        return "unknown"


def _size(cell: bytes | None) -> int:
    return -1 if cell is None else len(cell)


def _control_text(key: bytes | None, value: bytes | None) -> str:
    """Return what follows the metadata in a control record's line. CorruptBatch for an unknown or damaged one."""
    control_type = read_control_type(key)
    if not control_type.is_end_txn:
        return f" controlType: {control_type.name}({control_type.value})"
    marker = read_end_txn_marker(key, value)
    return f" endTxnMarker: {marker.control_type.name} coordinatorEpoch: {marker.coordinator_epoch}"
