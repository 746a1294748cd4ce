"""Taking topics over from the data directories of a stopped Kafka.

Both directories are locked meanwhile. The steps:

1. Check everything before writing anything: names, partitions and every batch in Kafka's files.
2. Copy the partitions into `.adopting` in our data directory, and verify the copies.
3. Write the names of the partitions' directories to `.adopting/journal`, then move them into the data directory.
4. Add their offsets to the checkpoints. Checkpoints of partitions without a topic are harmless.
5. Replace the metadata log by one that has the topics. **This commits**: before it no broker knows them.
6. Remove `.adopting`.

After a crash before step 5 there may be directories that belong to no topic; brokers ignore them, and the next adoption
removes those that the journal names. After a crash later than that, the topics are complete.

The marker of a clean stop remains: it names the logs that it covers, so the ends of the new ones are checked when a
broker opens them. A topic's leader epoch begins above all epochs in its logs, and new producer ids are above all of
theirs. Its settings keep everything, unless `AdoptionOptions.configs` says otherwise.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec

from warmlog_broker.metadata.log_file import FILE_NAME, MetadataLog, pack_file
from warmlog_broker.metadata.metadata_log import Entry, MetadataState, ProducerIdsReserved, TopicCreated
from warmlog_broker.storage.directory.data_dir import (
    HIGH_WATERMARKS_NAME,
    LOG_STARTS_NAME,
    RECOVERY_POINTS_NAME,
    DataDirectory,
)
from warmlog_broker.storage.directory.dir_lock import LOCK_NAME, shared_lock
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets, write_offsets
from warmlog_broker.storage.directory.partition_files import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_broker.tools.adoption.partition import check_partition, copy_partition
from warmlog_broker.tools.adoption.plan import (
    JOURNAL_NAME,
    STAGING_NAME,
    Adoption,
    AdoptionOptions,
    directories_in_journal,
    make_plan,
    state_of,
)

KEEPS_EVERYTHING = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
"""The settings of a topic, unless `AdoptionOptions.configs` has others."""

OnProgress = Callable[[str, int, int], None]
"""Called with the name of a partition's directory, how many bytes are done, and how many there are."""


def adopt(
    kafka_paths: Sequence[Path],
    data_dir: Path,
    options: AdoptionOptions,
    *,
    now_ms: int,
    is_dry_run: bool = False,
    on_checked: Callable[[str], None] = lambda _name: None,
    on_copied: OnProgress = lambda _name, _done, _total: None,
) -> Adoption:
    """Take over all topics or none; on return they are on disk. A dry run makes all checks and writes nothing.

    Raises AdoptionRefused, DirectoryLocked, NotKafkas, StorageError for unreadable files, or OSError.
    """
    with ExitStack() as stack:
        for path in kafka_paths:
            stack.enter_context(shared_lock(path))
        with shared_lock(data_dir):
            adoption = make_plan(kafka_paths, data_dir, options, state_of(data_dir))
            sources = [source for topic in adoption.topics for source in topic.sources.values()]
            # A log that was not closed is checked once its copy is recovered.
            for source in sources if not options.must_recover else ():
                check_partition(source)
                on_checked(source.key.directory_name)
        if is_dry_run:
            return adoption
        missing = _missing(data_dir)
        stack.callback(DataDirectory.lock(data_dir).close)
        try:
            metadata_log, _ = MetadataLog.open(data_dir)
            metadata_log.close()
            _clear_up(data_dir, metadata_log.state)
            adoption = make_plan(kafka_paths, data_dir, options, metadata_log.state)
            if adoption.topics:
                _stage(adoption, data_dir / STAGING_NAME, options, now_ms, on_copied)
        except BaseException:
            _remove(missing)
            raise
        if adoption.topics:
            _commit(adoption, data_dir, options, metadata_log.state)
    return adoption


