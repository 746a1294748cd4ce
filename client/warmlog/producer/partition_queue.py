"""The batches of one partition between `send` and acknowledgement, and every decision about their order.

::

    open      the batch that takes records now, at most one
    closed    full batches that were never sent, in order
    in_flight sent, not answered, in the order of sending; at most `max_in_flight`
    retries   sent before and to be sent again, in the same order, before anything from `closed`

With an idempotent producer each batch has a sequence from the first time it is sent. It keeps it, so the broker knows
a batch that it has already. Whatever comes after a batch that got lost is refused as OUT_OF_ORDER, and sent again
behind it. When a batch is given up, those behind it could never be accepted under their sequences: nothing new is sent
(`needs_reset`) until it is certain of each sent batch whether the broker has it (those without an answer are sent
again as they are), and the rest goes on under a new producer epoch, from sequence 0.

A partition that knows nothing of a producer takes any sequence for its first. Until it has acknowledged one batch, the
next is held back: it could be accepted in the place of the first, which could then never follow.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from enum import Enum
from operator import attrgetter

from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    UnknownProducerId,
    WarmlogError,
)
from warmlog.producer.producer_batch import NO_PRODUCER, ProducerBatch
from warmlog_protocol.batch import NO_SEQUENCE
from warmlog_protocol.codec.compression import Codec

SEQUENCE_MASK = 0x7FFFFFFF
_by_order = attrgetter("order")


class Verdict(Enum):
    """What becomes of a batch after an error."""

    DELIVERED = "the broker has it"
    RETRY = "send it again: the broker may or may not have it"
    REJECTED = "send it again: the broker certainly does not have it, and will not under this sequence"
    FAILED = "give it up"


def verdict(error: WarmlogError, *, has_predecessor: bool, needs_reset: bool) -> Verdict:
    """What to do about `error`. `has_predecessor`: an earlier batch of the partition is not settled yet."""
    match error:
        case DuplicateSequence():
            return Verdict.DELIVERED
        case OutOfOrderSequence():
            return Verdict.REJECTED if has_predecessor or needs_reset else Verdict.FAILED
        case InvalidProducerEpoch() | UnknownProducerId():
            return Verdict.REJECTED
        case BrokerUnavailable():
            return Verdict.RETRY
        case ApiError() if error.retriable:
            return Verdict.RETRY
    return Verdict.FAILED


class PartitionQueue:
    """One partition of one topic. Nothing here waits or sends: the sender asks and reports."""

    __slots__ = (
        "_next_order",
        "closed",
        "in_flight",
        "is_established",
        "is_idempotent",
        "needs_reset",
        "next_sequence",
        "open",
        "partition",
        "paused_until",
        "producer",
        "retries",
        "topic",
    )

    def __init__(self, topic: str, partition: int, *, is_idempotent: bool) -> None:
        self.topic = topic
        self.partition = partition
        self.is_idempotent = is_idempotent
        self.is_established = not is_idempotent
        self.open: ProducerBatch | None = None
        self.closed: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.retries: list[ProducerBatch] = []
        self.producer = NO_PRODUCER
        self.next_sequence = 0
        self.needs_reset = False
        self.paused_until = 0.0
        self._next_order = 0

    def next_to_send(self, now: float, max_in_flight: int) -> ProducerBatch | None:
        """The batch that may go now. One that still takes records goes only when it is due."""
        if self.paused_until > now or (self.in_flight and not self.is_established):
            return None
        if self.retries:
            return self._next_retry()
        if self.needs_reset or len(self.in_flight) >= max_in_flight:
            return None
        if self.closed:
            return self.closed[0]
        return self.open if self.open is not None and self.open.is_due else None

    def _next_retry(self) -> ProducerBatch | None:
        """The earliest, as soon as nothing that was sent after it is under way."""
        for batch in self.retries:
            if self.needs_reset and batch.is_rejected:
                continue
            return None if self.in_flight and self.in_flight[-1].order > batch.order else batch
        return None

    @property
    def awaits_producer(self) -> bool:
        """Whether it can only go on under a new producer id or epoch, and may take it now."""
        return self.needs_reset and not self.in_flight and all(batch.is_rejected for batch in self.retries)

    def adopt(self, producer: tuple[int, int]) -> None:
        """Go on under `producer` from sequence 0; batches that the broker does not have are stamped anew."""
        assert not self.in_flight
        self.producer = producer
        self.next_sequence = 0
        self.needs_reset = False
        self.is_established = False
        for batch in self.retries:
            batch.restamp(producer, self._take_sequence(batch.count))

    def mark_sent(self, batch: ProducerBatch, codec: Codec) -> None:
        """`batch`, the one that `next_to_send` gave, is on its way; its `data` are what to send."""
        if batch.order >= 0:
            self.retries.remove(batch)
        else:
            self.closed.popleft()
            if self.is_idempotent:
                batch.encode(codec, self.producer, self.next_sequence)
                self._take_sequence(batch.count)
            else:
                batch.encode(codec, NO_PRODUCER, NO_SEQUENCE)
            batch.order = self._next_order
            self._next_order += 1
        batch.attempts += 1
        batch.is_rejected = False
        self.in_flight.append(batch)

    def mark_delivered(self, batch: ProducerBatch) -> None:
        """The broker has `batch`, which was in flight."""
        self.in_flight.remove(batch)
        self.is_established = True

    def judge(self, batch: ProducerBatch, error: WarmlogError) -> Verdict:
        """What becomes of `batch`, which was in flight, after `error`; it is in `retries` if it is to go again."""
        self.in_flight.remove(batch)
        earlier = [other for other in (*self.in_flight, *self.retries) if other.order < batch.order]
        judged = verdict(error, has_predecessor=bool(earlier), needs_reset=self.needs_reset)
        batch.last_error = _reason(batch, error, earlier)
        if judged is Verdict.REJECTED:
            batch.is_rejected = True
            self.needs_reset = self.needs_reset or not isinstance(error, OutOfOrderSequence)
        if judged in (Verdict.RETRY, Verdict.REJECTED):
            insort(self.retries, batch, key=_by_order)
        if judged is Verdict.DELIVERED:
            self.is_established = True
        if judged is Verdict.FAILED:
            self.needs_reset = self.is_idempotent
        return judged

    def give_up(self, batch: ProducerBatch) -> None:
        """Forget a batch that is not to be sent (again), wherever it is."""
        if batch is self.open:
            self.open = None
        elif batch.order < 0:
            self.closed.remove(batch)
        else:
            (self.in_flight if batch in self.in_flight else self.retries).remove(batch)
            self.needs_reset = self.is_idempotent

    def restore(self, batches: Sequence[ProducerBatch]) -> None:
        """Start over with `batches`, all that are not acknowledged, in their order, after a call that was cut short.

        Only they and their bytes are relied on: whatever else is kept of this partition may be half changed. Those that
        have bytes may have been sent, and go again as they are. Bytes under several producers are those of an `adopt`
        that was cut short: it only begins when the broker has none of these batches, so all of them can get new ones.
        """
        identities = [identity for batch in batches if (identity := batch.identity) is not None]
        producers = {identity.producer for identity in identities}
        self.in_flight = []
        self.retries = list(batches[: len(identities)])
        self.closed = deque(batches[len(identities) :])
        for order, batch in enumerate(batches):
            batch.order = order if order < len(identities) else -1
            batch.is_rejected = len(producers) > 1
        self._next_order = len(identities)
        self.is_established = not self.is_idempotent
        self.paused_until = 0.0
        self.needs_reset = self.is_idempotent and len(producers) != 1
        if not self.needs_reset:
            self.producer, self.next_sequence = identities[-1]
            self._take_sequence(self.retries[-1].count)

    @property
    def is_empty(self) -> bool:
        return not (self.open or self.closed or self.in_flight or self.retries)

    def _take_sequence(self, count: int) -> int:
        sequence = self.next_sequence
        self.next_sequence = (sequence + count) & SEQUENCE_MASK
        return sequence


def _reason(batch: ProducerBatch, error: WarmlogError, earlier: Sequence[ProducerBatch]) -> WarmlogError:
    """Why `batch` is not in the log yet. One that is out of order waits for `earlier` ones: the first one's reason."""
    if not isinstance(error, OutOfOrderSequence):
        return error
    first = min(earlier, key=_by_order, default=batch)
    return first.last_error or batch.last_error or error
