"""What an adoption takes over: the options; what can be taken, by names, ids and sizes; the reasons against it."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import msgspec

from warmlog_broker.metadata.log_file import FILE_NAME, read_state
from warmlog_broker.metadata.metadata_log import MetadataState
from warmlog_broker.metadata.topic_names import check_topic_name, colliding_topic
from warmlog_broker.storage.directory.properties import FORMAT_NAME
from warmlog_broker.storage.directory.topic_partition import TopicPartition, parse_directory_name
from warmlog_broker.tools.adoption.kafka_directory import CLEAN_MARKER_NAME as KAFKAS_MARKER_NAME
from warmlog_broker.tools.adoption.kafka_directory import INTERNAL_TOPICS, KafkaDirectory, KafkaPartition
from warmlog_broker.tools.adoption.partition import AdoptedLog, AdoptionRefused, bytes_to_copy
from warmlog_broker.tools.adoption.topic_configs import TopicConfigs

SPARE_BYTES = 64 * 1024 * 1024
"""Free space that an adoption must leave on the disk."""
STAGING_NAME = ".adopting"
JOURNAL_NAME = "journal"
"""JSON: `{"directories": {"flights-0": "11fa3d95-…"}}`, those about to be moved, with the topic id in each."""


@dataclass(frozen=True, slots=True)
class AdoptionOptions:
    """Which topics to take over, and how."""

    topics: frozenset[str] = frozenset()
    """Only these; empty for all."""
    is_linked: bool = False
    must_recover: bool = False
    """Accept a Kafka that was not stopped cleanly."""
    fills_missing: bool = False
    """Create missing partitions, empty: those between others and, if Kafka was asked, those at the end."""
    configs: TopicConfigs = field(default_factory=TopicConfigs)
    """Settings replace those of KEEPS_EVERYTHING."""


@dataclass(slots=True)
class AdoptedTopic:
    """One topic, and the partitions that it has in Kafka's directories."""

    name: str
    topic_id: UUID
    sources: dict[int, KafkaPartition]
    kafka_partitions: int = 0
    """How many it has in Kafka; 0 if Kafka was not asked."""
    logs: dict[int, AdoptedLog] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        return max(max(self.sources) + 1, self.kafka_partitions)

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


def make_plan(kafka_paths: Sequence[Path], data_dir: Path, options: AdoptionOptions, state: MetadataState) -> Adoption:
    """Plan by names, ids and sizes. AdoptionRefused lists all reasons."""
    directories = [KafkaDirectory.read(path) for path in kafka_paths]
    adoption = Adoption(skipped=[skip for directory in directories for skip in directory.skipped])
    topics = topics_in(directories, options)
    reasons = [
        f"{directory.path} was not stopped cleanly, {KAFKAS_MARKER_NAME} is missing: start Kafka and stop it, "
        f"or recover the copies (--recover), which cuts off incomplete batches"
        for directory in directories
        if not (directory.was_clean or options.must_recover)
    ]
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


def topics_in(directories: Iterable[KafkaDirectory], options: AdoptionOptions) -> list[AdoptedTopic]:
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
    topics = []
    for name, partitions in sorted(by_name.items()):
        ids = {source.topic_id(): source.path for source in partitions.values()}
        if len(ids) > 1:
            listed = ", ".join(f"{path} has {topic_id}" for topic_id, path in ids.items())
            raise AdoptionRefused(f"the partitions of a topic must have one topic id: {listed}")
        topic_id = next(iter(ids)) or uuid4()  # an old Kafka has written none
        topics.append(AdoptedTopic(name, topic_id, partitions, options.configs.partitions.get(name, 0)))
    return topics


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
    if topic.name in options.configs.tiered:
        yield (
            f"topic {topic.name!r} has remote.storage.enable=true: older segments are in Kafka's remote storage, not "
            f"here. To take over only what is here, give its settings by --topic-configs without that one"
        )
    if 0 < topic.kafka_partitions < topic.partitions:
        yield (
            f"topic {topic.name!r} has {topic.kafka_partitions} partitions in Kafka, but partition "
            f"{max(topic.sources)} is here: give the directories of that Kafka"
        )
    if topic.missing and not options.fills_missing:
        listed = ", ".join(map(str, topic.missing))
        yield (
            f"topic {topic.name!r} lacks partition {listed}: give all of Kafka's data directories, or have the "
            f"missing partitions created empty (--empty-partitions)"
        )
    in_journal = directories_in_journal(data_dir)
    for index in range(topic.partitions):
        path = data_dir / TopicPartition(topic.name, index).directory_name
        if path.exists() and path.name not in in_journal:
            yield f"{path} already exists: move it out of the data directory"


def state_of(data_dir: Path) -> MetadataState:
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


def room_for(path: Path) -> int:
    """The free bytes of the file system of `path`, or of the first existing directory above it."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def directories_in_journal(data_dir: Path) -> dict[str, str]:
    """Return the directories that an interrupted adoption was about to move, by name, and the topic id in each."""
    path = data_dir / STAGING_NAME / JOURNAL_NAME
    return (
        msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])["directories"] if path.exists() else {}
    )
