"""Rows of CSV and Parquet on stdin as records: what `warmlog produce --format csv` and `--format parquet` send.

Each row is one JSON object, without the columns of key, timestamp and partition. CSV is read in chunks as it arrives;
Parquet, which begins at its end, from a file. CSV's columns get the types that their first chunk has: text that looks
like a number is one, unless `is_text` leaves everything as it is written. The key is never changed.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.times import parse_time_ms
from warmlog.extras import install_hint

if TYPE_CHECKING:
    import pyarrow as pa

    from warmlog import Producer
    from warmlog.cli.terminal.status import Progress

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_ROWS = 32 * 1024
SENT_AT_ONCE = 3
"""Chunks that are encoded and acknowledged at the same time."""


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
            convert_options=csv.ConvertOptions(column_types=as_text, strings_can_be_null=not columns.is_text),
        )
        _check(columns, reader.schema.names)
        yield from reader
    except pa.ArrowException as error:
        advice = "; --text leaves all columns as they are written" if "conversion" in str(error) else ""
        raise CommandFailed(f"no {kind} can be read: {error}{advice}") from None
    except OSError as error:
        raise CommandFailed(f"Parquet is read from a file, as in `< rows.parquet`, not from a pipe: {error}") from None


def _check(columns: TableColumns, names: list[str]) -> None:
    for name in (columns.key, columns.timestamp, columns.partition):
        if name is not None and name not in names:
            raise CommandFailed(f"there is no column {name!r}, only {', '.join(names)}")


class TableSender(NamedTuple):
    """Sends tables to a topic."""

    producer: "Producer"
    topic: str
    columns: TableColumns
    partition: int | None
    progress: "Progress"

    async def send(self, tables: "Iterator[pa.RecordBatch]") -> None:
        """Send all rows, some chunks at a time; raise the first error once the chunks before it are acknowledged."""
        waiting: list[asyncio.Task[None]] = []
        try:
            async for chunk in _chunks(tables):
                waiting.append(asyncio.create_task(self._send(chunk)))
                if len(waiting) == SENT_AT_ONCE:
                    await waiting.pop(0)
            while waiting:
                await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _send(self, chunk: "pa.RecordBatch") -> None:
        key, timestamp, partition, _ = self.columns
        names = [name for name in chunk.schema.names if name not in (key, timestamp, partition)]
        for number, rows in _by_partition(chunk, partition, self.partition):
            timed = rows if timestamp is None else _with_milliseconds(rows, timestamp)
            await self.producer.send_frame(
                self.topic, timed, key=key, timestamp=timestamp, columns=names, partition=number
            )
        self.progress.add(chunk.num_rows, chunk.nbytes)


async def _chunks(tables: "Iterator[pa.RecordBatch]") -> "AsyncIterator[pa.RecordBatch]":
    """Yield the rows of `tables`, which are read in a thread."""
    while (table := await asyncio.to_thread(next, tables, None)) is not None:
        for start in range(0, table.num_rows, CHUNK_ROWS):
            yield table.slice(start, CHUNK_ROWS)


def _by_partition(
    table: "pa.RecordBatch", name: str | None, partition: int | None
) -> "Iterator[tuple[int | None, pa.RecordBatch]]":
    """Yield the rows of each partition that the column names."""
    if name is None:
        yield partition, table
        return
    from pyarrow import compute

    column = table.column(name)
    for number in column.unique().to_pylist():
        if not isinstance(number, int):
            raise CommandFailed(f"column {name!r} has {number!r}: the number of a partition is expected")
        yield number, table.filter(compute.equal(column, number))


def _with_milliseconds(table: "pa.RecordBatch", name: str) -> Any:
    """The table with the column of times as milliseconds: text is a number of them, or ISO 8601, local without zone."""
    import pyarrow as pa

    column = table.column(name)
    if not pa.types.is_string(column.type):
        return table
    try:
        times = [
            None if not text else int(text) if text.isdecimal() else parse_time_ms(text) for text in column.to_pylist()
        ]
    except ValueError as error:
        raise CommandFailed(f"column {name!r}: {error}") from None
    return table.set_column(table.schema.get_field_index(name), name, pa.array(times, pa.int64()))
