"""The producer: `send` a record, or `send_many`; an acknowledged record is on disk.

The error of a record is delivered once: to the callers that await the record and receive it. If no caller has received
it, because none awaited the record or the wait was cancelled before, the next `drain`, `flush` or `close` raises it. It
raises the first such error, with each further one in a note on it (PEP 678).
"""

import asyncio
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Self, Unpack

from warmlog.errors import ClientClosed, ClientError, InvalidConfig, WarmlogError
from warmlog.producer.accumulator import DrainFlag
from warmlog.producer.arrow_columns import ArrowArray, ArrowStream
from warmlog.producer.bulk_records import BulkRecords
from warmlog.producer.delivery import DeliveryFuture, RecordMetadataRanges
from warmlog.producer.frame_records import FrameRows, send_rows
from warmlog.producer.options import Expired, ProducerOptions, parse_acks
from warmlog.producer.partition_queue import TopicQueues
from warmlog.producer.producer_batch import NO_BATCH, NS_PER_MS
from warmlog.producer.producer_core import ProducerCore
from warmlog.producer.record_input import (
    RECORD_OVERHEAD_BYTES,
    Bytes,
    Headers,
    Partitioner,
    all_serialized,
    as_partition,
    serialized,
)
from warmlog.producer.transaction import ABORT_S, Transaction, TransactionalId
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import ACKS_ALL
from warmlog_transport.address import checked_bootstrap
from warmlog_transport.cluster import Throttled, is_interruption, not_open
from warmlog_transport.options import ConnectionKeywords, ConnectionOptions, check_own_options, connection_options

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Value = TypeVar("Value", default=Bytes)
    Key = TypeVar("Key", default=Bytes)
else:  # without defaults, which only type checkers need
    from typing import TypeVar

    Value = TypeVar("Value")
    Key = TypeVar("Key")

_log = logging.getLogger("warmlog")
_time_ns = time.time_ns

CANCELLED_CLOSE_S = 0.5
"""How long leaving a block that was cancelled waits for acknowledgements."""
BATCHES_BELOW_HIGH_WATER = 4
_HAS_FAILED = "the producer has failed; the log says why"


