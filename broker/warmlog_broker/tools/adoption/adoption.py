"""What an adoption takes over: the options, the topics, and the outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from warmlog_broker.storage.kafka.adoption import AdoptedLog
from warmlog_broker.storage.kafka.kafka_directory import KafkaPartition


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
