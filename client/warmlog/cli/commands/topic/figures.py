"""How many records a topic has, how large they are on disk, and when the last one was written."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmlog import Admin, TopicDescription

NO_TIME = -1
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one partition, or sums over a topic's. An offline partition has no records; its size is unknown."""

    records: int
    """Offsets from the log start to the high watermark: those that compaction removed count, too."""
    size_bytes: int
    last_record_ms: int = NO_TIME
    """The latest timestamp of a record."""


def total(figures: Collection[Figures]) -> Figures:
    """Return the sums, and the latest of the times; an unknown size counts as none, unless all are."""
    sizes = [each.size_bytes for each in figures if each.size_bytes != UNKNOWN]
    return Figures(
        sum(each.records for each in figures),
        sum(sizes) if sizes or not figures else UNKNOWN,
        max((each.last_record_ms for each in figures), default=NO_TIME),
    )


async def sizes_on_disk(admin: "Admin", topics: list[str] | None = None) -> dict[tuple[str, int], int]:
    """Return the size of each partition's log; without those that are offline and copies that are being moved.

    Empty if the user has no right to see the data directories.
    """
    from warmlog.errors import ClusterAuthorizationFailed

    try:
        directories = await admin.describe_log_dirs(topics)
    except ClusterAuthorizationFailed:
        return {}
    return {
        (replica.topic, replica.partition): replica.size_bytes
        for directory in directories
        for replica in directory.replicas
        if not replica.is_future and replica.offset_lag >= 0
    }


def figures_of(topic: "TopicDescription", sizes: dict[tuple[str, int], int]) -> dict[int, Figures]:
    """Return the figures of each partition, without times."""
    return {
        each.partition: Figures(
            0 if each.error is not None else each.high_watermark - each.log_start_offset,
            sizes.get((topic.name, each.partition), UNKNOWN),
        )
        for each in topic.partitions
    }


async def figures_with_times(admin: "Admin", topic: "TopicDescription") -> dict[int, Figures]:
    """Return the figures of each partition, with the time of its last record."""
    sizes = await sizes_on_disk(admin, [topic.name])
    latest = await admin.look_up_offsets(topic.name, "max_timestamp")
    times = {number: NO_TIME if isinstance(at, Exception) else at.timestamp_ms for number, at in latest.items()}
    return {
        number: Figures(each.records, each.size_bytes, times.get(number, NO_TIME))
        for number, each in figures_of(topic, sizes).items()
    }
