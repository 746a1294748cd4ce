"""Names of partition directories.

::

    flights-3                                            partition 3 of the topic flights
    flights-3.0123456789abcdef0123456789abcdef-delete    the same, deleted: removed after file.delete.delay.ms
    flights-3.0123456789abcdef0123456789abcdef-future    a copy that is being moved into this data directory

The last "-" separates topic and number, because topics may contain dashes. File names have at most 255 characters, so
the topic in the other forms is cut if necessary (Kafka does not cut it in `-future`, and cannot move partitions with
long names). Directories that Kafka named `-stray` are recognised and left alone.
"""

import re
from typing import Literal, NamedTuple
from uuid import uuid4

MAX_NAME_CHARACTERS = 255

_LIVE = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)", re.ASCII)
_MARKED = re.compile(r"(?P<live>.+)\.(?P<uuid>[0-9a-f]{32})-(?P<mark>delete|future|stray)", re.ASCII)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    @property
    def directory_name(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionDirectoryName(NamedTuple):
    """A parsed directory name. `mark` is "" for a partition in use, else "delete", "future" or "stray"."""

    topic_partition: TopicPartition
    mark: str


def parse_directory_name(name: str) -> PartitionDirectoryName | None:
    """Parse `name`; None if it is not the name of a partition's directory."""
    mark = ""
    marked = _MARKED.fullmatch(name)
    if marked:
        name, mark = marked["live"], marked["mark"]
    elif name.endswith(("-delete", "-future", "-stray")):
        return None
    live = _LIVE.fullmatch(name)
    if live is None:
        return None
    return PartitionDirectoryName(TopicPartition(live["topic"], int(live["partition"])), mark)


def marked_directory_name(topic_partition: TopicPartition, mark: Literal["delete", "future"]) -> str:
    """A name that no other directory has."""
    ending = f"-{topic_partition.partition}.{uuid4().hex}-{mark}"
    return topic_partition.topic[: MAX_NAME_CHARACTERS - len(ending)] + ending
