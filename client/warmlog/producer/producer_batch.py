"""A batch on its way to the broker, from its first record to the acknowledgement."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from warmlog.errors import WarmlogError
from warmlog.producer.delivery import DeliveryFuture, RecordMetadata
from warmlog.producer.record_input import BATCH_OVERHEAD_BYTES, Header
from warmlog_protocol.batch import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Piece,
    encode_batch,
    read_header,
    restamp_producer,
)
from warmlog_protocol.codec.compression import Codec

NS_PER_MS = 1_000_000
NO_PRODUCER = (NO_PRODUCER_ID, -1)


class BatchIdentity(NamedTuple):
    """What tells a broker that it has a batch already."""

    producer: tuple[int, int]
    base_sequence: int


def identity_of(data: Piece) -> BatchIdentity | None:
    """Of a batch whose bytes begin with `data`; None without any."""
    if not data:
        return None
    header = read_header(data)
    return BatchIdentity((header.producer_id, header.producer_epoch), header.base_sequence)


class ProducerBatch:
    """Records of one partition. Those who wait for it share its end: one that nobody awaits never makes a future.

    `plain_limit_bytes` is how large the batch may become by records that are a value and nothing else, before somebody
    must look: 0 once a record had a key, headers or a timestamp of its own, and when the batch is closed.
    """

    __slots__ = (
        "_await_end",
        "_is_all_awaited",
        "_on_told",
        "_run_starts",
        "_run_times_ms",
        "_told",
        "_waiters",
        "attempts",
        "base_offset",
        "base_sequence",
        "count",
        "created_at",
        "data",
        "error",
        "granted_bytes",
        "headers",
        "is_done",
        "is_due",
        "is_rejected",
        "keys",
        "last_error",
        "log_append_time_ms",
        "order",
        "partition",
        "plain_limit_bytes",
        "size_bytes",
        "tick_end_ns",
        "timestamps_ms",
        "topic",
        "values",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        created_at: float,
        await_end: "Callable[[ProducerBatch], asyncio.Future[None]]",
        on_told: "Callable[[ProducerBatch], object]" = lambda _: None,
    ) -> None:
        """`await_end` makes a future for a caller that awaits a record, and has the batch sent without delay.

        `on_told` is called when the error of every record has been received by a caller.
        """
        self.topic = topic
        self.partition = partition
        self.created_at = created_at
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[list[Header] | None] | None = None
        self.timestamps_ms: int | Sequence[int] | None = None
        self.count = 0
        self.size_bytes = BATCH_OVERHEAD_BYTES
        self.granted_bytes = 0
        self.plain_limit_bytes = 0
        self.tick_end_ns = 0
        self.is_due = False
        self.data = b""
        self.order = -1
        self.base_sequence = NO_SEQUENCE
        self.attempts = 0
        self.is_rejected = False
        self.last_error: WarmlogError | None = None
        self.is_done = False
        self.error: WarmlogError | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self._run_starts: list[int] = []
        self._run_times_ms: list[int] = []
        self._told: set[int] | None = None
        self._is_all_awaited = False
        self._waiters: list[asyncio.Future[None]] = []
        self._await_end = await_end
        self._on_told = on_told

    # --- filling ----------------------------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header] | None,
        timestamp_ms: int,
        size_bytes: int,
    ) -> DeliveryFuture:
        """Take in one record of any kind, already checked."""
        index = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * index
        if headers is not None and self.headers is None:
            self.headers = [None] * index
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
            self.plain_limit_bytes = 0
        if self.headers is not None:
            self.headers.append(headers)
            self.plain_limit_bytes = 0
        self.stamp(index, timestamp_ms)
        self.size_bytes += size_bytes
        return DeliveryFuture(self, index)

    def stamp(self, index: int, timestamp_ms: int) -> None:
        """Records from `index` on have this time, until it is said otherwise."""
        if not self._run_times_ms or self._run_times_ms[-1] != timestamp_ms:
            self._run_starts.append(index)
            self._run_times_ms.append(timestamp_ms)
        self.tick_end_ns = 0

    def fill(
        self,
        values: list[bytes | None],
        keys: list[bytes | None] | None,
        headers: list[list[Header] | None] | None,
        timestamps_ms: int | Sequence[int],
        size_bytes: int,
    ) -> None:
        """Take in all its records at once."""
        self.values, self.keys, self.headers = values, keys, headers
        self.timestamps_ms = timestamps_ms
        self.size_bytes += size_bytes

    def let_plain_in(self, now_ns: int) -> None:
        """Open the short way for values alone, after one was appended at `now_ns`: until the millisecond is over."""
        self.tick_end_ns = now_ns - now_ns % NS_PER_MS + NS_PER_MS
        if self.keys is None and self.headers is None:
            self.plain_limit_bytes = self.granted_bytes

    def close(self) -> None:
        """Take no more records."""
        self.plain_limit_bytes = 0
        self.count = len(self.values)
        if self.timestamps_ms is None:
            self.timestamps_ms = self._all_timestamps_ms()

    def _all_timestamps_ms(self) -> int | list[int]:
        if len(self._run_times_ms) == 1:
            return self._run_times_ms[0]
        expanded: list[int] = []
        for (start, stop), time_ms in zip(pairwise((*self._run_starts, self.count)), self._run_times_ms, strict=True):
            expanded += [time_ms] * (stop - start)
        return expanded

    # --- sending ----------------------------------------------------------------------------------------------------

    def encode(self, codec: Codec, producer: tuple[int, int], base_sequence: int) -> None:
        """Make the bytes for the wire, with this sequence, and let go of the records."""
        assert self.timestamps_ms is not None
        self.base_sequence = base_sequence
        self.data = encode_batch(
            self.values,
            keys=self.keys,
            headers=self.headers,
            timestamps_ms=self.timestamps_ms,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=base_sequence,
        )
        self.values, self.keys, self.headers = [], None, None

    def restamp(self, producer: tuple[int, int], base_sequence: int) -> None:
        """The same records under another producer id or sequence."""
        self.base_sequence = base_sequence
        self.is_rejected = False
        self.data = restamp_producer(self.data, *producer, base_sequence)

    @property
    def identity(self) -> "BatchIdentity | None":
        """Under which producer and sequence its bytes are; None before `encode`."""
        return identity_of(self.data)

    # --- the end ----------------------------------------------------------------------------------------------------

    def complete(self, base_offset: int, log_append_time_ms: int) -> None:
        """The broker has them: at `base_offset`, or -1 where it did not say."""
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._finish()

    def fail(self, error: WarmlogError) -> None:
        """They will not be sent again."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self.data = b""
        self.values, self.keys, self.headers = [], None, None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = []

    async def done(self) -> None:
        """Wait for the end, whatever it is."""
        if not self.is_done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def wait_for(self, index: int) -> RecordMetadata:
        """Wait for the end on behalf of one record: where it is in the log, or raise why it is not.

        The caller has received the error once it is raised here, not by waiting: a wait may be cancelled.
        """
        if not self.is_done:
            waiter = self._await_end(self)
            self._waiters.append(waiter)
            await waiter
        if self.error is not None:
            self._mark_told(index)
            raise self.error.with_traceback(None)
        return self._placed(index)

    def _mark_told(self, index: int) -> None:
        if self._told is None:
            self._told = set()
        self._told.add(index)
        if not self.is_error_unseen:
            self._on_told(self)

    def mark_all_awaited(self) -> None:
        """One caller waits for all its records, and will raise their error."""
        self._is_all_awaited = True

    def mark_not_awaited(self) -> None:
        """That caller waits no longer, and has not raised it."""
        self._is_all_awaited = False

    @property
    def is_error_unseen(self) -> bool:
        """Whether it failed, and there are records whose error no caller has received or will receive."""
        if self.error is None or self._is_all_awaited:
            return False
        return self._told is None or len(self._told) < self.count

    def _placed(self, index: int) -> RecordMetadata:
        offset = -1 if self.base_offset < 0 else self.base_offset + index
        return RecordMetadata(self.topic, self.partition, offset, self._timestamp_ms(index))

    def _timestamp_ms(self, index: int) -> int:
        if self.log_append_time_ms >= 0:
            return self.log_append_time_ms
        return self._run_times_ms[bisect_right(self._run_starts, index) - 1]
