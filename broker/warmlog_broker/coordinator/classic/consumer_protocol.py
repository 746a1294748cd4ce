"""Kafka's ConsumerProtocol: what consumers of the classic protocol put into their subscriptions and assignments.

Subscription: i16 version, array of topic names, nullable bytes of the assignor; from version 1 on more follows.
Assignment: i16 version, array of (topic, array of i32 partitions), nullable bytes. Big-endian; strings have an i16
size, arrays and bytes an i32. The broker needs them for tools only; what cannot be read is no error, but empty.
"""

import struct
from collections.abc import Iterable

from warmlog_broker.coordinator.classic.state import Rebalance

CONSUMER = "consumer"
"""The protocol type of groups whose members use this; those of Connect and Kafka Streams have their own."""
MOST_NAMES = 10_000
"""Topics of a subscription, and partitions of an assignment, that are looked at: a tool asks in the event loop."""
_COUNT = struct.Struct(">i")
_SIZE = struct.Struct(">h")


def subscribed_topics(rebalance: Rebalance) -> set[str]:
    """Return the names of the topics that members subscribe to, as far as they can be read."""
    if rebalance.protocol_type != CONSUMER:
        return set()
    return {
        name
        for member in rebalance.members.values()
        for _, metadata in member.protocols
        for name in topics_of(metadata)
    }


def topics_of(metadata: bytes) -> list[str]:
    names: list[str] = []
    try:
        (count,) = _COUNT.unpack_from(metadata, 2)
        position = 6
        if count > MOST_NAMES:
            return []
        while len(names) < count:
            name, position = _string(metadata, position)
            names.append(name)
    except (struct.error, UnicodeDecodeError):
        return []
    return names


def partitions_of(assignment: bytes) -> list[tuple[str, list[int]]]:
    found: list[tuple[str, list[int]]] = []
    left = MOST_NAMES
    try:
        (count,) = _COUNT.unpack_from(assignment, 2)
        position = 6
        if count > MOST_NAMES:
            return []
        while len(found) < count:
            name, position = _string(assignment, position)
            (numbers,) = _COUNT.unpack_from(assignment, position)
            left -= numbers
            position += 4 + 4 * numbers
            if numbers < 0 or left < 0 or position > len(assignment):
                return []
            found.append((name, [_COUNT.unpack_from(assignment, position - 4 * n)[0] for n in range(numbers, 0, -1)]))
    except (struct.error, UnicodeDecodeError):
        return []
    return found


def subscription(topics: Iterable[str]) -> bytes:
    """Return a subscription, in version 0."""
    names = list(topics)
    return b"\0\0" + _COUNT.pack(len(names)) + b"".join(map(_packed, names)) + _COUNT.pack(-1)


def assignment(partitions: Iterable[tuple[str, Iterable[int]]]) -> bytes:
    """Return an assignment, in version 0."""
    topics = [(name, list(numbers)) for name, numbers in partitions]
    packed = [
        _packed(name) + _COUNT.pack(len(numbers)) + b"".join(map(_COUNT.pack, numbers)) for name, numbers in topics
    ]
    return b"\0\0" + _COUNT.pack(len(topics)) + b"".join(packed) + _COUNT.pack(-1)


def _packed(text: str) -> bytes:
    data = text.encode()
    return _SIZE.pack(len(data)) + data


def _string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = _SIZE.unpack_from(data, position)
    end = position + 2 + size
    if size < 0 or end > len(data):
        raise struct.error("the text is longer than its message")
    return data[position + 2 : end].decode(), end
