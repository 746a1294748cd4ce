"""Requests about partitions, when the leaders change."""

from fake_broker import FakeBroker, topic_id
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster
from warmlog_transport.list_offsets import OffsetAt, list_offsets
from warmlog_transport.options import ConnectionOptions

OPTIONS = ConnectionOptions(retry_backoff_ms=5, retry_backoff_max_ms=20, request_timeout_ms=10_000)


async def test_a_look_up_goes_to_the_new_leader_when_the_old_one_is_gone() -> None:
    async with FakeBroker(t=1) as old, FakeBroker(t=1) as new:
        leader = old

        def metadata(_: m.MetadataRequest) -> m.MetadataResponse:
            brokers = [m.BrokerMetadata(node, "127.0.0.1", each.port) for node, each in enumerate((old, new))]
            partition = m.PartitionMetadata(0, 0, int(leader is new), 0, [0, 1], [0, 1])
            return m.MetadataResponse("cluster", 0, brokers, [m.TopicMetadata(0, "t", topic_id("t"), [partition])])

        for broker in (old, new):
            broker.further_handlers[m.MetadataRequest] = metadata
        async with Cluster([new.address, old.address], OPTIONS) as cluster:
            asked = {("t", 0): m.LATEST_TIMESTAMP}
            assert await list_offsets(cluster, asked) == {("t", 0): OffsetAt(0, 0, -1, 0)}
            assert len(old.handshakes) == 1
            await old.stop()
            leader = new
            new.topics["t"][0].next_offset = 7
            assert await list_offsets(cluster, asked) == {("t", 0): OffsetAt(0, 7, -1, 0)}
            await old.start()
