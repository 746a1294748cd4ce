"""FindSplits, as a real broker answers it."""

from typing import cast
from uuid import uuid4

from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.messages import FindSplitsPartition, FindSplitsRequest, FindSplitsResponse, FoundSplits
from wire_client import WireClient

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
