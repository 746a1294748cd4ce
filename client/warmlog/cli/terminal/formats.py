"""The formats of `warmlog consume`: raw values, JSON, or a template.

`raw` is each value as it is stored, and a newline; a null value is an empty line.

`json` is one object a line::

    {"topic": "flights", "partition": 0, "offset": 17, "timestamp_ms": 1372636800000, "key": "UA", "value": "…",
     "headers": [{"name": "source", "value": "…"}]}

Bytes that are not UTF-8 are base64, and another field says so: `"value_encoding": "base64"`. `headers` is present if
the record has any. A timestamp of -1 stands for none.
"""

from collections.abc import Sequence
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from warmlog.cli.terminal.templates import BatchWriter, compile_template

if TYPE_CHECKING:
    from warmlog import Batch

Base64Mark = Literal["base64"] | UnsetType
Text = str | bytes | None
"""How msgspec writes a cell: text as it is, bytes as base64, None as null."""


class JsonHeader(Struct):
    """One header of a record."""

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
    headers: list[JsonHeader] | UnsetType = UNSET


def batch_writer(name: str) -> BatchWriter:
    """Return the writer for `raw`, `json` or a template; ValueError for anything else."""
    if name == "raw":
        return write_raw
    if name == "json":
        return write_json
    if "%" in name:
        return compile_template(name)
    raise ValueError(f"{name!r} is neither raw, nor json, nor a template with tokens such as '%k %v'")


def write_raw(batch: "Batch", count: int) -> bytes:
    """Return the first `count` values, each followed by a newline."""
    values: Sequence[bytes | None] = batch.values if count == len(batch) else batch.values[:count]
    try:
        return b"\n".join(values) + b"\n"  # type: ignore[arg-type]  # nulls are rare: checking for them costs more
    except TypeError:
        return b"\n".join([value or b"" for value in values]) + b"\n"


def write_json(batch: "Batch", count: int) -> bytes:
    """Return the first `count` records, each as one line of JSON."""
    keys, values = _texts(batch.keys), _texts(batch.values)
    columns = (repeat(batch.topic), repeat(batch.partition), batch.offsets, batch.timestamps_ms, keys, values)
    records = list(map(JsonRecord, *(islice(column, count) for column in columns)))
    if bytes in map(type, chain(keys, values)):
        for record in records:
            record.key_encoding, record.value_encoding = _mark(record.key), _mark(record.value)
    if any(batch.headers):
        for record, headers in zip(records, batch.headers, strict=False):
            if headers:
                record.headers = [_header(name, value) for name, value in headers]
    return _encode_lines(records)


_encode_lines = msgspec.json.Encoder().encode_lines


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


def _header(name: str, value: bytes | None) -> JsonHeader:
    text = _text(value)
    return JsonHeader(name, text, _mark(text))
