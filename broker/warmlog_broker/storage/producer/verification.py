"""Proof that the transaction coordinator knows of a transaction before its first batch is appended (KIP-890).

A batch that comes late, when its transaction was aborted long ago, would open a transaction in this partition that
nobody ever ends. So before the first batch of a transaction the broker asks the coordinator whether the transaction is
going on, and appends only if nothing happened to it here meanwhile:

1. `start` hands out a guard for the producer; while it is pending, everybody who asks gets the same one.
2. The coordinator is asked.
3. The batch is appended with the guard. It must be the pending one still: a marker that came in between, or another
   batch that opened the transaction, has taken it away, and the next `start` gives another.

While a guard is pending, no batch may be appended with a higher sequence than the lowest that asked for it: the one
that asked first is the first of the transaction, and must not be overtaken by the second.
"""

from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.errors import OutOfOrderSequence


class VerificationGuard:
    """A token, equal to nothing but itself."""

    __slots__ = ()

    def verifies(self, other: "VerificationGuard") -> bool:
        """Whether a batch that comes with `other` may open the transaction that this guard waits for."""
        return self is other and self is not NO_GUARD


NO_GUARD = VerificationGuard()
"""For batches that need none: it verifies nothing."""


class PendingVerification:
    """A producer whose transaction is being asked about."""

    __slots__ = ("epoch", "guard", "lowest_sequence", "started_ms")

    def __init__(self, sequence: int, epoch: int, now_ms: int) -> None:
        self.guard = VerificationGuard()
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.started_ms = now_ms


class Verifications:
    """The pending ones of one partition, by producer id."""

    __slots__ = ("_pending", "is_required")

    def __init__(self) -> None:
        self._pending: dict[int, PendingVerification] = {}
        self.is_required = True
        """Without it, transactional batches are appended as they come: Kafka's
        transaction.partition.verification.enable=false."""

    def __len__(self) -> int:
        return len(self._pending)

    def start(self, producer_id: int, sequence: int, epoch: int, now_ms: int) -> VerificationGuard:
        """The guard for a batch with this sequence: a new one, or the one that is pending.

        The pending one remembers the lowest sequence of its epoch; a higher epoch takes its place.
        """
        pending = self._pending.get(producer_id)
        if pending is None:
            pending = self._pending[producer_id] = PendingVerification(sequence, epoch, now_ms)
        elif epoch > pending.epoch:
            pending.epoch, pending.lowest_sequence = epoch, sequence
        elif epoch == pending.epoch:
            pending.lowest_sequence = min(pending.lowest_sequence, sequence)
        return pending.guard

    def guard_of(self, producer_id: int) -> VerificationGuard:
        """The pending guard; NO_GUARD when none is."""
        pending = self._pending.get(producer_id)
        return NO_GUARD if pending is None else pending.guard

    def check_sequence(self, header: BatchHeader) -> None:
        """OutOfOrderSequence for a batch that overtakes the one that asked first."""
        pending = self._pending.get(header.producer_id)
        if pending is not None and header.base_sequence > pending.lowest_sequence:
            raise OutOfOrderSequence(
                f"producer {header.producer_id}: sequence {header.base_sequence}, while {pending.lowest_sequence} "
                "waits for the coordinator to know its transaction"
            )

    def clear(self, producer_id: int) -> None:
        """The transaction is open, or over: what is pending is decided."""
        self._pending.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets those who asked `expiration_ms` ago or earlier and never appended."""
        for producer_id, pending in list(self._pending.items()):
            if now_ms - pending.started_ms >= expiration_ms:
                del self._pending[producer_id]

    def forget_all(self) -> None:
        self._pending.clear()
