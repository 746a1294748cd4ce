"""Directories that the creation of a partition left behind, because their disk refused something half-way.

The partition is made in another data directory then, and what was begun is taken away: at once where the disk lets it
be renamed, otherwise by the next start. Nothing is taken away that holds a record, or that says up to which offset it
once held some.
"""

import logging
from pathlib import Path
from uuid import UUID

from warmlog_broker.storage.directory.partition_metadata import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.directory.topic_partition import TopicPartition, deleted_directory_name
from warmlog_broker.storage.io.durable_files import sync_directory

FIRST_LOG_NAME = f"{0:020d}.log"
BATCH_HEADER_BYTES = 61

_log = logging.getLogger(__name__)


def is_leftover(path: Path, topic_id: UUID) -> bool:
    """Whether `path` is that topic's, as far as it says whose it is, and holds no record.

    False when the disk does not let it be told.
    """
    try:
        may_belong = stored_topic_id(path / METADATA_NAME) in (None, topic_id)
        return may_belong and holds_no_record(path)
    except OSError as error:
        _log.warning("%s: it cannot be told what it holds: %s", path, error)
        return False


def holds_no_record(path: Path) -> bool:
    """Whether there is no log file in a partition's directory but the first, and no record in it. OSError from the
    disk: unlike `Path.glob`, which takes a directory that cannot be listed for an empty one."""
    return all(_is_first_and_empty(file) for file in path.iterdir() if ".log" in file.name)


def take_away(path: Path, key: TopicPartition) -> Path:
    """Renames a partition's directory, durably, so that it is found no more, and later removed; returns the new path.

    OSError when the disk refuses.
    """
    target = path.with_name(deleted_directory_name(key))
    path.rename(target)
    sync_directory(path.parent)
    return target


def _is_first_and_empty(file: Path) -> bool:
    """A file that was preallocated has its size, and zeros where its first batch would begin."""
    if file.name != FIRST_LOG_NAME:
        return False
    with file.open("rb") as log:
        return not any(log.read(BATCH_HEADER_BYTES))
