"""The writers of `df.write.format("warmlog")` and `writeStream`: exactly once, or at least once as Kafka's sink.

Exactly once, all attempts of a write's tasks write in one transaction. `commit` commits those whose messages Spark
passes to it and aborts all others, so that readers of committed records see each row once, however often tasks,
micro-batches or drivers were run again (see `jobs`).

With `delivery=at-least-once` an attempt's records can be read as it runs, and stay even if it fails: a task or a
micro-batch that Spark runs again writes them again.

Spark creates one writer for a batch and pickles it to the tasks and back to `commit`; for a stream it creates one for
each micro-batch and another for its commit. So a writer holds only its options, and a batch's its transaction.

The columns that can be written are those of the sink of Spark's Kafka connector, and a timestamp.

===========  ================================  ====================================================================
value        string or binary                  required; null writes a tombstone
key          string or binary                  chooses the partition, as the Python producer's keys do
headers      array<struct<key:string,          written unless `includeHeaders` is false
             value:binary>>
topic        string                            the option `topic` overrides it; without that none may be null
partition    int                               overrides the key; if null, the key decides
timestamp    timestamp                         null, or without this column: the time of writing
===========  ================================  ====================================================================

`offset` and `timestampType`, which reading returns and the broker decides, are ignored; other columns are refused.
"""

import difflib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from warmlog.spark.options.schema import as_ddl
from warmlog.spark.options.write_options import WriteOptions
from warmlog.spark.read.range_tasks import hide_modules_from_collector
from warmlog_protocol.errors import InvalidConfig

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    HAS_STREAM_ARROW_WRITER = True
except ImportError:  # Spark 4.0 passes rows, which are converted to Arrow
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

    HAS_STREAM_ARROW_WRITER = False

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from warmlog.arrow_write.job import Job
    from warmlog.spark.write.jobs import AttemptWritten

_log = logging.getLogger("warmlog.spark")

