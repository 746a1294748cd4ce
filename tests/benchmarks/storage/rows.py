"""Batches of rows: encoded from columns, decoded to columns, and to Arrow."""

from collections.abc import Callable
from functools import partial

from benchmarks.storage.figures import Figure, timed
from benchmarks.storage.logs import NOW_MS
from warmlog.arrow.int_array import ArrayColumn
from warmlog.arrow.reader import columns_to_arrow
from warmlog_protocol.batch import encode_batch, read_batch, to_columns, to_rows

RECORDS = 10_000
VALUE_BYTES = 100


def measure(rounds: int) -> list[Figure]:
    """One figure with and one without keys; ten records have the same time."""
    values = [b"%0*d" % (VALUE_BYTES, number) for number in range(RECORDS)]
    times_ms = [NOW_MS + number // 10 for number in range(RECORDS)]
    keys = [b"user-%d" % number for number in range(RECORDS)]
    return [
        _figure("rows", rounds, encode_batch(values, timestamps_ms=times_ms)),
        _figure("rows, keys", rounds, encode_batch(values, keys=keys, timestamps_ms=times_ms)),
    ]


def _figure(name: str, rounds: int, columns: bytes) -> Figure:
    figure = Figure(name, {"records": RECORDS, "value_bytes": VALUE_BYTES}, "3 x, 2 x and 4 x 987e0da")
    rows = to_rows(read_batch(columns))
    works: dict[str, Callable[[], object]] = {
        "to_rows_per_s": lambda: to_rows(read_batch(columns)),
        "to_columns_per_s": lambda: to_columns(read_batch(rows)),
        "to_arrow_per_s": partial(_to_arrow, rows),
    }
    for _ in range(rounds):
        figure.runs.append({name: RECORDS / timed(work).cpu_s for name, work in works.items()})
    return figure


def _to_arrow(rows: bytes) -> object:
    return columns_to_arrow(read_batch(rows, column_type=ArrayColumn), topic="t", partition=0)
