"""Which batches belong to aborted transactions, for readers that want committed data only."""

from collections.abc import Sequence

from warmlog_protocol.batch import ControlType, RecordBatch
from warmlog_protocol.messages import AbortedTransaction


class AbortedRanges:
    """Fed with the batches of one Fetch answer in order, it tells which of them are to be hidden.

    An aborted transaction reaches from its first offset to its producer's next abort marker.
    """

    __slots__ = ("_aborting", "_coming")

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: -transaction.first_offset)
        self._aborting: set[int] = set()

    def hides(self, batch: RecordBatch) -> bool:
        """Whether no record of `batch` is to be delivered: it is a control batch, or of an aborted transaction."""
        header = batch.header
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._aborting.add(self._coming.pop().producer_id)
        if header.is_control:
            if batch.control_type is ControlType.ABORT:
                self._aborting.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._aborting
