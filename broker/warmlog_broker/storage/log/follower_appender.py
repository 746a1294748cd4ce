"""Appending what another log has: a follower copies its leader.

Batches are written as they come, several in one buffer, with their offsets and leader epochs. The leader has checked
sequences, timestamps, max.message.bytes and segment.bytes, perhaps with other settings (KAFKA-17375); they are not
checked again. The checks are for what keeps the copy a log: whole batches with a correct CRC, offsets that rise and
begin at or after the log end, leader epochs that do not fall. Offsets may have gaps, as in a compacted log (see
`partition_files`).

A partial batch at the end of the buffer, which a fetch with a size limit returns, is left out.
"""

from typing import NamedTuple

from warmlog_broker.storage.directory.partition_files import note_gaps
from warmlog_broker.storage.log.appender import AppendInfo
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.producer.replay import read_marker
from warmlog_protocol.batch.header import (
    CRC_START,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    read_header,
)
from warmlog_protocol.codec.crc32c import crc32c
from warmlog_protocol.errors import CorruptBatch, FencedLeaderEpoch, WarmlogError


class OffsetsOutOfOrder(WarmlogError):
    """The offsets of batches in one buffer do not rise."""


class UnexpectedAppendOffset(WarmlogError):
    """The batches begin below the log end: they were appended before, or the logs have diverged."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class CopiedBatch(NamedTuple):
    """A batch as it is in another log: its first 21 bytes and the rest."""

    header: BatchHeader
    prefix: bytes
    covered: memoryview


def read_copied(batches: Buffer, log_end_offset: int, *, name: str) -> list[CopiedBatch]:
    """Return the whole batches in a buffer, checked. CorruptBatch, OffsetsOutOfOrder or UnexpectedAppendOffset."""
    view = memoryview(batches)
    found: list[CopiedBatch] = []
    position, previous_offset = 0, -1
    while len(view) - position >= HEADER_BYTES:
        header = read_header(view[position : position + HEADER_BYTES])
        end = position + header.size_bytes
        if end > len(view):
            break
        what = f"{name}: the batch at offset {header.base_offset}"
        covered = view[position + CRC_START : end]
        crc = crc32c(covered)
        if crc != header.crc:
            raise CorruptBatch(f"{what}: CRC {header.crc:#010x} expected, {crc:#010x} found")
        if header.base_offset <= previous_offset or header.last_offset_delta < 0:
            raise OffsetsOutOfOrder(f"{what}, up to {header.last_offset}, follows offset {previous_offset}")
        found.append(CopiedBatch(header, bytes(view[position : position + CRC_START]), covered))
        position, previous_offset = end, header.last_offset
    if found and found[0].header.base_offset < log_end_offset:
        first, last = found[0].header.base_offset, previous_offset
        raise UnexpectedAppendOffset(
            f"{name}: offsets {first} to {last}, expected from the log end {log_end_offset} on", first, last
        )
    return found


class FollowerAppender:
    """The appends to one log that is a copy."""

    __slots__ = ("_bounds", "_epochs", "_local", "_producers")

    def __init__(self, local: LocalLog) -> None:
        self._local = local
        self._bounds = local.bounds
        self._epochs = local.epochs
        self._producers = local.producers

    def append(self, batches: Buffer, *, now_ms: int) -> AppendInfo:
        """Append what another log has, unchanged: whole batches with their offsets and leader epochs.

        Not durable on return; the high watermark stays. Raises CorruptBatch, OffsetsOutOfOrder (within the buffer),
        UnexpectedAppendOffset (below the log end) or FencedLeaderEpoch, and nothing was appended; or StorageError, and
        then batches may have been appended: the log end says which.
        """
        local = self._local
        local.check_online()
        copied = read_copied(batches, local.log_end_offset, name=local.key.directory_name)
        latest = self._epochs.latest_epoch
        for header, _, _ in copied:
            if header.partition_leader_epoch < latest:  # recovery would take what follows for damage
                raise FencedLeaderEpoch(
                    f"{local.key.directory_name}: the batch at offset {header.base_offset} has leader epoch "
                    f"{header.partition_leader_epoch}, expected {latest} or a newer one"
                )
            latest = header.partition_leader_epoch
        first_offset = copied[0].header.base_offset if copied else local.log_end_offset
        for batch in copied:
            self._append(batch, now_ms)
        last_offset, log_start_offset = local.log_end_offset - 1, self._bounds.log_start_offset
        return AppendInfo(first_offset, last_offset, NO_TIMESTAMP, log_start_offset, is_duplicate=False)

    def _append(self, batch: CopiedBatch, now_ms: int) -> None:
        local, (header, prefix, covered) = self._local, batch
        if header.base_offset > local.log_end_offset and not local.has_gaps:
            try:
                note_gaps(local.directory)
            except OSError as error:
                raise local.write_error("append", error) from error
            local.has_gaps = True
        first_offset, leader_epoch = header.base_offset, header.partition_leader_epoch
        marker = read_marker(header, lambda: b"".join((prefix, covered)))
        if marker is not None:
            local.write_marker(header, marker, prefix, covered, leader_epoch, now_ms)
            return
        local.write(header, prefix, covered, first_offset, leader_epoch, now_ms)
        if not header.is_control:
            try:
                self._producers.replay(header, now_ms)
            except MemoryError as error:
                raise local.cannot_remember() from error
