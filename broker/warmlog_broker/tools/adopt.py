"""Takes topics over from the data directories of a stopped Kafka.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import msgspec

from warmlog_broker.metadata.metadata_log import (
    FILE_NAME,
    AnyEntry,
    MetadataLog,
    MetadataState,
    ProducerIdsReserved,
    TopicCreated,
    pack_file,
    read_state,
)
from warmlog_broker.metadata.topic_names import check_topic_name, colliding_topic
from warmlog_broker.storage.directory.data_dir import (
    FORMAT_NAME,
    HIGH_WATERMARKS_NAME,
    LOCK_NAME,
    LOG_STARTS_NAME,
    RECOVERY_POINTS_NAME,
    DataDirectory,
)
from warmlog_broker.storage.directory.dir_lock import shared_lock
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets, write_offsets
from warmlog_broker.storage.directory.partition_metadata import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.directory.topic_partition import TopicPartition, parse_directory_name
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_broker.storage.kafka.adoption import (
    AdoptedLog,
    AdoptionRefused,
    bytes_to_copy,
    check_partition,
    copy_partition,
    recover_copy,
    room_for,
    verify_copy,
)
from warmlog_broker.storage.kafka.kafka_directory import CLEAN_MARKER_NAME as KAFKAS_MARKER_NAME
from warmlog_broker.storage.kafka.kafka_directory import INTERNAL_TOPICS, KafkaDirectory, KafkaPartition

STAGING_NAME = ".adopting"
JOURNAL_NAME = "journal"
KEEPS_EVERYTHING = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
SPARE_BYTES = 64 * 1024 * 1024
"""Free space that an adoption must leave on the disk."""


@dataclass(frozen=True, slots=True)
class AdoptionOptions:
    """Which topics to take over, and how."""

    topics: frozenset[str] = frozenset()
    """Only these; empty for all."""
    is_linked: bool = False
    must_recover: bool = False
    """Accept a Kafka that was not stopped cleanly."""
    fills_missing: bool = False
    """Create missing partitions between others, empty."""
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings by topic, valid (`topic_configs`): they replace those of KEEPS_EVERYTHING."""


@dataclass(slots=True)
class AdoptedTopic:
    """One topic, and the partitions that it has in Kafka's directories."""

    name: str
    topic_id: UUID
    sources: dict[int, KafkaPartition]
    logs: dict[int, AdoptedLog] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        return max(self.sources) + 1

    @property
    def missing(self) -> list[int]:
        return [index for index in range(self.partitions) if index not in self.sources]


@dataclass(slots=True)
class Adoption:
    """What was done, or would be done without a dry run."""

    topics: list[AdoptedTopic] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Directories, and why they are skipped."""
    done_before: list[str] = field(default_factory=list)
    """Topics that an earlier adoption took over."""
    bytes_to_copy: int = 0


class Journal(msgspec.Struct, frozen=True):
    """The journal, as JSON: the directories about to be moved, by name, and the topic id in each."""

    directories: dict[str, str]


OnProgress = Callable[[str, int, int], None]
"""Called with the name of a partition's directory, how many bytes are done, and how many there are."""


def plan_adoption(
    kafka_paths: Sequence[Path],
    data_dir: Path,
    options: AdoptionOptions,
    *,
    on_checked: Callable[[str], None] = lambda _name: None,
) -> Adoption:
    """Make all checks and return what `adopt` would do, without writing anything.

    Raises AdoptionRefused, DirectoryLocked, NotKafkas, or StorageError for unreadable files.
    """
    with ExitStack() as stack:
        for path in (*kafka_paths, data_dir):
            if path.exists():
                stack.enter_context(shared_lock(path))
        return _checked_plan(kafka_paths, data_dir, options, on_checked)


def adopt(
    kafka_paths: Sequence[Path],
    data_dir: Path,
    options: AdoptionOptions,
    *,
    now_ms: int,
    on_checked: Callable[[str], None] = lambda _name: None,
    on_copied: OnProgress = lambda _name, _done, _total: None,
) -> Adoption:
    """Take over all topics or none; on return they are on disk. Raises as `plan_adoption` does, and OSError."""
    with ExitStack() as stack:
        for path in kafka_paths:
            stack.enter_context(shared_lock(path))
        with shared_lock(data_dir):
            _checked_plan(kafka_paths, data_dir, options, on_checked)
        missing = _missing(data_dir)
        stack.callback(DataDirectory.lock(data_dir).close)
        try:
            metadata_log, _ = MetadataLog.open(data_dir)
            metadata_log.close()
            _clear_up(data_dir, metadata_log.state)
            adoption = _plan(kafka_paths, data_dir, options, metadata_log.state)
            if adoption.topics:
                _stage(adoption, data_dir / STAGING_NAME, options, now_ms, on_copied)
        except BaseException:
            _remove(missing)
            raise
        if adoption.topics:
            _commit(adoption, data_dir, metadata_log.state, options.configs)
    return adoption


