"""Removes directories of deleted partitions: renamed to Kafka's `-delete` form, which starts ignore, then removed.

A directory of a deleted topic that the deletion did not rename, because of a crash or an error, is renamed by a start.
It must be certain that the directory belonged to that topic:

=======================  ===================================  ========================================================
its partition.metadata   the directory                        outcome
=======================  ===================================  ========================================================
has the deleted id       any                                  renamed
has another id           any                                  stays: it belongs to another topic
is missing or damaged    a copy under way (`-future`)         stays
is missing or damaged    holds no record, and no topic has    renamed
                         the name now
is missing or damaged    any other                            stays: it may be another topic's; with a warning
cannot be read           any                                  stays; the next start tries again, with an error
=======================  ===================================  ========================================================

If the disk fails while a partition is created, the partition is created in another data directory, and the incomplete
one (`is_leftover`) is renamed and removed, by the next start if not at once.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from msgspec import Struct, field

from warmlog_broker.metadata.metadata_log import TopicDeleted
from warmlog_broker.storage.directory.data_dir import remove_deleted_partition
from warmlog_broker.storage.directory.partition_files import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.directory.topic_partition import (
    PartitionDirectoryName,
    TopicPartition,
    marked_directory_name,
    parse_directory_name,
)
from warmlog_broker.storage.io.durable_files import sync_directory
from warmlog_broker.storage.segment.segment_files import LOG_KIND, segment_file_name
from warmlog_protocol.batch.header import HEADER_BYTES

FIRST_LOG_NAME = segment_file_name(0, LOG_KIND)

_log = logging.getLogger(__name__)


def rename_to_deleted(path: Path, key: TopicPartition, *, sync: bool = True) -> Path:
    """Rename the directory of a partition; return the new path. OSError from the disk.

    Durable on return, unless the caller syncs the data directory once for many: each sync takes milliseconds.
    """
    target = path.rename(path.with_name(marked_directory_name(key, "delete")))
    if sync:
        sync_directory(path.parent)
    return target


def is_leftover(path: Path, topic_id: UUID) -> bool:
    """Return whether `path` holds no record, and no sign of belonging to another topic. False if it cannot be read."""
    try:
        return stored_topic_id(path / METADATA_NAME) in (None, topic_id) and _holds_no_record(path)
    except OSError as error:
        _log.warning("%s cannot be read, so it is not removed: %s", path, error)
        return False


def _holds_no_record(path: Path) -> bool:
    """Whether a partition's directory has no log file but an empty first one. OSError from the disk.

    `Path.glob` would treat a directory that cannot be listed as empty. A preallocated file begins with zeros.
    """
    for file in path.iterdir():
        if file.name == FIRST_LOG_NAME:
            with file.open("rb") as log:
                if any(log.read(HEADER_BYTES)):
                    return False
        elif ".log" in file.name:
            return False
    return True


class Renamed(Struct):
    """The result of renaming the directories of a deleted topic."""

    paths: list[Path] = field(default_factory=list)
    """The new paths of those that were renamed."""
    is_finished: bool = True
    """Whether nothing is left for the next start to try again."""

    @contextmanager
    def trying(self, path: Path) -> Iterator[None]:
        """A context in which an error of the disk is logged, and the rest left to the next start."""
        try:
            yield
        except OSError as error:
            self.is_finished = False
            _log.error("%s may belong to a deleted topic, the next start tries again: %s", path, error)


def rename_deleted(data_dirs: Iterable[Path], deleted: TopicDeleted, *, is_name_taken: bool = False) -> Renamed:
    """Rename the remaining directories of a deleted topic, durably if the result is complete.

    `is_name_taken`: another topic has the name now. Errors of the disk are logged, not raised.
    """
    renamed = Renamed()
    for data_dir in data_dirs:
        count_before = len(renamed.paths)
        with renamed.trying(data_dir):
            for path in sorted(data_dir.iterdir()):
                found = parse_directory_name(path.name)
                if found is not None:
                    with renamed.trying(path):
                        if _is_deleted(path, found, deleted, is_name_taken):
                            renamed.paths.append(rename_to_deleted(path, found.topic_partition, sync=False))
            if len(renamed.paths) > count_before:
                sync_directory(data_dir)
    return renamed


def _is_deleted(path: Path, found: PartitionDirectoryName, deleted: TopicDeleted, is_name_taken: bool) -> bool:
    """Return whether the directory is certainly the deleted topic's, by the table above. OSError from the disk."""
    key, mark = found
    is_live = path.name == key.directory_name and key.topic == deleted.name and key.partition < deleted.partitions
    if not (is_live or mark == "future") or not path.is_dir():  # the topic in a copy's name may be cut
        return False
    stated = stored_topic_id(path / METADATA_NAME)
    if stated is not None:
        return stated.bytes == deleted.topic_id
    if mark or is_name_taken:
        return False
    is_empty = _holds_no_record(path)
    if not is_empty:
        _log.warning(
            "%s is left alone: its %s is missing or damaged, so it is not certain that it belonged to the deleted "
            "topic %r; if it did, remove it by hand",
            path,
            METADATA_NAME,
            deleted.name,
        )
    return is_empty


class DirectoryRemover:
    """Removes renamed directories after a delay."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._waiting: list[tuple[float, Path]] = []

    def add(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Have `paths` removed by the first `remove_due` after `delay_ms`."""
        due_s = asyncio.get_running_loop().time() + delay_ms / 1000
        self._waiting += [(due_s, path) for path in paths]

    async def remove_due(self) -> None:
        """Remove the due directories in a thread. One that cannot be removed is left to the next start."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        due = [path for due_s, path in self._waiting if due_s <= now_s]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > now_s]
        for path in due:
            try:
                await loop.run_in_executor(self._threads, remove_deleted_partition, path)
            except OSError as error:
                _log.warning("%s could not be removed: %s", path, error)
