"""The columns of `spark.read.format("warmlog")`: those of Spark's Kafka connector, in its order and types.

A schema that the user gives, `.schema("value binary, offset bigint")` or `.option("columns", "value string, offset")`,
is a choice among them in any order; only what it names is built and sent to the JVM. Keys and values can be had as
strings, which costs no copy. Spark does not check a schema, so it is checked here.

On Sail, which runs the same class, a schema is Arrow's.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from warmlog.ranges.read_settings import KAFKA_COLUMNS, Projection
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
"""Name and type, as Spark writes it, of every column. `headers` comes only when asked for."""
TEXT_COLUMNS = ("key", "value")
"""These may be `string` as well."""

_ARROW_NAMES = {
    "large_binary": "binary",
    "binary_view": "binary",
    "large_string": "string",
    "string_view": "string",
    "int32": "int",
    "int64": "bigint",
}


class Part(NamedTuple):
    """A column of a schema of Spark's, or a type within it."""

    path: str
    """As Spark writes it: `place`, `place.zip`, `tags.element`."""
    kind: Any
    never_null: str
    """How the schema says that it is never null; empty where it may be."""


def parts_of(field: Any) -> Iterator[Part]:
    """The column `field` and all types within it, from the outside in. Maps, which no column has, are not opened."""
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
    """InvalidConfig where the schema says of the column `field`, or of something within it, that it is never null."""
    for part in parts_of(field):
        if part.never_null:
            raise InvalidConfig(f"column {part.path} may be null as Spark sees it: leave out {part.never_null}")


def parse_columns(text: str) -> Projection:
    """What the option `columns` chooses: names separated by commas, each with its type behind it or without.

    ValueError says what is wrong.
    """
    found = []
    for item in text.split(","):
        name, _, kind = " ".join(item.split()).partition(" ")
        found.append((name, kind.lower() or COLUMN_TYPES.get(name, "")))
    try:
        return _checked(found)
    except InvalidConfig as error:
        raise ValueError(str(error)) from None


def default_projection(*, include_headers: bool) -> Projection:
    """The columns of a load() without a schema."""
    return Projection((*KAFKA_COLUMNS, "headers") if include_headers else KAFKA_COLUMNS)


def schema_of(projection: Projection) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(
        f"{name} {'string' if name in projection.as_text else as_ddl(COLUMN_TYPES[name])}" for name in projection.names
    )


def as_ddl(kind: str) -> str:
    """The type that Spark writes as `kind`, in words that mean it whatever `spark.sql.timestampType` says."""
    return "timestamp_ltz" if kind == "timestamp" else kind


def chosen_columns(schema: Any) -> Projection:
    """The columns in `schema` (Spark's or Arrow's), in its order. InvalidConfig for one that does not exist."""
    if not hasattr(schema, "fields"):
        return _checked([(field.name, _type_of_arrow(field.type)) for field in schema])
    for field in schema.fields:
        if field.name in COLUMN_TYPES:
            check_nulls(field)
    return _checked([(field.name, field.dataType.simpleString()) for field in schema.fields])


def _checked(columns: Sequence[tuple[str, str]]) -> Projection:
    """The projection of these names and types."""
    if not columns:
        raise InvalidConfig(f"the schema has no columns: choose among {', '.join(COLUMN_TYPES)}")
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
    """Spark's name of an Arrow type, of those that matter here."""
    text = str(kind)
    if text.startswith("timestamp["):
        return "timestamp"
    return COLUMN_TYPES["headers"] if text.startswith(("list<", "large_list<")) else _ARROW_NAMES.get(text, text)


def _unknown(name: str) -> str:
    spelling = {known.lower(): known for known in COLUMN_TYPES}
    nearest = difflib.get_close_matches(name.lower(), spelling, n=1, cutoff=0.6)
    meant = f"did you mean {spelling[nearest[0]]}?" if nearest else f"there are {', '.join(COLUMN_TYPES)}"
    return f"format warmlog has no column {name}: {meant}"
