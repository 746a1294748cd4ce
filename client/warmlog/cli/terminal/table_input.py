"""Rows of CSV and Parquet on stdin as records: what `warmlog produce --format csv` and `--format parquet` send.

Each row is one JSON object, without the columns of key, timestamp and partition. CSV is read in chunks as it arrives;
Parquet, which begins at its end, from a file. CSV's columns get the types that their first chunk has: text that looks
like a number is one, unless `is_text` leaves everything as it is written. The key is never changed, but an empty one is
null, as every empty field is.
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.times import parse_time_ms
from warmlog.extras import install_hint

if TYPE_CHECKING:
    import pyarrow as pa

    from warmlog.arrow_write.batching import BatchOfRows
    from warmlog.arrow_write.producer import ArrowProducer
    from warmlog.arrow_write.rows import ArrowRows
    from warmlog.cli.terminal.status import Progress

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_ROWS = 64 * 1024
BATCH_BYTES = 1024 * 1024


Rows = tuple["ArrowRows", "pa.Array | None", int | None]


class TableColumns(NamedTuple):
    """Names of columns; None for none."""

    key: str | None
    timestamp: str | None
    partition: str | None
    is_text: bool


def read_tables(kind: str, descriptor: int, columns: TableColumns) -> "Iterator[pa.RecordBatch]":
    """Yield the rows. CommandFailed without pyarrow, for a missing column, and for what is no CSV or Parquet."""
    try:
        import pyarrow as pa
    except ImportError:
        raise CommandFailed(f"--format {kind} needs pyarrow: {install_hint('arrow')}") from None
    try:
        if kind == "parquet":
            from pyarrow import parquet

            file = parquet.ParquetFile(os.fdopen(os.dup(descriptor), "rb"))
            _check(columns, file.schema_arrow.names)
            yield from file.iter_batches(CHUNK_ROWS)
            return
        from pyarrow import csv

        as_text = {name: pa.string() for name in (columns.key, columns.timestamp) if name is not None}
        stream = os.fdopen(os.dup(descriptor), "rb")
        if columns.is_text:
            header = csv.read_csv(pa.py_buffer(stream.readline())).column_names
            as_text = dict.fromkeys(header, pa.string())
        reader = csv.open_csv(
            stream,
            read_options=csv.ReadOptions(
                block_size=CHUNK_BYTES, column_names=list(as_text) if columns.is_text else None
            ),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=as_text),
        )
        _check(columns, reader.schema.names)
        yield from reader if columns.is_text else map(_empty_as_null, reader)
    except pa.ArrowException as error:
        advice = "; --text leaves all columns as they are written" if "conversion" in str(error) else ""
        raise CommandFailed(f"no {kind} can be read: {error}{advice}") from None
    except OSError as error:
        raise CommandFailed(f"Parquet is read from a file, as in `< rows.parquet`, not from a pipe: {error}") from None


def _empty_as_null(rows: "pa.RecordBatch") -> "pa.RecordBatch":
    """Make empty text null, and no other: what Arrow takes for null, such as NA, is Namibia in a column of text."""
    import pyarrow as pa
    from pyarrow import compute

    columns = [
        compute.if_else(compute.equal(compute.binary_length(column), 0), pa.scalar(None, column.type), column)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _check(columns: TableColumns, names: list[str]) -> None:
    for name in (columns.key, columns.timestamp, columns.partition):
        if name is not None and name not in names:
            raise CommandFailed(f"there is no column {name!r}, only {', '.join(names)}")


async def send_tables(
    producer: "ArrowProducer",
    topic: str,
    tables: "Iterator[pa.RecordBatch]",
    rows_of: "Callable[[pa.RecordBatch], Rows]",
    expired: str,
    progress: "Progress",
) -> None:
    """Send all rows, and return when they are acknowledged; the next chunk is prepared in a thread meanwhile."""
    from warmlog.arrow_write.batching import TopicBatches
    from warmlog.producer.record_input import AgeCheck

    async def send(made: "Iterator[BatchOfRows]") -> None:
        for batch in made:
            await producer.send(topic, batch.partition, batch.spans, batch.size_bytes, time.time_ns() // 1_000_000)

    chunks = map(rows_of, tables)
    coming = _next_of(chunks)
    found = await producer.topic(topic)
    batches = TopicBatches(
        topic,
        len(found.queues),
        limit_bytes=BATCH_BYTES,
        max_message_bytes=found.max_message_bytes,
        first_sticky=random.randrange(len(found.queues)),  # noqa: S311 - so that commands begin with different ones
    )
    check_age = AgeCheck(expired)
    while (chunk := await coming) is not None:
        coming = _next_of(chunks)
        records, chosen, oldest_ms = chunk
        if oldest_ms is not None and found.max_age_ms is not None and expired != "accept":
            check_age(topic, found.max_age_ms, oldest_ms)
        await send(batches.add(records, chosen))
        progress.add(len(records), records.values.nbytes)
    await send(batches.flush())
    await producer.flush()


def _next_of(chunks: Iterator[Rows]) -> asyncio.Future[Rows | None]:
    """Take the next chunk in a thread; None at the end. It is a daemon: nothing can interrupt a read from a pipe."""
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[Rows | None] = loop.create_future()

    def end(set_outcome: Callable[[Any], None], outcome: object) -> None:
        if not coming.done():
            set_outcome(outcome)

    def take() -> None:
        found: tuple[Callable[[Any], None], object]
        try:
            found = coming.set_result, next(chunks, None)
        except Exception as error:
            found = coming.set_exception, error
        with suppress(RuntimeError):  # the loop was closed, so nothing waits for it
            loop.call_soon_threadsafe(end, *found)

    coming.add_done_callback(lambda future: future.cancelled() or future.exception())  # if an error comes before it
    threading.Thread(target=take, name="stdin", daemon=True).start()
    return coming


def records_of(table: "pa.RecordBatch", columns: TableColumns, partition: int | None) -> Rows:
    """Return the rows as records, their partitions, and the oldest timestamp. CommandFailed for what does not fit."""
    import pyarrow as pa
    from pyarrow import compute

    from warmlog.arrow_write.rows import ArrowRows, with_offsets
    from warmlog.producer.frame_records import json_objects, key_column

    names = [name for name in table.schema.names if name not in columns[:3]]
    try:
        keys = None if columns.key is None else with_offsets(key_column(columns.key, table.column(columns.key)))
        times = None if columns.timestamp is None else _microseconds(table.column(columns.timestamp))
        partitions = None if partition is None else pa.repeat(pa.scalar(partition, pa.int32()), table.num_rows)
        if columns.partition is not None:
            partitions = table.column(columns.partition).cast(pa.int32())
        values = json_objects(table, names)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise CommandFailed(f"a column does not fit: {error}") from None
    oldest_us = None if times is None else compute.min(times.cast(pa.int64())).as_py()
    return ArrowRows(values, keys, None, times), partitions, None if oldest_us is None else oldest_us // 1000


def _microseconds(column: "pa.Array") -> "pa.Array":
    """Timestamps, dates, or milliseconds, which may be text as times in ISO 8601; local without an offset."""
    import pyarrow as pa

    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        times = column.cast(pa.timestamp("us")).to_pylist()
        column = pa.array([None if each is None else each.astimezone() for each in times], pa.timestamp("us", "UTC"))
    if pa.types.is_string(column.type):
        texts = column.to_pylist()
        milliseconds = [None if not text else int(text) if text.isdecimal() else parse_time_ms(text) for text in texts]
        column = pa.array(milliseconds, pa.int64())
    if pa.types.is_integer(column.type):
        column = column.cast(pa.timestamp("ms"))
    return column.cast(pa.timestamp("us"))
