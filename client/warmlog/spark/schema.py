"""The columns of `spark.read.format("warmlog")`: those of Spark's Kafka connector, in its order and types.

A schema that the user gives, `.schema("value binary, offset bigint")`, is a choice among them in any order; only what
it names is built and sent to the JVM. Spark does not check it, so it is checked here.
"""

import difflib
from typing import Any

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


def default_schema(*, include_headers: bool) -> str:
    """The schema of a load() without one, as DDL."""
    names = [name for name in COLUMN_TYPES if name != "headers" or include_headers]
    return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in names)


def chosen_columns(schema: Any) -> tuple[str, ...]:
    """The names of the columns in `schema` (a StructType), in its order. InvalidConfig for one that does not exist."""
    if not schema.fields:
        raise InvalidConfig(f"the schema has no columns: choose among {', '.join(COLUMN_TYPES)}")
    for field in schema.fields:
        if field.name not in COLUMN_TYPES:
            raise InvalidConfig(_unknown(field.name))
        found = field.dataType.simpleString()
        if found != COLUMN_TYPES[field.name]:
            raise InvalidConfig(f"column {field.name} is {COLUMN_TYPES[field.name]}, the schema says {found}")
        if not field.nullable:
            raise InvalidConfig(f"column {field.name} may be null as Spark sees it: leave out NOT NULL")
    names = tuple(field.name for field in schema.fields)
    if len(set(names)) != len(names):
        raise InvalidConfig(f"the schema names a column twice: {', '.join(names)}")
    return names


def _unknown(name: str) -> str:
    spelling = {known.lower(): known for known in COLUMN_TYPES}
    nearest = difflib.get_close_matches(name.lower(), spelling, n=1, cutoff=0.6)
    meant = f"did you mean {spelling[nearest[0]]}?" if nearest else f"there are {', '.join(COLUMN_TYPES)}"
    return f"format warmlog has no column {name}: {meant}"
