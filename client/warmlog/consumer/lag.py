"""How far a consumer is from the end of what it reads."""

from typing import NamedTuple

from warmlog.consumer.consumer_core import ConsumerCore
from warmlog_transport.list_offsets import Unread, ages_s
from warmlog_transport.responses import TopicPartition


class Lag(NamedTuple):
    """What is not read yet: how many offsets, from the log start on, and how long ago the first record was written.

    `seconds` is 0 if nothing is left, and None if that time is not known.
    """

    records: int
    seconds: float | None


async def lags(core: ConsumerCore) -> dict[TopicPartition, Lag]:
    """Return the lag of each partition that is read."""
    unread = [
        Unread(*partition, max(core.position(partition), log.start), log.stop)
        for partition, log in (await core.available()).items()
        if partition in core.readers
    ]
    ages = await ages_s(core.cluster, unread)
    return {(each.topic, each.partition): Lag(each.records, ages[each]) for each in unread}
