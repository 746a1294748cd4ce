"""Closing all logs at a clean stop."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.sync_strategy import FlushWay, choose_way, sync_file_system
from warmlog_broker.storage.directory.data_dir import CleanEnd
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_protocol.errors import StorageError

_log = logging.getLogger(__name__)


def close_logs(
    directory: Path, partitions: Sequence[Partition], config: BrokerConfig
) -> dict[TopicPartition, CleanEnd]:
    """Sync and close every log of a data directory; return the ends of those that could be closed.

    Blocks on the disk: call it in a thread, once the logs are no longer in use. Raises OSError if the file system
    cannot be synced as a whole: then no end of a log may be stored.
    """
    is_synced_at_once = choose_way(len(partitions), config.flush_syncfs_files) is FlushWay.FILE_SYSTEM
    with ThreadPoolExecutor(config.num_recovery_threads, "close") as threads:
        found = threads.map(lambda partition: _close(partition, sync=not is_synced_at_once), partitions)
        ends = {partition.key: end for partition, end in zip(partitions, found, strict=True) if end is not None}
    if is_synced_at_once and ends:
        sync_file_system(directory)
    return ends


def _close(partition: Partition, *, sync: bool) -> CleanEnd | None:
    try:
        return partition.close(sync=sync)
    except (OSError, StorageError) as error:
        _log.critical("%s could not be closed: %s", partition.key.directory_name, error)
        return None
