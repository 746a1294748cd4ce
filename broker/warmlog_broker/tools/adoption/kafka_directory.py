"""Reading a data directory that Apache Kafka has written, without changing it.

::

    meta.properties                    version, cluster id, node id: marks the directory as Kafka's
    .lock                              held by a running Kafka                              (see `dir_lock`)
    .kafka_cleanshutdown               only between a clean stop and the next start; content irrelevant
    recovery-point-offset-checkpoint   and the other checkpoints, as ours           (format: `offset_checkpoint`)
    flights-0/ …                       a directory for each partition                       (names: `topic_partition`)

Topic settings and partition counts are not in it: Kafka keeps them in its metadata log.
"""

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from warmlog_broker.storage.directory.data_dir import (
    HIGH_WATERMARKS_NAME,
    KAFKA_PROPERTIES_NAME,
    LOG_STARTS_NAME,
    RECOVERY_POINTS_NAME,
)
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.partition_files import METADATA_NAME, read_partition_metadata
from warmlog_broker.storage.directory.topic_partition import TopicPartition, parse_directory_name
from warmlog_protocol.errors import WarmlogError

CLEAN_MARKER_NAME = ".kafka_cleanshutdown"
KNOWN_VERSIONS = ("0", "1")
INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__cluster_metadata", "__share_group_state", "__remote_log_metadata"}
)
_MARKS = {"delete": "deleted", "future": "a copy that was not finished", "stray": "set aside by Kafka"}


class NotKafkas(WarmlogError):
    """A directory is not one of Kafka's data directories, or has an unknown version."""


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """A partition's directory and its offsets in the checkpoints; None for one that is not there."""

    key: TopicPartition
    path: Path
    recovery_point: int | None
    log_start_offset: int | None
    high_watermark: int | None

    def topic_id(self) -> UUID | None:
        """The topic's id; None if Kafka was too old (before 2.8) to write one. StorageError if damaged."""
        try:
            return read_partition_metadata(self.path / METADATA_NAME)
        except FileNotFoundError:
            return None


@dataclass(slots=True)
class KafkaDirectory:
    """The contents of one data directory of Kafka."""

    path: Path
    was_clean: bool
    cluster_id: str = ""
    """Empty if Kafka was too old (before 0.10.1) to write one."""
    partitions: list[KafkaPartition] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Directories that are ignored, and why; those of an internal topic as one."""

    @classmethod
    def read(cls, path: Path) -> "KafkaDirectory":
        """Read the directory at `path`. NotKafkas, or StorageError for a checkpoint that cannot be parsed."""
        properties = _read_properties(path / KAFKA_PROPERTIES_NAME)
        recovery_points = read_offsets(path / RECOVERY_POINTS_NAME)
        log_starts = read_offsets(path / LOG_STARTS_NAME)
        high_watermarks = read_offsets(path / HIGH_WATERMARKS_NAME)
        found = cls(path, (path / CLEAN_MARKER_NAME).exists(), properties.get("cluster.id", ""))
        for directory in sorted(entry for entry in path.iterdir() if entry.is_dir()):
            name = parse_directory_name(directory.name)
            if name is None:
                found.skipped.append((directory, "not a partition's directory"))
            elif name.mark:
                found.skipped.append((directory, _MARKS[name.mark]))
            elif name.topic_partition.topic in INTERNAL_TOPICS:
                skip = path / f"{name.topic_partition.topic}-*", "an internal topic of Kafka"
                if skip not in found.skipped:
                    found.skipped.append(skip)
            else:
                key = name.topic_partition
                offsets = recovery_points.get(key), log_starts.get(key), high_watermarks.get(key)
                found.partitions.append(KafkaPartition(key, directory, *offsets))
        return found


def _read_properties(path: Path) -> dict[str, str]:
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        raise NotKafkas(f"{path} is missing: {path.parent} is not a data directory of Kafka") from None
    lines = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    properties = {name: value.strip() for name, value in lines}
    version = properties.get("version", "")
    if version not in KNOWN_VERSIONS:
        raise NotKafkas(f"{path}: expected version {' or '.join(KNOWN_VERSIONS)}, found {version!r}")
    return properties
