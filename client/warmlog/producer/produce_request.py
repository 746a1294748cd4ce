"""What both producers decide about a Produce request: which batches it takes, and what its response means for each."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from warmlog.errors import ApiError, RemoteProtocolError, WarmlogError, error_from_code
from warmlog.producer.partition_queue import PartitionQueue
from warmlog.producer.producer_batch import ProducerBatch
from warmlog_protocol.batch import Piece
from warmlog_protocol.messages import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse
from warmlog_protocol.wire.connection import ReceivedResponse

MAX_REQUEST_BYTES = 1024 * 1024
"""As Kafka's max.request.size; a request of one batch may be larger."""

Batch = TypeVar("Batch", bound=ProducerBatch)


def fitting(ready: Iterable[tuple[PartitionQueue, Batch]]) -> Iterator[tuple[PartitionQueue, Batch]]:
    """Yield the first batches of `ready` that fit into one request. The caller encodes each before it takes the next.

    A batch that could not be encoded takes no space.
    """
    size_bytes = 0
    for queue, batch in ready:
        if size_bytes and size_bytes + batch.size_bytes > MAX_REQUEST_BYTES:
            return
        yield queue, batch
        size_bytes += batch.wire_bytes


def produce_request(
    batches: Sequence[tuple[PartitionQueue, Batch]], acks: int, timeout_ms: int, transactional_id: str | None = None
) -> tuple[ProduceRequest, list[Piece]]:
    """A request of these encoded batches, and its payload."""
    parts: list[ProducePartition] = []
    payload: list[Piece] = []
    for queue, batch in batches:
        parts.append(ProducePartition(queue.topic, queue.partition, batch.wire_bytes))
        payload += batch.pieces
    return ProduceRequest(acks, timeout_ms, parts, transactional_id), payload


def outcomes(
    batches: Sequence[tuple[PartitionQueue, Batch]], result: ReceivedResponse | WarmlogError | None
) -> list[ProducedPartition | WarmlogError]:
    """The outcome of each batch of a request. `result` is None for acks=0: sent, and nothing more is known."""
    if result is None:
        return [ProducedPartition(queue.topic, queue.partition, 0) for queue, _ in batches]
    response = result if isinstance(result, WarmlogError) else result.result
    if isinstance(response, ApiError | WarmlogError):
        return [response] * len(batches)
    assert isinstance(response, ProduceResponse)
    if len(response.partitions) != len(batches):
        found = len(response.partitions)
        return [RemoteProtocolError(f"{len(batches)} batches sent, the response has {found}")] * len(batches)
    return [
        error_from_code(produced.error_code, f"{produced.topic}-{produced.partition}: {produced.error_message}")
        if produced.error_code
        else produced
        for produced in response.partitions
    ]