WRITTEN: dict[str, tuple[str, ...]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Name and types, as Spark writes them, of each column that is written."""
LEFT_OUT = ("offset", "timestampType")

STREAM_AGAIN = "Start the query again with its checkpoint: what is committed is not written twice"
NAMED_AGAIN = "Run it again with the same txnAppId and txnVersion: what is committed is not written twice"
UNNAMED_AGAIN = "A second run may write its rows twice: give txnAppId and txnVersion, so that it can be run again"


class WarmlogWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one DataFrame, in the transaction `job` unless that is None."""

    def __init__(self, options: WriteOptions, columns: Mapping[str, int], job: "Job | None" = None) -> None:
        self._options = options
        self._columns = columns
        self._job = job

    def write(self, iterator: "Iterator[RecordBatch]") -> "AttemptWritten":
        """Append the rows of one task; return when they are on disk."""
        return _write(iterator, self._columns, self._options, self._job)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the transaction. At least once, every record is readable once it is acknowledged."""
        _commit(self._options, messages, NAMED_AGAIN if self._options.transaction else UNNAMED_AGAIN)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages, unnamed=None if self._options.transaction else self._job)


class WarmlogStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes one micro-batch, or commits it."""

    def __init__(self, options: WriteOptions, columns: Mapping[str, int], schema: Any) -> None:
        self._options = options
        self._columns = columns
        self._schema = schema

    def write(self, iterator: "Iterator[Any]") -> "AttemptWritten":
        """Append the rows of one task; return when they are on disk."""
        from warmlog.spark.write.jobs import stream_job

        if not HAS_STREAM_ARROW_WRITER:
            from warmlog.spark.write.task import arrow_of_rows

            iterator = arrow_of_rows(iterator, self._schema)
        return _write(iterator, self._columns, self._options, stream_job(self._options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark's
        """As WarmlogWriter.commit."""
        _commit(self._options, messages, STREAM_AGAIN)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """As WarmlogWriter.abort."""
        _abort(self._options, messages, f"micro-batch {batchId}: ")


def batch_writer(options: WriteOptions, schema: Any, *, overwrite: bool) -> WarmlogWriter:
    """Return the writer of one DataFrame. Raises InvalidConfig, and the errors of `check_topic`."""
    from warmlog.spark.write.jobs import batch_job
    from warmlog.spark.write.task import check_topic  # numpy and pyarrow: only where records are written

    columns = _columns(options, schema, overwrite, 'a log can only be appended to: write with .mode("append")')
    check_topic(options)
    return WarmlogWriter(options, columns, batch_job(options))


def stream_writer(options: WriteOptions, schema: Any, *, overwrite: bool) -> WarmlogStreamWriter:
    """Return the writer of one micro-batch. Raises InvalidConfig."""
    if options.transaction is not None:
        raise InvalidConfig(
            "options txnAppId and txnVersion are for batches: a stream is known by its checkpoint, leave them out"
        )
    refusal = 'a log can only be appended to: write with .outputMode("append"), or in foreachBatch'
    return WarmlogStreamWriter(options, _columns(options, schema, overwrite, refusal), schema)


def _columns(options: WriteOptions, schema: Any, overwrite: bool, refusal: str) -> dict[str, int]:
    if overwrite:
        raise InvalidConfig(refusal)
    return written_columns(schema, has_topic=options.topic is not None, include_headers=options.include_headers)


def _write(
    iterator: "Iterator[RecordBatch]", columns: Mapping[str, int], options: WriteOptions, job: "Job | None"
) -> "AttemptWritten":
    from warmlog.spark.write.jobs import AttemptWritten
    from warmlog.spark.write.task import write_batches  # numpy and pyarrow: only where records are written

    hide_modules_from_collector()
    return AttemptWritten(*write_batches(iterator, columns, options, job), job)


def _commit(options: WriteOptions, messages: list[WriterCommitMessage | None], when_unknown: str) -> None:
    from warmlog.spark.write.jobs import commit_written

    if options.is_exactly_once:
        commit_written(options, messages, when_unknown)


def _abort(
    options: WriteOptions, messages: list[WriterCommitMessage | None], where: str = "", unnamed: "Job | None" = None
) -> None:
    from warmlog.spark.write.jobs import AttemptWritten, abort_written

    if options.is_exactly_once:
        abort_written(options, messages, unnamed)
        return
    written = sum(message.records for message in messages if isinstance(message, AttemptWritten))
    _log.warning(
        "%sthe write failed; %d records of finished tasks, and those that other tasks had sent, stay in the log. "
        "Another run writes them again.",
        where,
        written,
    )


def written_columns(schema: Any, *, has_topic: bool, include_headers: bool) -> dict[str, int]:
    """Return the index in `schema` (a StructType) of each column to write. InvalidConfig for an unknown one."""
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name, kind = field.name, field.dataType.simpleString()
        if name in LEFT_OUT:
            continue
        if name not in WRITTEN:
            raise InvalidConfig(_unknown(name))
        if kind not in WRITTEN[name]:
            expected = " or ".join(map(as_ddl, WRITTEN[name]))
            raise InvalidConfig(f"column {name} is {kind}, and only {expected} can be written: cast it")
        if name in found:
            raise InvalidConfig(f"there are two columns {name}: drop one")
        found[name] = index
    if "value" not in found:
        raise InvalidConfig("there is no column value to write: add one, for example with to_json(…) AS value")
    if not has_topic and "topic" not in found:
        raise InvalidConfig("there is no topic to write to: give the option topic, or a column topic")
    if has_topic:
        found.pop("topic", None)
    if not include_headers:
        found.pop("headers", None)
    return found


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name.lower(), WRITTEN, n=1, cutoff=0.6)
    advice = f"did you mean {nearest[0]}?" if nearest else f"drop it, or put it into value; use {', '.join(WRITTEN)}"
    return f"column {name} cannot be written: {advice}"
