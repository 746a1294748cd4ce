"""The small files of a partition and of a data directory: producer snapshots, checkpoints, partition.metadata."""

from collections.abc import Iterator
from pathlib import Path

from warmlog.cli.dump.findings import Findings
from warmlog_broker.storage.directory.leader_epochs import read_epochs
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.partition_metadata import read_partition_metadata
from warmlog_broker.storage.producer.producer_state import ProducerEntry
from warmlog_broker.storage.producer.snapshots import unpack_snapshot
from warmlog_protocol.batch.header import NO_OFFSET
from warmlog_protocol.errors import StorageError


def dump_snapshot(path: Path, findings: Findings) -> Iterator[str]:
    """Yield a line for each producer, in Kafka's words. If the file is damaged, only add a finding."""
    try:
        entries = unpack_snapshot(path.read_bytes(), now_ms=0)
    except StorageError as error:
        findings.remark(path, f"the snapshot is damaged: {error}")
        return
    yield from map(_producer_line, entries)


def dump_offset_checkpoint(path: Path) -> Iterator[str]:
    """Yield a line for each partition. Raises StorageError for a malformed file."""
    for partition, offset in read_offsets(path).items():
        yield f"topic: {partition.topic} partition: {partition.partition} offset: {offset}"


def dump_epoch_checkpoint(path: Path) -> Iterator[str]:
    """Yield a line for each leader epoch. Raises StorageError for a malformed file."""
    for epoch, start_offset in read_epochs(path):
        yield f"epoch: {epoch} startOffset: {start_offset}"


def dump_partition_metadata(path: Path) -> Iterator[str]:
    """Yield the topic id. Raises StorageError for a malformed file."""
    yield f"topicId: {read_partition_metadata(path)}"


def _producer_line(entry: ProducerEntry) -> str:
    first_offset = entry.transaction_first_offset
    transaction = "OptionalLong.empty" if first_offset == NO_OFFSET else f"OptionalLong[{first_offset}]"
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.epoch} coordinatorEpoch: {entry.coordinator_epoch}"
        f" currentTxnFirstOffset: {transaction} lastTimestamp: {entry.last_timestamp_ms} "
    )
    if not entry.batches:
        return line
    last = entry.batches[-1]
    return (
        f"{line}firstSequence: {last.first_sequence} lastSequence: {last.last_sequence} lastOffset: {last.last_offset}"
        f" offsetDelta: {last.offset_delta} timestamp: {last.timestamp_ms}"
    )
