"""Verification that the transaction coordinator knows a transaction before its first batch is appended (KIP-890).

A batch that arrives after its transaction was aborted would open a transaction in this partition that is never ended.
So before the first batch of a transaction the broker asks the coordinator whether the transaction is ongoing:

1. `start` returns a guard for the producer; all callers get the same one while it is pending.
2. The coordinator is asked.
3. The batch is appended with the guard, which must still be the pending one. A marker, or another batch that opened the
   transaction, clears it, and the next `start` returns a new one.

A producer that is not known here begins with sequence 0, as each transaction has an epoch of its own. With version 1 of
Kafka's transactions sequences go on, and it begins with the lowest that was verified. So no batch overtakes the first.
"""

from msgspec import Struct, field


class VerificationGuard:
    """A token that is equal only to itself."""

    __slots__ = ()

    def verifies(self, other: "VerificationGuard") -> bool:
        """Whether a batch with `other` may open the transaction that this guard is pending for."""
        return self is other and self is not NO_GUARD


NO_GUARD = VerificationGuard()
"""For batches that need no guard: it verifies nothing."""


class PendingVerification(Struct):
    started_ms: int
    first_sequence: int
    """What the transaction begins with, if the producer is not known."""
    guard: VerificationGuard = field(default_factory=VerificationGuard)


class Verifications:
    """The pending verifications of one partition, by producer id."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingVerification] = {}
        self.is_required = True
        """False appends transactional batches unverified: Kafka's transaction.partition.verification.enable=false."""

    def start(self, producer_id: int, now_ms: int, first_sequence: int) -> VerificationGuard:
        """The guard for a batch of this producer: the pending one, or a new one."""
        pending = self._pending.get(producer_id)
        if pending is None:
            pending = self._pending[producer_id] = PendingVerification(now_ms, first_sequence)
        pending.first_sequence = min(pending.first_sequence, first_sequence)
        return pending.guard

    def get(self, producer_id: int) -> PendingVerification | None:
        return self._pending.get(producer_id)

    def clear(self, producer_id: int) -> None:
        self._pending.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove verifications that began `expiration_ms` ago or earlier."""
        for producer_id, pending in list(self._pending.items()):
            if now_ms - pending.started_ms >= expiration_ms:
                del self._pending[producer_id]

    def forget_all(self) -> None:
        self._pending.clear()
