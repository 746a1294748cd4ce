"""Rebuilds the indexes of a data directory, or of one partition, with the settings of each topic."""

from pathlib import Path

from warmlog_broker.metadata.metadata_log import FILE_NAME, read_state
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.dir_lock import exclusive_lock
from warmlog_broker.storage.directory.topic_partition import TopicPartition, parse_directory_name
from warmlog_broker.storage.segment.segment_indexes import SegmentConfig
from warmlog_broker.storage.verify.rebuild import RebuildResult, rebuild_partition
from warmlog_broker.tools.verify import is_partition, kind_of


def rebuild_directory(
    path: Path, *, index_interval_bytes: int | None = None, with_snapshots: bool = False
) -> dict[Path, RebuildResult]:
    """Rebuild a data directory, or the directory of one partition; return what was done, by partition.

    `index_interval_bytes` is how many bytes are between index entries; without it the topic's setting, or the default
    if the metadata log does not know the topic. Raises DirectoryLocked if a broker uses it.
    """
    is_single = kind_of(path) == "partition"
    data_directory = path.resolve().parent if is_single else path
    with exclusive_lock(data_directory):
        configs = _known_configs(data_directory)
        results = {}
        for directory in [path.resolve()] if is_single else sorted(path.iterdir()):
            name = parse_directory_name(directory.name)
            if name is None or name.mark or not is_partition(directory):
                continue
            config = configs.get(name.topic_partition, LogConfig())
            interval_bytes = config.index_interval_bytes if index_interval_bytes is None else index_interval_bytes
            segment_config = SegmentConfig(interval_bytes, config.segment_index_bytes)
            results[directory] = rebuild_partition(directory, segment_config, with_snapshots=with_snapshots)
        return results


def _known_configs(path: Path) -> dict[TopicPartition, LogConfig]:
    """Return the settings of each partition; none if there is no metadata log. StorageError if it cannot be read."""
    try:
        state = read_state(path / FILE_NAME)
    except FileNotFoundError:
        return {}
    return {
        TopicPartition(topic.name, index): LogConfig.from_settings(topic.settings)
        for topic in state.topics.values()
        for index in range(topic.partitions)
    }
