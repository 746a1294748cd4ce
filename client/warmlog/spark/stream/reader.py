"""The reader of `spark.readStream.format("warmlog")`.

Offsets are Kafka's JSON, sorted, as Spark compares their text: `{"orders": {"0": 23, "1": 17}}`, in each partition the
first offset that is not read. Spark 4.2 and later pass a start and a limit. Earlier versions ask only for the latest
offset: then the limits of the options count from the end of the last micro-batch, which the reader remembers, as it is
one object while the query runs. With these versions Trigger.AvailableNow is one micro-batch, which ends at the first
reported offset: with `maxOffsetsPerTrigger` no more than that is read.

Spark passes a limit of one kind only: that of `maxOffsetsPerTrigger` if there is one; the other limits of the options
apply too. If Spark asks for everything (Trigger.Once, since 4.2), no limit applies.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from warmlog.ranges.read_settings import Projection
from warmlog.spark.options.offsets_json import OffsetsDocument, offsets_document, offsets_of
from warmlog.spark.options.read_options import Admission, StreamOptions
from warmlog.spark.read.range_tasks import read_partition
from warmlog.spark.read.typed_values import TypedValues

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    _Bases: tuple[type, ...] = (DataSourceStreamReader, SupportsTriggerAvailableNow)
except ImportError:  # Spark 4.0 and 4.1
    _Bases = (DataSourceStreamReader,)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from warmlog.ranges.discover import Discovery
    from warmlog.spark.stream.planner import StreamPlanner


class WarmlogStreamReader(*_Bases):  # type: ignore[misc]
    """Plans and reads one stream. One object plans while the query runs; a copy of it reads in each task."""

    def __init__(self, options: StreamOptions, columns: Projection | TypedValues) -> None:
        self._options = options
        self._columns = columns
        self._opened: StreamPlanner | None = None
        self._discovery: Discovery | None = None
        self._end: Mapping[str, Mapping[str, int]] | None = None

    def initialOffset(self) -> OffsetsDocument:  # noqa: N802 - Spark's name
        """Return where a new stream starts."""
        return offsets_document(self._planner.initial())

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> OffsetsDocument:  # noqa: N802
        """Return where the micro-batch from `start` ends; `start` if there is to be none."""
        if start is None:
            start = dict(self.initialOffset() if self._end is None else self._end)
        else:
            self.commit(start)
        end = offsets_document(self._planner.next_end(offsets_of(start), self._admission(limit)))
        self._end = end
        return end

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return the limit that Spark is to pass to latestOffset."""
        admission = self._options.admission
        if admission.max_offsets is not None:
            return ReadMaxRows(admission.max_offsets)
        if admission.max_bytes is not None:
            return ReadMaxBytes(admission.max_bytes)
        return ReadAllAvailable() if admission.min_offsets is None else ReadMinRows(admission.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read nothing after the present ends of the partitions."""
        self._planner.set_target()

    def reportLatestOffset(self) -> OffsetsDocument | None:  # noqa: N802
        """Return the ends of the partitions, for the progress of the query."""
        return offsets_document(self._planner.latest()) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch. The same offsets give the same records, or an error."""
        self._end = end
        return [InputPartition(task) for task in self._planner.tasks(offsets_of(start), offsets_of(end))]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Yield the records of `partition` in offset order."""
        return read_partition(partition, self._columns, self._options.reading)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit to the group of the options what Spark has finished with.

        Spark calls this only when it begins the next micro-batch. Since 4.2 it asks for the next one's end first, and
        once more after the last micro-batch of Trigger.AvailableNow: its start is what is done by then.
        """
        self._planner.commit(offsets_of(end))

    def stop(self) -> None:
        """Close the connections."""
        if self._discovery is not None:
            self._discovery.close()
        self._opened = self._discovery = None

    @property
    def _planner(self) -> "StreamPlanner":
        """Created on first use, never in a task."""
        if self._opened is None:
            from warmlog.ranges.discover import Discovery
            from warmlog.spark.stream.planner import StreamPlanner

            reading = self._options.reading
            self._discovery = Discovery(reading.bootstrap, reading.connection, isolation=reading.isolation)
            self._opened = StreamPlanner(self._options, lambda: time.monotonic() * 1000, self._discovery)
        return self._opened

    def _admission(self, limit: Any) -> Admission:
        """Return the options' bounds, with Spark's `limit` in place of the one of its kind."""
        admission = self._options.admission
        if limit is None:
            return admission
        if isinstance(limit, ReadMaxRows):
            return replace(admission, max_offsets=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return replace(admission, max_bytes=limit.max_bytes)
        return Admission() if isinstance(limit, ReadAllAvailable) else admission
