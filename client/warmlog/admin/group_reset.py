"""Where a reset moves a group: points and shifts become offsets that the log has."""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from warmlog import points
from warmlog.admin.group_descriptions import CommittedOffset
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from warmlog_transport.cluster import Cluster
from warmlog_transport.list_offsets import OffsetAt, Unread, lags, located, look_up
from warmlog_transport.responses import TopicPartition


class OffsetReset(Struct, frozen=True):
    """What a reset does to one partition: `offset` takes the place of `committed`, within what the log has."""

    topic: str
    partition: int
    committed: int | None
    """None if nothing was committed."""
    offset: int
    log_start_offset: int
    high_watermark: int
    first_record_ms: int | None = None
    """The timestamp of the first record that is read then; None if there is none, or if it is not known."""

    @property
    def skipped(self) -> int:
        """How many offsets the group will not read because of the reset; 0 if nothing was committed."""
        return max(self._moved, 0)

    @property
    def repeated(self) -> int:
        """How many offsets the group will read again because of the reset; 0 if nothing was committed."""
        return max(-self._moved, 0)

    @property
    def _moved(self) -> int:
        if self.committed is None:
            return 0
        return self.offset - min(max(self.committed, self.log_start_offset), self.high_watermark)


def parse_targets(where: points.Where | points.Shift) -> points.Target | dict[TopicPartition, points.Target]:
    """Return what a reset goes to, for all partitions or for each; ValueError for anything that it cannot go to."""
    if isinstance(where, Mapping):
        return {points.parse_partition(key, "where"): _target(value, f"where of {key}") for key, value in where.items()}
    return _target(where, "where")


def _target(where: object, name: str) -> points.Target:
    if isinstance(where, points.Shift):
        return where
    if isinstance(where, str):
        try:
            return points.parse_target(where)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    point = points.parse_where(where, name=name)
    assert isinstance(point, points.Point)
    return point


async def plan_resets(
    cluster: Cluster,
    targets: Mapping[TopicPartition, points.Target],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, OffsetReset]:
    """Return what to commit for each partition; without those to shift that have no committed offset.

    Raises the error of the first partition whose offsets cannot be looked up.
    """
    asked = [tp for tp, target in targets.items() if isinstance(target, points.Point) or tp in committed]
    starts = await _offsets(cluster, dict.fromkeys(asked, EARLIEST_TIMESTAMP))
    ends = await _offsets(cluster, dict.fromkeys(asked, LATEST_TIMESTAMP))
    looked_up = {tp: points.looked_up_ms(target) for tp, target in targets.items() if isinstance(target, points.Point)}
    at_times = await _offsets(cluster, {tp: time_ms for tp, time_ms in looked_up.items() if time_ms is not None})
    offsets = {}
    for tp in asked:
        old = committed[tp].offset if tp in committed else None
        start, end = starts[tp].offset, ends[tp].offset
        target = targets[tp]
        if isinstance(target, points.Shift):
            assert old is not None
            wanted = old + target.by
        else:
            wanted = points.offset_of(target, start, end, at_times[tp].offset if tp in at_times else None)
        offsets[tp] = Unread(*tp, min(max(wanted, start), end), end)
    found = await lags(cluster, offsets.values())
    return {
        tp: OffsetReset(
            *tp,
            committed[tp].offset if tp in committed else None,
            unread.first,
            starts[tp].offset,
            unread.end,
            found[unread].first_ms,
        )
        for tp, unread in offsets.items()
    }


async def _offsets(cluster: Cluster, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAt]:
    return {tp: located(at) for tp, at in (await look_up(cluster, times)).items()}


def listed_partitions(partitions: Iterable[TopicPartition | str]) -> list[TopicPartition]:
    """Return the partitions of ("orders", 0) or "orders-0", each once; TypeError for a single one or none of both."""
    if isinstance(partitions, str) or not isinstance(partitions, Collection):
        raise TypeError(f"partitions must be a list such as [('orders', 0), 'orders-1'], not {partitions!r}")
    try:
        return list(dict.fromkeys(points.parse_partition(each, "partitions") for each in partitions))
    except ValueError as error:
        raise TypeError(str(error)) from None
