"""Checks of a client's batch before it is appended.

`check_batch` needs only the bytes: size, header, CRC, and the rules for batches that clients write. It may run in any
thread. `check_timestamps` needs the topic's settings and the time, and belongs to the append.

Bodies are not decoded: a body that is malformed under a valid CRC is stored as it came.
"""

from typing import NamedTuple

from warmlog_broker.storage.config import LogConfig
from warmlog_protocol import errors
from warmlog_protocol.batch.header import (
    APPEND_TIME_BIT,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    check_magic,
    codec_of,
    placement_prefix,
    read_header,
    stamp_append_time,
)
from warmlog_protocol.codec.crc32c import crc32c

_REFUSED_BITS = APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
_KNOWN_BITS = 0b111 | _REFUSED_BITS


class CheckedBatch(NamedTuple):
    """A client's batch that passed `check_batch`. `covered` is byte 21 to the end, which the CRC covers."""

    header: BatchHeader
    covered: bytes

    @property
    def size_bytes(self) -> int:
        return CRC_START + len(self.covered)


def check_batch(batch: Buffer, max_message_bytes: int, *, may_be_transactional: bool = False) -> CheckedBatch:
    """Check `batch`, a client's whole payload for one partition.

    Raises MessageTooLarge, CorruptBatch (header, length, CRC, codec, magic), InvalidRecord (more than one batch, counts
    that do not agree, a control batch, a producer without sequence, a transactional batch without producer),
    InvalidTimestamp (marked as stamped by a broker) or InvalidTxnState (transactional, which is allowed only if the
    caller has verified the transaction). The base offset and leader epoch that the client wrote are ignored.
    """
    size_bytes = len(batch)
    if size_bytes > max_message_bytes:
        raise errors.MessageTooLarge(f"a batch of {size_bytes} bytes, max.message.bytes allows {max_message_bytes}")
    header = read_header(batch)
    if header.batch_length + LENGTH_OVERHEAD_BYTES != size_bytes:
        if header.size_bytes > size_bytes:
            raise errors.CorruptBatch(f"a batch of {header.size_bytes} bytes by its header, {size_bytes} found")
        if size_bytes - header.size_bytes >= HEADER_BYTES:
            raise errors.InvalidRecord("more than one batch for a partition; a request may carry one")
        raise errors.CorruptBatch(f"{size_bytes - header.size_bytes} bytes follow a batch of {header.size_bytes} bytes")
    covered = bytes(memoryview(batch)[CRC_START:])
    crc = crc32c(covered)
    if crc != header.crc:
        raise errors.CorruptBatch(f"a batch of {size_bytes} bytes: CRC {header.crc:#010x} expected, {crc:#010x} found")
    check_magic(header, batch)
    if header.record_count != header.last_offset_delta + 1:
        raise errors.InvalidRecord(
            f"{header.record_count} records, but a last offset delta of {header.last_offset_delta}"
        )
    if header.attributes:
        _check_attributes(header, may_be_transactional)
    if header.producer_id != NO_PRODUCER_ID and not (
        header.producer_id >= 0 and header.producer_epoch >= 0 and header.base_sequence >= 0
    ):
        raise errors.InvalidRecord(
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}"
        )
    return CheckedBatch(header, covered)


def sealed(batch: bytes) -> CheckedBatch:
    """A batch that the broker itself has made, in the form that `check_batch` returns."""
    return CheckedBatch(read_header(batch), batch[CRC_START:])


def _check_attributes(header: BatchHeader, may_be_transactional: bool) -> None:
    codec_of(header.attributes)
    if header.attributes & ~_KNOWN_BITS:
        raise errors.InvalidRecord(f"attributes {header.attributes & 0xFFFF:#06x} have unknown bits")
    if not header.attributes & _REFUSED_BITS:
        return
    if header.is_control:
        raise errors.InvalidRecord("a control batch: only brokers write those")
    if header.is_log_append_time:
        raise errors.InvalidTimestamp("a batch marked as stamped by the broker: only brokers may set that")
    if header.has_delete_horizon:
        raise errors.InvalidRecord("a batch with a delete horizon: only compaction writes that")
    if not may_be_transactional:
        raise errors.InvalidTxnState(
            f"producer {header.producer_id} has no open transaction, and its request no transactional id"
        )
    if not header.has_producer:
        raise errors.InvalidRecord("a transactional batch without a producer id")


def check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """InvalidTimestamp if the batch's smallest or largest timestamp is outside what the topic accepts.

    In row batches the first record's timestamp stands for the smallest, which may be -1 (none). The largest may if the
    smallest is: rows that leave only the largest at -1 have got it before (`recompression`).
    """
    base_ms, max_ms = header.base_timestamp_ms, header.max_timestamp_ms
    if max_ms > now_ms + config.message_timestamp_after_max_ms:
        raise errors.InvalidTimestamp(
            f"timestamp {max_ms} is {max_ms - now_ms} ms ahead of the broker's clock, "
            f"message.timestamp.after.max.ms allows {config.message_timestamp_after_max_ms}"
        )
    if base_ms < now_ms - config.message_timestamp_before_max_ms and base_ms != NO_TIMESTAMP:
        raise errors.InvalidTimestamp(
            f"timestamp {base_ms} is {now_ms - base_ms} ms behind the broker's clock, "
            f"message.timestamp.before.max.ms allows {config.message_timestamp_before_max_ms}"
        )
    if base_ms < NO_TIMESTAMP or max_ms < base_ms:
        raise errors.InvalidTimestamp(f"timestamps from {base_ms} to {max_ms}: negative, or the larger one first")


def check_fits_segment(size_bytes: int, config: LogConfig) -> None:
    """RecordListTooLarge if the batch does not fit into any segment."""
    if size_bytes > config.segment_bytes:
        raise errors.RecordListTooLarge(
            f"a batch of {size_bytes} bytes does not fit into segment.bytes={config.segment_bytes}"
        )


def stamp(batch: CheckedBatch, now_ms: int) -> CheckedBatch:
    """The batch with `now_ms` as its append time, for topics with message.timestamp.type=LogAppendTime."""
    header = batch.header
    prefix = placement_prefix(header, header.base_offset, header.partition_leader_epoch)
    return sealed(stamp_append_time(prefix + batch.covered, now_ms))
