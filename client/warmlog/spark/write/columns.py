"""The columns that can be written: those of the sink of Spark's Kafka connector, and a timestamp.

===========  ================================  ====================================================================
value        string or binary                  required; null writes a tombstone
key          string or binary                  chooses the partition, as the Python producer's keys do
headers      array<struct<key:string,          written unless `includeHeaders` is false
             value:binary>>
topic        string                            the option `topic` overrides it; without that none may be null
partition    int                               overrides the key; if null, the key decides
timestamp    timestamp                         null, or without this column: the time of writing
===========  ================================  ====================================================================

`offset` and `timestampType`, which reading returns and the broker decides, are ignored; other columns are refused.
"""

import difflib
from typing import Any

from warmlog.spark.options.schema import as_ddl
from warmlog_protocol.errors import InvalidConfig

WRITTEN: dict[str, tuple[str, ...]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Name and types, as Spark writes them, of each column that is written."""
LEFT_OUT = ("offset", "timestampType")


def written_columns(schema: Any, *, has_topic: bool, include_headers: bool) -> dict[str, int]:
    """Return the index in `schema` (a StructType) of each column to write. InvalidConfig for an unknown one."""
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name, kind = field.name, field.dataType.simpleString()
        if name in LEFT_OUT:
            continue
        if name not in WRITTEN:
            raise InvalidConfig(_unknown(name))
        if kind not in WRITTEN[name]:
            expected = " or ".join(map(as_ddl, WRITTEN[name]))
            raise InvalidConfig(f"column {name} is {kind}, and only {expected} can be written: cast it")
        if name in found:
            raise InvalidConfig(f"there are two columns {name}: drop one")
        found[name] = index
    if "value" not in found:
        raise InvalidConfig("there is no column value to write: add one, for example with to_json(…) AS value")
    if not has_topic and "topic" not in found:
        raise InvalidConfig("there is no topic to write to: give the option topic, or a column topic")
    if has_topic:
        found.pop("topic", None)
    if not include_headers:
        found.pop("headers", None)
    return found


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name.lower(), WRITTEN, n=1, cutoff=0.6)
    advice = f"did you mean {nearest[0]}?" if nearest else f"drop it, or put it into value; use {', '.join(WRITTEN)}"
    return f"column {name} cannot be written: {advice}"
