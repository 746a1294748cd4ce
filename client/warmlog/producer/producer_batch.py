"""A batch of a producer, from its first record to the acknowledgement."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from warmlog.errors import WarmlogError
from warmlog.producer.delivery import DeliveryFuture, RecordMetadata
from warmlog.producer.record_input import BATCH_OVERHEAD_BYTES, Header
from warmlog_protocol.batch import NO_PRODUCER_ID, NO_SEQUENCE, Piece, encode_batch, restamp_producer
from warmlog_protocol.codec.compression import Codec

NS_PER_MS = 1_000_000
NO_PRODUCER = (NO_PRODUCER_ID, -1)

Encode = Callable[..., Sequence[Piece]]
"""Returns the bytes of a batch, called with `codec`, `producer_id`, `producer_epoch`, `base_sequence` and
`is_transactional`."""


@dataclass(slots=True, eq=False, repr=False)
class ProducerBatch:
    """Records of one partition. Waiters share one completion; no future is created unless a caller awaits.

    `Producer.send` adds a value without key, headers and timestamp itself, with no call into this class, while two
    fields allow it:

    - `plain_limit_bytes`: the size to which such records may fill the batch. It is the memory granted to the batch, or
      0 if the batch is closed or has keys or headers, whose lists would have to grow along.
    - `tick_end_ns`: the end of the millisecond of the last record. A record before it has the same timestamp, so none
      is stored. 0 after a record with a timestamp of its own.

    `append` adds any other record, after `tick` or `stamp`.
    """

    topic: str
    partition: int
    created_at: float
    on_await: "Callable[[ProducerBatch], object]"
    """Called when a caller begins to wait for a record: the batch must be sent without delay."""
    on_error_received: "Callable[[ProducerBatch], object]" = lambda _: None
    """Called when callers have received the errors of all records."""
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    headers: list[list[Header] | None] | None = None
    count: int = 0
    """Of the records, once the batch is closed."""
    size_bytes: int = BATCH_OVERHEAD_BYTES
    granted_bytes: int = 0
    plain_limit_bytes: int = 0
    tick_end_ns: int = 0
    is_due: bool = False
    pieces: Sequence[Piece] = ()
    """The bytes for the wire, to be sent one after another; `wire_bytes` in all."""
    wire_bytes: int = 0
    order: int = -1
    base_sequence: int = NO_SEQUENCE
    attempts: int = 0
    is_rejected: bool = False
    last_error: WarmlogError | None = None
    throttled_before_s: float = 0.0
    """For how long quotas had delayed the producer when this was created."""
    is_done: bool = False
    error: WarmlogError | None = None
    base_offset: int = -1
    log_append_time_ms: int = -1
    is_all_awaited: bool = False
    """Whether one caller waits for all records, and will raise their error."""
    _encode: Encode | None = None
    _run_starts: list[int] = field(default_factory=list)
    _run_times_ms: list[int] = field(default_factory=list)
    _errors_received: set[int] | None = None
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    # --- filling ----------------------------------------------------------------------------------------------------

    def append(
        self, value: bytes | None, key: bytes | None, headers: list[Header] | None, size_bytes: int
    ) -> DeliveryFuture:
        """Add one checked record of any kind, with the timestamp that was set last."""
        index = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * index
        if headers is not None and self.headers is None:
            self.headers = [None] * index
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        self.size_bytes += size_bytes
        self.plain_limit_bytes = self.granted_bytes if self.keys is None and self.headers is None else 0
        return DeliveryFuture(self, index)

    def tick(self, now_ns: int) -> None:
        """Set the timestamp of the next record to now, and of those after it in this millisecond."""
        self.stamp(now_ns // NS_PER_MS)
        self.tick_end_ns = now_ns - now_ns % NS_PER_MS + NS_PER_MS

    def stamp(self, timestamp_ms: int) -> None:
        """Set the timestamp of the next record, and of those after it up to the next `stamp`."""
        index = len(self.values)
        if not self._run_times_ms or self._run_times_ms[-1] != timestamp_ms:
            self._run_starts.append(index)
            self._run_times_ms.append(timestamp_ms)
        self.tick_end_ns = 0

    def close(self) -> None:
        """Accept no more records."""
        starts, times_ms = self._run_starts, self._run_times_ms
        timestamps_ms: int | list[int] = times_ms[0]
        if len(times_ms) > 1:
            timestamps_ms = []
            for (start, stop), time_ms in zip(pairwise((*starts, len(self.values))), times_ms, strict=True):
                timestamps_ms += [time_ms] * (stop - start)
        rows = partial(encode_records, self.values, self.keys, self.headers, timestamps_ms)
        self.fill(rows, len(self.values), self.size_bytes)

    def fill(self, encode: Encode, count: int, size_bytes: int) -> None:
        """Close the batch with these records, `size_bytes` with BATCH_OVERHEAD_BYTES."""
        self.plain_limit_bytes = 0
        self._encode, self.count, self.size_bytes = encode, count, size_bytes

    # --- sending ----------------------------------------------------------------------------------------------------

    def encode(
        self, codec: Codec, producer: tuple[int, int], base_sequence: int, *, is_transactional: bool = False
    ) -> None:
        """Encode the records for the wire, with this sequence, and release them."""
        assert self._encode is not None
        self.base_sequence = base_sequence
        self.pieces = self._encode(
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
        self.wire_bytes = sum(map(len, self.pieces))
        self._release()

    def restamp(self, producer: tuple[int, int], base_sequence: int) -> None:
        """Give the encoded batch another producer id or sequence."""
        self.base_sequence = base_sequence
        self.is_rejected = False
        self.pieces = (restamp_producer(b"".join(self.pieces), *producer, base_sequence),)

    def _release(self) -> None:
        self._encode = None
        self.values, self.keys, self.headers = [], None, None

    # --- the end ----------------------------------------------------------------------------------------------------

    def complete(self, base_offset: int, log_append_time_ms: int) -> None:
        """The broker has the batch, at `base_offset`; -1 if unknown."""
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._finish()

    def fail(self, error: WarmlogError) -> None:
        """Give the batch up."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self.pieces = ()
        self._release()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = []

    async def done(self) -> None:
        """Wait until the batch is acknowledged or has failed."""
        if not self.is_done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def wait_for(self, index: int) -> RecordMetadata:
        """Return the metadata of the record at `index` once it is acknowledged, or raise its error.

        The caller has received the error when it is raised here, not before: a wait may be cancelled.
        """
        if not self.is_done:
            self.on_await(self)
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self.error is not None:
            if self._errors_received is None:
                self._errors_received = set()
            self._errors_received.add(index)
            if not self.is_error_unseen:
                self.on_error_received(self)
            raise self.error.with_traceback(None)
        offset = -1 if self.base_offset < 0 else self.base_offset + index
        time_ms = self.log_append_time_ms
        if time_ms < 0:
            time_ms = self._run_times_ms[bisect_right(self._run_starts, index) - 1]
        return RecordMetadata(self.topic, self.partition, offset, time_ms)

    @property
    def is_error_unseen(self) -> bool:
        """Whether the batch failed, and no caller has received or will receive the error of some record."""
        if self.error is None or self.is_all_awaited:
            return False
        return self._errors_received is None or len(self._errors_received) < self.count


def encode_records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Sequence[Header] | None] | None,
    timestamps_ms: int | Sequence[int],
    **fields: Any,
) -> tuple[bytes]:
    """As `Encode`, for lists of records."""
    return (encode_batch(values, keys=keys, headers=headers, timestamps_ms=timestamps_ms, **fields),)


NO_BATCH = ProducerBatch("", -1, 0.0, lambda _: None)
"""In place of an open batch: it takes no record."""
