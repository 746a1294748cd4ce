"""Which batches belong to aborted transactions, and which markers are still needed, during a compaction.

Data of an aborted transaction is removed. A marker stays as long as data of its transaction is left, and after that for
as long as a tombstone would: a reader that has seen the data must see the end. Aborted transactions whose data was
still there in this pass are added to the new segment's transaction index; later passes remove the entry too.

An emptied batch counts as data: a start without snapshots takes its header for the beginning of a transaction, and
must find the end.

The log is walked twice, for the map of offsets and for rewriting, each with a walk of its own.
"""

from collections.abc import Iterable

from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_protocol.batch import BatchHeader, ControlType


class TransactionWalk:
    """The transactions that are open at one offset of the log. Every batch must be passed to it, in order."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """`aborted` are all of the log: data may come before the batches that are walked, and the marker after them."""
        self._coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTxn] = {}
        self._aborted_with_data: set[int] = set()
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Note a data batch; return whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        is_aborted = header.producer_id in self._aborted
        (self._aborted_with_data if is_aborted else self._committed).add(header.producer_id)
        return is_aborted

    def end(self, header: BatchHeader, control_type: ControlType | None) -> tuple[bool, AbortedTxn | None]:
        """Note a control batch (None: an emptied one); return whether it is no longer needed, and the aborted
        transaction that it ends, if data of that was met."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if control_type is None:
            return True, None
        if control_type is ControlType.ABORT:
            transaction = self._aborted.pop(producer_id, None)
            if transaction is None or producer_id not in self._aborted_with_data:
                return True, None
            self._aborted_with_data.remove(producer_id)
            return False, transaction
        if control_type is ControlType.COMMIT:
            has_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not has_data, None
        return False, None

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            transaction = self._coming.pop()
            if transaction.last_offset >= offset:  # else it was over before the walk began
                self._aborted[transaction.producer_id] = transaction
