"""Records as lines of JSON: what `warmlog consume --format json` prints and `warmlog produce --format json` reads.

One object a line::

    {"topic": "flights", "partition": 0, "offset": 17, "timestamp_ms": 1372636800000, "key": "UA", "value": "…",
     "headers": [{"name": "source", "value": "…"}]}

Bytes that are not UTF-8 are base64, and another field says so: `"value_encoding": "base64"`; so do `key_encoding` and a
header's `value_encoding`. Null stands for a null key, value or header value. `headers` is present if the record has
any; they keep their order, and names may repeat. `"timestamp_type": "LogAppendTime"` is present if the broker set the
timestamp. A timestamp of -1 stands for none.

Read back, only `value` must be present. Without `timestamp_ms`, or with -1, the record gets the time of sending;
without `partition` its key chooses. `topic`, `offset` and `timestamp_type` have no effect. Any other field is an error.
"""

import re
import time
from base64 import b64decode
from collections.abc import Iterable, Sequence
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.records import Parcel
from warmlog_protocol.errors import did_you_mean

if TYPE_CHECKING:
    from warmlog import Batch
    from warmlog.records.batch import Header, Record

Base64Mark = Literal["base64"] | UnsetType
Text = str | bytes | None
"""How msgspec writes a cell: text as it is, bytes as base64, None as null."""

_UNKNOWN_FIELD = re.compile(r"unknown field `(.*?)`(.*)")


class JsonHeader(Struct):
    name: str
    value: Text
    value_encoding: Base64Mark = UNSET


