"""The offsets of partitions: log start, last stable offset, high watermark and log end."""

from collections.abc import Sequence

from msgspec import Struct

from warmlog.errors import ApiError
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster, Topic
from warmlog_transport.list_offsets import OffsetAt, look_up
from warmlog_transport.responses import TopicPartition

_UNCOMMITTED, _COMMITTED = m.IsolationLevel.READ_UNCOMMITTED, m.IsolationLevel.READ_COMMITTED

_MEASURES = (
    (m.EARLIEST_TIMESTAMP, _UNCOMMITTED, m.CONSUMER_REPLICA_ID),
    (m.LATEST_TIMESTAMP, _COMMITTED, m.CONSUMER_REPLICA_ID),
    (m.LATEST_TIMESTAMP, _UNCOMMITTED, m.CONSUMER_REPLICA_ID),
    (m.LATEST_TIMESTAMP, _UNCOMMITTED, m.DEBUGGING_REPLICA_ID),
)
"""Time, isolation and replica id that ask for log start, last stable offset, high watermark and log end."""


class PartitionDescription(Struct, frozen=True):
    """One partition. `leader` is a node id, -1 while the partition is offline. Ends are exclusive."""

    partition: int
    leader: int
    leader_epoch: int
    log_start_offset: int
    last_stable_offset: int
    """Below it, every transaction is committed or aborted."""
    high_watermark: int
    """Below it, every record is durable and may be read."""
    log_end_offset: int
    error: ApiError | None = None
    """Why the offsets are unknown; they are -1 then."""

    @property
    def uncommitted(self) -> int:
        """How many records are written and not yet durable: between high watermark and log end."""
        return self.log_end_offset - self.high_watermark


async def describe_partitions(cluster: Cluster, topics: Sequence[Topic]) -> dict[str, list[PartitionDescription]]:
    """The partitions of each topic by its name; a partition that is offline or cannot be reached has an error."""
    asked = [(topic.name, part.partition) for topic in topics for part in topic.partitions]
    offsets: dict[TopicPartition, list[int]] = {tp: [] for tp in asked}
    errors: dict[TopicPartition, ApiError] = {}
    for timestamp_ms, isolation, replica_id in _MEASURES:
        times = {tp: timestamp_ms for tp in asked if tp not in errors}
        for tp, at in (await look_up(cluster, times, isolation=isolation, replica_id=replica_id)).items():
            if isinstance(at, OffsetAt):
                offsets[tp].append(at.offset)
            else:
                errors[tp] = at
    return {
        topic.name: [
            _description(part, offsets[topic.name, part.partition], errors.get((topic.name, part.partition)))
            for part in topic.partitions
        ]
        for topic in topics
    }


def _description(part: m.PartitionMetadata, offsets: list[int], error: ApiError | None) -> PartitionDescription:
    start, stable, mark, end = offsets if error is None else [-1] * len(_MEASURES)
    return PartitionDescription(part.partition, part.leader_id, part.leader_epoch, start, stable, mark, end, error)
