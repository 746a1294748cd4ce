"""How far a group is behind: records that it has not read, and the age of the first of them."""

from collections.abc import Sequence

from msgspec import Struct

from warmlog.admin.group_descriptions import CommittedOffset
from warmlog.errors import ApiError
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from warmlog_transport.cluster import Cluster
from warmlog_transport.list_offsets import OffsetAt, Unread, ages_s, located, look_up


class GroupLag(Struct, frozen=True):
    """How far a group is behind in one partition. None stands for what is not known."""

    topic: str
    partition: int
    committed: int
    """The offset of the next record to read."""
    log_start_offset: int | None
    high_watermark: int | None
    """The end of what may be read, exclusive."""
    records: int | None
    """How many offsets are left to read: those that compaction removed count, those below the log start do not."""
    seconds: float | None
    """The age of the first record that is left to read; 0 if there is none."""
    error: ApiError | None = None
    """Why the offsets are not known."""
    metadata: str = ""
    """What the last commit has left with the offset."""


async def measure_lags(cluster: Cluster, offsets: Sequence[CommittedOffset], *, with_age: bool) -> list[GroupLag]:
    """Return the lag of each of `offsets`, of any groups, in their order. Asks about a partition once.

    Without `with_age` the seconds of what is not read are None.
    """
    places = [(each.topic, each.partition) for each in offsets]
    starts = await look_up(cluster, dict.fromkeys(places, EARLIEST_TIMESTAMP))
    ends = await look_up(cluster, dict.fromkeys(places, LATEST_TIMESTAMP))
    left = [_left(each, starts[tp], ends[tp]) for each, tp in zip(offsets, places, strict=True)]
    found = [unread for unread in left if isinstance(unread, Unread)]
    ages = await ages_s(cluster, found if with_age else [unread for unread in found if not unread.records])
    return [
        GroupLag(*tp, each.offset, None, None, None, None, unread, each.metadata)
        if isinstance(unread, ApiError)
        else GroupLag(
            *tp,
            each.offset,
            located(starts[tp]).offset,
            unread.end,
            unread.records,
            ages.get(unread),
            metadata=each.metadata,
        )
        for each, tp, unread in zip(offsets, places, left, strict=True)
    ]


def _left(committed: CommittedOffset, start: OffsetAt | ApiError, end: OffsetAt | ApiError) -> Unread | ApiError:
    if isinstance(start, ApiError):
        return start
    if isinstance(end, ApiError):
        return end
    return Unread(committed.topic, committed.partition, max(committed.offset, start.offset), end.offset)
