"""The batches of a Produce request, cut out of its payload."""

from msgspec import Struct

from warmlog_protocol.errors import InvalidRequest
from warmlog_protocol.messages import ProduceRequest


class ReceivedBatch(Struct, frozen=True, gc=False):
    """One batch, and its partition. Borrowed memory is valid only until the handler has returned."""

    topic: str
    partition: int
    batch: memoryview
    is_owned: bool
    """Whether nothing else writes to the memory of `batch`, so that it can be kept."""

    def owned(self) -> "ReceivedBatch":
        """Return the batch in memory that can be kept: copied if it is borrowed."""
        if self.is_owned:
            return self
        return ReceivedBatch(self.topic, self.partition, memoryview(bytes(self.batch)), is_owned=True)


def cut_batches(request: ProduceRequest, payload: memoryview, *, is_owned: bool) -> list[ReceivedBatch]:
    """Cut `payload` by the sizes that `request` states. Raises InvalidRequest when they do not add up to it."""
    batches: list[ReceivedBatch] = []
    position = 0
    for wanted in request.partitions:
        if wanted.size_bytes < 0:
            raise InvalidRequest("a batch of a negative size")
        end = position + wanted.size_bytes
        batches.append(ReceivedBatch(wanted.topic, wanted.partition, payload[position:end], is_owned))
        position = end
    if position != len(payload):
        raise InvalidRequest(f"the batches have {position} bytes by the header, the payload has {len(payload)}")
    return batches