class Producer(Throttled, Generic[Value, Key]):
    """Sends records to topics. A producer belongs to one thread; any number of its tasks may share it.

    With acks="all" (the default) a record is on the broker's disk when its `send` has been awaited. The producer is
    idempotent then: the record is there once, in the order of sending within its partition, however often it had to be
    sent. With acks=1 it has been written to the page cache, with acks=0 to the socket.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: str | int = "all",
        idempotent: bool | None = None,
        compression: str = "none",
        linger_ms: float = 5,
        batch_bytes: int = 256 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
        high_water_bytes: int | None = None,
        delivery_timeout_ms: int = 120_000,
        max_in_flight: int = 5,
        expired: Expired = "warn",
        key_serializer: Callable[[Key], Bytes | None] | None = None,
        value_serializer: Callable[[Value], Bytes | None] | None = None,
        partitioner: Partitioner | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        **connection: Unpack[ConnectionKeywords],
    ) -> None:
        """`bootstrap` is HOST:PORT, or several separated by commas or in a list. `start` connects.

        - `linger_ms`: how long a batch that is not full may wait for more records, unless one of them is awaited.
        - `buffer_bytes`: `send` raises BufferFull if more than this is not acknowledged.
        - `high_water_bytes`: `drain` waits while more than this is not acknowledged; default: 1/16 of `buffer_bytes`.
        - `batch_bytes`: maximum size of a batch, and at most a quarter of `high_water_bytes`, so that some batches are
          in flight while the next one fills up.
        - `delivery_timeout_ms`: a batch is given up this long after its first record, with DeliveryTimeout. The broker
          may have it or not. An idempotent producer then finds out which of the batches in flight the broker has, and
          continues under the next producer epoch: later records are accepted, and none is in the log twice or out of
          order.
        - `expired`: what happens to a record whose `timestamp_ms` is older than the topic's retention.ms, so that the
          broker would delete it soon: "warn" logs it, at most once a minute for a topic; "error" raises RecordExpired;
          "accept" sends it and says nothing.
        - `key_serializer`, `value_serializer`: functions that turn what `send` gets into bytes or None, such as those
          of `warmlog.serializers`. They are called once for each record, not for None.
        - `partitioner`: function of a record's key (None if it has none) and the number of partitions that returns the
          partition, for records that are sent without `partition`; default: see `partition_of_key`.
        - `transactional_id`: the name under which the producer writes transactions, see `transaction`; every record is
          then sent in one. A new producer with the same name fences the one before it, which gets ProducerFenced.
        - `transaction_timeout_ms`: the broker aborts a transaction that is open for longer.
        - `connection`: any of the fields of ConnectionOptions.
        """
        check_own_options(
            idempotent=idempotent,
            compression=compression,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            high_water_bytes=high_water_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            max_in_flight=max_in_flight,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        functions = {"key_serializer": key_serializer, "value_serializer": value_serializer, "partitioner": partitioner}
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise TypeError(f"{name}={function!r}: a function or None expected, not {type(function).__name__}")
        wire_acks = parse_acks(acks)
        is_idempotent = wire_acks == ACKS_ALL if idempotent is None else idempotent
        if high_water_bytes is None:
            high_water_bytes = max(1, buffer_bytes // 16)
        if is_idempotent and wire_acks != ACKS_ALL:
            raise InvalidConfig(f'idempotent=True needs acks="all", not acks={acks!r}')
        self._options = ProducerOptions(
            acks=wire_acks,
            is_idempotent=is_idempotent,
            codec=Codec.from_name(compression),
            linger_ms=linger_ms,
            batch_bytes=min(batch_bytes, max(1, high_water_bytes // BATCHES_BELOW_HIGH_WATER)),
            buffer_bytes=buffer_bytes,
            high_water_bytes=high_water_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            max_in_flight=max_in_flight,
            expired=expired,
            partitioner=partitioner,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        if transactional_id is not None and not is_idempotent:
            raise InvalidConfig('transactional_id needs acks="all" and an idempotent producer')
        self._key_serializer, self._value_serializer = key_serializer, value_serializer
        self._is_serializing = key_serializer is not None or value_serializer is not None
        self._connection_options: ConnectionOptions = connection_options(connection, Producer)
        self._bootstrap = checked_bootstrap(bootstrap)
        self._is_started = False
        self._running: ProducerCore | None = None
        self._closing: ProducerCore | None = None
        self._topics: Mapping[str, TopicQueues] = {}
        """Those whose open batches `send` may fill itself."""
        self._check_send: Callable[[], None] = lambda: None
        self._drain_flag = DrainFlag()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect. Raises BrokerUnavailable if no bootstrap address responds."""
        if self._is_started:
            raise ClientClosed("a producer can be started once: create another one")
        self._is_started = True
        running = ProducerCore(self._bootstrap, self._options, self._connection_options)
        if self._options.transactional_id is not None:
            running.transactions = TransactionalId(
                self._options, running.cluster, running.accumulator, running.sender, running.flush
            )
        try:
            await running.cluster.start()
            if running.transactions is not None:
                await running.transactions.initialise()
        except BaseException:
            await running.stop()
            raise
        self._running = running
        self._throttling = running.cluster
        self._drain_flag = running.accumulator.drain_flag
        self._use_fast_path(running.transactions is None)
        return self

    def _use_fast_path(self, may: bool) -> None:
        """Let `send` put records into open batches itself, or not."""
        running = self._running
        is_plain = not (self._is_serializing or self._options.partitioner)
        self._topics = {}
        if may and running and is_plain:
            self._topics, self._check_send = running.accumulator.topics, running.check_send

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Flush, for at most `timeout_s`, disconnect, and raise the error that no caller has received.

        From the call on, nothing more can be sent; an open transaction is aborted, one that ends already is waited for.
        If it is cancelled, the remaining records fail with ClientClosed, their number is logged, and calling it again
        raises that; so it is after `timeout_s`.

        `async with` calls it. If the block was cancelled, as by Ctrl-C, it waits at most CANCELLED_CLOSE_S.
        """
        closing = self._running or self._closing
        if closing is None:
            return
        closing.check_loop()
        self._running, self._closing = None, closing
        has_failed = closing.has_failed
        self._use_fast_path(False)
        self._drain_flag = DrainFlag()
        try:
            if closing.transactions is not None:
                await closing.transactions.close(ABORT_S if timeout_s is None else min(timeout_s, ABORT_S))
            await closing.finish(timeout_s)
            if has_failed:
                raise ClientClosed(_HAS_FAILED)
        finally:
            await asyncio.shield(closing.stop())
        self._closing = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close(timeout_s=CANCELLED_CLOSE_S if is_interruption(error) else None)
        except WarmlogError as lost:
            error.add_note(f"and closing the producer: {lost}")

    def __del__(self) -> None:
        """Warn if it was started and not closed. What is buffered is still sent while the event loop runs."""
        running = getattr(self, "_running", None)
        if running is not None and not running.home.is_foreign:
            lost = running.accumulator.describe_pending()
            text = f"unclosed {self!r}: use `async with`, or await close()" + (f"; so far {lost}" if lost else "")
            warnings.warn(text, ResourceWarning, source=self, stacklevel=1)
            _log.warning("%s", text)

    # --- transactions -----------------------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Return a transaction, to be used by `async with`: it commits at the end of the block, and aborts on an error.

        What is sent in the block, to any topics, becomes visible to readers with isolation="read_committed" as a whole
        or not at all. The end of the block waits until that is durable. Needs `transactional_id`. One transaction of a
        producer is open at a time; nothing can be sent outside of one.

        If the block, a record or `commit_offsets` fails, the transaction is aborted and the error raised; the next one
        may begin at once.
        ProducerFenced is final: another producer uses the transactional id. TransactionAbortable: it was open for too
        long, and was aborted. After BrokerUnavailable, DeliveryTimeout or an error that is `retriable` at the end of
        the block it may be committed or not: the next transaction begins when that is certain.
        """
        transactions = self._open().transactions
        if transactions is None:
            raise ClientError("transactions need a producer with a transactional_id")
        return Transaction(transactions, self._use_fast_path)

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Value | None,
        *,
        key: Key | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """Buffer a record and return at once. Await the result for the record's metadata, or `drain` between sends.

        A wait that is cancelled or times out takes nothing back: the record is still sent.

        Call it in the producer's thread. In another one it raises WrongEventLoop, except for a record that joins an
        open batch in the millisecond of the record before it, or with `timestamp_ms` within the memory granted to the
        batch: to check costs 8 to 15 % there. Another event loop in the same thread goes unnoticed.

        Without `partition` the key chooses it (see `partitioner`); without `timestamp_ms` the time is now. Raises
        BufferFull, MessageTooLarge (with size and limit), RecordExpired (see `expired`), TypeError for a `str`, and
        UnknownTopicOrPartition for a partition that does not exist. If the topic does not exist, the awaited result or
        the next `drain` raises that; so do the errors of a record that was sent before its topic was known.
        """
        # Values alone go into an open batch (see ProducerBatch) without a call, which would cost a tenth.
        queues = self._topics.get(topic)
        if queues is not None and type(value) is bytes and headers is None:
            if key is None and timestamp_ms is None:
                if partition is None:
                    batch = queues.open_sticky
                else:
                    batch = queues.open.get(partition, NO_BATCH) if type(partition) is int else NO_BATCH
                size_bytes = batch.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
                if size_bytes <= batch.plain_limit_bytes and _time_ns() < batch.tick_end_ns:
                    batch.size_bytes = size_bytes
                    values = batch.values
                    values.append(value)
                    return DeliveryFuture(batch, len(values) - 1)
            sent = queues.join(value, key, timestamp_ms, partition, self._check_send)
            if sent is not None:
                return sent
        value_data = serialized("value", self._value_serializer, value)
        key_data = serialized("key", self._key_serializer, key)
        return self._add(topic, value_data, key_data, headers, timestamp_ms, partition)

    def _add(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers | None,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> DeliveryFuture:
        """Check a record that is serialized, and buffer it; see `Accumulator.add`."""
        running = self._started()
        running.check_send()
        running.open_transaction()
        return running.accumulator.add(topic, value, key, headers, timestamp_ms, partition)

    async def send_many(
        self,
        topic: str,
        values: Sequence[Value | None] | ArrowArray | ArrowStream,
        *,
        keys: Sequence[Key | None] | ArrowArray | ArrowStream | None = None,
        timestamps_ms: int | Sequence[int] | ArrowArray | ArrowStream | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
    ) -> RecordMetadataRanges:
        """Send a list of records and return their offset ranges once all are acknowledged. The fastest way to produce.

        `keys`, `timestamps_ms` and `headers` have one item for each value; one timestamp may be given for all. Records
        of one key, or without keys in a topic of one partition, keep their order. If a batch fails, its error is raised
        after the others were acknowledged or have failed, too. If the call is cancelled, records that are in batches
        are still sent, and `drain`, `flush` or `close` raises their error.

        `values` and `keys` may be columns of Arrow, pandas or polars with bytes or text (sent as UTF-8; null is None),
        and `timestamps_ms` one of timestamps or milliseconds (null is now). This needs pyarrow.
        """
        running = self._open()
        transaction = running.open_transaction()
        as_partition(partition)
        values = all_serialized("value", self._value_serializer, values)
        keys = all_serialized("key", self._key_serializer, keys)
        records = BulkRecords.check(values, keys, headers, timestamps_ms, time.time_ns() // NS_PER_MS)
        return await running.send_many(
            topic, records, partition, transaction=transaction, have_own_times=timestamps_ms is not None
        )

    async def send_frame(
        self,
        topic: str,
        frame: ArrowStream | ArrowArray,
        *,
        key: str | None = None,
        timestamp: str | None = None,
        columns: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> RecordMetadataRanges:
        """Send each row of a DataFrame or an Arrow table as one JSON object, as `send_many`. This needs pyarrow.

        - `frame`: of pandas or polars, or anything with Arrow's C interface; it is sent in slices, one after another. A
          pandas index with a name is a column; one without is left out.
        - `key`: the column of the records' keys: text, bytes, or integers (as decimal text).
        - `timestamp`: the column of the records' times: timestamps, dates, or milliseconds; null is now.
        - `columns`: those in the value, in this order; default: all.

        Null, NaN and infinity become null, times ISO 8601, decimals text. Bytes must be UTF-8: they become text.
        TypeError or ValueError names the column that does not fit. If a slice fails, a note on the error tells how many
        rows before it are acknowledged.
        """
        running = self._open()
        transaction = running.open_transaction()
        as_partition(partition)
        rows = FrameRows.of(frame, key, timestamp, columns)
        return await send_rows(
            topic,
            rows,
            lambda records: running.send_many(
                topic, records, partition, transaction=transaction, have_own_times=timestamp is not None
            ),
        )

    async def drain(self) -> None:
        """Let full batches be sent, and wait while more than `high_water_bytes` is not acknowledged.

        Call it between sends. Raises the error of earlier sends that no caller has received.
        """
        if self._drain_flag.is_set:
            await self._open().drain()

    async def flush(self) -> None:
        """Send everything now and wait for its acknowledgement. Raises the error that no caller has received."""
        await self._open().flush()

    def _open(self) -> ProducerCore:
        """The running core, for calls that wait."""
        running = self._started()
        running.check_loop()
        return running

    def _started(self) -> ProducerCore:
        running = self._running
        if running is None:
            raise not_open("Producer", is_started=self._is_started)
        if running.sender.has_ended:
            running.check_loop()
            raise ClientClosed(_HAS_FAILED)
        return running
