"""DeleteRecords, OffsetForLeaderEpoch, FindSplits, and what a topic's description says: a real broker, also killed."""

from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import ErrorCode, OffsetOutOfRange
from warmlog_protocol.messages import FindSplitsPartition, FindSplitsRequest, FindSplitsResponse, FoundSplits
from wire_client import WireClient, batch_of

FAR_MS = 80_000_000
BROKER_SETTINGS = {"log_retention_check_interval_ms": FAR_MS, "log_flush_offset_checkpoint_interval_ms": FAR_MS}
"""Retention and checkpoints are looked after once a day only: nothing but the request makes anything durable."""


@pytest.fixture
def topic(client: WireClient) -> str:
    """Two partitions, with ten records in the first and none in the second."""
    name = f"t{uuid4().hex}"
    client.create_topic(name, partitions=2)
    for _ in range(5):
        client.produce(name, batch_of([b"a", b"b"]))
    return name


def delete(client: WireClient, *wanted: tuple[str, int, int]) -> list[m.DeletedRecords]:
    request = m.DeleteRecordsRequest([m.DeleteRecordsPartition(*each) for each in wanted])
    return cast("m.DeleteRecordsResponse", client.call(request)).partitions


def epoch_end(client: WireClient, topic: str, epoch: int, current_epoch: int = -1) -> m.EpochEndOffset:
    request = m.OffsetForLeaderEpochRequest([m.OffsetForLeaderEpochPartition(topic, 0, epoch, current_epoch)])
    return cast("m.OffsetForLeaderEpochResponse", client.call(request)).partitions[0]


