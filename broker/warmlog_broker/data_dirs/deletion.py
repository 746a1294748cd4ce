"""Directories of deleted topics.

First they are renamed to Kafka's `-delete` form, so that they are found no more; then, later, removed. What the
deletion itself did not rename, because of a crash or an error, is renamed by a start. Of such a directory it must be
certain whose it is:

=======================  ===================================  ========================================================
its partition.metadata   the directory                        outcome
=======================  ===================================  ========================================================
has the deleted id       any                                  renamed
has another id           any                                  stays: it belongs to another topic
is missing or damaged    a copy under way (`-future`)         stays
is missing or damaged    holds no record (`leftovers`), and   renamed
                         no topic has the name now
is missing or damaged    any other                            stays: it may be anybody's; with a warning
cannot be read           any                                  stays; the next start tries again, with an error
=======================  ===================================  ========================================================
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from warmlog_broker.data_dirs.leftovers import holds_no_record
from warmlog_broker.metadata.metadata_log import TopicDeleted
from warmlog_broker.storage.directory.data_dir import remove_deleted_partition
from warmlog_broker.storage.directory.partition_metadata import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.directory.topic_partition import (
    PartitionDirectoryName,
    deleted_directory_name,
    parse_directory_name,
)
from warmlog_broker.storage.io.durable_files import sync_directory

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Renamed:
    """What became of the directories of a deleted topic."""

    paths: list[Path] = field(default_factory=list)
    """The new paths of those that were renamed."""
    is_finished: bool = True
    """Whether there is nothing left for the next start to try again."""

    @contextmanager
    def trying(self, path: Path) -> Iterator[None]:
        """Within, an error of the disk is logged, and leaves the rest to the next start."""
        try:
            yield
        except OSError as error:
            self.is_finished = False
            _log.error("%s may belong to a deleted topic, the next start tries again: %s", path, error)


def rename_deleted(data_dirs: Iterable[Path], deleted: TopicDeleted, *, is_name_taken: bool = False) -> Renamed:
    """Rename what is left of a deleted topic's directories, durably when it is finished.

    `is_name_taken` says that another topic has the name now. Errors of the disk are logged and not raised.
    """
    renamed = Renamed()
    for data_dir in data_dirs:
        with renamed.trying(data_dir):
            _rename_in(data_dir, deleted, is_name_taken, renamed)
    return renamed


def _rename_in(data_dir: Path, deleted: TopicDeleted, is_name_taken: bool, renamed: Renamed) -> None:
    count_before = len(renamed.paths)
    for path in sorted(data_dir.iterdir()):
        found = parse_directory_name(path.name)
        if found is None or not _is_named_by(found, path.name, deleted):
            continue
        with renamed.trying(path):
            if _is_deleted(path, found, deleted, is_name_taken):
                target = path.with_name(deleted_directory_name(found.topic_partition))
                path.rename(target)
                renamed.paths.append(target)
    if len(renamed.paths) > count_before:
        sync_directory(data_dir)


def _is_named_by(found: PartitionDirectoryName, name: str, deleted: TopicDeleted) -> bool:
    """Whether the topic may have had a directory of that name. The topic in the name of a copy may be cut."""
    key, mark = found
    is_live = name == key.directory_name and key.topic == deleted.name and key.partition < deleted.partitions
    return is_live or mark == "future"


def _is_deleted(path: Path, found: PartitionDirectoryName, deleted: TopicDeleted, is_name_taken: bool) -> bool:
    """Whether the directory is certainly the deleted topic's, as the table above says. OSError from the disk."""
    if not path.is_dir():
        return False
    stated = stored_topic_id(path / METADATA_NAME)
    if stated is not None:
        return stated.bytes == deleted.topic_id
    if found.mark or is_name_taken:
        return False
    is_empty = holds_no_record(path)
    if not is_empty:
        _log.warning(
            "%s is left alone: its %s is missing or damaged, so it is not certain that it belonged to the deleted "
            "topic %r; if it did, remove it by hand",
            path,
            METADATA_NAME,
            deleted.name,
        )
    return is_empty


class DoomedDirectories:
    """Directories of deleted partitions that are to be removed when their time comes."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._waiting: list[tuple[float, Path]] = []

    def add(self, paths: Iterable[Path], delay_ms: int) -> None:
        """`paths` are removed by the first `remove_due` after `delay_ms`."""
        due_s = asyncio.get_running_loop().time() + delay_ms / 1000
        self._waiting += [(due_s, path) for path in paths]

    async def remove_due(self) -> None:
        """Removes, in a thread, what is due."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        due = [path for due_s, path in self._waiting if due_s <= now_s]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > now_s]
        for path in due:
            await loop.run_in_executor(self._threads, _remove, path)


def _remove(path: Path) -> None:
    """Removes a directory and all that is in it. What cannot be removed is left for the next start."""
    try:
        remove_deleted_partition(path)
    except OSError as error:
        _log.warning("%s could not be removed: %s", path, error)
