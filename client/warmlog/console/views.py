"""How the bytes of a record are shown: as text, as JSON that can be folded, in hex, as fields of a table. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from warmlog.cli.terminal.output import escaped
from warmlog.console.reading import Row
from warmlog.errors import InvalidConfig
from warmlog.extras import install_hint

NULL, EMPTY = "null", "(empty)"
PREVIEW = 200
"""Characters of a value in the list."""
MAX_NODES, MAX_DEPTH = 2_000, 60
"""Of a tree: more is shown as text alone."""
MAX_FIELDS = 30
HEX_BYTES = 4096


def text_of(data: bytes | None, decoded: Any = None) -> str:
    """Return bytes as text: what is not UTF-8 and what a terminal or a browser would obey is escaped, such
    as what turns the direction of the text after it.
    """
    if decoded is not None:
        return decoded if isinstance(decoded, str) else msgspec.json.encode(decoded, enc_hook=str).decode()
    if not data:
        return NULL if data is None else EMPTY
    text = data.decode("utf-8", errors="backslashreplace")
    return "".join(
        each if each in "\n\t" or each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def preview(data: bytes | None, decoded: Any = None) -> str:
    """Return the beginning of a text, in one line."""
    text = text_of(data and data[: PREVIEW * 4], decoded).replace("\n", " ")
    return f"{text[:PREVIEW]}…" if len(text) > PREVIEW else text


def hex_of(data: bytes | None) -> str:
    """Return the beginning of the bytes in hex, sixteen a line with their offset and their letters."""
    lines, shown = [], (data or b"")[:HEX_BYTES]
    for start in range(0, len(shown), 16):
        part = shown[start : start + 16]
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
    """Return the nodes of a tree of this value; empty if there would be more than MAX_NODES, or MAX_DEPTH levels."""
    count, is_too_deep = 0, False

    def node(label: str, each: Any, depth: int) -> dict[str, Any]:
        nonlocal count, is_too_deep
        count += 1
        found: dict[str, Any] = {"id": count, "label": label}
        if not isinstance(each, (dict, list)):
            return {**found, "label": f"{label}: {msgspec.json.encode(each).decode()}"}
        is_too_deep |= depth == MAX_DEPTH
        inner = each.items() if isinstance(each, dict) else enumerate(each)
        found["label"] += f" {'{}' if isinstance(each, dict) else '[]'} {len(each)}"
        is_shown = not is_too_deep
        found["children"] = [
            node(escaped(str(name)), part, depth + 1) for name, part in inner if is_shown and count <= MAX_NODES
        ]
        return found

    root = node("value", value, 0)
    return [] if is_too_deep or count > MAX_NODES else [root]


def fields_of(rows: Sequence[Row], decode: Callable[[Row], Any]) -> tuple[list[str], list[list[str]]]:
    """Return the fields of values that are JSON objects, in the order in which they come, and a line for each row."""
    objects = [value if isinstance(value := json_of(row.value, decode(row)), dict) else {} for row in rows]
    names = list(dict.fromkeys(name for each in objects for name in each))[:MAX_FIELDS]
    return names, [["" if each.get(name) is None else text_of(b"", each[name]) for name in names] for each in objects]


def to_parquet(rows: Sequence[Row]) -> bytes:
    """Return the rows as a Parquet file. InvalidConfig without pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InvalidConfig(f"Parquet needs pyarrow: {install_hint('arrow')}") from None
    header = pa.struct([("name", pa.string()), ("value", pa.binary())])
    kinds = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
    kinds |= {"timestamp_ms": pa.timestamp("ms", "UTC"), "key": pa.binary(), "value": pa.binary()}
    kinds |= {"headers": pa.list_(header)}
    lines = [
        {**msgspec.structs.asdict(row), "headers": [{"name": name, "value": data} for name, data in row.headers]}
        for row in rows
    ]
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(lines, pa.schema(kinds)), sink)
    return bytes(sink.getvalue())