class TestDeleteRecords:
    def test_the_log_begins_at_the_offset_which_may_lie_within_a_batch(self, client: WireClient, topic: str) -> None:
        assert delete(client, (topic, 0, 3)) == [m.DeletedRecords(topic, 0, 0, "", 3)]
        assert client.offset_at(topic, m.EARLIEST_TIMESTAMP) == 3
        with pytest.raises(OffsetOutOfRange):
            client.fetch(topic, 2)
        result, _ = client.fetch(topic, 3)
        assert (result.log_start_offset, result.high_watermark) == (3, 10)

    def test_minus_one_means_all_that_may_be_read(self, client: WireClient, topic: str) -> None:
        assert delete(client, (topic, 0, -1))[0].low_watermark == 10
        assert client.produce(topic, batch_of([b"next"])).base_offset == 10

    def test_what_is_gone_already_stays_gone_and_that_is_told(self, client: WireClient, topic: str) -> None:
        delete(client, (topic, 0, 7))
        assert delete(client, (topic, 0, 2)) == [m.DeletedRecords(topic, 0, 0, "", 7)]

    def test_each_partition_has_a_result_of_its_own(self, client: WireClient, topic: str) -> None:
        results = delete(
            client, (topic, 0, 11), (topic, 1, 0), (topic, 0, 4), (topic, 9, 0), ("none", 0, 0), (topic, 0, -2)
        )
        assert [(result.error_code, result.low_watermark) for result in results] == [
            (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
            (ErrorCode.NONE, 0),
            (ErrorCode.NONE, 4),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        ]
        assert "11 is above the high watermark 10" in results[0].error_message

    def test_a_kill_right_after_the_answer_changes_nothing(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path / "data", log_flush_offset_checkpoint_interval_ms=FAR_MS) as broker:
            with WireClient(broker.address) as client:
                client.create_topic("t")
                client.produce("t", batch_of([b"%d" % n for n in range(10)]))
                assert delete(client, ("t", 0, 6))[0].low_watermark == 6
                broker.kill()
            broker.start()
            with WireClient(broker.address) as client:
                assert client.offset_at("t", m.EARLIEST_TIMESTAMP) == 6
                assert client.fetch("t", 6)[0].high_watermark == 10

    async def test_a_consumer_has_its_policy(self, broker: BrokerProcess, client: WireClient, topic: str) -> None:
        delete(client, (topic, 0, 6))
        below = {(topic, 0): 2}
        async with warmlog.Consumer(
            broker.address, partitions=[(topic, 0)], start=below, on_out_of_range="earliest"
        ) as consumer:
            assert (await anext(consumer.records())).offset == 6
        async with warmlog.Consumer(broker.address, partitions=[(topic, 0)], start=below) as consumer:
            with pytest.raises(OffsetOutOfRange):
                await anext(consumer.records())

    async def test_the_admin_client_gives_the_log_start_or_the_reason(self, broker: BrokerProcess, topic: str) -> None:
        async with warmlog.Admin(broker.address) as admin:
            results = await admin.delete_records({(topic, 0): 4, (topic, 1): 3, (topic, 2): 0, ("none", 0): 0})
            described = await admin.describe_topic(topic)
        assert list(results) == [(topic, 0), (topic, 1), (topic, 2), ("none", 0)]
        assert results[topic, 0] == 4
        assert isinstance(results[topic, 1], OffsetOutOfRange)
        assert isinstance(results[topic, 2], warmlog.UnknownTopicOrPartition)
        assert isinstance(results["none", 0], warmlog.UnknownTopicOrPartition)
        assert [partition.log_start_offset for partition in described.partitions] == [4, 0]


class TestOffsetForLeaderEpoch:
    def test_the_latest_epoch_ends_at_the_log_end_and_no_other_is_known(self, client: WireClient, topic: str) -> None:
        assert epoch_end(client, topic, 0) == m.EpochEndOffset(topic, 0, 0, "", 0, 10, 10)
        assert epoch_end(client, topic, 1) == m.EpochEndOffset(topic, 0, 0, "", -1, -1, 10)
        assert epoch_end(client, topic, -1) == m.EpochEndOffset(topic, 0, 0, "", -1, -1, 10)

    def test_an_asker_with_another_epoch_in_force_is_told(self, client: WireClient, topic: str) -> None:
        assert epoch_end(client, topic, 0, current_epoch=0).error_code == ErrorCode.NONE
        assert epoch_end(client, topic, 0, current_epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert epoch_end(client, "none", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def test_each_unclean_start_begins_an_epoch_and_the_older_ones_keep_their_ends(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path / "data") as broker:
            with WireClient(broker.address) as client:
                client.create_topic("t")
                client.produce("t", batch_of([b"a", b"b", b"c"]))
            broker.kill()
            broker.start()
            with WireClient(broker.address) as client:
                client.produce("t", batch_of([b"d"]))
                assert epoch_end(client, "t", 0, current_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
                first = epoch_end(client, "t", 0, current_epoch=1)
                assert (first.leader_epoch, first.end_offset, first.log_end_offset) == (0, 3, 4)
                assert epoch_end(client, "t", 1).end_offset == 4
            async with warmlog.Admin(broker.address) as admin:
                ends = await admin.epoch_ends({("t", 0): 0, ("none", 0): 0})
                end = ends["t", 0]
                assert not isinstance(end, warmlog.ApiError)
                assert end.end_offset == 3
                assert isinstance(ends["none", 0], warmlog.UnknownTopicOrPartition)


class TestDescription:
    async def test_it_counts_what_is_not_durable_yet(self, broker: BrokerProcess, client: WireClient) -> None:
        """Flushes are held back: nobody waits for one, and flush.ms is a day."""
        name = f"t{uuid4().hex}"
        client.create_topic(name, flush_ms=str(FAR_MS))
        client.produce(name, batch_of([b"a", b"b"]))
        client.produce(name, batch_of([b"c", b"d", b"e"]), acks=1)
        async with warmlog.Admin(broker.address) as admin:
            (partition,) = (await admin.describe_topic(name)).partitions
            offsets = (partition.log_start_offset, partition.last_stable_offset, partition.high_watermark)
            assert (*offsets, partition.log_end_offset, partition.uncommitted) == (0, 2, 2, 5, 3)
            client.produce(name, batch_of([b"f"]))
            (partition,) = (await admin.describe_topic(name)).partitions
            assert (partition.high_watermark, partition.log_end_offset, partition.uncommitted) == (6, 6, 0)


BATCHES, RECORDS, VALUE_BYTES = 60, 100, 1000


def find(client: WireClient, *wanted: FindSplitsPartition, target: int, scan_ms: int = 0) -> list[FoundSplits]:
    return cast("FindSplitsResponse", client.call(FindSplitsRequest(list(wanted), target, scan_ms))).partitions


def test_a_range_over_several_segments_is_cut_about_every_so_many_bytes(client: WireClient) -> None:
    topic = f"t{uuid4().hex}"
    topic_id = client.create_topic(topic, segment_bytes="1048576")
    for number in range(BATCHES):
        values = [b"x" * VALUE_BYTES] * RECORDS
        client.produce(topic, encode_batch(values, timestamps_ms=[number * 10 + i for i in range(RECORDS)]))
    end = BATCHES * RECORDS
    (found,) = find(client, FindSplitsPartition(topic, 0, 0, end, topic_id), target=300_000, scan_ms=10_000)
    assert found.error_code == ErrorCode.NONE
    assert len(found.splits) >= BATCHES * RECORDS * VALUE_BYTES // 500_000
    assert all(split.size_bytes < 500_000 for split in found.splits)
    assert sum(split.size_bytes for split in found.splits) > BATCHES * RECORDS * VALUE_BYTES
    start = 0
    for split in found.splits:
        assert split.end_offset % RECORDS == 0
        assert split.min_timestamp_ms == start // RECORDS * 10
        assert split.max_timestamp_ms == (split.end_offset // RECORDS - 1) * 10 + RECORDS - 1
        start = split.end_offset
    assert start == end
    (found,) = find(client, FindSplitsPartition(topic, 0, 150, 1_000_000), target=1 << 30)
    assert [split.end_offset for split in found.splits][-1] == end
    assert all(split.min_timestamp_ms is split.max_timestamp_ms is None for split in found.splits)


def test_each_partition_has_its_own_answer_or_error(client: WireClient) -> None:
    topic = f"t{uuid4().hex}"
    client.create_topic(topic)
    unknown = FindSplitsPartition(topic, 7, 0, 10)
    other_id = FindSplitsPartition(topic, 0, 0, 10, b"0123456789abcdef")
    upside_down = FindSplitsPartition(topic, 0, 10, 0)
    empty = FindSplitsPartition(topic, 0, 0, 10)
    codes = [found.error_code for found in find(client, unknown, other_id, upside_down, empty, target=1000)]
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert find(client, empty, target=1000)[0].splits == []
