"""The writers of `df.write.format("warmlog")` and `writeStream`: at least once, as Kafka's sink for Spark.

A task attempt appends as it runs, and its records stay even if the attempt fails. So when Spark reruns a task or a
micro-batch, its records are written again. Readers that must not see them twice need something in the records to tell
them apart. Exactly once would need transactions, which the broker does not have: each attempt would write in one of its
own, `commit` would commit those of the successful attempts together, and `abort` would drop the others.

Spark creates one writer for a batch and pickles it to the tasks and back to `commit`; for a stream it creates one for
each micro-batch and another for its commit. So a writer holds only its options.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from warmlog.spark.options.write_options import WriteOptions
from warmlog.spark.read.worker_process import hide_modules_from_collector
from warmlog.spark.write.columns import written_columns
from warmlog_protocol.errors import InvalidConfig

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    HAS_STREAM_ARROW_WRITER = True
except ImportError:  # Spark 4.0 passes rows, which are converted to Arrow
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

    HAS_STREAM_ARROW_WRITER = False

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger("warmlog.spark")


@dataclass
class AttemptWritten(WriterCommitMessage):  # type: ignore[misc]
    """What one task attempt has appended, and its producer id and epoch."""

    records: int
    producer_id: int
    producer_epoch: int


class WarmlogWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one DataFrame."""

    def __init__(self, options: WriteOptions, columns: Mapping[str, int]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: "Iterator[RecordBatch]") -> AttemptWritten:
        """Append the rows of one task; return when they are on disk."""
        return _write(iterator, self._columns, self._options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: every record is readable once it is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Warn about the records that stay."""
        _warn_of_leftovers(messages)


class WarmlogStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes one micro-batch, or commits it."""

    def __init__(self, options: WriteOptions, columns: Mapping[str, int], schema: Any) -> None:
        self._options = options
        self._columns = columns
        self._schema = schema

    def write(self, iterator: "Iterator[Any]") -> AttemptWritten:
        """Append the rows of one task; return when they are on disk."""
        if not HAS_STREAM_ARROW_WRITER:
            from warmlog.spark.write.row_batches import arrow_of_rows

            iterator = arrow_of_rows(iterator, self._schema)
        return _write(iterator, self._columns, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: every record is readable once it is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Warn about the records that stay."""
        _warn_of_leftovers(messages, f"micro-batch {batchId}: ")


def batch_writer(options: WriteOptions, schema: Any, *, overwrite: bool) -> WarmlogWriter:
    """Return the writer of one DataFrame. Raises InvalidConfig, and the errors of `check_topic`."""
    from warmlog.spark.write.task import check_topic  # numpy and pyarrow: only where records are written

    columns = _columns(options, schema, overwrite, 'a log can only be appended to: write with .mode("append")')
    check_topic(options)
    return WarmlogWriter(options, columns)


def stream_writer(options: WriteOptions, schema: Any, *, overwrite: bool) -> WarmlogStreamWriter:
    """Return the writer of one micro-batch. Raises InvalidConfig."""
    refusal = 'a log can only be appended to: write with .outputMode("append") or "update", not "complete"'
    return WarmlogStreamWriter(options, _columns(options, schema, overwrite, refusal), schema)


def _columns(options: WriteOptions, schema: Any, overwrite: bool, refusal: str) -> dict[str, int]:
    if overwrite:
        raise InvalidConfig(refusal)
    return written_columns(schema, has_topic=options.topic is not None, include_headers=options.include_headers)


def _write(iterator: "Iterator[RecordBatch]", columns: Mapping[str, int], options: WriteOptions) -> AttemptWritten:
    from warmlog.spark.write.task import write_batches  # numpy and pyarrow: only where records are written

    hide_modules_from_collector()
    return AttemptWritten(*write_batches(iterator, columns, options))


def _warn_of_leftovers(messages: list[WriterCommitMessage | None], where: str = "") -> None:
    written = sum(message.records for message in messages if isinstance(message, AttemptWritten))
    _log.warning(
        "%sthe write failed; %d records of finished tasks, and those that other tasks had sent, stay in the log. "
        "Another run writes them again.",
        where,
        written,
    )
