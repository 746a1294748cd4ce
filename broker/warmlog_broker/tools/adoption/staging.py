"""Copies that are not taken over yet, in `.adopting`, the journal of them, and what a crash leaves."""

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import msgspec

from warmlog_broker.metadata.metadata_log import MetadataState
from warmlog_broker.storage.directory.partition_metadata import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_broker.storage.kafka.adoption import copy_partition, recover_copy, verify_copy
from warmlog_broker.tools.adoption.adoption import Adoption, AdoptionOptions

STAGING_NAME = ".adopting"
JOURNAL_NAME = "journal"

OnProgress = Callable[[str, int, int], None]
"""Called with the name of a partition's directory, how many bytes are done, and how many there are."""


class Journal(msgspec.Struct, frozen=True):
    """The journal, as JSON: the directories about to be moved, by name, and the topic id in each."""

    directories: dict[str, str]


def stage(adoption: Adoption, staging: Path, options: AdoptionOptions, now_ms: int, on_copied: OnProgress) -> None:
    """Copy all partitions into `staging` and verify them. On an error `staging` is removed."""
    try:
        staging.mkdir()
        copied = 0
        for topic in adoption.topics:
            for index, source in topic.sources.items():
                name = source.key.directory_name

                def tell(count: int, name: str = name) -> None:
                    nonlocal copied
                    copied += count
                    on_copied(name, copied, adoption.bytes_to_copy)

                target = staging / name
                linked = copy_partition(source, target, topic.topic_id, is_linked=options.is_linked, on_copied=tell)
                remarks = recover_copy(target, source, now_ms) if options.must_recover else ()
                topic.logs[index] = verify_copy(source, target, linked_files=linked, remarks=remarks)
        sync_directory(staging)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def clear_up(data_dir: Path, state: MetadataState) -> None:
    """Remove what an interrupted adoption left and no topic owns. Of linked files only our link is removed."""
    staging = data_dir / STAGING_NAME
    if not staging.exists():
        return
    owned = {entry.topic_id for entry in state.topics.values()}
    for name, topic_id in read_journal(data_dir).directories.items():
        path = data_dir / name
        is_owned = UUID(topic_id).bytes in owned
        if path.is_dir() and not is_owned and stored_topic_id(path / METADATA_NAME) == UUID(topic_id):
            path.rename(staging / f"{name}.left")
    sync_directory(data_dir)
    shutil.rmtree(staging)


def write_journal(staging: Path, directories: dict[str, str]) -> None:
    """Write the journal, durably."""
    replace_file(staging / JOURNAL_NAME, msgspec.json.encode(Journal(directories)))


def read_journal(data_dir: Path) -> Journal:
    """Return the journal of an interrupted adoption; an empty one if there is none."""
    path = data_dir / STAGING_NAME / JOURNAL_NAME
    return msgspec.json.decode(path.read_bytes(), type=Journal) if path.exists() else Journal({})
