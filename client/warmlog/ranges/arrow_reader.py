"""Topics as a `pyarrow.RecordBatchReader`, without Spark and without an event loop.

::

    from warmlog.ranges.arrow_reader import arrow_reader

    with arrow_reader("127.0.0.1:7400", ["flights"], start="-1000", columns=["value", "offset"]) as reader:
        table = reader.read_all()

DuckDB, Polars, DataFusion and others read it batch by batch through Arrow's stream interface.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Unpack

from warmlog.arrow.reader import arrow_schema  # first, since it says what to install if pyarrow is missing

# isort: split
import pyarrow as pa

from warmlog.points import EARLIEST, LATEST, Where, checked_topics, fit_points, parse_where
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import OffsetRange, sized_ranges
from warmlog.ranges.range_reader import read_ranges, warn_of_loss
from warmlog.ranges.read_settings import KAFKA_COLUMNS, Projection, ReadSettings
from warmlog.ranges.resolve import ReadBounds, resolve_ranges, starting_times
from warmlog_transport.address import parse_addresses
from warmlog_transport.options import ConnectionKeywords, override

_SPLIT_BYTES = 16 * 1024 * 1024
_MAX_SCAN_MS = 10_000


def arrow_reader(
    bootstrap: str | Sequence[str],
    topics: Sequence[str],
    *,
    start: Where = "earliest",
    end: Where = "latest",
    columns: Sequence[str] = KAFKA_COLUMNS,
    as_text: Collection[str] = (),
    settings: ReadSettings | None = None,
    **connection: Unpack[ConnectionKeywords],
) -> pa.RecordBatchReader:
    """Read the records of `topics` in `[start, end)`, partition after partition, in Arrow batches of 1 to 4 MiB.

    `start` and `end` are given as to Consumer (`warmlog.points`); a time applies to each record. Partitions that a
    mapping leaves out are read from the earliest or to the latest offset. ValueError, before anything is read, for a
    key that is not a partition of `topics`. `connection` sets fields of ConnectionOptions, such as `ssl`.

    The offsets are looked up and fixed now; records are fetched while the reader is read. Columns in `as_text`, key or
    value, are strings. Raises UnknownTopicOrPartition, OffsetOutOfRange and BrokerUnavailable, now and while reading.
    After an interruption (Ctrl-C) the reader continues after the last batch that it returned, with a warning: what an
    interrupted `read_all` had read is lost.
    """
    settings = settings or ReadSettings(connection=replace(ReadSettings().connection, client_name="warmlog-arrow"))
    settings = replace(settings, connection=override(settings.connection, connection, arrow_reader))
    settings = replace(settings, bootstrap=tuple(str(address) for address in parse_addresses(bootstrap)))
    schema = arrow_schema(columns, as_text)
    bounds = ReadBounds(
        parse_where(start, name="start"),
        parse_where(end, name="end"),
        "start",
        "end",
        fails_on_data_loss=settings.fails_on_data_loss,
        fails_on_missing_time=False,
    )
    ranges = _plan(checked_topics(topics), bounds, settings)
    batches = read_ranges(ranges, Projection(tuple(columns), frozenset(as_text)), settings)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _plan(topics: Sequence[str], bounds: ReadBounds, settings: ReadSettings) -> list[OffsetRange]:
    with Discovery(settings.bootstrap, settings.connection, isolation=settings.isolation) as discovery:
        states = discovery.states(discovery.topics(topics))
        partitions = [state.tp for state in states]
        bounds = replace(
            bounds,
            starting=fit_points(bounds.starting, partitions, "start", left_out=EARLIEST),
            ending=fit_points(bounds.ending, partitions, "end", left_out=LATEST),
        )
        times = starting_times(bounds.starting, states)
        ranges, losses = resolve_ranges(states, bounds, discovery.offsets(times))
        for loss in losses:
            warn_of_loss(loss)
        if all(planned.until_ms is None for planned in ranges):
            return ranges
        splits = discovery.splits(ranges, _SPLIT_BYTES, max_scan_ms=_MAX_SCAN_MS)
    return [
        sized.range for planned, found in zip(ranges, splits, strict=True) for sized in sized_ranges(planned, found)
    ]
