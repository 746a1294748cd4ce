"""Checks what a caller passes as a record, before it is buffered, bounds its size, and chooses its partition."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any
from zlib import crc32

from warmlog.errors import PartitionerFailed, RecordExpired
from warmlog.times import datetime_of
from warmlog_protocol.batch import HEADER_BYTES

_log = logging.getLogger("warmlog")

Bytes = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]
Headers = Sequence[Header] | Mapping[str, bytes | None]

Partitioner = Callable[[bytes | None, int], int]
"""Called with a record's key and the number of partitions."""

RECORD_OVERHEAD_BYTES = 16
"""Upper bound on what a record takes in a batch beside its content: three lengths and a timestamp delta, 4 each."""
HEADER_OVERHEAD_BYTES = 12
"""Upper bound on what msgpack adds to a header: two lengths and the pair."""
BATCH_OVERHEAD_BYTES = HEADER_BYTES + 64
"""A batch's header, and the descriptions of its columns."""

MAX_TIMESTAMP_MS = (1 << 62) - 1
SECONDS_UP_TO = 10**11
"""A timestamp below this is in 1973 or before as milliseconds, and in the next 3000 years as seconds."""
WARN_AGAIN_NS = 60_000_000_000


def as_bytes(what: str, value: object) -> bytes | None:
    """Return `value` as immutable bytes, or None; a mutable buffer is copied. Else raise TypeError, naming `what`."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, Bytes):
        return bytes(value)
    encoding = f"; encode it first{f': {what}.encode()' if what.isidentifier() else ', with .encode()'}"
    hint = encoding if isinstance(value, str) else ""
    raise TypeError(f"{what} must be bytes, bytearray, memoryview or None, not {type(value).__name__}{hint}")


def serialized(what: str, serializer: Callable[[Any], object] | None, item: object) -> object:
    """Return what the serializer makes of `item`; the item itself if it is None or there is no serializer."""
    if item is None or serializer is None:
        return item
    data = serializer(item)
    if data is not None and not isinstance(data, Bytes):
        raise TypeError(f"{what}_serializer returned {type(data).__name__}: bytes or None expected")
    return data


def all_serialized(what: str, serializer: Callable[[Any], object] | None, items: Any) -> Any:
    """Return the list of what the serializer makes of `items`. One text or mapping is left for the next check.

    It gets the items of an Arrow array as Python has them. TypeError for a DataFrame or table, of which it would get
    the names of the columns.
    """
    if items is None or serializer is None or isinstance(items, (str, Bytes, Set, Mapping)):
        return items
    if hasattr(items, "columns"):
        raise TypeError(f"{what}s: a list or a column expected, not a {type(items).__name__}: send_frame sends rows")
    if hasattr(items, "to_pylist"):
        items = items.to_pylist()
    return [serialized(what, serializer, item) for item in items]


def as_headers(headers: Headers | None) -> list[Header] | None:
    """Return `headers` as a list of pairs, None if there are none.

    TypeError for a name or value of another type, or what is no pair.
    """
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not hasattr(pairs, "__iter__"):
        raise _not_headers(pairs)
    checked: list[Header] = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise _not_headers(pair)
        name, value = pair
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        checked.append((name, as_bytes(f"the value of header {name!r}", value)))
    return checked


def _not_headers(given: object) -> TypeError:
    return TypeError(f"headers must be pairs of a name and bytes or None, or a mapping, not {given!r:.40}")


def as_timestamp(timestamp_ms: object) -> int:
    """Return `timestamp_ms` if it is a valid number of milliseconds since 1970; else TypeError or ValueError."""
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"timestamp_ms must be an int, not {type(timestamp_ms).__name__}")
    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ValueError(f"timestamp_ms {timestamp_ms} is not between 0 and {MAX_TIMESTAMP_MS}")
    return timestamp_ms


def as_partition(partition: object) -> None:
    """Raise TypeError unless `partition` is a number, or None."""
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise TypeError(f"partition={partition!r}: an int or None expected, not {type(partition).__name__}")


def content_bytes(value: bytes | None, key: bytes | None, headers: Sequence[Header] | None) -> int:
    """Upper bound on a record's encoded payload, without RECORD_OVERHEAD_BYTES."""
    size_bytes = len(value or b"") + len(key or b"")
    for name, header_value in headers or ():
        size_bytes += len(name.encode()) + len(header_value or b"") + HEADER_OVERHEAD_BYTES
    return size_bytes


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key that is not empty.

    It is CRC-32 (zlib's, as in gzip), unsigned, modulo the number of partitions: librdkafka's default
    `consistent_random`, so that Kafka clients in Python, Go, C and .NET put records of one key into the same partition.
    (Java clients use murmur2 unless configured otherwise.) Records without a key, or with an empty one, go to one
    partition for the length of a batch and then to the next, also as in librdkafka.
    """
    return crc32(key) % partitions


def chosen_partition(partitioner: Partitioner, key: bytes | None, partitions: int) -> int:
    """The partition that the user's function chooses. PartitionerFailed if it raises, or returns something else."""
    try:
        partition = partitioner(key, partitions)
    except Exception as error:
        raise PartitionerFailed(f"the partitioner raised {error!r} for key {key!r}") from error
    if type(partition) is not int or not 0 <= partition < partitions:
        raise PartitionerFailed(
            f"the partitioner returned {partition!r} for key {key!r}: an int from 0 to {partitions - 1} expected"
        )
    return partition


class AgeCheck:
    """Warns of records that their topic would delete for their age, or refuses them."""

    def __init__(self, expired: str, now_ns: Callable[[], int] = time.time_ns) -> None:
        """`expired` is "warn" or "error", as in ProducerOptions."""
        self._is_error = expired == "error"
        self._now_ns = now_ns
        self._warned_at_ns: dict[str, int] = {}

    def __call__(self, topic: str, max_age_ms: int, oldest_ms: int) -> None:
        """Raise RecordExpired, or log a warning at most once in WARN_AGAIN_NS for a topic, if a record is too old."""
        now_ns = self._now_ns()
        if oldest_ms >= now_ns // 1_000_000 - max_age_ms:
            return
        when = datetime_of(oldest_ms).isoformat(timespec="milliseconds")
        hint = "; did you give seconds instead of milliseconds?" if oldest_ms < SECONDS_UP_TO else "."
        text = (
            f"topic {topic!r}: a record with the timestamp {when} is older than retention.ms={max_age_ms}: it will be "
            f'deleted soon{hint} Give a later timestamp_ms, raise retention.ms of the topic, or set expired to "accept"'
        )
        if self._is_error:
            raise RecordExpired(text)
        warned_at_ns = self._warned_at_ns.get(topic)
        if warned_at_ns is None or abs(now_ns - warned_at_ns) >= WARN_AGAIN_NS:
            self._warned_at_ns[topic] = now_ns
            _log.warning("%s", text)
