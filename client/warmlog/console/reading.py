"""Reads records for people: a bounded part of a topic, with what readers do not get, and how each was stored.

Up to the last stable offset committed records are fetched, which comes with the list of aborted transactions, so that
each batch is known to be committed, aborted or a marker; after it, records of transactions are open. What cannot be
read is a row of its own. Values are cut, so that many large ones do not fill memory; a link fetches one whole.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from warmlog.admin.admin import Admin
from warmlog.errors import ApiError, CorruptBatch, UnreadableBatch
from warmlog.records.batch import Batch, Header
from warmlog.records.fetched import FetchedBatches, error_in
from warmlog_protocol import messages as m
from warmlog_protocol.batch import ControlType, RecordBatch, check_crc

FETCH_BYTES = 1024 * 1024
KEPT_BYTES = 64 * 1024
"""Of each key and value."""
NEWEST, OLDEST = "newest", "oldest"


class Row(Struct, frozen=True):
    """A record as it is shown. `kind` is "" for one that readers of committed records get."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    value_bytes: int = 0
    """The size of the value, which is cut to KEPT_BYTES."""
    kind: str = ""
    """"aborted", "open" (its transaction has not ended), "commit marker", "abort marker" or "unreadable"."""
    is_key_cut: bool = False

    @property
    def is_cut(self) -> bool:
        return self.is_key_cut or (self.value is not None and len(self.value) < self.value_bytes)


class Query(Struct, frozen=True):
    """Which records to show: at most `limit` of the `scan` last, or first, offsets of each partition."""

    topic: str
    partition: int | None = None
    start: str | int | datetime = NEWEST
    """NEWEST, OLDEST, an offset or a time; from all but NEWEST on it reads forward."""
    key: bytes = b""
    header: str = ""
    """`name` or `name=value`."""
    text: bytes = b""
    """A part of the value."""
    scan: int = 10_000
    limit: int = 100
    shows_hidden: bool = False
    """Whether to show records of aborted transactions, and markers."""

    @property
    def is_filter(self) -> bool:
        return bool(self.key or self.header or self.text)

    def fits(self, row: Row) -> bool:
        """Whether to show a record, whose value is whole."""
        if row.kind in ("aborted", "commit marker", "abort marker") and not self.shows_hidden:
            return False
        name, separator, value = self.header.partition("=")
        return (
            (not self.key or row.key == self.key)
            and (not self.text or (row.value is not None and self.text in row.value))
            and (
                not self.header
                or any(each[0] == name and (not separator or each[1] == value.encode()) for each in row.headers)
            )
        )


async def search(admin: Admin, query: Query) -> list[Row]:
    """Return the records, the newest first if they were asked for so; else in order of partition and offset."""
    if not query.topic:
        raise ValueError("choose a topic first")
    logs = await admin.describe_partitions([query.topic])
    starts: dict[int, int] = {}
    if isinstance(query.start, datetime):
        found = await admin.look_up_offsets(query.topic, query.start)
        starts = {number: at.offset for number, at in found.items() if not isinstance(at, ApiError)}
    rows: list[Row] = []
    for (_, number), log in logs.items():
        if query.partition not in (None, number):
            continue
        if isinstance(log, ApiError):
            if query.partition is not None:
                raise log
            continue
        is_newest = query.start == NEWEST
        span = query.limit if is_newest and not query.is_filter else query.scan
        start = max(log.high_watermark - span, 0) if is_newest else 0
        if isinstance(query.start, int):
            start = query.start
        start = max(starts.get(number, start), log.log_start_offset)
        end = min(start + span, log.high_watermark)
        kept: deque[Row] = deque(maxlen=query.limit)
        async for row in read(admin, query.topic, number, start, end, log.last_stable_offset):
            if query.fits(row):
                kept.append(_cut(row))
                if len(kept) == query.limit and not is_newest:
                    break
        rows += kept
    if query.start == NEWEST:
        rows.sort(key=lambda row: (row.timestamp_ms, row.partition, row.offset), reverse=True)
    return rows[: query.limit]


