"""How the bytes of a record are shown: as text, as JSON that can be folded, in hex, as fields of a table. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from warmlog.cli.terminal.json_records import JsonHeader, JsonRecord
from warmlog.cli.terminal.output import escaped
from warmlog.console.reading import Row
from warmlog.errors import InvalidConfig
from warmlog.extras import install_hint

NULL, EMPTY = "null", "(empty)"
PREVIEW = 200
"""Characters of a value in the list."""
MAX_NODES = 2_000
"""Of a tree: more is shown as text."""
MAX_FIELDS = 30
HEX_BYTES = 4096


def text_of(data: bytes | None, decoded: Any = None) -> str:
    """Return bytes as text: what is not UTF-8 and what a terminal or a browser would obey is escaped."""
    if data is None:
        return NULL
    if decoded is not None:
        return decoded if isinstance(decoded, str) else msgspec.json.encode(decoded, enc_hook=str).decode()
    if not data:
        return EMPTY
    text = data.decode("utf-8", errors="backslashreplace")
    return "".join(each if each in "\n\t" or each.isprintable() else escaped_letter(each) for each in text)


def escaped_letter(letter: str) -> str:
    """Return a letter that is not printed, such as one that turns the direction of what follows, as an escape."""
    shown = escaped(letter)
    return shown if shown != letter else letter.encode("unicode_escape").decode()


def preview(data: bytes | None, decoded: Any = None) -> str:
    """Return the beginning of a text, in one line."""
    text = text_of(None if data is None else data[: PREVIEW * 4], decoded).replace("\n", " ")
    return f"{text[:PREVIEW]}…" if len(text) > PREVIEW else text


def hex_of(data: bytes | None) -> str:
    """Return the beginning of the bytes in hex, sixteen a line with their offset and their letters."""
    lines = []
    for start in range(0, min(len(data or b""), HEX_BYTES), 16):
        part = (data or b"")[start : start + 16]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def json_of(data: bytes | None, decoded: Any = None) -> Any:
    """Return the value that JSON stands for, or what a decoder has returned; None if it is neither."""
    if decoded is not None:
        return msgspec.to_builtins(decoded, enc_hook=str)
    try:
        return msgspec.json.decode(data or b"")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def tree_of(value: Any) -> list[dict[str, Any]]:
    """Return the nodes of a tree of this value; empty if there would be more than MAX_NODES."""
    count = 0

    def node(label: str, each: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        found: dict[str, Any] = {"id": count, "label": label}
        inner = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        if isinstance(each, (dict, list)):
            found["label"] += f" {'{}' if isinstance(each, dict) else '[]'} {len(each)}"
        else:
            found["label"] += f": {msgspec.json.encode(each).decode()}"
        found["children"] = [node(escaped(str(name)), part) for name, part in inner if count <= MAX_NODES]
        return found

    root = node("value", value)
    return [root] if count <= MAX_NODES else []


def fields_of(rows: Sequence[Row], decode: Callable[[Row], Any]) -> tuple[list[str], list[list[str]]]:
    """Return the fields of values that are JSON objects, in the order in which they come, and a line for each row."""
    objects = [value if isinstance(value := json_of(row.value, decode(row)), dict) else {} for row in rows]
    names = list(dict.fromkeys(name for each in objects for name in each))[:MAX_FIELDS]
    return names, [
        [text_of(b"", each[name]) if each.get(name) is not None else "" for name in names] for each in objects
    ]


# --- downloads ------------------------------------------------------------------------------------------------------


def to_json_lines(rows: Sequence[Row]) -> tuple[bytes, str]:
    """Return the rows as `warmlog consume --format json` prints them, and the suffix of a file of these."""

    def cell(data: bytes | None) -> tuple[Any, Any]:
        try:
            return None if data is None else data.decode(), msgspec.UNSET
        except UnicodeDecodeError:
            return data, "base64"

    records = []
    for row in rows:
        (key, key_mark), (value, value_mark) = cell(row.key), cell(row.value)
        headers = [JsonHeader(name, *cell(data)) for name, data in row.headers] or msgspec.UNSET
        place = (row.topic, row.partition, row.offset, row.timestamp_ms)
        records.append(JsonRecord(*place, key, value, key_mark, value_mark, headers=headers))
    return msgspec.json.Encoder().encode_lines(records), "jsonl"


def to_parquet(rows: Sequence[Row]) -> tuple[bytes, str]:
    """Return the rows as a Parquet file, and its suffix. InvalidConfig without pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InvalidConfig(f"Parquet needs pyarrow: {install_hint('arrow')}") from None
    kinds = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
    kinds |= {"timestamp_ms": pa.timestamp("ms", "UTC"), "key": pa.binary(), "value": pa.binary()}
    columns = {name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in kinds.items()}
    pair = pa.struct([("name", pa.string()), ("value", pa.binary())])
    headers = [[{"name": name, "value": data} for name, data in row.headers] for row in rows]
    columns["headers"] = pa.array(headers, pa.list_(pair))
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue()), "parquet"
