"""Which columns a reader makes."""

from typing import NamedTuple

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class Projection(NamedTuple):
    """Names of columns in their order; those in `as_text`, key or value, are made strings."""

    names: tuple[str, ...] = KAFKA_COLUMNS
    as_text: frozenset[str] = frozenset()
