"""`.log` files: a line for each batch and, if requested, one for each record.

Snapshots of Kafka's metadata log (`<end offset>-<epoch>.checkpoint`) consist of batches too and are printed alike.
"""

import re
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from warmlog.cli.dump.decoders import RecordDecoder, decode_strings
from warmlog.cli.dump.findings import NON_CONSECUTIVE, Findings
from warmlog.cli.dump.segment_file import (
    PlacedHeader,
    base_offset_of,
    batch_of,
    headers_of,
    open_segment_file,
    why_no_batch,
)
from warmlog.cli.terminal.exits import CommandFailed
from warmlog_broker.storage.record.file_records import FileRecords
from warmlog_protocol.batch import MAGIC_ROWS, NO_SEQUENCE, BatchHeader, RecordBatch, check_crc
from warmlog_protocol.batch.control import ControlType, read_control_type, read_end_txn_marker
from warmlog_protocol.batch.header import SEQUENCE_MASK
from warmlog_protocol.errors import CorruptBatch

CHECKPOINT_SUFFIX = ".checkpoint"

_CHECKPOINT_NAME = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogView:
    """How much of a log file to show. `max_bytes` None means all of it."""

    is_deep: bool = False
    shows_data: bool = False
    skips_metadata: bool = False
    """Whether record lines begin with the key."""
    max_bytes: int | None = None
    decode: RecordDecoder = decode_strings


def dump_log(path: Path, view: LogView, findings: Findings) -> Iterator[str]:
    """Yield the lines of one file."""
    yield _heading(path)
    with closing(open_segment_file(path)) as file:
        yield from _batch_lines(file, view, findings)


def _heading(path: Path) -> str:
    if path.suffix != CHECKPOINT_SUFFIX:
        return f"Log starting offset: {base_offset_of(path)}"
    if path.name == f"bootstrap{CHECKPOINT_SUFFIX}":
        return "KRaft bootstrap snapshot"
    name = _CHECKPOINT_NAME.fullmatch(path.name)
    if name is None:
        raise CommandFailed(f"{path}: expected a name like 00000000000000000000-0000000000.checkpoint")
    return f"Snapshot end offset: {int(name['offset'])}, epoch: {int(name['epoch'])}"


def _batch_lines(file: FileRecords, view: LogView, findings: Findings) -> Iterator[str]:
    position = 0
    previous_offset = -1
    for placed in headers_of(file, end=view.max_bytes):
        position = placed.position + placed.header.size_bytes
        batch = batch_of(file, placed)
        yield batch_line(batch, placed)
        if not view.is_deep:
            continue
        try:
            for offset, line in record_lines(batch, view):
                yield line
                if previous_offset not in (-1, offset - 1):
                    findings.note(NON_CONSECUTIVE, file.path, previous_offset, offset)
                previous_offset = offset
        except CorruptBatch as error:
            findings.remark(file.path, f"position {placed.position}: {error}")
    if view.max_bytes is None and position < file.size_bytes:
        yield f"Found {file.size_bytes - position} invalid bytes at the end of {file.path.name}"
        findings.remark(file.path, f"position {position}: {why_no_batch(file, position)}")


def batch_line(batch: RecordBatch, placed: PlacedHeader) -> str:
    """Return the line of one batch, in Kafka's words."""
    header = placed.header
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count}"
        f" baseSequence: {header.base_sequence} lastSequence: {header.last_sequence}"
        f" producerId: {header.producer_id} producerEpoch: {header.producer_epoch}"
        f" partitionLeaderEpoch: {header.partition_leader_epoch}"
        f" isTransactional: {str(header.is_transactional).lower()} isControl: {str(header.is_control).lower()}"
        f" deleteHorizonMs: {_delete_horizon(batch)}"
        f" position: {placed.position} {_clock(header)}: {header.max_timestamp_ms} size: {header.size_bytes}"
        f" magic: {header.magic} compresscodec: {_codec(header)} crc: {header.crc}"
        f" isvalid: {str(_is_valid(batch)).lower()}"
    )


def record_lines(batch: RecordBatch, view: LogView) -> Iterator[tuple[int, str]]:
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


def _is_valid(batch: RecordBatch) -> bool:
    try:
        check_crc(batch.header, batch.buffer)
    except CorruptBatch:
        return False
    return True


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


# --- control records ------------------------------------------------------------------------------------------------

_SNAPSHOT_HEADER = struct.Struct(">hq")
_SNAPSHOT_FOOTER = struct.Struct(">h")
_KRAFT_VERSION = struct.Struct(">hh")
"""Values of the markers in Kafka's own metadata log, its messages in version 0, big-endian: an i16 version, then an i64
time (SNAPSHOT_HEADER), nothing (SNAPSHOT_FOOTER) or an i16 (KRAFT_VERSION); tagged fields may follow."""


def _control_text(key: bytes | None, value: bytes | None) -> str:
    """Return what follows the metadata in a control record's line. CorruptBatch for an unknown or damaged one."""
    control_type = read_control_type(key)
    if control_type.is_end_txn:
        marker = read_end_txn_marker(key, value)
        return f" endTxnMarker: {marker.control_type.name} coordinatorEpoch: {marker.coordinator_epoch}"
    try:
        return _metadata_mark(control_type, value or b"")
    except struct.error as error:
        raise CorruptBatch(f"control record of type {control_type.name}: {error}") from None


def _metadata_mark(control_type: ControlType, value: bytes) -> str:
    if control_type is ControlType.SNAPSHOT_HEADER:
        version, time_ms = _SNAPSHOT_HEADER.unpack_from(value)
        return f' SnapshotHeader {{"version":{version},"lastContainedLogTimestamp":{time_ms}}}'
    if control_type is ControlType.SNAPSHOT_FOOTER:
        (version,) = _SNAPSHOT_FOOTER.unpack_from(value)
        return f' SnapshotFooter {{"version":{version}}}'
    if control_type is ControlType.KRAFT_VERSION:
        version, kraft_version = _KRAFT_VERSION.unpack_from(value)
        return f' KRaftVersion {{"version":{version},"kRaftVersion":{kraft_version}}}'
    return f" controlType: {control_type.name}({control_type.value})"
