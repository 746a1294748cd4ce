"""Follow producers and transactions through a log that is scanned from its start, as a follower does.

The state begins with the snapshot at the first segment, or empty at offset 0. If neither exists, or after damage, the
producers are unknown, and nothing is compared until a snapshot at a later segment.

Compaction removes batches, of each producer all but the last one. If some are missing, snapshots and transaction
indexes may be ahead of the log, and are wrong only if they are behind it.
"""

from pathlib import Path

from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.producer.producer_state import NO_COORDINATOR_EPOCH, ProducerEntry, ProducerStates
from warmlog_broker.storage.producer.snapshots import unpack_snapshot
from warmlog_broker.storage.verify.report import Report
from warmlog_protocol.batch import RecordBatch
from warmlog_protocol.batch.control import ControlType
from warmlog_protocol.batch.header import NO_OFFSET

_NO_CLOCK_MS = 0


class ProducerReplay:
    """The producers by the log, up to the current batch."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.is_exact = True
        """Whether `states` is complete."""
        self.is_thinned = False
        """Whether compaction has removed batches that are missing in `states`."""
        self.max_producer_id = -1

    def lose_track(self) -> None:
        """Batches are missing: the producers are unknown from here on."""
        self.states.clear(0)
        self.is_exact = False

    def begin_with(self, entries: list[ProducerEntry] | None) -> None:
        """Continue from a snapshot; None if there is none that can be read."""
        self.states.clear(0)
        self.is_exact = entries is not None
        for entry in entries or ():
            self.states.restore(entry)
            self.max_producer_id = max(self.max_producer_id, entry.producer_id)

    def on_batch(self, batch: RecordBatch) -> tuple[ControlType | None, AbortedTxn | None]:
        """Record a batch; returns its control type and, for an ABORT with data, the entry that the index must have.

        CorruptBatch for a malformed control batch.
        """
        header = batch.header
        self.max_producer_id = max(self.max_producer_id, header.producer_id)
        if not header.is_control:
            self.states.replay(header, _NO_CLOCK_MS)
            return None, None
        control_type = batch.control_type
        if control_type is None or not control_type.is_end_txn:
            return control_type, None
        aborted = self.states.aborted_by(header, control_type)
        self.states.end_transaction(header, batch.end_txn_marker(), _NO_CLOCK_MS)
        self.states.transactions.forget_completed_below(header.next_offset)
        return control_type, aborted if self.is_exact else None

    def compare(self, path: Path, entries: list[ProducerEntry], log_start_offset: int, report: Report) -> None:
        """Report where a snapshot, taken at this point of the log, contradicts the log.

        A snapshot may lack producers, which expire, and may have some whose records are gone from the log.
        """
        if not self.is_exact:
            return
        in_snapshot = set()
        for entry in entries:
            in_snapshot.add(entry.producer_id)
            in_log = self.states.get(entry.producer_id)
            if in_log is not None:
                if not (_is_ahead if self.is_thinned else _is_same)(entry, in_log):
                    report.find(
                        path, expected=f"producer {in_log.producer_id}: {_describe(in_log)}", found=_describe(entry)
                    )
            elif entry.batches and entry.batches[-1].last_offset >= log_start_offset and not self.is_thinned:
                found = f"producer {entry.producer_id} with last offset {entry.batches[-1].last_offset}"
                report.find(path, expected="producers of which the log has batches", found=found)
        for producer_id, first_offset in self.states.transactions.open.items():
            if producer_id not in in_snapshot:
                expected = f"producer {producer_id} with a transaction open from offset {first_offset}"
                report.find(path, expected=expected, found="no such producer")


def read_snapshot(path: Path) -> list[ProducerEntry]:
    """The entries of a snapshot file. FileNotFoundError, or StorageError if it is damaged."""
    return unpack_snapshot(path.read_bytes(), _NO_CLOCK_MS)


def _is_same(found: ProducerEntry, in_log: ProducerEntry) -> bool:
    """Whether a snapshot has the state of the log, of which it may not know the coordinator, nor the log it."""
    is_unknown = NO_COORDINATOR_EPOCH in (found.coordinator_epoch, in_log.coordinator_epoch)
    return _describe(found, with_coordinator=not is_unknown) == _describe(in_log, with_coordinator=not is_unknown)


def _is_ahead(found: ProducerEntry, in_log: ProducerEntry) -> bool:
    """Whether a snapshot has at least the state of a log from which batches were removed."""
    if found.epoch != in_log.epoch:
        return found.epoch > in_log.epoch
    in_log_first, found_first = in_log.transaction_first_offset, found.transaction_first_offset
    if in_log_first != NO_OFFSET and not 0 <= found_first <= in_log_first:
        return False
    last_in_log = in_log.batches[-1].last_offset if in_log.batches else NO_OFFSET
    last_found = found.batches[-1].last_offset if found.batches else NO_OFFSET
    return last_found >= last_in_log


def _describe(entry: ProducerEntry, *, with_coordinator: bool = True) -> str:
    text = f"epoch {entry.epoch}, transaction from {entry.transaction_first_offset}, time {entry.last_timestamp_ms}"
    if entry.batches:
        last = entry.batches[-1]
        text += f", last sequence {last.last_sequence} at offset {last.last_offset}, delta {last.offset_delta}"
    return f"{text}, coordinator epoch {entry.coordinator_epoch}" if with_coordinator else text
