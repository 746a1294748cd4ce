"""What a partition remembers of each producer, so that a retried batch is never appended twice.

For each producer id: its epoch, the last five batches (sequence numbers and offsets) and the first offset of its open
transaction. `check` decides on a client's batch and changes nothing; `update` takes over a batch that has been
appended; `replay` takes over what a log that is being loaded holds, whatever its sequences, as followers do.

A batch whose sequence is older than the five remembered was most likely appended long ago: `check` raises
ForgottenSequence, which says from where downward the log may hold it.

Producers expire by when this process last saw them (appended or loaded), not by the timestamps of their records as in
Kafka: a producer that writes records of the year 2013 would otherwise be forgotten at once.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from warmlog_protocol.batch.header import NO_SEQUENCE, BatchHeader
from warmlog_protocol.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence

REMEMBERED_BATCHES = 5
"""How many batches a producer may have in flight, and so how many are remembered (Kafka's constant)."""

NO_OFFSET = -1
NO_EPOCH = -1

_new_tuple = tuple.__new__  # a third of the time that a NamedTuple takes, at each append
_SEQUENCE_MASK = 0x7FFFFFFF
_HALF_OF_SEQUENCES = 1 << 30


class RememberedBatch(NamedTuple):
    """A batch that was appended. Sequences follow 2^31 - 1 with 0."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ForgottenSequence(OutOfOrderSequence):
    """A batch from before the remembered ones. Had it been appended, its first offset would be at most
    `newest_first_offset`."""

    def __init__(self, message: str, newest_first_offset: int, is_new_to_producer: bool) -> None:
        super().__init__(message)
        self.newest_first_offset = newest_first_offset
        self.is_new_to_producer = is_new_to_producer
        """All that the producer ever wrote while it was known is remembered, and this is not among it."""


class ProducerEntry:
    """The state of one producer id in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_seen_ms",
        "last_timestamp_ms",
        "next_sequence",
        "producer_id",
        "remembers_all",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int, now_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = NO_EPOCH
        self.last_timestamp_ms = -1
        self.last_seen_ms = now_ms
        self.transaction_first_offset = NO_OFFSET
        self.batches: deque[RememberedBatch] = deque(maxlen=REMEMBERED_BATCHES)
        self.next_sequence = 0
        """The base sequence that the next batch of this epoch must have."""
        self.remembers_all = True

    def remember(self, batch: RememberedBatch) -> None:
        """Adds the newest batch; the oldest of six is forgotten."""
        if len(self.batches) == REMEMBERED_BATCHES:
            self.remembers_all = False
        self.batches.append(batch)
        self.next_sequence = (batch.last_sequence + 1) & _SEQUENCE_MASK
        self.last_timestamp_ms = batch.timestamp_ms

    def start_epoch(self, epoch: int) -> None:
        """A new incarnation of the producer: its sequences begin at 0 again."""
        self.epoch = epoch
        self.batches.clear()
        self.next_sequence = 0
        self.remembers_all = True


class ProducerStates:
    """The producers of one partition, by id. `end_offset` says up to where the log is reflected (exclusive)."""

    def __init__(self, end_offset: int = 0) -> None:
        self.end_offset = end_offset
        self._entries: dict[int, ProducerEntry] = {}
        self._open_transactions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    @property
    def entries(self) -> Iterable[ProducerEntry]:
        return self._entries.values()

    @property
    def max_producer_id(self) -> int:
        """The largest producer id that is known, -1 without any: ids given out anew must be above it."""
        return max(self._entries, default=-1)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest open transaction; None when none is open."""
        return min(self._open_transactions.values(), default=None)

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """Decides on a client's batch before it is appended.

        Returns None when it may be appended and, when it was appended before, the batch as it was then. Raises
        InvalidProducerEpoch (an older incarnation of the producer), OutOfOrderSequence (a gap, or a batch that overlaps
        a remembered one), ForgottenSequence, or InvalidTxnState (the producer has a transaction open).
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None
        sequence = header.base_sequence
        if header.producer_epoch == entry.epoch:
            if sequence != entry.next_sequence:
                return self._find_duplicate(entry, header)
        elif header.producer_epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"producer {entry.producer_id}: epoch {header.producer_epoch} is fenced by {entry.epoch}"
            )
        elif sequence != 0 and entry.epoch != NO_EPOCH:
            raise OutOfOrderSequence(
                f"producer {entry.producer_id}: epoch {header.producer_epoch} must begin with 0, not {sequence}"
            )
        if entry.transaction_first_offset != NO_OFFSET:
            raise InvalidTxnState(
                f"producer {entry.producer_id} has had a transaction open since offset {entry.transaction_first_offset}"
            )
        return None

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Takes over a data batch that was appended at `base_offset`."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch, now_ms)
        elif header.producer_epoch != entry.epoch:
            entry.start_epoch(header.producer_epoch)
        delta = header.last_offset_delta
        last_sequence = (header.base_sequence + delta) & _SEQUENCE_MASK
        fields = (last_sequence, base_offset + delta, delta, header.max_timestamp_ms)
        entry.remember(_new_tuple(RememberedBatch, fields))
        entry.last_seen_ms = now_ms

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Takes over a data batch as the log holds it, without judging its epoch or sequence.

        A transactional one opens its producer's transaction.
        """
        if header.producer_id < 0 or header.base_sequence == NO_SEQUENCE:
            return
        known = header.producer_id in self._entries
        self.update(header, header.base_offset, now_ms)
        entry = self._entries[header.producer_id]
        if not known:
            entry.remembers_all = False
        if header.is_transactional and entry.transaction_first_offset == NO_OFFSET:
            entry.transaction_first_offset = header.base_offset
            self._open_transactions[header.producer_id] = header.base_offset

    def replay_marker(self, header: BatchHeader, coordinator_epoch: int, now_ms: int) -> None:
        """Takes over the marker that ends a transaction: none is open afterwards."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch, now_ms)
        if entry.epoch != header.producer_epoch:
            entry.start_epoch(header.producer_epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp_ms = header.max_timestamp_ms
        entry.last_seen_ms = now_ms
        entry.transaction_first_offset = NO_OFFSET
        self._open_transactions.pop(header.producer_id, None)

    def restore(self, entry: ProducerEntry) -> None:
        """Takes over an entry that a snapshot held."""
        self._entries[entry.producer_id] = entry
        if entry.transaction_first_offset != NO_OFFSET:
            self._open_transactions[entry.producer_id] = entry.transaction_first_offset

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets the producers not seen for `expiration_ms` that have no transaction open; returns how many."""
        expired = [
            entry.producer_id
            for entry in self._entries.values()
            if now_ms - entry.last_seen_ms >= expiration_ms and entry.transaction_first_offset == NO_OFFSET
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def clear(self, end_offset: int) -> None:
        """Forgets everything; the state is that of an empty log that ends at `end_offset`."""
        self._entries.clear()
        self._open_transactions.clear()
        self.end_offset = end_offset

    @staticmethod
    def _find_duplicate(entry: ProducerEntry, header: BatchHeader) -> RememberedBatch:
        """The remembered batch that `header` repeats; otherwise the error for its sequence."""
        first, last = header.base_sequence, header.last_sequence
        for batch in entry.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        expected = f"expected sequence {entry.next_sequence}, found {first} to {last}"
        message = f"producer {entry.producer_id}, epoch {entry.epoch}: {expected}"
        if entry.batches:
            oldest = entry.batches[0]
            newest_first_offset = oldest.first_offset - ((oldest.first_sequence - first) & _SEQUENCE_MASK)
            is_older = 1 <= (oldest.first_sequence - last) & _SEQUENCE_MASK <= _HALF_OF_SEQUENCES
            if is_older and newest_first_offset >= 0:
                raise ForgottenSequence(message, newest_first_offset, entry.remembers_all)
        raise OutOfOrderSequence(message)
