"""Step 4 of the demo: consume everything, and compare it with what was sent and what was acknowledged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from warmlog.cli.demo.flights import Flights
from warmlog.cli.terminal.exits import CommandFailed

if TYPE_CHECKING:
    from warmlog import Batch, RecordMetadata


class CheckFailed(CommandFailed):
    """Something that must be true of the log is not."""


class Record(NamedTuple):
    """What of a record can be compared."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class ExpectedPartition:
    """The records that one partition must hold, in the order of sending: from offset 0 on, none missing, none twice."""

    partition: int
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    consumed: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def record(self, offset: int) -> Record:
        """The record that must lie at `offset`."""
        return Record(offset, self.timestamps_ms[offset], self.keys[offset], self.values[offset])

    def add(self, key: bytes, value: bytes, timestamp_ms: int, placed_offset: int) -> None:
        """The next record, acknowledged at `placed_offset`, which is -1 where the broker could not say."""
        if placed_offset not in (-1, len(self.values)):
            raise CheckFailed(
                f"partition {self.partition}: record {len(self.values)} was acknowledged at offset {placed_offset}"
            )
        self.keys.append(key)
        self.values.append(value)
        self.timestamps_ms.append(timestamp_ms)

    def check(self, batch: "Batch") -> None:
        """Passes when `batch` holds the next records, byte by byte."""
        start, end = self.consumed, self.consumed + len(batch)
        self.consumed = end
        if (
            batch.offsets == list(range(start, end))
            and batch.values == self.values[start:end]
            and batch.keys == self.keys[start:end]
            and batch.timestamps_ms == self.timestamps_ms[start:end]
        ):
            return
        found = map(Record, batch.offsets, batch.timestamps_ms, batch.keys, batch.values)
        self._explain(start, list(found))

    def check_end(self) -> None:
        """Passes when every record was consumed."""
        if self.consumed != len(self.values):
            raise CheckFailed(
                f"partition {self.partition}: {len(self.values)} records acknowledged, {self.consumed} consumed"
            )

    def _explain(self, start: int, found: Sequence[Record]) -> None:
        """Raises CheckFailed for the first record that differs."""
        for offset, record in enumerate(found, start):
            if offset >= len(self.values):
                raise CheckFailed(f"partition {self.partition}: nobody sent {record}")
            if record != self.record(offset):
                raise CheckFailed(f"partition {self.partition}: expected {self.record(offset)}, found {record}")


def expected_partitions(flights: Flights, placed: "Sequence[RecordMetadata]") -> dict[int, ExpectedPartition]:
    """What each partition must hold. CheckFailed when an acknowledged offset or a key's partition contradicts it."""
    partitions: dict[int, ExpectedPartition] = {}
    of_key: dict[bytes, int] = {}
    records = zip(flights.keys, flights.values, flights.timestamps_ms, placed, strict=True)
    for key, value, timestamp_ms, place in records:
        if of_key.setdefault(key, place.partition) != place.partition:
            raise CheckFailed(f"key {key!r} is in partition {of_key[key]} and in partition {place.partition}")
        if place.partition not in partitions:
            partitions[place.partition] = ExpectedPartition(place.partition)
        partitions[place.partition].add(key, value, timestamp_ms, place.offset)
    return dict(sorted(partitions.items()))


async def consume_and_check(address: str, topic: str, expected: dict[int, ExpectedPartition]) -> int:
    """How many records the topic holds, once each was found to be what it must be."""
    from warmlog import Consumer

    count = 0
    async with Consumer(address, topics=[topic], start="earliest") as consumer:
        async for batch in consumer.batches(until="latest"):
            partition = expected.get(batch.partition)
            if partition is None:
                raise CheckFailed(f"partition {batch.partition}: nobody sent its {len(batch)} records")
            partition.check(batch)
            count += len(batch)
    for partition in expected.values():
        partition.check_end()
    return count
