"""What an adoption takes over: the options, the topics, and the outcome."""

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from warmlog_broker.storage.kafka.adoption import AdoptedLog
from warmlog_broker.storage.kafka.kafka_directory import KafkaPartition
from warmlog_broker.tools.adoption.topic_configs import TopicConfigs


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
