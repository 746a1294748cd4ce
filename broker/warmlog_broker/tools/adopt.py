"""Taking topics over from the data directories of a Kafka that was stopped.

Nobody else uses either directory meanwhile. In this order:

1. What is there is checked, all of it, before anything is written: names, partitions, every batch where it lies.
2. Partitions are copied into `.adopting` within our data directory, and verified there.
3. `.adopting/journal` says which directories are about to be moved; then they are, to their places.
4. Their offsets are added to the checkpoints. Checkpoints of partitions that no topic has harm nobody.
5. The metadata log is replaced by one that has the topics. **This is the moment**: before it no broker knows of them.
6. `.adopting` is removed.

After a crash before the fifth step, directories that belong to no topic may lie in their places; brokers leave them
alone, and the next adoption removes those that the journal names. After a crash behind it, all is there.

The marker of a clean stop, which names each log, stays: it says nothing of the new ones, so their ends are checked when
a broker opens them. A topic's leader epoch begins above all that its logs have seen, producer ids are given out above
all theirs, and its settings keep everything: retention is off until somebody sets it.
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
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
    read_records,
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
"""Left free on the disk: an adoption must not be what fills it."""


@dataclass(frozen=True, slots=True)
class AdoptionOptions:
    """What is to be done, and how."""

    topics: frozenset[str] = frozenset()
    """Only these; all when there is none."""
    is_linked: bool = False
    must_recover: bool = False
    """Takes over what was not stopped cleanly, too."""
    fills_missing: bool = False
    """Makes partitions that are missing between others empty ones."""


@dataclass(slots=True)
class AdoptedTopic:
    """A topic that is taken over."""

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
    """What was, or with a dry run would be, done."""

    topics: list[AdoptedTopic] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Directories, and why they are not taken over."""
    done_before: list[str] = field(default_factory=list)
    """Topics that an earlier adoption has taken over."""
    bytes_to_copy: int = 0


