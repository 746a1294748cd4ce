"""What a partition remembers of each producer, so that a retried batch is never appended twice.

For each producer id: its epoch, the last five batches (sequence numbers and offsets) and the first offset of its open
transaction. `check` and `check_marker` validate a client's batch and a coordinator's marker before they are appended;
`update` and `end_transaction` record what has been appended; `replay` records a batch of a log that is being loaded,
whatever its sequences, as followers do. `transactions` tracks what holds the last stable offset back, `verifications`
the transactions that the coordinator is being asked about.

A batch with a sequence older than the five remembered was most likely appended long ago: `check` raises
ForgottenSequence, which gives the offset up to which the log may hold it.

Producers expire by when this process last saw them (appended or loaded), not by the timestamps of their records as in
Kafka: a producer that writes records of the year 2013 would be forgotten at once.
"""

import sys
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, field

from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.producer.transactions import CompletedTxn, Transactions
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard, Verifications
from warmlog_protocol import errors
from warmlog_protocol.batch.control import ControlType, EndTxnMarker
from warmlog_protocol.batch.header import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    SEQUENCE_MASK,
    TRANSACTIONAL_BIT,
    BatchHeader,
)

FORGOTTEN_AT_ONCE = 8
"""At the limit, one producer in this many is forgotten at once, so that not every new one scans all."""
REMEMBERED_BATCHES = 5
"""How many batches a producer may have in flight, and so how many are remembered (Kafka's constant)."""

NO_COORDINATOR_EPOCH = -1

_new_tuple = tuple.__new__  # a third of the time that a NamedTuple takes, at each append
_HALF_OF_SEQUENCES = 1 << 30


