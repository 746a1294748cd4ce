"""Sends batches of Arrow columns: for worker processes that write some data and end, as Spark's do.

The producer is idempotent, with acks=all: what `flush` has seen acknowledged is on disk, once, in the order of sending
within a partition, however often it had to be sent. Everything (connection, leader, producer id, batch) is retried for
the delivery timeout, which begins for each batch when it is queued.

A batch that is given up ends the producer: the call that learns of it raises the error, and so does every further one;
batches that were sent after it may or may not be in the log. A task that runs again writes its records again.

A member of a job (see `job`) writes with the producer id and epoch that it was given, and can take no other: what
would need a new epoch fails.
"""

from collections.abc import Sequence
from functools import partial
from typing import Self

from warmlog.arrow_write.encoding import encode_arrow
from warmlog.arrow_write.rows import RowSpan
from warmlog.errors import ApiError, ClientError, WarmlogError
from warmlog.producer.options import MAX_IN_FLIGHT_WITH_SEQUENCES, ProducerOptions
from warmlog.producer.partition_queue import TopicQueues
from warmlog.producer.producer_batch import ProducerBatch
from warmlog.producer.producer_core import ProducerCore
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import ACKS_ALL
from warmlog_transport.options import ConnectionOptions, check_own_options

MAX_UNACKNOWLEDGED_BYTES = 16 * 1024 * 1024
"""`send` waits while more than this is in flight or waits to be sent."""
DELIVERY_TIMEOUT_MS = 120_000


class ArrowProducer:
    """Sends batches to any number of partitions, each through its leader. An async context manager.

    With `transactional_id` everything is part of its transaction, written by the member that `become` names.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        options: ConnectionOptions,
        *,
        codec: Codec = Codec.NONE,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        transactional_id: str | None = None,
    ) -> None:
        """Connects when that is needed. In the event loop that it runs in."""
        check_own_options(delivery_timeout_ms=delivery_timeout_ms)
        producer_options = ProducerOptions(
            acks=ACKS_ALL,
            is_idempotent=True,
            codec=codec,
            linger_ms=0,
            batch_bytes=MAX_UNACKNOWLEDGED_BYTES,
            buffer_bytes=MAX_UNACKNOWLEDGED_BYTES,
            high_water_bytes=MAX_UNACKNOWLEDGED_BYTES,
            delivery_timeout_ms=delivery_timeout_ms,
            max_in_flight=MAX_IN_FLIGHT_WITH_SEQUENCES,
            transactional_id=transactional_id,
        )
        self._core = ProducerCore(bootstrap, producer_options, options)
        self.cluster = self._core.cluster
        self.records = 0
        """How many were sent; all are acknowledged after `flush`."""

    def become(self, producer: tuple[int, int]) -> None:
        """Write with this producer id and epoch, which have written nothing."""
        self._core.sender.producer = producer

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch, which the broker assigns before the first batch is sent, unless they are given."""
        return self._core.sender.producer

    async def topic(self, name: str) -> TopicQueues:
        """Return what is known of a topic, requested the first time."""
        return await self._core.known(name)

    async def send(self, topic: str, partition: int, spans: Sequence[RowSpan], size_bytes: int, now_ms: int) -> None:
        """Queue one batch of a known topic, after waiting while too much is in flight. Raises the first error.

        `size_bytes` is an upper bound on the batch's size; `now_ms` the time of records without one.
        """
        await self._core.wait_for_room(ends_on_failure=True)
        self._raise_failure()
        queue = self._core.accumulator.topics[topic].choose(None, partition)
        count = sum(span.count for span in spans)
        self._core.accumulator.add_batch(queue, partial(encode_arrow, spans, now_ms=now_ms), count, size_bytes)
        self.records += count

    async def flush(self) -> None:
        """Wait until everything is acknowledged. Raises the first error."""
        await self._core.send_all()
        self._raise_failure()

    async def close(self) -> None:
        """Drop what is not acknowledged, and disconnect."""
        await self._core.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _raise_failure(self) -> None:
        """Raise the error of the first batch that was given up, with its partition and number of records."""
        for batch in self._core.accumulator.failed:
            assert batch.error is not None
            raise _named(batch, batch.error) if isinstance(batch, ProducerBatch) else batch.error


def _named(batch: ProducerBatch, error: WarmlogError) -> WarmlogError:
    """Return an error of the same kind whose message has the partition and the number of records of `batch`."""
    name, text = f"{batch.topic}-{batch.partition}", str(error)
    if text.startswith(f"{batch.count} records for {name}"):
        return error
    line = f"{batch.count} records for {name}: {text.removeprefix(f'{name}: ')}"
    return type(error)(line) if isinstance(error, ApiError | ClientError) else ClientError(line)
