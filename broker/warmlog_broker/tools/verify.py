"""Verify directories against the metadata log (topic ids, settings, which partitions there must be), and rebuild their
indexes with the settings of each topic."""

from pathlib import Path
from typing import Literal
from uuid import UUID

from msgspec.structs import replace

from warmlog_broker.coordinator.readers import record_check
from warmlog_broker.metadata.log_file import FILE_NAME, read_state
from warmlog_broker.metadata.metadata_log import MetadataState
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import KAFKA_PROPERTIES_NAME, RECOVERY_POINTS_NAME
from warmlog_broker.storage.directory.dir_lock import exclusive_lock
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.partition_files import METADATA_NAME
from warmlog_broker.storage.directory.properties import FORMAT_NAME
from warmlog_broker.storage.directory.topic_partition import TopicPartition, parse_directory_name
from warmlog_broker.storage.segment.segment_files import base_offsets_in
from warmlog_broker.storage.verify.partition import verify_data_directory, verify_partition
from warmlog_broker.storage.verify.rebuild import RebuildResult, rebuild_partition
from warmlog_broker.storage.verify.report import Report
from warmlog_broker.storage.verify.segment import Expectations
from warmlog_protocol.errors import InvalidConfig, StorageError


def kind_of(path: Path) -> Literal["data", "partition"] | None:
    """Return whether `path` is a data directory or a partition's; None for neither."""
    if is_partition(path.resolve()):
        return "partition"
    if any((path / marker).exists() for marker in (FORMAT_NAME, KAFKA_PROPERTIES_NAME, RECOVERY_POINTS_NAME)):
        return "data"
    return "data" if any(map(is_partition, path.iterdir())) else None


def is_partition(path: Path) -> bool:
    """Whether `path` is a partition's directory, in use or not, by its name and its files."""
    if parse_directory_name(path.name) is None:
        return False
    return (path / METADATA_NAME).is_file() or bool(base_offsets_in(path))


def verify_directory(path: Path, report: Report) -> None:
    """Check a data directory, or a partition's against the data directory above it; add the findings to `report`."""
    if kind_of(path) == "data":
        state = _read_metadata(path, report)
        verify_data_directory(path, report, known=_known_partitions(path, state, report))
        _find_missing(path, state, report)
        return
    path = path.resolve()
    name = parse_directory_name(path.name)
    assert name is not None
    if name.mark:
        verify_partition(path, Expectations(), report)
        return
    known = _known_partitions(path.parent, _read_metadata(path.parent, report), report)
    verify_data_directory(path.parent, report, known=known, only=name.topic_partition)


def _read_metadata(path: Path, report: Report) -> MetadataState:
    """Return the state in a directory's metadata log; an empty one if there is no log, or a damaged one."""
    try:
        return read_state(path / FILE_NAME)
    except FileNotFoundError:
        pass
    except (StorageError, OSError) as error:
        report.find_unreadable(path / FILE_NAME, error, expected="a metadata log")
    return MetadataState()


def _known_partitions(path: Path, state: MetadataState, report: Report) -> dict[TopicPartition, Expectations]:
    """Return what the metadata log says about each partition."""
    known = {}
    for topic in state.topics.values():
        try:
            config = LogConfig.from_settings(topic.settings)
        except InvalidConfig as error:
            report.find(path / FILE_NAME, expected=f"settings of topic {topic.name!r}", found=str(error))
            config = LogConfig()
        expectations = Expectations(
            topic_id=UUID(bytes=topic.topic_id),
            has_dense_offsets=not config.is_compacted,
            index_interval_bytes=config.index_interval_bytes,
            check_record=record_check(topic.name) if topic.is_internal else None,
        )
        known.update({TopicPartition(topic.name, index): expectations for index in range(topic.partitions)})
    return known


def _find_missing(path: Path, state: MetadataState, report: Report) -> None:
    """Report partitions that held records here, were not moved to another data directory, and have no directory."""
    try:
        recovery_points = read_offsets(path / RECOVERY_POINTS_NAME)
    except (StorageError, OSError):
        return
    for topic in state.topics.values():
        ids = state.assignments.get(topic.topic_id, {})
        for index in range(topic.partitions):
            home = state.directories.get(ids.get(index, b""), str(path.absolute()))
            directory = path / TopicPartition(topic.name, index).directory_name
            recovery_point = recovery_points.get(TopicPartition(topic.name, index), 0)
            if recovery_point and home == str(path.absolute()) and not directory.is_dir():
                expected = f"a log with records up to offset {recovery_point}"
                report.find(directory, expected=expected, found="no directory")


def rebuild_directory(
    path: Path, *, index_interval_bytes: int | None = None, with_snapshots: bool = False
) -> dict[Path, RebuildResult]:
    """Rebuild a data directory, or the directory of one partition; return what was done, by partition.

    `index_interval_bytes` None takes the topic's setting, or the default if the metadata log does not know the topic.
    Raises DirectoryLocked if a broker uses the directory, or StorageError if the metadata log cannot be read.
    """
    is_single = kind_of(path) == "partition"
    data_directory = path.resolve().parent if is_single else path
    with exclusive_lock(data_directory):
        metadata_path = data_directory / FILE_NAME
        topics = read_state(metadata_path).topics if metadata_path.exists() else {}
        results = {}
        for directory in [path.resolve()] if is_single else sorted(path.iterdir()):
            name = parse_directory_name(directory.name)
            if name is None or name.mark or not is_partition(directory):
                continue
            topic = topics.get(name.topic_partition.topic)
            config = LogConfig() if topic is None else LogConfig.from_settings(topic.settings)
            if index_interval_bytes is not None:
                config = replace(config, index_interval_bytes=index_interval_bytes)
            results[directory] = rebuild_partition(directory, config, with_snapshots=with_snapshots)
        return results
