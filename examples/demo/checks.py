"""Steps 4 and 5 of the demo: consume everything, and seek, and compare with what was sent and acknowledged."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from demo.flights import Flights
from demo.processes import DemoFailed
from warmlog import Admin, Batch, Consumer, RecordMetadata


class CheckFailed(DemoFailed):
    """The log does not hold what it must."""


class ComparedRecord(NamedTuple):
    """The parts of a record that are compared."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class ExpectedPartition:
    """The records that one partition must hold from offset 0 on, in the order of sending."""

    partition: int
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    consumed: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def record(self, offset: int) -> ComparedRecord:
        """Return the record that must be at `offset`."""
        return ComparedRecord(offset, self.timestamps_ms[offset], self.keys[offset], self.values[offset])

    def add(self, key: bytes, value: bytes, timestamp_ms: int, placed_offset: int) -> None:
        """Add the next record, acknowledged at `placed_offset`, or -1 if that is unknown."""
        if placed_offset not in (-1, len(self.values)):
            raise CheckFailed(
                f"partition {self.partition}: record {len(self.values)} was acknowledged at offset {placed_offset}"
            )
        self.keys.append(key)
        self.values.append(value)
        self.timestamps_ms.append(timestamp_ms)

    def check(self, batch: Batch) -> None:
        """Raise CheckFailed unless `batch` holds exactly the next records."""
        start, end = self.consumed, self.consumed + len(batch)
        self.consumed = end
        if (
            batch.offsets == list(range(start, end))
            and batch.values == self.values[start:end]
            and batch.keys == self.keys[start:end]
            and batch.timestamps_ms == self.timestamps_ms[start:end]
        ):
            return
        records = map(ComparedRecord, batch.offsets, batch.timestamps_ms, batch.keys, batch.values)
        for offset, record in enumerate(records, start):
            if offset >= len(self.values):
                raise CheckFailed(f"partition {self.partition}: {record} was never sent")
            if record != self.record(offset):
                raise CheckFailed(f"partition {self.partition}: expected {self.record(offset)}, found {record}")

    def check_end(self) -> None:
        """Raise CheckFailed unless every record was consumed."""
        if self.consumed != len(self.values):
            raise CheckFailed(
                f"partition {self.partition}: {len(self.values)} records acknowledged, {self.consumed} consumed"
            )


def expected_partitions(flights: Flights, placed: Sequence[RecordMetadata]) -> dict[int, ExpectedPartition]:
    """Return what each partition must hold. CheckFailed if an acknowledged offset or a key's partition is wrong."""
    partitions: dict[int, ExpectedPartition] = {}
    of_key: dict[bytes, int] = {}
    records = zip(flights.keys, flights.values, flights.timestamps_ms, placed, strict=True)
    for key, value, timestamp_ms, metadata in records:
        number = metadata.partition
        if of_key.setdefault(key, number) != number:
            raise CheckFailed(f"key {key!r} is in partition {of_key[key]} and in partition {number}")
        if number not in partitions:
            partitions[number] = ExpectedPartition(number)
        partitions[number].add(key, value, timestamp_ms, metadata.offset)
    return dict(sorted(partitions.items()))


async def consume_and_check(address: str, topic: str, expected: dict[int, ExpectedPartition]) -> int:
    """Consume and check all records; return how many there are."""
    count = 0
    async with Consumer(address, topics=[topic], start="earliest") as consumer:
        async for batch in consumer.batches(until="latest"):
            partition = expected.get(batch.partition)
            if partition is None:
                raise CheckFailed(f"partition {batch.partition}: its {len(batch)} records were never sent")
            partition.check(batch)
            count += len(batch)
    for partition in expected.values():
        partition.check_end()
    return count


async def first_from(
    address: str, topic: str, when: datetime, expected: dict[int, ExpectedPartition]
) -> dict[int, ComparedRecord | None]:
    """Return the first record at or after `when` of each partition, None if there is none, and check it.

    ListOffsets and the consumer's seek must agree with what was sent, whose timestamps rise within each partition.
    """
    async with Admin(address) as admin:
        listed = await admin.list_offsets(topic, when)
    found: dict[int, ComparedRecord | None] = {}
    for number, partition in expected.items():
        offset = bisect_left(partition.timestamps_ms, when.timestamp() * 1000)
        if listed[number].offset != offset:
            raise CheckFailed(f"partition {number}: offset {offset} expected at {when}, found {listed[number].offset}")
        found[number] = None
        if offset == len(partition):
            continue
        async with Consumer(address, partitions=[(topic, number)]) as consumer:
            await consumer.seek_to_time(when)
            async for record in consumer.records(until="latest"):
                found[number] = ComparedRecord(record.offset, record.timestamp_ms, record.key, record.value)
                break
        if found[number] != partition.record(offset):
            raise CheckFailed(f"partition {number}: expected {partition.record(offset)}, found {found[number]}")
    return found
