"""A partition, as the simulation has it: a list of batches, the real states of producers, and a committed reader."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from unit.broker.coordinator.group.simulation.checks import require
from unit.broker.coordinator.transaction.simulation.truth import Token, Truth, Turn
from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.verification import VerificationGuard
from warmlog_protocol.batch import BatchHeader, ControlType, EndTxnMarker
from warmlog_protocol.batch.header import (
    CONTROL_BIT,
    LAST_PRODUCER_EPOCH,
    MAGIC_COLUMNS,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
)

Then = Callable[[], None]


class Batch(NamedTuple):
    """A batch of the log. A marker has no values."""

    header: BatchHeader
    values: tuple[Token, ...] = ()
    turn: Turn = ()
    """That of its transaction."""
    marker: EndTxnMarker | None = None


class Partition:
    """The log of one partition of one topic."""

    def __init__(self, number: int) -> None:
        self.enrolled = PartitionId(number.to_bytes(16, "big"), 0)
        self.high_watermark = 0
        self.position = 0
        """How far the committed reader has come."""
        self.delivered: dict[Token, int] = {}
        """How often the committed reader has got a value."""
        self.states = ProducerStates()
        self._log: list[Batch] = []
        self._aborted: list[AbortedTxn] = []
        self._marked: dict[Turn, int] = {}
        """The offset of the marker of each transaction."""
        self._turns: dict[int, Turn] = {}
        """The last transaction of each producer id."""
        self._waiting: list[tuple[int, Then]] = []

    @property
    def end_offset(self) -> int:
        return self._log[-1].header.next_offset if self._log else 0

    def append(
        self, header: BatchHeader, values: tuple[Token, ...], guard: VerificationGuard, turn: Turn, *, then: Then
    ) -> None:
        """Append a batch; `then` is called when it is durable. Raises what the real log raises.

        `turn` is that of the transaction that the batch was verified for, if it opens it here.
        """
        require(header.producer_epoch <= LAST_PRODUCER_EPOCH, "an epoch beyond the last one: {}", header.producer_epoch)
        duplicate = self.states.check(header, guard)
        if duplicate is not None:
            self._when_durable(duplicate.last_offset + 1, then)
            return
        if header.producer_id in self.states.transactions.open:
            turn = self._turns[header.producer_id]
        self._take(Batch(header._replace(base_offset=self.end_offset), values, turn))
        self._when_durable(self.end_offset, then)

    def mark(
        self, producer: Incarnation, *, commits: bool, keeps_epoch: bool, coordinator_epoch: int, then: Then
    ) -> None:
        """Write the marker that ends a transaction, unless it is there. Raises what the real log raises."""
        require(producer.epoch <= LAST_PRODUCER_EPOCH + 1, "a marker of epoch {}", producer.epoch)
        header = make_header(producer, NO_SEQUENCE, 1, attributes=CONTROL_BIT | TRANSACTIONAL_BIT)
        marker = EndTxnMarker(ControlType.COMMIT if commits else ControlType.ABORT, coordinator_epoch)
        if self.states.check_marker(header, marker, keeps_epoch=keeps_epoch):
            self._take(Batch(header._replace(base_offset=self.end_offset), marker=marker))
        self._when_durable(self.end_offset, then)

    def _take(self, batch: Batch) -> None:
        header, marker = batch.header, batch.marker
        known = self.states.get(header.producer_id)
        require(
            known is None or header.producer_epoch >= known.epoch,
            "a batch of epoch {} after one of {}",
            header.producer_epoch,
            known and known.epoch,
        )
        if marker is None:
            self.states.update(header, header.base_offset, 0)
            self._turns[header.producer_id] = batch.turn
        else:
            self._end(batch, marker)
        self._log.append(batch)

    def _end(self, batch: Batch, marker: EndTxnMarker) -> None:
        header = batch.header
        if header.producer_id in self.states.transactions.open:
            self._marked[self._turns[header.producer_id]] = header.base_offset
        aborted = self.states.aborted_by(header, marker.control_type)
        if aborted is not None:
            self._aborted.append(aborted)
        self.states.end_transaction(header, marker, 0)

    def _when_durable(self, end_offset: int, then: Then) -> None:
        if end_offset <= self.high_watermark:
            then()
        else:
            self._waiting.append((end_offset, then))

    def flush(self, share: float = 1.0) -> None:
        """Make this share of what is not durable so, and let those know who wait for it."""
        batches = self._from(self.high_watermark)
        count = round(share * len(batches))
        if count:
            self.high_watermark = batches[count - 1].header.next_offset
        waiting, self._waiting = self._waiting, []
        for end_offset, then in waiting:
            self._when_durable(end_offset, then)

    def crash(self, random: Random) -> None:
        """Lose some of what is not durable, and load the rest."""
        kept = [batch for batch in self._log if batch.header.next_offset <= self.high_watermark]
        lost = self._log[len(kept) :]
        kept += lost[: random.randint(0, len(lost))]
        self._log, self._aborted, self._marked, self._turns, self._waiting = [], [], {}, {}, []
        self.states = ProducerStates()
        for batch in kept:
            if batch.marker is None:
                self.states.replay(batch.header, 0)
                self._turns[batch.header.producer_id] = batch.turn
            else:
                self._end(batch, batch.marker)
            self._log.append(batch)
        self.high_watermark = self.end_offset

    def forget_producers(self) -> None:
        """Forget the producers without an open transaction, as if they had not been seen for long."""
        self.states.expire(1, 0)

    @property
    def last_stable_offset(self) -> int:
        first = self.states.transactions.first_unstable_offset(self.high_watermark)
        return self.high_watermark if first is None else min(first, self.high_watermark)

    def read(self, truth: Truth) -> None:
        """Let the committed reader go on to the last stable offset: it sees what was committed, and nothing else."""
        end = self.last_stable_offset
        for batch in self._from(self.position):
            header = batch.header
            if header.base_offset >= end:
                break
            self.position = header.next_offset
            if batch.marker is not None:
                continue
            is_committed = truth.outcomes.get(batch.turn)
            require(is_committed is not None, "the LSO passed {} of {}, undecided", header.base_offset, batch.turn)
            marker = self._marked.get(batch.turn)
            require(marker is not None and marker < self.high_watermark, "{} is read before its marker", batch.turn)
            is_dropped = any(
                txn.producer_id == header.producer_id and txn.first_offset <= header.base_offset <= txn.last_offset
                for txn in self._aborted
            )
            require(is_dropped != is_committed, "{}: committed is {}, read is {}", batch, is_committed, not is_dropped)
            for value in () if is_dropped else batch.values:
                self.delivered[value] = self.delivered.get(value, 0) + 1
                require(self.delivered[value] == 1, "{} is read twice", value)

    def _from(self, offset: int) -> list[Batch]:
        log = self._log
        first = len(log)
        while first and log[first - 1].header.base_offset >= offset:
            first -= 1
        return log[first:]


def make_header(producer: Incarnation, sequence: int, count: int, attributes: int = TRANSACTIONAL_BIT) -> BatchHeader:
    """Return the header of a batch with `count` records, at offset 0."""
    return BatchHeader(0, 100, 0, MAGIC_COLUMNS, 0, attributes, count - 1, 0, 0, *producer, sequence, count)
