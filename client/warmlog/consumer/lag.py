"""How far a consumer is from the end of what it reads."""

import time
from typing import NamedTuple

from warmlog.cluster.first_timestamps import Unread, first_timestamps_ms
from warmlog.cluster.responses import TopicPartition
from warmlog.consumer.consumer_core import ConsumerCore
from warmlog.points import LATEST


class Lag(NamedTuple):
    """What is not read yet: how many offsets, and how long ago the first of their records was written.

    `seconds` is 0 if nothing is left, and None if that time is not known.
    """

    records: int
    seconds: float | None


async def lags(core: ConsumerCore) -> dict[TopicPartition, Lag]:
    """Return the lag of each partition that is read."""
    ends = await core.ends(LATEST)
    unread = [
        Unread(*partition, core.position(partition), end)
        for partition, end in ends.items()
        if partition in core.readers
    ]
    times_ms = await first_timestamps_ms(core.cluster, [each for each in unread if each.first < each.end])
    now_ms = time.time_ns() // 1_000_000
    found = {}
    for each in unread:
        time_ms = times_ms.get(each, now_ms)
        seconds = None if time_ms is None else max(now_ms - time_ms, 0) / 1000
        found[each.topic, each.partition] = Lag(max(each.end - each.first, 0), seconds)
    return found
