"""The columns that can be written: those of the sink of Spark's Kafka connector, and a timestamp.

===========  ================================  ====================================================================
value        string or binary                  must be there; null writes a tombstone
key          string or binary                  chooses the partition, as the Python producer's keys do
headers      array<struct<key:string,          written unless `includeHeaders` is false
             value:binary>>
topic        string                            the option `topic` comes before it; without that none may be null
partition    int                               comes before the key; null where the key decides
timestamp    timestamp                         null, or without this column: the time of writing
===========  ================================  ====================================================================

`offset` and `timestampType`, which reading has and the broker decides, are left out; any other column is refused.
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
    """Where each column to be written lies in `schema` (a StructType). InvalidConfig for one that cannot be."""
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name, kind = field.name, field.dataType.simpleString()
        if name in LEFT_OUT:
            continue
        if name not in WRITTEN:
            raise InvalidConfig(_unknown(name))
        if kind not in WRITTEN[name]:
            taken = " or ".join(map(as_ddl, WRITTEN[name]))
            raise InvalidConfig(f"column {name} is {kind}: {taken} can be written, so cast it")
        if name in found:
            raise InvalidConfig(f"there are two columns {name}: drop one")
        found[name] = index
    if "value" not in found:
        raise InvalidConfig("there is no column value, which is what is written: name one so, as with to_json(…)")
    if not has_topic and "topic" not in found:
        raise InvalidConfig("where to write? Give the option topic, or a column topic")
    if has_topic:
        found.pop("topic", None)
    if not include_headers:
        found.pop("headers", None)
    return found


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name.lower(), WRITTEN, n=1, cutoff=0.6)
    meant = (
        f"did you mean {nearest[0]}?" if nearest else f"drop it, or put it into value; written are {', '.join(WRITTEN)}"
    )
    return f"column {name} cannot be written: {meant}"
