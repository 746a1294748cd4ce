"""What a replica is told of its log, and of batches that it sends and gets."""

from warmlog_broker.replica.partition import Partition
from warmlog_broker.replication.alignment import Log as Bounds
from warmlog_broker.storage.log.appender import CopiedBatch
from warmlog_broker.storage.log.log import Log
from warmlog_protocol.batch.header import NO_LEADER_EPOCH


def bounds_of(log: Log, partition: Partition) -> Bounds:
    """Return the bounds of a log as a replica knows them.

    One that waits for the batch that holds its start, and is to begin where that batch does, ends at its start.
    """
    start, end = log.log_start_offset, max(log.log_start_offset, log.log_end_offset)
    flushed = end if partition.config.write_caching else max(start, log.recovery_point)
    high_watermark = max(start, min(log.high_watermark, flushed))
    return Bounds(start, end, flushed, high_watermark, log.epochs.entries, log.local.truncations)


def epochs_in(copied: list[CopiedBatch]) -> tuple[tuple[int, int], ...]:
    """Return the epochs of batches, each with the offset at which it begins."""
    found: dict[int, int] = {}
    for header, _, _ in copied:
        if header.partition_leader_epoch != NO_LEADER_EPOCH:
            found.setdefault(header.partition_leader_epoch, header.base_offset)
    return tuple(found.items())
