"""What a Produce request takes, and what its response means for each batch: decisions only, no broker."""

from functools import partial

import warmlog
from warmlog.errors import BrokerUnavailable, MessageTooLarge, RemoteProtocolError, StorageError
from warmlog.producer.partition_queue import PartitionQueue
from warmlog.producer.producer_batch import NO_PRODUCER, ProducerBatch, encode_records
from warmlog.producer.record_input import BATCH_OVERHEAD_BYTES
from warmlog.producer.sender import MAX_REQUEST_BYTES, fitting, outcomes, produce_request
from warmlog_protocol.batch import NO_SEQUENCE
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.messages import ACKS_ALL, ProducedPartition, ProduceResponse
from warmlog_protocol.wire.connection import ReceivedResponse

Sending = tuple[PartitionQueue, ProducerBatch]


def batches_of(*sizes: int) -> list[Sending]:
    """A batch for each partition from 0 on, with one value of this size."""
    batches = []
    for partition, size in enumerate(sizes):
        batch = ProducerBatch("t", partition, 0.0, lambda _: None)
        batch.fill(partial(encode_records, [bytes(size)], None, None, 5), 1, size + BATCH_OVERHEAD_BYTES)
        batches.append((PartitionQueue("t", partition, is_idempotent=True), batch))
    return batches


def encode(batch: ProducerBatch) -> None:
    batch.encode(Codec.NONE, NO_PRODUCER, NO_SEQUENCE)


def taken_of(ready: list[Sending]) -> list[int]:
    """The partitions of the batches that one request takes."""
    taken = []
    for queue, batch in fitting(ready):
        encode(batch)
        taken.append(queue.partition)
    return taken


def response(*parts: ProducedPartition) -> ReceivedResponse:
    return ReceivedResponse(1, ProduceResponse(list(parts)), memoryview(b""), True)


def test_a_request_takes_batches_up_to_its_limit() -> None:
    third = MAX_REQUEST_BYTES // 3
    assert taken_of(batches_of(third, third, third, 10)) == [0, 1]


def test_a_batch_beyond_the_limit_has_a_request_for_itself() -> None:
    assert taken_of(batches_of(2 * MAX_REQUEST_BYTES, 10)) == [0]


def test_a_batch_that_could_not_be_encoded_takes_no_space() -> None:
    first, second = batches_of(MAX_REQUEST_BYTES, MAX_REQUEST_BYTES)
    taken = fitting([first, second])
    assert next(taken) == first
    assert next(taken) == second, "the first was not encoded"


def test_a_request_names_each_batch_with_its_size_and_carries_their_bytes() -> None:
    batches = batches_of(100, 200)
    for _, batch in batches:
        encode(batch)
    request, payload = produce_request(batches, ACKS_ALL, 1000)
    assert [(part.topic, part.partition) for part in request.partitions] == [("t", 0), ("t", 1)]
    assert [part.size_bytes for part in request.partitions] == [len(piece) for piece in payload]
    assert b"".join(payload) == b"".join(batches[0][1].pieces) + b"".join(batches[1][1].pieces)


def test_each_batch_has_the_outcome_of_its_partition() -> None:
    offset, refused = ProducedPartition("t", 0, 0, "", 7), ProducedPartition("t", 1, ErrorCode.MESSAGE_TOO_LARGE, "big")
    stored, error = outcomes(batches_of(1, 1), response(offset, refused))
    assert stored == offset
    assert isinstance(error, MessageTooLarge)
    assert str(error) == "t-1: big"


def test_an_error_of_the_request_is_that_of_every_batch() -> None:
    lost, failed = BrokerUnavailable("lost"), StorageError("full")
    assert outcomes(batches_of(1, 1), lost) == [lost, lost]
    assert outcomes(batches_of(1, 1), ReceivedResponse(1, failed, memoryview(b""), True)) == [failed, failed]


def test_a_response_for_other_batches_is_an_error_of_all() -> None:
    found = outcomes(batches_of(1, 1), response(ProducedPartition("t", 0, 0)))
    assert [type(outcome) for outcome in found] == [RemoteProtocolError] * 2


def test_without_a_response_every_batch_counts_as_delivered_at_an_unknown_offset() -> None:
    assert outcomes(batches_of(1, 1), None) == [ProducedPartition("t", 0, 0), ProducedPartition("t", 1, 0)]
    assert ProducedPartition("t", 0, 0).base_offset == -1


def test_the_names_of_version_0_1_0_remain() -> None:
    assert warmlog.Placed is warmlog.RecordMetadata
    assert warmlog.PlacedMany is warmlog.RecordMetadataRanges
    assert warmlog.Sent is warmlog.DeliveryFuture
