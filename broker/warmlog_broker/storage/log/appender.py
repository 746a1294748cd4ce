"""Appending to one log: what is decided before a batch is written, and what is known after.

A leader assigns offsets, so a refused batch leaves no trace: every check comes before `LocalLog.write`, and the log end
moves right after it.

A follower copies its leader's batches as they come, several in one buffer, with their offsets and leader epochs. The
leader has checked sequences, timestamps, max.message.bytes and segment.bytes, perhaps with other settings
(KAFKA-17375); they are not checked again. The checks are for what keeps the copy a log: whole batches with a correct
CRC, offsets that rise and begin at or after the log end, leader epochs that do not fall. Offsets may have gaps, as in a
compacted log (`partition_files`). A partial batch at the end of the buffer, which a fetch with a size limit returns, is
left out.
"""

from contextlib import suppress
from typing import NamedTuple

from warmlog_broker.storage.directory.partition_files import Gaps, note_gaps
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.log.validation import CheckedBatch, check_fits_segment, check_timestamps, sealed, stamp
from warmlog_broker.storage.producer.duplicates import find_forgotten
from warmlog_broker.storage.producer.producer_state import ForgottenSequence
from warmlog_broker.storage.producer.replay import read_marker
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard
from warmlog_protocol.batch import ControlType, EndTxnMarker, encode_end_txn_marker
from warmlog_protocol.batch.header import (
    CRC_START,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    check_crc,
    placement_prefix,
    read_header,
)
from warmlog_protocol.errors import CorruptBatch, FencedLeaderEpoch, WarmlogError

MOST_AT_ONCE = 500
"""Batches that are written by one call of the system, which takes 1024 pieces at most (IOV_MAX)."""

_new_tuple = tuple.__new__  # a third of the time that a NamedTuple takes, at each append


class AppendInfo(NamedTuple):
    """Where a batch is in the log. `append_time_ms` is -1 unless the topic takes the time of appending."""

    first_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


