"""The columns of `spark.read.format("warmlog")`: those of Spark's Kafka connector, in its order and types.

A user's schema, `.schema("value binary, offset bigint")` or `.option("columns", "value string, offset")`, chooses some
of them in any order; only these are built and sent to the JVM. Keys and values may be strings, without a copy. Spark
does not check a schema, so this module does.

On Sail, which runs the same class, a schema is Arrow's.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from warmlog.ranges.read_settings import Projection
from warmlog_protocol.errors import InvalidConfig

COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Name and type, as Spark writes it, of every column. `headers` is optional."""
TEXT_COLUMNS = ("key", "value")
"""These may also be `string`."""

_ARROW_NAMES = {
    "large_binary": "binary",
    "binary_view": "binary",
    "large_string": "string",
    "string_view": "string",
    "int32": "int",
    "int64": "bigint",
}


class Part(NamedTuple):
    """A column of a Spark schema, or a type within it."""

    path: str
    """As Spark writes it: `address`, `address.zip`, `tags.element`."""
    kind: Any
    never_null: str
    """How the schema says that it is never null; empty if it may be."""


def parts_of(field: Any) -> Iterator[Part]:
    """Yield the column `field` and all types within it, from the outside in; maps, which no column has, as a whole."""
    yield from _parts(field.name, field.dataType, "" if field.nullable else "NOT NULL")


def _parts(path: str, kind: Any, never_null: str) -> Iterator[Part]:
    yield Part(path, kind, never_null)
    match kind.typeName():
        case "struct":
            for field in kind.fields:
                yield from _parts(f"{path}.{field.name}", field.dataType, "" if field.nullable else "NOT NULL")
        case "array":
            yield from _parts(f"{path}.element", kind.elementType, "" if kind.containsNull else "containsNull=False")


def check_nulls(field: Any) -> None:
    """Raise InvalidConfig if the schema says that the column `field`, or a type within it, is never null."""
    for part in parts_of(field):
        if part.never_null:
            raise InvalidConfig(f"column {part.path} may be null: leave out {part.never_null}")


def parse_columns(text: str) -> Projection:
    """Parse the option `columns`: names separated by commas, each with or without its type. Raises ValueError."""
    found = []
    for item in text.split(","):
        name, _, kind = " ".join(item.split()).partition(" ")
        found.append((name, kind.lower() or COLUMN_TYPES.get(name, "")))
    try:
        return _checked(found)
    except InvalidConfig as error:
        raise ValueError(str(error)) from None


def schema_of(projection: Projection) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(
        f"{name} {'string' if name in projection.as_text else as_ddl(COLUMN_TYPES[name])}" for name in projection.names
    )


def as_ddl(kind: str) -> str:
    """Return the DDL of the type `kind`, which means the same with any `spark.sql.timestampType`."""
    return "timestamp_ltz" if kind == "timestamp" else kind


def chosen_columns(schema: Any) -> Projection:
    """Return the columns in `schema` (Spark's or Arrow's), in its order. InvalidConfig for an unknown one."""
    if not hasattr(schema, "fields"):
        return _checked([(field.name, _type_of_arrow(field.type)) for field in schema])
    for field in schema.fields:
        if field.name in COLUMN_TYPES:
            check_nulls(field)
    return _checked([(field.name, field.dataType.simpleString()) for field in schema.fields])


def _checked(columns: Sequence[tuple[str, str]]) -> Projection:
    if not columns:
        raise InvalidConfig(f"the schema has no columns: choose some of {', '.join(COLUMN_TYPES)}")
    for name, kind in columns:
        if name not in COLUMN_TYPES:
            raise InvalidConfig(_unknown(name))
        own = COLUMN_TYPES[name]
        if kind not in (own, as_ddl(own)) and not (kind == "string" and name in TEXT_COLUMNS):
            either = " or string" if name in TEXT_COLUMNS else ""
            raise InvalidConfig(f"column {name} is {as_ddl(own)}{either}, the schema says {kind}")
    names = tuple(name for name, _ in columns)
    if len(set(names)) != len(names):
        raise InvalidConfig(f"the schema names a column twice: {', '.join(names)}")
    return Projection(names, frozenset(name for name, kind in columns if kind == "string" and name in TEXT_COLUMNS))


def _type_of_arrow(kind: Any) -> str:
    """Return Spark's name of an Arrow type, if a column can have it."""
    text = str(kind)
    if text.startswith("timestamp["):
        return "timestamp"
    return COLUMN_TYPES["headers"] if text.startswith(("list<", "large_list<")) else _ARROW_NAMES.get(text, text)


def _unknown(name: str) -> str:
    spelling = {known.lower(): known for known in COLUMN_TYPES}
    nearest = difflib.get_close_matches(name.lower(), spelling, n=1, cutoff=0.6)
    meant = f": did you mean {spelling[nearest[0]]}?" if nearest else f", only {', '.join(COLUMN_TYPES)}"
    return f"format warmlog has no column {name}{meant}"
