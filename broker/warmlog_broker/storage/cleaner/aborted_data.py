"""Which batches belong to aborted transactions, and which markers still mean something, as a compaction walks by.

Data of an aborted transaction goes. A marker stays as long as data of its transaction is left, and after that for as
long as a tombstone would: a reader that has seen the data must see the end. Aborted transactions whose data was still
there in this pass are put into the new segment's transaction index; once the data is gone, so is the entry.

A batch that was emptied counts as data: whoever reads the producers' state from the log (a start without snapshots)
takes its header for the beginning of a transaction, and must find the end.

The same walk is done twice, for the map of offsets and for rewriting, each with an object of its own.
"""

from collections.abc import Iterable

from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_protocol.batch import BatchHeader, ControlType


class TransactionWalk:
    """The transactions that are under way at one place of the log; to be told of every batch, in order."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """`aborted` are all aborted transactions of the log: data may lie before what is walked, the marker behind."""
        self._coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTxn] = {}
        self._aborted_with_data: set[int] = set()
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Takes note of a data batch; whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        is_aborted = header.producer_id in self._aborted
        (self._aborted_with_data if is_aborted else self._committed).add(header.producer_id)
        return is_aborted

    def end(self, header: BatchHeader, control_type: ControlType | None) -> tuple[bool, AbortedTxn | None]:
        """Takes note of a control batch (None: one that was emptied): whether it means nothing to anybody any more,
        and the aborted transaction that it ends, if data of that was met."""
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
