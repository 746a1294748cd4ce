"""Numbers by topic and partition in the JSON of Spark's Kafka connector: `{"orders": {"0": 23, "1": -2}}`.

Options use it, and the offsets in a stream's checkpoint. It is written sorted, topics by name and partitions by number,
because Spark compares the text of two offsets to see whether there is anything new.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from warmlog.ranges.offset_range import LARGEST_PARTITION
from warmlog_transport.responses import TopicPartition

EXAMPLE = 'JSON like {"topic": {"0": 23, "1": -2}} is expected'

OffsetsDocument = dict[str, dict[str, int]]
"""Offsets as in the JSON: partitions are text."""


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Return the numbers in `text`; ValueError for anything but whole numbers, and for duplicate names."""
    numbers = parse_by_partition(text)
    for (topic, partition), number in numbers.items():
        if type(number) is not int:
            raise ValueError(f"{topic}-{partition} has {number!r}, {EXAMPLE}")
    return numbers


def parse_by_partition(text: str) -> dict[TopicPartition, Any]:
    """Return the values in `text`, of any type, by topic and partition. ValueError for JSON of another form."""
    try:
        document = json.loads(text, object_pairs_hook=unique)
        values = {(topic, int(number)): value for topic, by in document.items() for number, value in by.items()}
        if len(values) < sum(map(len, document.values())):
            raise ValueError("a partition is given twice")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{error}; {EXAMPLE}") from None
    if any(partition < 0 for _, partition in values):
        raise ValueError(f"there is no partition below 0; {EXAMPLE}")
    _check_largest(partition for _, partition in values)
    return values


def parse_assignment(text: str) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each topic in JSON like `{"orders": [0, 1]}`; ValueError for anything else."""
    example = 'JSON like {"topic": [0, 1]} is expected'
    try:
        document = json.loads(text, object_pairs_hook=unique)
        assigned = {topic: tuple(sorted(set(numbers))) for topic, numbers in document.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{error}; {example}") from None
    for topic, numbers in assigned.items():
        if not numbers or any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError(f"topic {topic} has the partitions {list(numbers)}; {example}")
        _check_largest(numbers)
    if not assigned:
        raise ValueError(f"no topic is named; {example}")
    return assigned


def _check_largest(partitions: Iterable[int]) -> None:
    largest = max(partitions, default=0)
    if largest > LARGEST_PARTITION:
        raise ValueError(f"there is no partition {largest}, {LARGEST_PARTITION} is the largest number")


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; ValueError for duplicate names."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def offsets_document(offsets: Mapping[TopicPartition, int]) -> OffsetsDocument:
    """Return `offsets` as nested dicts, sorted."""
    document: OffsetsDocument = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = int(offset)
    return document


def offsets_of(document: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {(topic, int(partition)): offset for topic, by in document.items() for partition, offset in by.items()}
