"""How far a consumer is from the end of what it reads."""

import asyncio
import time
from bisect import bisect_left
from typing import NamedTuple

from warmlog.cluster.responses import TopicPartition
from warmlog.consumer.consumer_core import ConsumerCore
from warmlog.errors import CorruptBatch
from warmlog.points import LATEST
from warmlog.records.fetched import first_header
from warmlog_protocol.batch import RecordBatch


class Lag(NamedTuple):
    """What is not read yet: how many offsets, and how long ago the first of their records was written."""

    records: int
    seconds: float


async def lags(core: ConsumerCore) -> dict[TopicPartition, Lag]:
    """Return the lag of each partition that is read."""
    ends = await core.ends(LATEST)
    positions = {partition: core.position(partition) for partition in ends}
    times = await asyncio.gather(
        *(_time_ms(core, partition, offset, ends[partition]) for partition, offset in positions.items())
    )
    now_ms = time.time_ns() // 1_000_000
    found = {}
    for (partition, offset), time_ms in zip(positions.items(), times, strict=True):
        age_ms = 0 if time_ms is None else max(now_ms - time_ms, 0)
        found[partition] = Lag(max(ends[partition] - offset, 0), age_ms / 1000)
    return found


async def _time_ms(core: ConsumerCore, partition: TopicPartition, offset: int, end: int) -> int | None:
    """The time of the first record from `offset` on; None if there is none, or it cannot be read."""
    if offset >= end or partition not in core.readers:
        return None
    part, payload = await core.losses.fetch_one(core.readers[partition], offset)
    header = first_header(part, payload, offset)
    if header is None:
        return None
    batch = RecordBatch(header, payload[: header.size_bytes])
    try:
        index = bisect_left(batch.offsets(), offset)
        return batch.timestamps_ms()[index] if index < batch.record_count else header.max_timestamp_ms
    except CorruptBatch:
        return header.max_timestamp_ms