class Journal(msgspec.Struct, frozen=True):
    """The content of the journal: JSON. Directories about to be moved, by name, and the topic id in each."""

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
    """Says what `adopt` would do, after all of its checks; writes nothing.

    Raises AdoptionRefused, DirectoryLocked, NotKafkas, or StorageError for files that say nothing.
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
    """Takes the topics over, all or none; on return they are on disk. Raises as `plan_adoption` does, and OSError."""
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
            _commit(adoption, data_dir, metadata_log.state)
    return adoption


# Checking


def _checked_plan(
    kafka_paths: Sequence[Path], data_dir: Path, options: AdoptionOptions, on_checked: Callable[[str], None]
) -> Adoption:
    """What there is to do, after every batch was checked where it lies."""
    adoption = _plan(kafka_paths, data_dir, options, _state_of(data_dir))
    if options.must_recover:
        return adoption  # a log that was not closed is judged after its copy was recovered
    for topic in adoption.topics:
        for source in topic.sources.values():
            check_partition(source)
            on_checked(source.key.directory_name)
    return adoption


def _plan(kafka_paths: Sequence[Path], data_dir: Path, options: AdoptionOptions, state: MetadataState) -> Adoption:
    """What there is to do, by names, ids and sizes."""
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
        reasons.append(f"{adoption.bytes_to_copy} bytes are to be copied, {data_dir} has room for {room}")
    if reasons:
        raise AdoptionRefused("; ".join(reasons))
    return adoption


def _topics_in(directories: Iterable[KafkaDirectory], options: AdoptionOptions) -> list[AdoptedTopic]:
    """The topics to take over, by name. AdoptionRefused when there are none, or not all that were asked for."""
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
        text = "internal to Kafka, and never taken over" if internal else "not there"
        raise AdoptionRefused(f"topic {', '.join(internal or unknown)}: {text}")
    if not by_name:
        raise AdoptionRefused("there is no topic to take over")
    return [AdoptedTopic(name, _common_id(partitions), partitions) for name, partitions in sorted(by_name.items())]


def _common_id(partitions: dict[int, KafkaPartition]) -> UUID:
    """The id that all partitions of a topic carry; a new one where Kafka was too old to give one."""
    ids = {source.topic_id(): source.path for source in partitions.values()}
    if len(ids) > 1:
        listed = ", ".join(f"{path} says {topic_id}" for topic_id, path in ids.items())
        raise AdoptionRefused(f"the partitions do not belong to one topic: {listed}")
    return next(iter(ids)) or uuid4()


def _why_unclean(directories: Iterable[KafkaDirectory]) -> Iterable[str]:
    for directory in directories:
        if not directory.was_clean:
            yield (
                f"{directory.path} was not stopped cleanly, {KAFKAS_MARKER_NAME} is missing: start Kafka and stop it, "
                f"or recover the copies (--recover), which cuts what was written half"
            )


def _why_not(topic: AdoptedTopic, data_dir: Path, options: AdoptionOptions, state: MetadataState) -> Iterable[str]:
    """What stands in the way of one topic."""
    check_topic_name(topic.name)
    if topic.name in state.topics:
        yield f"there is a topic {topic.name!r} already, with another id"
    other = colliding_topic(topic.name, state.topics)
    if other is not None:
        yield f"topic {topic.name!r} collides with {other!r}: they differ in '.' and '_' alone"
    same_id = [name for name, entry in state.topics.items() if entry.topic_id == topic.topic_id.bytes]
    if same_id and same_id != [topic.name]:
        yield f"the topic {same_id[0]!r} has the id of {topic.name!r}"
    if topic.missing and not options.fills_missing:
        listed = ", ".join(map(str, topic.missing))
        yield (
            f"topic {topic.name!r} lacks partition {listed}: name all data directories that Kafka had, or have the "
            f"missing ones made empty (--empty-partitions)"
        )
    in_journal = _read_journal(data_dir).directories
    for index in range(topic.partitions):
        path = data_dir / TopicPartition(topic.name, index).directory_name
        if path.exists() and path.name not in in_journal:
            yield f"{path} is in the way"


def _state_of(data_dir: Path) -> MetadataState:
    """What the metadata log says. AdoptionRefused for a directory that is no first data directory of warmlog."""
    path = data_dir / FILE_NAME
    state = MetadataState()
    data = _read_if_there(path) or b""
    if not data and data_dir.exists():
        is_ours = (data_dir / FORMAT_NAME).exists()
        if any(entry.is_dir() and parse_directory_name(entry.name) is not None for entry in data_dir.iterdir()):
            reason = "another of several data directories?" if is_ours else "no data directory of warmlog"
            raise AdoptionRefused(f"{data_dir} has no {FILE_NAME}: {reason}")
    for entry in read_records(data, path).entries if data else ():
        state.apply(entry)
    return state


# Copying


def _stage(adoption: Adoption, staging: Path, options: AdoptionOptions, now_ms: int, on_copied: OnProgress) -> None:
    """Copies all partitions into `staging`, and verifies them. Whatever fails, nothing of it stays."""
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
    """What an adoption makes before it commits, and is not there yet: files, then directories from the lowest up."""
    path = data_dir.absolute()
    return [each for each in (path / FILE_NAME, path / LOCK_NAME, path, *path.parents) if not each.exists()]


def _remove(made: list[Path]) -> None:
    """Takes back what was made, as far as nobody has put anything beside it."""
    for path in made:
        with suppress(OSError):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


# Committing


def _commit(adoption: Adoption, data_dir: Path, state: MetadataState) -> None:
    staging = data_dir / STAGING_NAME
    names = {log.key.directory_name: str(topic.topic_id) for topic in adoption.topics for log in topic.logs.values()}
    replace_file(staging / JOURNAL_NAME, msgspec.json.encode(Journal(names)))
    for name in names:
        (staging / name).rename(data_dir / name)
    sync_directory(data_dir)
    _add_checkpoints(data_dir, adoption)
    replace_file(data_dir / FILE_NAME, pack_file([*state.entries(), *_entries(adoption, state)]))
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


def _entries(adoption: Adoption, state: MetadataState) -> list[AnyEntry]:
    """What the metadata log gets: the topics, and the first producer id that none of their logs has seen."""
    entries: list[AnyEntry] = []
    max_producer_id = state.next_producer_id - 1
    for topic in adoption.topics:
        summaries = [log.summary for log in topic.logs.values()]
        max_epoch = max(summary.max_leader_epoch for summary in summaries)
        max_producer_id = max([max_producer_id, *(summary.max_producer_id for summary in summaries)])
        entries.append(
            TopicCreated(topic.name, topic.topic_id.bytes, topic.partitions, dict(KEEPS_EVERYTHING), max_epoch + 1)
        )
    entries.append(ProducerIdsReserved(max_producer_id + 1))
    return entries


# After a crash


def _clear_up(data_dir: Path, state: MetadataState) -> None:
    """Removes what an adoption that was interrupted has left and no topic owns. Hard links go, not what they name."""
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
    content = _read_if_there(data_dir / STAGING_NAME / JOURNAL_NAME)
    return Journal({}) if content is None else msgspec.json.decode(content, type=Journal)


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
