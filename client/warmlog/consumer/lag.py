"""How far a consumer is from the end of what it reads."""

from typing import NamedTuple

from warmlog.cluster.first_timestamps import Unread, ages_s
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
    ages = await ages_s(core.cluster, unread)
    return {(each.topic, each.partition): Lag(each.records, ages[each]) for each in unread}
