"""InitProducerId: an id for an idempotent producer, or a higher epoch for the one that it has."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.replica.partition import Partition
from warmlog_protocol.errors import InvalidProducerEpoch, InvalidRequest, UnknownProducerId
from warmlog_protocol.messages import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER_ID = -1
NO_EPOCH = -1
FIRST_EPOCH = 0
LAST_EPOCH = 2**15 - 2
"""One below the largest i16, as Kafka has it; a producer that has used it up gets a new id."""


async def init_producer_id(
    services: Services, _context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """A new id with epoch 0; or, for an id that the broker gave out, the next epoch.

    Raises UnknownProducerId for an id that nobody was given, and InvalidProducerEpoch when a partition has seen a newer
    epoch of that id. Asked twice with the same epoch, it answers the same: the first answer may have been lost.
    """
    if request.transactional_id is not None:
        raise InvalidRequest("this broker offers no transactions: transactional_id must not be set")
    if request.producer_id != NO_PRODUCER_ID:
        epoch = next_epoch(services, request.producer_id, request.producer_epoch)
        if epoch <= LAST_EPOCH:
            return InitProducerIdResponse(request.producer_id, epoch)
    return InitProducerIdResponse(await services.producer_ids.give_out(), FIRST_EPOCH)


def next_epoch(services: Services, producer_id: int, epoch: int) -> int:
    """The epoch after `epoch`."""
    if not 0 <= producer_id < services.producer_ids.next_id:
        raise UnknownProducerId(f"producer id {producer_id} was never given out by this broker")
    if not 0 <= epoch <= LAST_EPOCH:
        raise InvalidRequest(f"producer epoch {epoch}, it must be from 0 to {LAST_EPOCH}")
    newest = max((_epoch_in(partition, producer_id) for partition in services.topics.partitions), default=NO_EPOCH)
    if newest > epoch:
        raise InvalidProducerEpoch(f"producer {producer_id}: epoch {epoch} is fenced by {newest}")
    return epoch + 1


def _epoch_in(partition: Partition, producer_id: int) -> int:
    if partition.is_offline:
        return NO_EPOCH
    entry = partition.log.producers.get(producer_id)
    return NO_EPOCH if entry is None else entry.epoch