# Checking


def _checked_plan(
    kafka_paths: Sequence[Path], data_dir: Path, options: AdoptionOptions, on_checked: Callable[[str], None]
) -> Adoption:
    """Plan, and check every batch in Kafka's files."""
    adoption = _plan(kafka_paths, data_dir, options, _state_of(data_dir))
    if options.must_recover:
        return adoption  # a log that was not closed is checked once its copy is recovered
    for topic in adoption.topics:
        for source in topic.sources.values():
            check_partition(source)
            on_checked(source.key.directory_name)
    return adoption


def _plan(kafka_paths: Sequence[Path], data_dir: Path, options: AdoptionOptions, state: MetadataState) -> Adoption:
    """Plan by names, ids and sizes. AdoptionRefused lists all reasons."""
    directories = [KafkaDirectory.read(path) for path in kafka_paths]
    adoption = Adoption(skipped=[skip for directory in directories for skip in directory.skipped])
    topics = _topics_in(directories, options)
    reasons = [] if options.must_recover else list(_why_unclean(directories))
    for topic in topics:
        known = state.topics.get(topic.name)
        if known is not None and known.topic_id == topic.topic_id.bytes:
            adoption.done_before.append(topic.name)
            continue
        reasons += _why_not(topic, data_dir, options, state)
        adoption.topics.append(topic)
    sources = [source for topic in adoption.topics for source in topic.sources.values()]
    adoption.bytes_to_copy = sum(bytes_to_copy(source, is_linked=options.is_linked) for source in sources)
    room = room_for(data_dir)
    if adoption.bytes_to_copy + SPARE_BYTES > room:
        reasons.append(f"{adoption.bytes_to_copy} bytes would be copied, but {data_dir} has only {room} bytes free")
    if reasons:
        raise AdoptionRefused("; ".join(reasons))
    return adoption


def _topics_in(directories: Iterable[KafkaDirectory], options: AdoptionOptions) -> list[AdoptedTopic]:
    """Return the topics to take over, by name. AdoptionRefused if there are none, or a requested one is missing."""
    by_name: dict[str, dict[int, KafkaPartition]] = {}
    for directory in directories:
        for partition in directory.partitions:
            if options.topics and partition.key.topic not in options.topics:
                continue
            partitions = by_name.setdefault(partition.key.topic, {})
            other = partitions.setdefault(partition.key.partition, partition)
            if other is not partition:
                raise AdoptionRefused(f"{other.path} and {partition.path} are the same partition")
    unknown = sorted(options.topics - by_name.keys())
    if unknown:
        internal = [name for name in unknown if name in INTERNAL_TOPICS]
        text = "internal to Kafka and cannot be taken over" if internal else "not in these directories"
        raise AdoptionRefused(f"topic {', '.join(internal or unknown)}: {text}")
    if not by_name:
        raise AdoptionRefused("these directories have no topic to take over")
    return [AdoptedTopic(name, _common_id(partitions), partitions) for name, partitions in sorted(by_name.items())]


def _common_id(partitions: dict[int, KafkaPartition]) -> UUID:
    """Return the topic id in all partitions; a new one if they have none, as with an old Kafka."""
    ids = {source.topic_id(): source.path for source in partitions.values()}
    if len(ids) > 1:
        listed = ", ".join(f"{path} has {topic_id}" for topic_id, path in ids.items())
        raise AdoptionRefused(f"the partitions of a topic must have one topic id: {listed}")
    return next(iter(ids)) or uuid4()


def _why_unclean(directories: Iterable[KafkaDirectory]) -> Iterable[str]:
    for directory in directories:
        if not directory.was_clean:
            yield (
                f"{directory.path} was not stopped cleanly, {KAFKAS_MARKER_NAME} is missing: start Kafka and stop it, "
                f"or recover the copies (--recover), which cuts off incomplete batches"
            )


