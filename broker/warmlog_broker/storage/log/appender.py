"""Appending to one log: what is decided before a batch is written, and what is known after.

Offsets are assigned here, so a refused batch leaves no trace: every check comes before `LocalLog.write`, and the log
end moves right after it.
"""

from contextlib import suppress
from typing import NamedTuple

from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.log.validation import CheckedBatch, check_fits_segment, check_timestamps, sealed, stamp
from warmlog_broker.storage.producer.duplicates import find_forgotten
from warmlog_broker.storage.producer.producer_state import ForgottenSequence
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard
from warmlog_protocol.batch import ControlType, EndTxnMarker, encode_end_txn_marker
from warmlog_protocol.batch.header import CRC_START, NO_TIMESTAMP, placement_prefix
from warmlog_protocol.errors import CorruptBatch

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

    __slots__ = ("_bounds", "_local", "_producers", "last_append_time_ms")

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
        if local.failure:
            raise local.offline()
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
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Append the marker with which a coordinator ends a producer's transaction: ControlType.COMMIT or ABORT.

        `producer_epoch` is higher than that of the transaction. The marker is appended also if none is open, as it
        fences what is late; a repeated one is not appended again: it is durable when all before the end of the log is.
        Not durable on return. Raises InvalidProducerEpoch, InvalidTxnState (the epoch is that of the open transaction),
        TransactionCoordinatorFenced (a newer coordinator has written a marker), FencedLeaderEpoch or StorageError; the
        log is then as it was before, unless the disk has failed: then it is offline, and the transaction as it was.
        """
        local = self._local
        local.check_online()
        marker = EndTxnMarker(control_type, coordinator_epoch)
        batch = sealed(
            encode_end_txn_marker(marker, timestamp_ms=now_ms, producer_id=producer_id, producer_epoch=producer_epoch)
        )
        if not self._producers.check_marker(batch.header, marker):
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
