"""A task of an export: reads its ranges and writes them as Parquet, one file for each day of its records.

The day is that of the record's timestamp in UTC; it is in the directory's name, `date=2026-11-21`, as with Spark's own
partitioning. Files are on disk when the task returns, and count once a commit lists them: the files of a failed or
superseded attempt are never listed.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from warmlog.arrow.reader import arrow_schema
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import KAFKA_COLUMNS, Projection, ReadSettings
from warmlog.ranges.resolve import Loss
from warmlog.spark.export.manifest import Exported, ExportedFile

ROW_GROUP_BYTES = 32 * 1024 * 1024
MOST_OPEN_FILES = 32
"""Days that are written at a time: if records of more days are mixed, files are closed and new ones begun."""
REPEATED_COLUMNS = ["topic", "partition", "timestampType"]
"""Only these gain from a dictionary."""
COLUMNS_WITHOUT_STATISTICS = ("value", "headers")
"""Their minimum and maximum let no reader skip data, and cost a comparison for each record."""

_US_PER_DAY = 86_400_000_000
_FIRST_DAY = date(1970, 1, 1)


def export_ranges(
    ranges: Sequence[OffsetRange], staging: Path, settings: ReadSettings, *, has_headers: bool, compression: str
) -> Exported:
    """Write the records of `ranges` to new files below `staging`."""
    names = (*KAFKA_COLUMNS, "headers") if has_headers else KAFKA_COLUMNS
    files = _Files(staging, arrow_schema(names), compression)
    losses: list[Loss] = []
    try:
        for batch in read_ranges(ranges, Projection(names), settings, on_loss=losses.append):
            for day, part in _by_day(batch):
                files.add(day, part)
        return Exported(files.close(), losses)
    except BaseException:
        files.abandon()
        raise


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batch cut by day, records in the order of the log."""
    if not batch.num_rows:
        return
    times = batch.column("timestamp").cast(pa.int64()).to_numpy()
    first, last = (int(time) // _US_PER_DAY for time in (times.min(), times.max()))
    if first == last:
        yield first, batch
        return
    days = np.floor_divide(times, _US_PER_DAY)
    for day in np.unique(days).tolist():
        yield day, batch.take(pa.array(np.flatnonzero(days == day)))


class _Files:
    def __init__(self, staging: Path, schema: pa.Schema, compression: str) -> None:
        self._staging = staging
        self._schema = schema
        self._compression = compression
        self._open: dict[int, _File] = {}
        self._done: list[ExportedFile] = []

    def add(self, day: int, batch: pa.RecordBatch) -> None:
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) >= MOST_OPEN_FILES:
                self._done.append(self._open.pop(next(iter(self._open))).close())
            try:
                date_name = (_FIRST_DAY + timedelta(days=day)).isoformat()
            except OverflowError:  # outside of the calendar
                date_name = f"day{day}"
            name = f"date={date_name}/part-{uuid.uuid4().hex}.parquet"
            file = _File(self._staging, name, self._schema, self._compression)
        self._open[day] = file  # the most recently used file is closed last
        file.add(batch)

    def close(self) -> list[ExportedFile]:
        """Close and return all files, which are then on disk."""
        self._done += [file.close() for file in self._open.values()]
        self._open.clear()
        return self._done

    def abandon(self) -> None:
        """Delete the open files: no commit will list them."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()


class _File:
    def __init__(self, staging: Path, name: str, schema: pa.Schema, compression: str) -> None:
        self._name = name
        self._path = staging / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._records = 0
        self._batches: list[Any] = []
        self._batches_bytes = 0
        self._schema = schema
        self._writer = pq.ParquetWriter(
            self._path,
            schema,
            compression=compression,
            use_dictionary=REPEATED_COLUMNS,
            write_statistics=[name for name in schema.names if name not in COLUMNS_WITHOUT_STATISTICS],
            store_schema=False,
        )

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._batches_bytes += batch.nbytes
        self._records += batch.num_rows
        if self._batches_bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self._batches_bytes = [], 0
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> ExportedFile:
        if self._batches:
            self._write()
        self._writer.close()
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            size_bytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        return ExportedFile(self._name, self._records, size_bytes)

    def abandon(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)