class LogAppender:
    """The appends to one log by its leader."""

    def __init__(self, local: LocalLog) -> None:
        self._local = local
        self._bounds = local.bounds
        self._producers = local.producers
        self.last_append_time_ms = NO_TIMESTAMP

    def append_as_leader(
        self, batch: CheckedBatch, *, leader_epoch: int, now_ms: int, guard: VerificationGuard = NO_GUARD
    ) -> AppendInfo:
        """Append a client's batch that `check_batch` has passed. It is not durable on return: see `LogFlusher.prepare`.

        A batch that its producer sent before is not appended again: the result says where it is. A transactional one
        needs `guard` (see `ProducerStates.start_verification`) unless its transaction is open. Raises InvalidTimestamp,
        RecordListTooLarge, OutOfOrderSequence, DuplicateSequence (appended before, too long ago to say where),
        InvalidProducerEpoch, InvalidTxnState, FencedLeaderEpoch (the log has seen a newer leader), or StorageError; the
        log is then as it was before.
        """
        local = self._local
        local.check_online()
        config = local.factory.config
        header = batch.header
        has_producer = header.producer_id >= 0
        if has_producer:
            try:
                duplicate = self._producers.check(header, guard)
            except ForgottenSequence as error:
                duplicate = find_forgotten(
                    error, header, local.segments, self._bounds.log_start_offset, may_have_gaps=local.may_have_gaps
                )
            if duplicate is not None:
                stored_ms = duplicate.timestamp_ms if config.takes_append_time else NO_TIMESTAMP
                log_start_offset = self._bounds.log_start_offset
                return AppendInfo(duplicate.first_offset, duplicate.last_offset, stored_ms, log_start_offset, True)
        append_time_ms = NO_TIMESTAMP
        if config.takes_append_time:
            append_time_ms = self._take_append_time(now_ms)
            batch = stamp(batch, append_time_ms)
            header = batch.header
        else:
            check_timestamps(header, config, now_ms)
        first_offset = local.log_end_offset
        covered = batch.covered
        check_fits_segment(CRC_START + len(covered), config)
        prefix = placement_prefix(header, first_offset, leader_epoch)
        local.write(header, prefix, covered, first_offset, leader_epoch, now_ms)
        if has_producer:
            try:
                self._producers.update(header, first_offset, now_ms)
            except MemoryError as error:
                raise local.cannot_remember() from error
        log_start_offset = self._bounds.log_start_offset
        return _new_tuple(AppendInfo, (first_offset, local.log_end_offset - 1, append_time_ms, log_start_offset, False))

    def append_end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        control_type: ControlType,
        coordinator_epoch: int,
        *,
        keeps_epoch: bool = False,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Append the marker with which a coordinator ends a producer's transaction: ControlType.COMMIT or ABORT.

        `producer_epoch` is the next one after that of the transaction, or the same with `keeps_epoch`. The marker is
        appended also if none is open, as it fences what is late; a repeated one is only appended again with
        `keeps_epoch`: else it is durable when all before the end of the log is. Not durable on return. Raises
        InvalidProducerEpoch, InvalidTxnState (a transaction is open that it does not end), TransactionCoordinatorFenced
        (a newer coordinator has written a marker), FencedLeaderEpoch or StorageError; the log is then as it was before,
        unless the disk has failed: then it is offline, and the transaction as it was.
        """
        local = self._local
        local.check_online()
        marker = EndTxnMarker(control_type, coordinator_epoch)
        batch = sealed(
            encode_end_txn_marker(marker, timestamp_ms=now_ms, producer_id=producer_id, producer_epoch=producer_epoch)
        )
        if not self._producers.check_marker(batch.header, marker, keeps_epoch=keeps_epoch):
            end = local.log_end_offset
            return AppendInfo(end, end - 1, NO_TIMESTAMP, self._bounds.log_start_offset, is_duplicate=True)
        first_offset = local.log_end_offset
        placed = batch.header._replace(base_offset=first_offset)
        prefix = placement_prefix(placed, first_offset, leader_epoch)
        local.write_marker(placed, marker, prefix, batch.covered, leader_epoch, now_ms)
        return AppendInfo(first_offset, first_offset, NO_TIMESTAMP, self._bounds.log_start_offset, is_duplicate=False)

    def _take_append_time(self, now_ms: int) -> int:
        """The time to stamp a batch with: the clock's, or the last batch's if the clock has gone back since then.

        That of a log that was opened is the largest timestamp of its last segment that has records, if it is known.
        """
        if self.last_append_time_ms == NO_TIMESTAMP:
            local = self._local
            segment = local.active if local.active.size_bytes else local.segments.lower(local.active.base_offset)
            try:
                with suppress(CorruptBatch):
                    self.last_append_time_ms = NO_TIMESTAMP if segment is None else segment.max_timestamp_ms
            except OSError as error:
                raise local.write_error("append", error) from error
        self.last_append_time_ms = max(now_ms, self.last_append_time_ms)
        return self.last_append_time_ms


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
        check_crc(header, view, position)
        if header.base_offset <= previous_offset or header.last_offset_delta < 0:
            what = f"{name}: the batch at offset {header.base_offset}, up to {header.last_offset}"
            raise OffsetsOutOfOrder(f"{what}, follows offset {previous_offset}")
        prefix, covered = view[position : position + CRC_START], view[position + CRC_START : end]
        found.append(CopiedBatch(header, bytes(prefix), covered))
        position, previous_offset = end, header.last_offset
    if found and found[0].header.base_offset < log_end_offset:
        first, last = found[0].header.base_offset, previous_offset
        raise UnexpectedAppendOffset(
            f"{name}: offsets {first} to {last}, expected from the log end {log_end_offset} on", first, last
        )
    return found


class FollowerAppender:
    """The appends to one log that is a copy."""

    def __init__(self, local: LocalLog) -> None:
        self._local = local
        self._bounds = local.bounds
        self._epochs = local.epochs
        self._producers = local.producers

    def read(self, batches: Buffer) -> list[CopiedBatch]:
        """Return the whole batches in a buffer, for `append`. Raises what `read_copied` does."""
        return read_copied(batches, self._local.log_end_offset, name=self._local.key.directory_name)

    def append(self, batches: Buffer | list[CopiedBatch], *, now_ms: int) -> AppendInfo:
        """Append what another log has, unchanged: whole batches with their offsets and leader epochs.

        A list is what `read` has returned for the present end of the log. Not durable on return; the high watermark
        stays. Raises CorruptBatch, OffsetsOutOfOrder (within the buffer), UnexpectedAppendOffset (below the log end) or
        FencedLeaderEpoch, and nothing was appended; or StorageError, and then batches may have been appended: the log
        end says which.
        """
        local = self._local
        local.check_online()
        copied = batches if isinstance(batches, list) else self.read(batches)
        latest = self._epochs.latest_epoch
        for header, _, _ in copied:
            if header.partition_leader_epoch < latest:  # recovery would take what follows for damage
                raise FencedLeaderEpoch(
                    f"{local.key.directory_name}: the batch at offset {header.base_offset} has leader epoch "
                    f"{header.partition_leader_epoch}, expected {latest} or a newer one"
                )
            latest = header.partition_leader_epoch
        first_offset = copied[0].header.base_offset if copied else local.log_end_offset
        ahead = None
        if 1 < len(copied) <= MOST_AT_ONCE:
            pieces = [piece for batch in copied for piece in (batch.prefix, batch.covered)]
            ahead = local.write_ahead([batch.header for batch in copied], pieces)
        try:
            for batch in copied:
                self._append(batch, now_ms)
        finally:
            if ahead is not None:
                ahead.end_ahead()
        last_offset, log_start_offset = local.log_end_offset - 1, self._bounds.log_start_offset
        return AppendInfo(first_offset, last_offset, NO_TIMESTAMP, log_start_offset, is_duplicate=False)

    def _append(self, batch: CopiedBatch, now_ms: int) -> None:
        local, (header, prefix, covered) = self._local, batch
        if header.base_offset > local.log_end_offset and not local.gaps.everywhere:
            try:
                note_gaps(local.directory)
            except OSError as error:
                raise local.write_error("append", error) from error
            local.gaps = Gaps(everywhere=True)
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
