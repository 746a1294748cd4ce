"""The part of the admin client that inspects a broker: its state, the segments of its logs, a search in an index."""

from collections.abc import Sequence

from warmlog.admin.arguments import checked_count, checked_texts
from warmlog.admin.connected import Connected
from warmlog.errors import ApiError, UnknownTopicOrPartition
from warmlog.texts import checked_text
from warmlog_protocol import messages as m
from warmlog_transport.connection import BrokerLink
from warmlog_transport.leader_requests import ask_leaders
from warmlog_transport.responses import TopicPartition, partition_range


class InspectionAdmin(Connected):
    """Shows how a broker is. A broker before 0.2 raises UnsupportedVersion."""

    async def describe_status(self) -> m.DescribeStatusResponse:
        """What is wrong with the broker, its connections, and what it has counted since its start."""
        return await self.cluster.call(m.DescribeStatusRequest(), m.DescribeStatusResponse)

    async def describe_partitions(
        self, topics: Sequence[str] | None = None, *, max_segments: int = 0, internal: bool = False
    ) -> dict[TopicPartition, m.DescribedPartition | ApiError]:
        """Offsets and sizes of all partitions of these topics, or of all, or the error of a partition.

        With `max_segments` also so many of the newest segments of each; a broker returns at most 1,000 of one and
        10,000 of all. With `internal`, all topics include those in which the broker keeps its own state. Raises
        UnknownTopicOrPartition.
        """
        cluster = self.cluster
        known = await cluster.topics(None if topics is None else checked_texts(topics, "topics"), internal=internal)
        asked = [(topic.name, part.partition) for topic in known for part in topic.partitions]

        async def ask(partitions: list[TopicPartition], link: BrokerLink) -> list[m.DescribedPartition]:
            request = m.DescribePartitionsRequest([m.InspectedPartition(*tp) for tp in partitions], max_segments)
            return (await link.call(request, m.DescribePartitionsResponse)).partitions

        return await ask_leaders(cluster, asked, ask)

    async def trace_index(self, topic: str, partition: int, offset: int | None = None) -> m.TraceIndexResponse:
        """Which slots of a partition's offset index the searches for an offset read; None means the last entry.

        Raises InvalidRequest if no segment up to the offset has an index entry yet.
        """
        cluster, wanted = self.cluster, -1 if offset is None else checked_count(offset, "offset")
        request = m.TraceIndexRequest(checked_text(topic, "topic"), checked_count(partition, "partition"), wanted)
        count = len((await cluster.topics([topic]))[0].partitions)
        if partition >= count:
            raise UnknownTopicOrPartition(f"topic {topic!r} has {partition_range(count)}, not {partition}")
        response = (await cluster.ask_leader(request, topic, partition)).result
        assert isinstance(response, m.TraceIndexResponse)
        return response