class JsonRecord(Struct, gc=False):
    """One line of `--format json`, in the order of its fields."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Text
    value: Text
    key_encoding: Base64Mark = UNSET
    value_encoding: Base64Mark = UNSET
    timestamp_type: Literal["LogAppendTime"] | UnsetType = UNSET
    headers: list[JsonHeader] | UnsetType = UNSET


class GivenHeader(Struct, forbid_unknown_fields=True):
    """A header as it is read back."""

    name: str
    value: str | None
    value_encoding: Base64Mark = UNSET


class GivenRecord(Struct, forbid_unknown_fields=True):
    """A line as it is read back."""

    value: str | None
    key: str | None = None
    key_encoding: Base64Mark = UNSET
    value_encoding: Base64Mark = UNSET
    headers: Sequence[GivenHeader] = ()
    timestamp_ms: Annotated[int, Meta(ge=-1)] = -1
    partition: Annotated[int, Meta(ge=0)] | None = None
    topic: Any = None
    offset: Any = None
    timestamp_type: Any = None


_encode_lines = msgspec.json.Encoder().encode_lines
_decode = msgspec.json.Decoder(GivenRecord).decode


# --- writing --------------------------------------------------------------------------------------------------------


def write_json(batch: "Batch", count: int) -> bytes:
    """Return the first `count` records, each as one line of JSON."""
    keys, values = _texts(batch.keys), _texts(batch.values)
    columns = (repeat(batch.topic), repeat(batch.partition), batch.offsets, batch.timestamps_ms, keys, values)
    records = list(map(JsonRecord, *(islice(column, count) for column in columns)))
    if bytes in map(type, chain(keys, values)):
        for record in records:
            record.key_encoding, record.value_encoding = _mark(record.key), _mark(record.value)
    if batch.is_log_append_time:
        for record in records:
            record.timestamp_type = "LogAppendTime"
    if batch.has_headers:
        for record, headers in zip(records, batch.headers, strict=False):
            if headers:
                record.headers = _json_headers(headers)
    return _encode_lines(records)


def write_json_records(records: "Iterable[Record]") -> bytes:
    """Return each record as one line of JSON; they may be of several batches."""
    lines = []
    for record in records:
        key, value, place = _text(record.key), _text(record.value), (record.topic, record.partition, record.offset)
        line = JsonRecord(*place, record.timestamp_ms, key, value, _mark(key), _mark(value))
        line.headers = _json_headers(record.headers) if record.headers else UNSET
        lines.append(line)
    return _encode_lines(lines)


def _json_headers(headers: "Sequence[Header]") -> list[JsonHeader]:
    texts = [(name, _text(value)) for name, value in headers]
    return [JsonHeader(name, text, _mark(text)) for name, text in texts]


def _texts(cells: Sequence[bytes | None]) -> list[Text]:
    """Return each cell as text if it is UTF-8, else unchanged."""
    try:
        return [cell if cell is None else cell.decode() for cell in cells]
    except UnicodeDecodeError:
        return [_text(cell) for cell in cells]


def _text(cell: bytes | None) -> Text:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return cell


def _mark(cell: Text) -> Base64Mark:
    return "base64" if isinstance(cell, bytes) else UNSET


# --- reading --------------------------------------------------------------------------------------------------------


def read_json(lines: Sequence[bytes], lines_before: int, partition: int | None, *, by_key: bool) -> list[Parcel]:
    """Return the records of `lines` in one parcel for each partition, in order. CommandFailed names a wrong line.

    Every record goes to `partition` if it is given, and where its key says with `by_key`; else to the partition that
    the line gives.
    """
    records: list[GivenRecord] = []
    try:
        for decoded in map(_decode, lines):
            records.append(decoded)  # noqa: PERF402  (how many there are says which line is wrong)
    except msgspec.DecodeError as error:
        raise CommandFailed(f"line {lines_before + len(records) + 1}: {_advice(str(error))}") from None
    except UnicodeDecodeError:
        number = lines_before + len(records) + 1
        raise CommandFailed(f"line {number} is not UTF-8: give such bytes as base64, marked by …_encoding") from None
    parts: dict[int | None, list[int]] = {}
    for index, record in enumerate(records):
        own = partition if by_key or partition is not None else record.partition
        parts.setdefault(own, []).append(index)
    now_ms = time.time_ns() // 1_000_000
    try:
        return [_parcel([records[index] for index in own], place, now_ms) for place, own in parts.items()]
    except ValueError:
        for number, record in enumerate(records, start=lines_before + 1):
            _check_cells(record, number)
        raise


def _parcel(records: list[GivenRecord], partition: int | None, now_ms: int) -> Parcel:
    return Parcel(
        [_cell(record.value, record.value_encoding) for record in records],
        [_cell(record.key, record.key_encoding) for record in records],
        [now_ms if record.timestamp_ms < 0 else record.timestamp_ms for record in records],
        [_headers(record.headers) if record.headers else None for record in records],
        partition,
    )


def _cell(text: str | None, mark: Base64Mark) -> bytes | None:
    """Return the bytes of a key or value. ValueError if they are not base64 although marked so, or not Unicode."""
    if text is None:
        return None
    return text.encode() if mark is UNSET else b64decode(text, validate=True)


def _headers(headers: Sequence[GivenHeader]) -> "list[Header]":
    return [(header.name, _cell(header.value, header.value_encoding)) for header in headers]


def _check_cells(record: GivenRecord, number: int) -> None:
    """Raise CommandFailed if a cell of the record is not what its mark says."""
    marked = [("key", record.key, record.key_encoding), ("value", record.value, record.value_encoding)]
    marked += [(f"header {header.name!r}", header.value, header.value_encoding) for header in record.headers]
    for what, text, mark in marked:
        try:
            _cell(text, mark)
        except ValueError:
            raise CommandFailed(f"line {number}: {what} is not {'text' if mark is UNSET else 'base64'}") from None


def _advice(message: str) -> str:
    """Return what msgspec found wrong, with the nearest field in place of an unknown one."""
    found = _UNKNOWN_FIELD.search(message)
    if found is None:
        return f"{message}; one JSON object a line expected, as consume --format json prints"
    kind: type[Struct] = GivenHeader if "headers" in found[2] else GivenRecord
    return f"unknown field {found[1]!r}{did_you_mean(found[1], kind.__struct_fields__, 'known are')}"
