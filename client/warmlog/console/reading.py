"""Reads records for people: a bounded part of a topic, with what readers do not get, and how each was stored.

Up to the last stable offset committed records are fetched, which comes with the list of aborted transactions, so that
each batch is known to be committed, aborted or a marker; after it, records of transactions are open. What cannot be
read is a row of its own. Rows are cut, so that many large ones do not fill memory; `whole` fetches them again.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from warmlog.admin.admin import Admin
from warmlog.errors import ApiError, CorruptBatch, UnreadableBatch
from warmlog.points import Point, PointKind
from warmlog.records.batch import Batch, Record
from warmlog.records.fetched import FetchedBatches, error_in
from warmlog_protocol import messages as m
from warmlog_protocol.batch import ControlType, RecordBatch, check_crc

MIB = 1024 * 1024
FETCH_BYTES = MIB
SEARCH_BYTES = 256 * MIB
"""What a search reads at most."""
TAIL_BYTES = 16 * MIB
"""What is read at most of what was appended since the last time."""
WHOLE_BYTES = 64 * MIB
"""Of records that are fetched whole together."""
KEPT_BYTES = 64 * 1024
"""Of each key and value; headers that are larger are left out."""
HIDDEN = ("aborted", "commit marker", "abort marker")


class Row(Record, frozen=True, gc=False):
    """A record as it is shown. `kind` is "" for one that readers of committed records get."""

    kind: str = ""
    """One of HIDDEN, "open" (its transaction has not ended) or "unreadable"."""
    size_bytes: int = 0
    """Of key, value and headers, before they are cut."""
    is_cut: bool = False


class Budget(Struct):
    """What may still be fetched."""

    bytes_left: int = SEARCH_BYTES


class Query(Struct, frozen=True):
    """Which records to show: at most `limit` of the `scan` last, or first, offsets of each partition."""

    topic: str
    partition: int | None = None
    start: Point | None = None
    """None: the newest first; from a point on it reads forward."""
    key: bytes = b""
    header: str = ""
    """`name` or `name=value`."""
    text: bytes = b""
    """A part of the value."""
    scan: int = 10_000
    limit: int = 100
    shows_hidden: bool = False
    """Whether to show records of aborted transactions, and markers."""

    def fits(self, row: Row) -> bool:
        """Whether to show a record, which is whole."""
        name, is_given, value = self.header.partition("=")
        return (
            (self.shows_hidden or row.kind not in HIDDEN)
            and (not self.key or row.key == self.key)
            and (not self.text or (row.value is not None and self.text in row.value))
            and (not name or any(each == name and (not is_given or at == value.encode()) for each, at in row.headers))
        )


async def search(admin: Admin, query: Query, budget: Budget | None = None) -> list[Row]:
    """Return the records, the newest first if they were asked for so; else in order of partition and offset."""
    point = query.start
    rows: list[Row] = []
    logs = await partitions_of(admin, query)
    starts = await admin.look_up_offsets(query.topic, point.number) if point and point.kind is PointKind.TIME else {}
    span = query.limit if point is None and not (query.key or query.header or query.text) else query.scan
    for log in logs:
        at = starts.get(log.partition)
        if isinstance(at, ApiError):
            continue
        start = at.offset if at is not None else log.high_watermark
        if point is None or point.kind is PointKind.TAIL:
            start -= span if point is None else point.number
        elif point.kind in (PointKind.OFFSET, PointKind.EARLIEST):
            start = point.number
        start = max(start, log.log_start_offset)
        kept: deque[Row] = deque(maxlen=query.limit)
        async for row in read(admin, log, start, min(start + span, log.high_watermark), budget):
            if query.fits(row):
                kept.append(cut(row))
                if len(rows) + len(kept) >= query.limit and point is not None:
                    return [*rows, *kept]
        rows = [*rows, *kept] if point is not None else newest_first([*rows, *kept])[: query.limit]
    return rows


async def partitions_of(admin: Admin, query: Query) -> list[m.DescribedPartition]:
    """Return the partitions in which to look. Raises ValueError if there is none, and the error of the one named."""
    if not query.topic:
        raise ValueError("choose a topic first")
    found = await admin.describe_partitions([query.topic])
    logs = [log for (_, number), log in found.items() if query.partition in (None, number)]
    if not logs:
        raise ValueError(f"{query.topic} has no partition {query.partition}")
    if query.partition is not None and isinstance(logs[0], ApiError):
        raise logs[0]
    return [log for log in logs if not isinstance(log, ApiError)]


def newest_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.timestamp_ms, row.partition, row.offset), reverse=True)


async def read(
    admin: Admin, log: m.DescribedPartition, start: int, end: int, budget: Budget | None = None
) -> AsyncIterator[Row]:
    """Yield the records of a partition with offsets in [start, end), whole, until the budget is used up.

    Raises the broker's error, except for what is damaged.
    """
    topic, partition, offset, budget = log.topic, log.partition, start, budget or Budget()
    while offset < end and budget.bytes_left > 0:
        isolation = m.IsolationLevel(offset < log.last_stable_offset)
        epoch = admin.cluster.leader_epoch(topic, partition)
        part = m.FetchPartition(topic, partition, offset, FETCH_BYTES, current_leader_epoch=epoch)
        request = m.FetchRequest(0, 1, FETCH_BYTES, [part], isolation, skips_gaps=True)
        response = await admin.cluster.ask_leader(request, topic, partition)
        assert isinstance(response.result, m.FetchResponse)
        budget.bytes_left -= len(response.payload)
        (fetched,) = response.result.partitions
        if fetched.error_code:
            error = error_in(fetched, offset)
            if not isinstance(error, UnreadableBatch):
                raise error
            yield _unreadable(topic, partition, offset, error)
            offset = error.next_offset
            continue
        batches = FetchedBatches(fetched, response.payload, offset, m.NO_LEADER_EPOCH)
        while (header := batches.next_header(offset)) is not None and header.base_offset < end:
            batch = RecordBatch(header, batches.bytes_of(header))
            batches.position += header.size_bytes
            try:
                check_crc(header, batch.buffer)
                kind = "open" if header.is_transactional and header.base_offset >= log.last_stable_offset else ""
                if batches.is_hidden(batch):
                    kind = "aborted"
                if header.is_control:
                    kind = "abort marker" if batch.control_type is ControlType.ABORT else "commit marker"
                for each in Batch(topic, partition, batch, high_watermark=end, from_offset=offset, until_offset=end):
                    cells = [each.key, each.value, *(value for _, value in each.headers)]
                    yield Row(**asdict(each), kind=kind, size_bytes=sum(len(cell or b"") for cell in cells))
            except CorruptBatch as error:
                yield _unreadable(topic, partition, header.base_offset, error)
        if batches.error is not None:
            yield _unreadable(topic, partition, batches.next_offset, batches.error)
            return
        if batches.next_offset <= offset:
            return
        offset = batches.next_offset


def _unreadable(topic: str, partition: int, offset: int, error: Exception) -> Row:
    return Row(topic, partition, offset, -1, None, str(error).encode(), kind="unreadable")


def cut(row: Row) -> Row:
    """Return the row with at most KEPT_BYTES of key, value and headers."""
    if row.size_bytes <= KEPT_BYTES:
        return row
    key, value = (cell and cell[:KEPT_BYTES] for cell in (row.key, row.value))
    is_small = sum(len(text or b"") for _, text in row.headers) <= KEPT_BYTES
    return replace(row, key=key, value=value, headers=row.headers if is_small else (), is_cut=True)


async def whole(admin: Admin, rows: Sequence[Row]) -> list[Row]:
    """Return the rows as they were before they were cut.

    ValueError if they are too large together, or if one of them is gone or damaged by now.
    """
    size_bytes = sum(row.size_bytes for row in rows)
    if len(rows) > 1 and size_bytes > WHOLE_BYTES:
        raise ValueError(
            f"these {len(rows)} records have {size_bytes / MIB:,.0f} MiB, and at most {WHOLE_BYTES // MIB} MiB are "
            "fetched at once: show fewer of them, or take `warmlog consume`"
        )
    found: list[Row] = []
    for row in rows:
        if not row.is_cut:
            found.append(row)
            continue
        (log,) = await partitions_of(admin, Query(row.topic, row.partition))
        again = [each async for each in read(admin, log, row.offset, row.offset + 1) if each.kind != "unreadable"]
        if not again:
            raise ValueError(f"{row.topic}-{row.partition}, offset {row.offset}: it cannot be read whole any more")
        found += again
    return found


class Tail:
    """Reads what is appended. If more comes at once than is shown, the older part is left out and counted."""

    def __init__(self, admin: Admin, query: Query, most: int) -> None:
        self.query = query
        self.left_out = 0
        self._admin = admin
        self._most = most
        self._positions: dict[int, int] = {}

    async def next(self) -> list[Row]:
        """Return what was appended since the last call, the newest first, at most `most` of each partition.

        After an error the next call begins at the same positions, in all partitions.
        """
        rows: list[Row] = []
        positions, left_out = self._positions.copy(), self.left_out
        budget = Budget(TAIL_BYTES)
        for log in await partitions_of(self._admin, self.query):
            end = log.high_watermark
            position = positions.get(log.partition, end)
            start = max(position, end - self._most)
            left_out += start - position
            async for row in read(self._admin, log, start, end, budget):
                start = row.offset + 1
                if self.query.fits(row):
                    rows.append(cut(row))
            left_out += end - start if budget.bytes_left <= 0 else 0
            positions[log.partition] = end
        self._positions, self.left_out = positions, left_out
        return newest_first(rows)