def _why_not(topic: AdoptedTopic, data_dir: Path, options: AdoptionOptions, state: MetadataState) -> Iterable[str]:
    """Yield the reasons against taking over one topic."""
    check_topic_name(topic.name)
    if topic.name in state.topics:
        yield f"topic {topic.name!r} already exists with another id"
    other = colliding_topic(topic.name, state.topics)
    if other is not None:
        yield f"topic {topic.name!r} collides with {other!r}: the names differ only in '.' and '_'"
    same_id = [name for name, entry in state.topics.items() if entry.topic_id == topic.topic_id.bytes]
    if same_id and same_id != [topic.name]:
        yield f"the topic {same_id[0]!r} has the id of {topic.name!r}"
    if topic.missing and not options.fills_missing:
        listed = ", ".join(map(str, topic.missing))
        yield (
            f"topic {topic.name!r} lacks partition {listed}: give all of Kafka's data directories, or have the "
            f"missing partitions created empty (--empty-partitions)"
        )
    in_journal = _read_journal(data_dir).directories
    for index in range(topic.partitions):
        path = data_dir / TopicPartition(topic.name, index).directory_name
        if path.exists() and path.name not in in_journal:
            yield f"{path} already exists: move it out of the data directory"


def _state_of(data_dir: Path) -> MetadataState:
    """Read the metadata log. AdoptionRefused if `data_dir` has partitions but is not the first data directory."""
    path = data_dir / FILE_NAME
    if path.exists() and path.stat().st_size:
        return read_state(path)
    names = [entry.name for entry in data_dir.iterdir() if entry.is_dir()] if data_dir.exists() else []
    if any(parse_directory_name(name) is not None for name in names):
        is_ours = (data_dir / FORMAT_NAME).exists()
        reason = "give the first of several data directories" if is_ours else "it is not a data directory of warmlog"
        raise AdoptionRefused(f"{data_dir} has no {FILE_NAME}: {reason}")
    return MetadataState()


# Copying


def _stage(adoption: Adoption, staging: Path, options: AdoptionOptions, now_ms: int, on_copied: OnProgress) -> None:
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


# Committing


def _commit(adoption: Adoption, data_dir: Path, state: MetadataState, configs: Mapping[str, Mapping[str, str]]) -> None:
    staging = data_dir / STAGING_NAME
    names = {log.key.directory_name: str(topic.topic_id) for topic in adoption.topics for log in topic.logs.values()}
    replace_file(staging / JOURNAL_NAME, msgspec.json.encode(Journal(names)))
    for name in names:
        (staging / name).rename(data_dir / name)
    sync_directory(data_dir)
    _add_checkpoints(data_dir, adoption)
    replace_file(data_dir / FILE_NAME, pack_file([*state.entries(), *_entries(adoption, state, configs)]))
    shutil.rmtree(staging)
    sync_directory(data_dir)


def _add_checkpoints(data_dir: Path, adoption: Adoption) -> None:
    logs = [log for topic in adoption.topics for log in topic.logs.values()]
    for name, field_name in (
        (RECOVERY_POINTS_NAME, "recovery_point"),
        (LOG_STARTS_NAME, "log_start_offset"),
        (HIGH_WATERMARKS_NAME, "high_watermark"),
    ):
        path = data_dir / name
        added = {log.key: int(getattr(log.offsets, field_name)) for log in logs}
        write_offsets(path, {**read_offsets(path), **added})


def _entries(adoption: Adoption, state: MetadataState, configs: Mapping[str, Mapping[str, str]]) -> list[AnyEntry]:
    """Return the new entries of the metadata log: the topics, and the first producer id above those in their logs."""
    entries: list[AnyEntry] = []
    max_producer_id = state.next_producer_id - 1
    for topic in adoption.topics:
        summaries = [log.summary for log in topic.logs.values()]
        max_epoch = max(summary.max_leader_epoch for summary in summaries)
        max_producer_id = max([max_producer_id, *(summary.max_producer_id for summary in summaries)])
        settings = {**KEEPS_EVERYTHING, **configs.get(topic.name, {})}
        entries.append(TopicCreated(topic.name, topic.topic_id.bytes, topic.partitions, settings, max_epoch + 1))
    entries.append(ProducerIdsReserved(max_producer_id + 1))
    return entries


# After a crash


def _clear_up(data_dir: Path, state: MetadataState) -> None:
    """Remove what an interrupted adoption left and no topic owns. Of linked files only our link is removed."""
    staging = data_dir / STAGING_NAME
    if not staging.exists():
        return
    owned = {entry.topic_id for entry in state.topics.values()}
    for name, topic_id in _read_journal(data_dir).directories.items():
        path = data_dir / name
        is_owned = UUID(topic_id).bytes in owned
        if path.is_dir() and not is_owned and stored_topic_id(path / METADATA_NAME) == UUID(topic_id):
            path.rename(staging / f"{name}.left")
    sync_directory(data_dir)
    shutil.rmtree(staging)


def _read_journal(data_dir: Path) -> Journal:
    path = data_dir / STAGING_NAME / JOURNAL_NAME
    return msgspec.json.decode(path.read_bytes(), type=Journal) if path.exists() else Journal({})