async def read(
    admin: Admin, topic: str, partition: int, start: int, end: int, last_stable_offset: int
) -> AsyncIterator[Row]:
    """Yield the records with offsets in [start, end), whole. Raises the broker's error, except for what is damaged."""
    offset = start
    while offset < end:
        isolation = m.IsolationLevel(offset < last_stable_offset)
        epoch = admin.cluster.leader_epoch(topic, partition)
        part = m.FetchPartition(topic, partition, offset, FETCH_BYTES, current_leader_epoch=epoch)
        request = m.FetchRequest(0, 1, FETCH_BYTES, [part], isolation, skips_gaps=True)
        response = await admin.cluster.ask_leader(request, topic, partition)
        assert isinstance(response.result, m.FetchResponse)
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
                is_hidden = batches.is_hidden(batch)
                kind = _kind(batch, is_hidden=is_hidden, is_stable=header.base_offset < last_stable_offset)
                shown = Batch(topic, partition, batch, high_watermark=end, from_offset=offset, until_offset=end)
                for each in shown:
                    size_bytes = 0 if each.value is None else len(each.value)
                    place = (topic, partition, each.offset, each.timestamp_ms)
                    yield Row(*place, each.key, each.value, each.headers, size_bytes, kind)
            except CorruptBatch as error:
                yield _unreadable(topic, partition, header.base_offset, error)
        if batches.error is not None:
            yield _unreadable(topic, partition, batches.next_offset, batches.error)
            return
        if batches.next_offset <= offset:
            return
        offset = batches.next_offset


def _kind(batch: RecordBatch, *, is_hidden: bool, is_stable: bool) -> str:
    if batch.header.is_control:
        return "abort marker" if batch.control_type is ControlType.ABORT else "commit marker"
    if is_hidden:
        return "aborted"
    return "open" if batch.header.is_transactional and not is_stable else ""


def _unreadable(topic: str, partition: int, offset: int, error: Exception) -> Row:
    return Row(topic, partition, offset, -1, None, str(error).encode(), kind="unreadable")


def _cut(row: Row) -> Row:
    key, value = (None if each is None else each[:KEPT_BYTES] for each in (row.key, row.value))
    return replace(row, key=key, value=value, is_key_cut=key != row.key)


async def whole(admin: Admin, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with keys and values that are not cut; ValueError if one of those is gone or damaged by now."""
    cut = [row for row in rows if row.is_cut]
    logs = await admin.describe_partitions(list({row.topic for row in cut})) if cut else {}
    again: dict[tuple[str, int, int], Row] = {}
    for row in cut:
        log = logs[row.topic, row.partition]
        if isinstance(log, ApiError):
            raise log
        at = (row.topic, row.partition, row.offset, row.offset + 1, log.last_stable_offset)
        found = [each async for each in read(admin, *at) if each.kind != "unreadable"]
        if not found:
            raise ValueError(f"{row.topic}-{row.partition}, offset {row.offset}: it cannot be read whole any more")
        again[row.topic, row.partition, row.offset] = found[0]
    return [again.get((row.topic, row.partition, row.offset), row) for row in rows]


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
        topic = self.query.topic
        for (_, number), log in (await self._admin.describe_partitions([topic])).items():
            if isinstance(log, ApiError) or self.query.partition not in (None, number):
                continue
            end = log.high_watermark
            position = positions.get(number, end)
            start = max(position, end - self._most)
            left_out += start - position
            found = read(self._admin, topic, number, start, end, log.last_stable_offset)
            rows += [_cut(row) async for row in found if self.query.fits(row)]
            positions[number] = end
        self._positions, self.left_out = positions, left_out
        return sorted(rows, key=lambda row: (row.timestamp_ms, row.partition, row.offset), reverse=True)
