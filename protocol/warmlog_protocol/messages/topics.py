"""CreateTopics, DeleteTopics, AlterTopics, CreatePartitions, DescribeConfigs and AlterBrokerConfig.

The last alters settings of a running broker; DescribeConfigs tells them.
"""

from msgspec import field

from warmlog_protocol.messages.base import Int32, ItemResult, Message, NamedResult


class NewTopic(Message, frozen=True):
    """A topic to create. `partitions` and `replication_factor` -1 mean the broker's default.

    Both are -1 if `replicas` has the brokers of each partition, the preferred leader first.
    """

    name: str
    partitions: Int32 = -1
    replication_factor: Int32 = -1
    configs: dict[str, str] = field(default_factory=dict)
    replicas: list[list[Int32]] = field(default_factory=list)


class CreateTopicsRequest(Message, frozen=True):
    """`validate_only` checks everything and creates nothing."""

    topics: list[NewTopic]
    validate_only: bool = False


class CreatedTopic(ItemResult, frozen=True):
    """The result for one NewTopic. The response is sent once the metadata log is flushed."""

    name: str
    topic_id: bytes = bytes(16)
    partitions: int = 0
    replication_factor: int = 1


class CreateTopicsResponse(Message, frozen=True):
    """One result for each topic, in the order of the request."""

    topics: list[CreatedTopic]


class DeleteTopicsRequest(Message, frozen=True):
    """Topics to delete, by name."""

    names: list[str]


class DeleteTopicsResponse(Message, frozen=True):
    """One result for each name, in the order of the request."""

    topics: list[NamedResult]


class AlteredTopic(Message, frozen=True):
    """Changes of one topic's own settings: those to `set`, and those to `unset`, which have the default again."""

    name: str
    set: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)


class AlterTopicsRequest(Message, frozen=True):
    """`validate_only` checks everything and changes nothing."""

    topics: list[AlteredTopic]
    validate_only: bool = False


class AlterTopicsResponse(Message, frozen=True):
    """One result for each topic, in the order of the request. What has no error is durable and in force."""

    topics: list[NamedResult]


class NewPartitions(Message, frozen=True):
    """Partitions to add to a topic. `count` is their total number afterwards.

    `replicas` has the brokers of each new one, the preferred leader first, or nothing: then the cluster chooses.
    """

    name: str
    count: Int32
    replicas: list[list[Int32]] = field(default_factory=list)


class CreatePartitionsRequest(Message, frozen=True):
    """`validate_only` checks everything and creates nothing."""

    topics: list[NewPartitions]
    validate_only: bool = False


class CreatePartitionsResponse(Message, frozen=True):
    """One result for each topic, in the order of the request. What has no error is durable and served."""

    topics: list[NamedResult]


class DescribeConfigsRequest(Message, frozen=True):
    """Ask for the settings of topics; an empty list asks for the broker's own settings."""

    topics: list[str]


class ConfigValue(Message, frozen=True):
    """The effective value of a setting. `is_default` is false if it was set, for a topic by the topic itself."""

    name: str
    value: str
    is_default: bool
    description: str
    origin: str = ""
    """One of "topic", "broker" (set by the operator) and "default"; empty from a broker of 0.1.0."""
    source: str = ""
    """Of a setting of the broker: "default", "file", "environment", "flag" or "altered"; empty if that is not known."""
    place: str = ""
    """The line of the file, or the environment's variable."""
    is_dynamic: bool = False
    """Whether it can be altered while the broker runs; false from a broker before that was possible."""


class DescribedConfigs(ItemResult, frozen=True):
    """The settings of one topic, or of the broker under the empty name."""

    name: str
    entries: list[ConfigValue] = field(default_factory=list)


class DescribeConfigsResponse(Message, frozen=True):
    """One result for each topic, or one for the broker."""

    resources: list[DescribedConfigs]


class AlterBrokerConfigRequest(Message, frozen=True):
    """Settings to `set`, and those to `unset`, which have the value again with which the broker was started.

    All are altered, or none. `validate_only` checks everything and changes nothing. `of_all` alters those of all
    brokers of a cluster, over which a broker's own take precedence.
    """

    set: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    validate_only: bool = False
    of_all: bool = False


class AlterBrokerConfigResponse(Message, frozen=True):
    """All settings that are altered now, durably and in force; with `validate_only`, those that would be.

    Those of the broker, or `of_all`.
    """

    settings: dict[str, str]
