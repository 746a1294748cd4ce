"""Step 5 of the demo: the first flight from a time on, in each partition."""

from bisect import bisect_left
from datetime import datetime

from warmlog.cli.demo.checking import CheckFailed, ExpectedPartition, Record


async def first_from(
    address: str, topic: str, when: datetime, expected: dict[int, ExpectedPartition]
) -> dict[int, Record | None]:
    """The first record at or after `when` of each partition, checked: None where there is none.

    ListOffsets and the consumer's seek must agree with what was sent, whose timestamps rise within each partition.
    """
    from warmlog import Admin, Consumer

    async with Admin(address) as admin:
        listed = await admin.list_offsets(topic, when)
    found: dict[int, Record | None] = {}
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
                found[number] = Record(record.offset, record.timestamp_ms, record.key, record.value)
                break
        if found[number] != partition.record(offset):
            raise CheckFailed(f"partition {number}: expected {partition.record(offset)}, found {found[number]}")
    return found
