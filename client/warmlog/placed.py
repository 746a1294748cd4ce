"""Where records lie once they are acknowledged."""

from dataclasses import dataclass
from typing import NamedTuple


class Placed(NamedTuple):
    """Where one record lies. `offset` is -1 where the broker did not say: with acks=0, and for some retries."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PlacedMany:
    """Where the records of one `send_many` lie: by partition the ranges of their offsets, in the order of sending.

    Records without keys or of one key keep their order within a partition. A partition has no range for a batch whose
    offset the broker did not say (see Placed).
    """

    topic: str
    count: int
    ranges: dict[int, list[range]]

    @classmethod
    def of(cls, topic: str, batches: list[tuple[int, int, int]]) -> "PlacedMany":
        """From (partition, base offset, count) of each batch; ranges that follow on each other are joined."""
        ranges: dict[int, list[range]] = {}
        for partition, base_offset, count in batches:
            if base_offset < 0:
                continue
            found = ranges.setdefault(partition, [])
            if found and found[-1].stop == base_offset:
                found[-1] = range(found[-1].start, base_offset + count)
            else:
                found.append(range(base_offset, base_offset + count))
        return cls(topic, sum(count for _, _, count in batches), ranges)