def _missing(data_dir: Path) -> list[Path]:
    """Return what an adoption will create before it commits: files, then directories from the innermost out."""
    path = data_dir.absolute()
    return [each for each in (path / FILE_NAME, path / LOCK_NAME, path, *path.parents) if not each.exists()]


def _remove(created: list[Path]) -> None:
    """Remove what was created; a directory that holds anything else stays."""
    for path in created:
        with suppress(OSError):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


def _stage(adoption: Adoption, staging: Path, options: AdoptionOptions, now_ms: int, on_copied: OnProgress) -> None:
    """Copy all partitions into `staging` and verify them. On an error `staging` is removed."""
    copied = 0

    def tell(name: str, count: int) -> None:
        nonlocal copied
        copied += count
        on_copied(name, copied, adoption.bytes_to_copy)

    try:
        staging.mkdir()
        for topic in adoption.topics:
            for index, source in topic.sources.items():
                name = source.key.directory_name
                topic.logs[index] = copy_partition(
                    source,
                    staging / name,
                    topic.topic_id,
                    is_linked=options.is_linked,
                    recovers_at_ms=now_ms if options.must_recover else None,
                    on_copied=partial(tell, name),
                )
        sync_directory(staging)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _clear_up(data_dir: Path, state: MetadataState) -> None:
    """Remove what an interrupted adoption left and no topic owns. Of linked files only our link is removed."""
    staging = data_dir / STAGING_NAME
    if not staging.exists():
        return
    owned = {entry.topic_id for entry in state.topics.values()}
    for name, topic_id in directories_in_journal(data_dir).items():
        path = data_dir / name
        is_owned = UUID(topic_id).bytes in owned
        if path.is_dir() and not is_owned and stored_topic_id(path / METADATA_NAME) == UUID(topic_id):
            path.rename(staging / f"{name}.left")
    sync_directory(data_dir)
    shutil.rmtree(staging)


def _commit(adoption: Adoption, data_dir: Path, options: AdoptionOptions, state: MetadataState) -> None:
    """Move the copies in, and add checkpoints and topics; then remove `.adopting`."""
    staging = data_dir / STAGING_NAME
    names = {log.key.directory_name: str(topic.topic_id) for topic in adoption.topics for log in topic.logs.values()}
    replace_file(staging / JOURNAL_NAME, msgspec.json.encode({"directories": names}))
    for name in names:
        (staging / name).rename(data_dir / name)
    sync_directory(data_dir)
    logs = [log for topic in adoption.topics for log in topic.logs.values()]
    for name, added in (
        (RECOVERY_POINTS_NAME, {log.key: log.offsets.recovery_point for log in logs}),
        (LOG_STARTS_NAME, {log.key: log.offsets.log_start_offset for log in logs}),
        (HIGH_WATERMARKS_NAME, {log.key: log.offsets.high_watermark for log in logs}),
    ):
        write_offsets(data_dir / name, {**read_offsets(data_dir / name), **added})
    path = data_dir / FILE_NAME
    content = pack_file([*state.entries(), *_entries(adoption, options, state)])
    replace_file(path, content, mode=path.stat().st_mode & 0o777)  # one with users is for its owner only
    shutil.rmtree(staging)
    sync_directory(data_dir)


def _entries(adoption: Adoption, options: AdoptionOptions, state: MetadataState) -> list[Entry]:
    """Return the new entries of the metadata log: the topics, and the first producer id above those in their logs."""
    entries: list[Entry] = []
    max_producer_id = state.next_producer_id - 1
    for topic in adoption.topics:
        summaries = [log.summary for log in topic.logs.values()]
        max_epoch = max(summary.max_leader_epoch for summary in summaries)
        max_producer_id = max([max_producer_id, *(summary.producers.max_producer_id for summary in summaries)])
        settings = {**KEEPS_EVERYTHING, **options.configs.known.get(topic.name, {})}
        entries.append(TopicCreated(topic.name, topic.topic_id.bytes, topic.partitions, settings, max_epoch + 1))
    entries.append(ProducerIdsReserved(max_producer_id + 1))
    return entries