class RememberedBatch(NamedTuple):
    """A batch that was appended. Sequence 2^31 - 1 is followed by 0."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MASK

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ForgottenSequence(errors.OutOfOrderSequence):
    """A batch from before the remembered ones. If it was appended, its first offset is at most
    `newest_first_offset`."""

    def __init__(self, message: str, newest_first_offset: int, is_new_to_producer: bool) -> None:
        super().__init__(message)
        self.newest_first_offset = newest_first_offset
        self.is_new_to_producer = is_new_to_producer
        """Whether all batches that the producer ever wrote here are remembered, and this is not one of them."""


class ProducerEntry(Struct, eq=False):
    """The state of one producer id in one partition."""

    producer_id: int
    epoch: int
    last_seen_ms: int
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp_ms: int = NO_TIMESTAMP
    transaction_first_offset: int = NO_OFFSET
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    next_sequence: int = 0
    """The base sequence that the next batch of this epoch must have."""
    remembers_all: bool = True
    """Whether `batches` has all batches that the producer ever wrote here."""

    def remember(self, batch: RememberedBatch) -> None:
        if len(self.batches) == REMEMBERED_BATCHES:
            self.remembers_all = False
        self.batches.append(batch)
        self.next_sequence = (batch.last_sequence + 1) & SEQUENCE_MASK
        self.last_timestamp_ms = batch.timestamp_ms

    def find(self, header: BatchHeader) -> RememberedBatch | None:
        """The remembered batch with the same sequences as `header`, which must be of this epoch."""
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches.clear()
        self.next_sequence = 0
        self.remembers_all = True


class ProducerStates:
    """The producers of one partition, by id. `end_offset` (exclusive) is how far the log is reflected."""

    def __init__(self, end_offset: int = 0) -> None:
        self.end_offset = end_offset
        self.limit = sys.maxsize
        """How many producers are remembered: any client may request any number of producer ids."""
        self.transactions = Transactions()
        self.verifications = Verifications()
        self._entries: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    @property
    def entries(self) -> Iterable[ProducerEntry]:
        return self._entries.values()

    @property
    def in_transactions(self) -> list[ProducerEntry]:
        """Those with an open transaction."""
        return [self._entries[producer_id] for producer_id in self.transactions.open]

    @property
    def max_producer_id(self) -> int:
        """The largest producer id that is known, -1 without any: new ids must be above it."""
        return max(self._entries, default=-1)

    # Client batches

    def check(self, header: BatchHeader, guard: VerificationGuard = NO_GUARD) -> RememberedBatch | None:
        """Validate a client's batch before it is appended; `guard` is from `start_verification`.

        Returns None if it may be appended, or the original batch if it is a duplicate. Raises, checked in this order:
        InvalidTxnState (it would open a transaction that was not verified), InvalidProducerEpoch (an older incarnation
        of the producer), OutOfOrderSequence (a gap, or a batch that overlaps a remembered one), ForgottenSequence,
        InvalidTxnState (the producer has a transaction open, and this batch is not part of it).
        """
        entry = self._entries.get(header.producer_id)
        is_transactional = header.attributes & TRANSACTIONAL_BIT
        if entry is not None and header.producer_epoch == entry.epoch and header.base_sequence != entry.next_sequence:
            duplicate = entry.find(header)
            if duplicate is not None:
                return duplicate
        if is_transactional:
            self._check_verified(entry, header, guard)
        if entry is not None and header.producer_epoch < entry.epoch:
            raise _fenced(entry, header)
        if entry is not None:
            _check_sequence(entry, header)
            is_part = is_transactional and header.producer_epoch == entry.epoch
            if entry.transaction_first_offset != NO_OFFSET and not is_part:
                raise errors.InvalidTxnState(
                    f"producer {entry.producer_id} has had a transaction open since offset "
                    f"{entry.transaction_first_offset}, and the batch is not part of it"
                )
        return None

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Record a data batch that was appended at `base_offset`; the first transactional one opens a transaction."""
        entry = self._entry_in_epoch(header, now_ms)
        delta = header.last_offset_delta
        last_sequence = (header.base_sequence + delta) & SEQUENCE_MASK
        fields = (last_sequence, base_offset + delta, delta, header.max_timestamp_ms)
        entry.remember(_new_tuple(RememberedBatch, fields))
        entry.last_seen_ms = now_ms
        if header.attributes & TRANSACTIONAL_BIT:
            if entry.transaction_first_offset == NO_OFFSET:
                entry.transaction_first_offset = base_offset
                self.transactions.begin(entry.producer_id, base_offset)
            self.verifications.clear(entry.producer_id)

    def start_verification(
        self, producer_id: int, epoch: int, now_ms: int, *, first_sequence: int = 0
    ) -> VerificationGuard:
        """The guard to append the next transactional batch with; NO_GUARD if its transaction is already open.

        A producer that is not known here may begin with `first_sequence`.
        """
        entry = self._entries.get(producer_id)
        if entry is not None and entry.epoch == epoch and entry.transaction_first_offset != NO_OFFSET:
            return NO_GUARD
        return self.verifications.start(producer_id, now_ms, first_sequence)

    def _check_verified(self, entry: ProducerEntry | None, header: BatchHeader, guard: VerificationGuard) -> None:
        """InvalidTxnState unless the transaction is open or was verified with `guard`.

        OutOfOrderSequence if the batch would open the transaction and is not the producer's first of it: what came
        before is lost, with a topic that was deleted and created again, or in a power cut with write.caching.
        """
        if not self.verifications.is_required:
            return
        if entry is not None and entry.transaction_first_offset != NO_OFFSET and entry.epoch == header.producer_epoch:
            return
        pending = self.verifications.get(header.producer_id)
        if pending is None or not pending.guard.verifies(guard):
            raise errors.InvalidTxnState(
                f"producer {header.producer_id}, epoch {header.producer_epoch}: no transaction is open here, and the "
                "coordinator was not asked about one"
            )
        if entry is None and header.base_sequence != pending.first_sequence:
            raise errors.OutOfOrderSequence(
                f"producer {header.producer_id}, epoch {header.producer_epoch}: a transaction begins with sequence "
                f"{pending.first_sequence}, not {header.base_sequence}: what the producer wrote here before is lost"
            )

    # Markers

    def check_marker(self, header: BatchHeader, marker: EndTxnMarker, *, keeps_epoch: bool = False) -> bool:
        """Validate a coordinator's marker; return whether it is to be appended, and False for a repeated one.

        A marker has the epoch after that of the batches of the transaction that it ends (KIP-890), or the same with
        `keeps_epoch`: then it is appended as often as it is written, as nothing tells a repeated one.
        InvalidProducerEpoch if it is for an older incarnation of the producer, InvalidTxnState if a transaction is open
        that it does not end: of a later epoch, or for a commit of another epoch, as an old copy of the log may have;
        TransactionCoordinatorFenced if a newer coordinator has written a marker for it.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return True
        if header.producer_epoch < entry.epoch:
            raise _fenced(entry, header)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise errors.TransactionCoordinatorFenced(
                f"producer {entry.producer_id}: coordinator epoch {marker.coordinator_epoch} is fenced by "
                f"{entry.coordinator_epoch}"
            )
        ended_epoch = header.producer_epoch if keeps_epoch else header.producer_epoch - 1
        is_later = marker.control_type is ControlType.ABORT and entry.epoch < ended_epoch
        if entry.transaction_first_offset != NO_OFFSET and not (entry.epoch == ended_epoch or is_later):
            raise errors.InvalidTxnState(
                f"producer {entry.producer_id}: a transaction of epoch {entry.epoch} is open since offset "
                f"{entry.transaction_first_offset}, and a marker of epoch {header.producer_epoch} cannot end it"
            )
        return keeps_epoch or header.producer_epoch > entry.epoch

    def aborted_by(self, header: BatchHeader, control_type: ControlType) -> AbortedTxn | None:
        """The transaction index entry for a marker with its final base offset.

        None if the marker commits, or if nothing was written in the transaction.
        """
        completed = self._completed_by(header)
        if completed is None or control_type is not ControlType.ABORT:
            return None
        return AbortedTxn(*completed, self.transactions.stable_after(completed))

    def end_transaction(self, header: BatchHeader, marker: EndTxnMarker, now_ms: int) -> None:
        """Record a marker that was appended, which closes the producer's transaction.

        The producer takes the marker's epoch, which fences an older incarnation even if the newer one never wrote here.
        The marker also keeps the producer from expiring too early (KAFKA-9144).
        """
        completed = self._completed_by(header)
        entry = self._entry_in_epoch(header, now_ms)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = header.max_timestamp_ms
        entry.last_seen_ms = now_ms
        entry.transaction_first_offset = NO_OFFSET
        if completed is not None:
            self.transactions.complete(completed)
        self.verifications.clear(entry.producer_id)

    def _completed_by(self, header: BatchHeader) -> CompletedTxn | None:
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.transaction_first_offset == NO_OFFSET:
            return None
        return CompletedTxn(entry.producer_id, entry.transaction_first_offset, header.base_offset)

    # Loading and forgetting

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Record a data batch of the log without validating its epoch or sequence; it may open a transaction."""
        if header.producer_id < 0 or header.base_sequence == NO_SEQUENCE:
            return
        known = header.producer_id in self._entries
        self.update(header, header.base_offset, now_ms)
        if not known:
            self._entries[header.producer_id].remembers_all = False

    def restore(self, entry: ProducerEntry) -> None:
        self._entries[entry.producer_id] = entry
        if entry.transaction_first_offset != NO_OFFSET:
            self.transactions.begin(entry.producer_id, entry.transaction_first_offset)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers not seen for `expiration_ms` that have no transaction open; returns how many."""
        expired = [
            entry.producer_id
            for entry in self._entries.values()
            if now_ms - entry.last_seen_ms >= expiration_ms and entry.transaction_first_offset == NO_OFFSET
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        self.verifications.expire(now_ms, expiration_ms)
        return len(expired)

    def _forget_oldest(self) -> None:
        """Make room: forget the producers that were seen longest ago and have no transaction open."""
        idle = [entry for entry in self._entries.values() if entry.transaction_first_offset == NO_OFFSET]
        idle.sort(key=lambda entry: entry.last_seen_ms)
        for entry in idle[: len(self._entries) - self.limit + max(1, self.limit // FORGOTTEN_AT_ONCE)]:
            del self._entries[entry.producer_id]

    def clear(self, end_offset: int) -> None:
        """Reset to the state of an empty log that ends at `end_offset`."""
        self._entries.clear()
        self.transactions.clear()
        self.verifications.forget_all()
        self.end_offset = end_offset

    def _entry_in_epoch(self, header: BatchHeader, now_ms: int) -> ProducerEntry:
        entry = self._entries.get(header.producer_id)
        if entry is None:
            if len(self._entries) >= self.limit:
                self._forget_oldest()
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch, now_ms)
        elif header.producer_epoch != entry.epoch:
            entry.start_epoch(header.producer_epoch)
        return entry


def _fenced(entry: ProducerEntry, header: BatchHeader) -> errors.InvalidProducerEpoch:
    return errors.InvalidProducerEpoch(
        f"producer {entry.producer_id}: epoch {header.producer_epoch} is fenced by {entry.epoch}"
    )


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> None:
    """Raise for a known producer's batch, no duplicate and of no older epoch, that is not the next one."""
    first, last = header.base_sequence, header.last_sequence
    if header.producer_epoch != entry.epoch:
        if first != 0 and entry.epoch != NO_PRODUCER_EPOCH:
            raise errors.OutOfOrderSequence(
                f"producer {entry.producer_id}: epoch {header.producer_epoch} must begin with 0, not {first}"
            )
        return
    if first == entry.next_sequence:
        return
    expected = f"expected sequence {entry.next_sequence}, found {first} to {last}"
    message = f"producer {entry.producer_id}, epoch {entry.epoch}: {expected}"
    if entry.batches:
        oldest = entry.batches[0]
        newest_first_offset = oldest.first_offset - ((oldest.first_sequence - first) & SEQUENCE_MASK)
        is_older = 1 <= (oldest.first_sequence - last) & SEQUENCE_MASK <= _HALF_OF_SEQUENCES
        if is_older and newest_first_offset >= 0:
            raise ForgottenSequence(message, newest_first_offset, entry.remembers_all)
    raise errors.OutOfOrderSequence(message)
