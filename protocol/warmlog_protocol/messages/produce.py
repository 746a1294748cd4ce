"""Produce and InitProducerId."""

from warmlog_protocol.messages.base import Int32, Int64, Message


class ProducePartition(Message, frozen=True):
    """One batch of `size_bytes` for one partition; the bytes are in the payload, in the order of the request."""

    topic: str
    partition: Int32
    size_bytes: Int32


class ProduceRequest(Message, frozen=True):
    """At most one batch for each partition. With `acks` 0 there is no response.

    With a `transactional_id` its partitions become part of the producer's transaction, unless it says that they are
    (`is_enrolled`): then INVALID_TXN_STATE for one that is not.
    """

    acks: Int32
    timeout_ms: Int32
    partitions: list[ProducePartition]
    transactional_id: str | None = None
    is_enrolled: bool = False


class ProducedPartition(Message, frozen=True):
    """The offset of the batch, or the error. `log_append_time_ms` is -1 with CreateTime."""

    topic: str
    partition: int
    error_code: int
    error_message: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


class ProduceResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[ProducedPartition]
    throttle_ms: int = 0


class InitProducerIdRequest(Message, frozen=True):
    """Ask for a producer id; with an id and epoch, for the same id with the next epoch unless it was raised since."""

    transactional_id: str | None = None
    transaction_timeout_ms: Int32 = 60_000
    producer_id: Int64 = -1
    producer_epoch: Int32 = -1


class InitProducerIdResponse(Message, frozen=True):
    """The id is reserved on disk before it is assigned: no other producer of this cluster ever gets it."""

    producer_id: int
    producer_epoch: int
