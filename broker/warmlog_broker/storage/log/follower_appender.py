"""Appending what another log holds: a follower copies its leader, a move copies a partition to another directory.

Batches come as they lie in the other log, several in one buffer, with their offsets and leader epochs, and are written
as they came. Nothing of what a leader asks of a client is asked again: neither sequences nor timestamps, nor the limits
max.message.bytes and segment.bytes, under which the leader may have appended with other settings (KAFKA-17375). What is
asked is what keeps the copy a log: whole batches whose CRC is right, offsets that rise and begin at or behind the log
end, leader epochs that do not fall. Offsets may have gaps, as those of a compacted log do (see `gaps`).

A piece of a batch at the end of the buffer, as a fetch that is limited in size gives it, is left out.
"""

from typing import NamedTuple

from warmlog_broker.storage.directory.gap_marker import note_gaps
from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.log.appender import AppendInfo, segment_for
from warmlog_broker.storage.log.bounds import Bounds
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.replay import WalkedBatch, replay
from warmlog_protocol.batch.header import (
    CRC_START,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    read_header,
)
from warmlog_protocol.codec.crc import crc32c
from warmlog_protocol.errors import CorruptBatch, FencedLeaderEpoch, WarmlogError


class OffsetsOutOfOrder(WarmlogError):
    """The offsets of batches in one buffer do not rise."""


class UnexpectedAppendOffset(WarmlogError):
    """The batches begin below the log end: they were appended before, or the logs have parted."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class CopiedBatch(NamedTuple):
    """A batch as it lies in another log: its first 21 bytes and the rest."""

    header: BatchHeader
    prefix: bytes
    covered: memoryview


def read_copied(batches: Buffer, log_end_offset: int, *, name: str) -> list[CopiedBatch]:
    """The whole batches in a buffer, checked. CorruptBatch, OffsetsOutOfOrder or UnexpectedAppendOffset."""
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


class FollowerAppends:
    """The appends to one log that is a copy; `Log.append_as_follower` says what they raise."""

    __slots__ = ("_bounds", "_epochs", "_local", "_producers")

    def __init__(self, local: LocalLog, bounds: Bounds, epochs: LeaderEpochs, producers: ProducerStates) -> None:
        self._local = local
        self._bounds = bounds
        self._epochs = epochs
        self._producers = producers

    def append(self, batches: Buffer, now_ms: int) -> AppendInfo:
        """See `Log.append_as_follower`."""
        local = self._local
        local.check_online()
        copied = read_copied(batches, local.log_end_offset, name=local.key.directory_name)
        self._check_epochs(copied)
        first_offset = copied[0].header.base_offset if copied else local.log_end_offset
        for batch in copied:
            self._append(batch, now_ms)
        last_offset, log_start_offset = local.log_end_offset - 1, self._bounds.log_start_offset
        return AppendInfo(first_offset, last_offset, NO_TIMESTAMP, log_start_offset, is_duplicate=False)

    def _check_epochs(self, copied: list[CopiedBatch]) -> None:
        """FencedLeaderEpoch where an epoch falls: a start would take what follows for damage."""
        latest = self._epochs.latest_epoch
        for header, _, _ in copied:
            if header.partition_leader_epoch < latest:
                raise FencedLeaderEpoch(
                    f"{self._local.key.directory_name}: the batch at offset {header.base_offset} has leader epoch "
                    f"{header.partition_leader_epoch}, expected {latest} or a newer one"
                )
            latest = header.partition_leader_epoch

    def _append(self, batch: CopiedBatch, now_ms: int) -> None:
        local, header = self._local, batch.header
        try:
            if header.base_offset > local.log_end_offset and not local.has_gaps:
                note_gaps(local.directory)
                local.has_gaps = True
            segment = segment_for(
                local,
                self._bounds,
                self._producers,
                first_offset=header.base_offset,
                last_offset=header.last_offset,
                max_timestamp_ms=header.max_timestamp_ms,
                size_bytes=header.size_bytes,
                now_ms=now_ms,
            )
            if header.is_control:
                local.settle_transactions(segment, now_ms)
            position = segment.append(
                header.last_offset, header.max_timestamp_ms, header.last_offset, batch.prefix, batch.covered
            )
        except OSError as error:
            raise local.write_error("append", error) from error
        local.log_end_offset = header.next_offset
        if header.partition_leader_epoch > self._epochs.latest_epoch:
            self._epochs.assign(header.partition_leader_epoch, header.base_offset)
        aborted = replay(self._producers, WalkedBatch(segment, header, position), now_ms)
        if aborted is not None:
            try:
                segment.add_aborted(aborted)
            except OSError as error:
                raise local.write_error("append", error, is_fatal=True) from error
