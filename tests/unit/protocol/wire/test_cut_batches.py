"""Cutting the payload of a Produce request into its batches."""

import pytest

from warmlog_protocol.errors import InvalidRequest
from warmlog_protocol.messages import ProducePartition, ProduceRequest
from warmlog_protocol.wire.connection import cut_batches


def request(*sizes: int) -> ProduceRequest:
    return ProduceRequest(-1, 1000, [ProducePartition("t", number, size) for number, size in enumerate(sizes)])


def test_each_partition_gets_its_bytes() -> None:
    batches = cut_batches(request(2, 0, 3), memoryview(b"aabbb"), is_owned=False)
    assert [(each.topic, each.partition, bytes(each.batch)) for each in batches] == [
        ("t", 0, b"aa"),
        ("t", 1, b""),
        ("t", 2, b"bbb"),
    ]


@pytest.mark.parametrize("sizes", [(4,), (6,), (), (2, 2), (-1, 6), (6, -1)])
def test_sizes_that_are_not_those_of_the_payload_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"bytes by the header|negative"):
        cut_batches(request(*sizes), memoryview(b"aabbb"), is_owned=False)


def test_borrowed_memory_is_copied_to_be_kept() -> None:
    memory = bytearray(b"aa")
    (batch,) = cut_batches(request(2), memoryview(memory), is_owned=False)
    kept = batch.owned()
    memory[:] = b"xx"
    assert (bytes(batch.batch), bytes(kept.batch)) == (b"xx", b"aa")
    assert kept.owned() is kept


def test_owned_memory_is_not_copied() -> None:
    (batch,) = cut_batches(request(2), memoryview(b"aa"), is_owned=True)
    assert batch.owned() is batch
