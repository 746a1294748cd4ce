"""Logs opened as a start opens them, without a broker."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import DirectorySet
from warmlog_broker.data_dirs.loader import LoadingProgress, LogOpener, Stored, load_partitions
from warmlog_broker.metadata.log_file import MetadataLog
from warmlog_broker.metadata.store import LoneClusterStore, NodeStore
from warmlog_broker.storage.io.open_files import OpenFiles


def opened_logs(
    directories: DirectorySet,
    metadata_log: MetadataLog,
    config: BrokerConfig,
    report: Callable[[int, int, int], None] = lambda *_: None,
) -> Stored:
    progress = LoadingProgress(report)
    progress._reported_s = 0
    opener = LogOpener(OpenFiles(config.max_open_files))
    with ThreadPoolExecutor(2) as threads:
        node = NodeStore(metadata_log, threads)
        cluster = LoneClusterStore(node)
        loading = load_partitions(directories, node, cluster, opener, config, progress, threads)
        return threads.submit(asyncio.run, loading).result()
