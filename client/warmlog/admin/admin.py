"""The admin client: topics and their settings, data directories, offsets; groups, transactions, users, rights and
quotas are in modules of their own."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from uuid import UUID

from msgspec import Struct

from warmlog.admin.access.acls import AclAdmin
from warmlog.admin.access.quotas import QuotaAdmin
from warmlog.admin.access.users import UserAdmin
from warmlog.admin.arguments import (
    SettingGiven,
    check_offsets,
    check_partitions,
    checked_count,
    checked_texts,
    setting_texts,
)
from warmlog.admin.groups import GroupAdmin
from warmlog.admin.inspection import InspectionAdmin
from warmlog.admin.transactions import TransactionAdmin
from warmlog.errors import ApiError, TopicAlreadyExists, UnknownTopicOrPartition, error_from_code
from warmlog.texts import checked_text
from warmlog.times import asked_timestamp
from warmlog_protocol import messages as m
from warmlog_protocol.durability import Durability
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import BrokerLink
from warmlog_transport.leader_requests import ask_leaders
from warmlog_transport.list_offsets import OffsetAt, epoch_ends, located, look_up
from warmlog_transport.responses import Topic, TopicPartition, checked, partition_range, unknown_topic

BROKER_DEFAULT = -1
_BROKER_ITSELF = ""
_TOPICS_A_REQUEST = 1000
"""A broker refuses to describe the settings of more at once."""
_UNCOMMITTED, _COMMITTED = m.IsolationLevel.READ_UNCOMMITTED, m.IsolationLevel.READ_COMMITTED

_MEASURES = (
    (m.EARLIEST_TIMESTAMP, _UNCOMMITTED, m.CONSUMER_REPLICA_ID),
    (m.LATEST_TIMESTAMP, _COMMITTED, m.CONSUMER_REPLICA_ID),
    (m.LATEST_TIMESTAMP, _UNCOMMITTED, m.CONSUMER_REPLICA_ID),
    (m.LATEST_TIMESTAMP, _UNCOMMITTED, m.DEBUGGING_REPLICA_ID),
)
"""Time, isolation and replica id that ask for log start, last stable offset, high watermark and log end."""


class PartitionDescription(Struct, frozen=True):
    """One partition. `leader` is a node id, -1 while the partition is offline. Ends are exclusive."""

    partition: int
    leader: int
    leader_epoch: int
    log_start_offset: int
    last_stable_offset: int
    """Below it, every transaction is committed or aborted."""
    high_watermark: int
    """Below it, every record is durable and may be read."""
    log_end_offset: int
    error: ApiError | None = None
    """Why the offsets are unknown; they are -1 then."""
    replicas: Sequence[int] = ()
    """The node ids of the brokers that have a copy; those in sync have every record below the high watermark."""
    in_sync_replicas: Sequence[int] = ()

    @property
    def uncommitted(self) -> int:
        """How many records are written and not yet durable: between high watermark and log end."""
        return self.log_end_offset - self.high_watermark


class TopicDescription(Struct, frozen=True):
    """A topic, its partitions in ascending order and its settings by name."""

    name: str
    topic_id: UUID
    partitions: list[PartitionDescription]
    configs: dict[str, m.ConfigValue]

    @property
    def durability(self) -> Durability:
        """What an acknowledgement means on this topic; `str` describes it."""
        return Durability.of({name: config.value for name, config in self.configs.items()})


class BrokerInfo(Struct, frozen=True):
    """One broker, at the address that the client uses."""

    node_id: int
    address: str
    version: str
    cluster_id: str
    write_refusal: str
    """Why a broker of version 0.1 refuses records and new topics after crashes (safe mode); otherwise ""."""


class LogDirDescription(Struct, frozen=True):
    """A data directory of a broker. `error` is None while it works. Sizes are its file system's; -1 if unknown."""

    broker: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[m.LogDirReplica]


class Admin(GroupAdmin, TransactionAdmin, UserAdmin, AclAdmin, QuotaAdmin, InspectionAdmin):
    """Manages topics, partitions, groups, transactions, users, rights and quotas.

    Every call ends within `request_timeout_ms`.
    """

    # --- topics -----------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, SettingGiven] | None = None,
        exist_ok: bool = False,
    ) -> UUID:
        """Create a topic and return its id. Durable on return. The default of `partitions` is the broker's.

        In a cluster each partition is on as many brokers as `replication_factor` says; by default on three, or on all
        if there are fewer.

        `configs` are settings such as {"retention.ms": "7d"}; a value may be a str, an int, a float, a bool or a
        timedelta. With `exist_ok` the id of an existing topic is returned, and nothing of it is changed.

        Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidReplicationFactor, InvalidConfig, and
        TypeError; BrokerUnavailable if the connection is lost before the response: the topic may or may not exist then.
        """
        count, factor = (
            BROKER_DEFAULT if given is None else checked_count(given, what)
            for given, what in ((partitions, "partitions"), (replication_factor, "replication_factor"))
        )
        new = m.NewTopic(checked_text(name, "the topic's name"), count, factor, setting_texts(configs or {}))
        request = m.CreateTopicsRequest([new])
        response = await self.cluster.call(request, m.CreateTopicsResponse, is_repeatable=exist_ok)
        try:
            (created,) = response.topics
            return UUID(bytes=checked(created).topic_id)
        except TopicAlreadyExists:
            if not exist_ok:
                raise
        return (await self.cluster.topics([name]))[0].topic_id

    async def alter_topic(
        self,
        name: str,
        *,
        set: Mapping[str, SettingGiven] | None = None,  # noqa: A002
        unset: Sequence[str] = (),
    ) -> None:
        """Change settings of a topic: those to `set`, and those to `unset`, which have the broker's default again.

        Durable and in force on return, without a restart; other settings stay. Raises UnknownTopicOrPartition,
        InvalidConfig, InvalidRequest for a setting in both, InvalidTopic for an internal topic, and TypeError.
        """
        change = m.AlteredTopic(
            checked_text(name, "the topic's name"), setting_texts(set or {}), checked_texts(unset, "unset")
        )
        if not change.set and not change.unset:
            raise ValueError("alter_topic without a setting: give `set` or `unset`")
        response = await self.cluster.call(m.AlterTopicsRequest([change]), m.AlterTopicsResponse)
        checked(*response.topics)

    async def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, which has `total` of them then. Durable on return.

        Records of a key may go to another partition than before. Raises InvalidPartitions unless `total` is greater
        than the present number, UnknownTopicOrPartition, InvalidTopic for an internal topic, and TypeError;
        BrokerUnavailable if the connection is lost before the response: they may or may not have been added then.
        """
        new = m.NewPartitions(checked_text(name, "the topic's name"), checked_count(total, "total"))
        request = m.CreatePartitionsRequest([new])
        response = await self.cluster.call(request, m.CreatePartitionsResponse, is_repeatable=False)
        checked(*response.topics)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Durable on return. Raises UnknownTopicOrPartition if it does not exist."""
        request = m.DeleteTopicsRequest([checked_text(name, "the topic's name")])
        response = await self.cluster.call(request, m.DeleteTopicsResponse, is_repeatable=False)
        checked(*response.topics)

    async def list_topics(self, *, internal: bool = False) -> list[TopicDescription]:
        """All topics, sorted by name; with `internal` those in which the broker keeps its own state, too."""
        topics = await self.cluster.topics(None, internal=internal)
        return sorted(await self._describe(topics), key=lambda topic: topic.name)

    async def topic_names(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted: one request, where `list_topics` describes each of them."""
        return sorted(topic.name for topic in await self.cluster.topics(None, internal=internal))

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicOrPartition if it does not exist."""
        names = [checked_text(name, "the topic's name")]
        found = await self._describe(await self.cluster.topics(names))
        if not found:
            raise unknown_topic(name)
        return found[0]

    async def describe_broker(self) -> dict[str, m.ConfigValue]:
        """The broker's settings by name."""
        return (await self._configs([]))[_BROKER_ITSELF]

    async def alter_broker(
        self,
        *,
        set: Mapping[str, SettingGiven] | None = None,  # noqa: A002
        unset: Sequence[str] = (),
        validate_only: bool = False,
        all_brokers: bool = False,
    ) -> dict[str, str]:
        """Change settings of the broker, all of them or none, and return all that are altered then.

        `all_brokers` are those of a cluster: its brokers follow within seconds, also those that are away once they
        start, and a broker's own altered settings take precedence.

        Those to `unset` have the value again with which the broker was started. Durable and in force on return, also
        after a restart; `validate_only` checks and changes nothing. A topic's setting is the default of topics without
        one of their own. `describe_broker` tells which settings can be altered (`is_dynamic`).

        Raises NeedsRestart for another one, InvalidConfig, InvalidRequest for a setting in both, and TypeError.
        """
        wanted, gone = setting_texts(set or {}), checked_texts(unset, "unset")
        request = m.AlterBrokerConfigRequest(wanted, gone, validate_only, all_brokers)
        if not request.set and not request.unset:
            raise ValueError("alter_broker without a setting: give `set` or `unset`")
        return (await self.cluster.call(request, m.AlterBrokerConfigResponse)).settings

    async def broker_info(self) -> BrokerInfo:
        """Which broker this client is connected to, and whether it accepts records, as of the connection's start."""
        address, broker = await self.cluster.any_broker()
        return BrokerInfo(broker.node_id, str(address), broker.broker_version, broker.cluster_id, broker.write_refusal)

    # --- data directories -------------------------------------------------------------------------------------------

    async def describe_log_dirs(self, topics: Sequence[str] | None = None) -> list[LogDirDescription]:
        """The data directories of all brokers with the partitions of all topics, or of these."""
        request = m.DescribeLogDirsRequest(None if topics is None else checked_texts(topics, "topics"))
        responses = await self.cluster.call_each(request, m.DescribeLogDirsResponse)
        return [_log_dir(each.node_id, directory) for each in responses for directory in each.directories]

    async def move_partition(self, topic: str, partition: int, directory: str | PathLike[str]) -> None:
        """Begin to move a partition to another data directory of the broker that leads it.

        It can be written and read meanwhile. `describe_log_dirs` shows the progress; the move continues after a restart
        of the broker. A move to the partition's current directory cancels the one in progress. Raises LogDirNotFound,
        UnknownTopicOrPartition, or StorageError if a directory is offline or full.
        """
        replica = m.ReplicaLogDir(
            checked_text(topic, "topic"), checked_count(partition, "partition"), fspath(directory)
        )
        request = m.AlterReplicaLogDirsRequest([replica])
        cluster = self.cluster
        await cluster.learn([topic])
        if cluster.is_alone or cluster.leader(topic, partition) is None:
            checked(*(await cluster.call(request, m.AlterReplicaLogDirsResponse)).partitions)
            return
        response = (await cluster.ask_leader(request, topic, partition)).result
        assert isinstance(response, m.AlterReplicaLogDirsResponse)
        checked(*response.partitions)

    # --- offsets ----------------------------------------------------------------------------------------------------

    async def list_offsets(
        self, topic: str, at: str | int | datetime, partitions: Sequence[int] | None = None, *, log_end: bool = False
    ) -> dict[int, OffsetAt]:
        """Return for each partition the first record at or after a time, or "earliest", "latest" or "max_timestamp".

        A time is a datetime (local if it has no zone) or milliseconds since 1970; for a time past the last record the
        result is the end, with timestamp -1. The end is the high watermark, or with `log_end` the log end offset.
        Raises the error of the first partition that has one; StorageError at once if it is offline.
        """
        found = await self.look_up_offsets(topic, at, partitions, log_end=log_end)
        return {partition: located(offset) for partition, offset in found.items()}

    async def look_up_offsets(
        self, topic: str, at: str | int | datetime, partitions: Sequence[int] | None = None, *, log_end: bool = False
    ) -> dict[int, OffsetAt | ApiError]:
        """As `list_offsets`, but an error is in place of the partition's offset and not raised."""
        check_partitions(partitions or ())
        known = (await self.cluster.topics([checked_text(topic, "topic")]))[0]
        every = [partition.partition for partition in known.partitions]
        for partition in partitions or ():
            if partition not in every:
                raise UnknownTopicOrPartition(f"topic {topic!r} has {partition_range(len(every))}, not {partition}")
        timestamp_ms = asked_timestamp(at)
        asked = {(topic, partition): timestamp_ms for partition in (every if partitions is None else partitions)}
        replica_id = m.DEBUGGING_REPLICA_ID if log_end else m.CONSUMER_REPLICA_ID
        found = await look_up(self.cluster, asked, replica_id=replica_id)
        return {partition: offset for (_, partition), offset in sorted(found.items())}

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | ApiError]:
        """Delete the records below an offset of each partition; -1 means all below the high watermark.

        Returns for each partition its new log start offset, durable on return, or the error: OffsetOutOfRange,
        PolicyViolation (the topic is only compacted), UnknownTopicOrPartition.
        """
        check_offsets(before, "before")

        async def ask(partitions: list[TopicPartition], link: BrokerLink) -> list[m.DeletedRecords]:
            request = m.DeleteRecordsRequest([m.DeleteRecordsPartition(*tp, before[tp]) for tp in partitions])
            return (await link.call(request, m.DeleteRecordsResponse)).partitions

        found = await ask_leaders(self.cluster, before, ask)
        return {tp: result if isinstance(result, ApiError) else result.low_watermark for tp, result in found.items()}

    async def epoch_ends(
        self, asked: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, m.EpochEndOffset | ApiError]:
        """For each partition the end offset of a leader epoch, or of the newest known one below it; or the error."""
        check_offsets(asked, "asked")
        return await epoch_ends(self.cluster, asked)

    # --- within -----------------------------------------------------------------------------------------------------

    async def _describe(self, topics: list[Topic]) -> list[TopicDescription]:
        """Describe the topics, without those that were deleted since they were looked up."""
        configs: dict[str, dict[str, m.ConfigValue]] = {}
        for first in range(0, len(topics), _TOPICS_A_REQUEST):
            configs |= await self._configs([topic.name for topic in topics[first : first + _TOPICS_A_REQUEST]])
        present = [topic for topic in topics if topic.name in configs]
        described = await _described(self.cluster, present)
        return [
            TopicDescription(topic.name, topic.topic_id, described[topic.name], configs[topic.name])
            for topic in present
        ]

    async def _configs(self, topics: list[str]) -> dict[str, dict[str, m.ConfigValue]]:
        """The settings of the topics that exist, by name; without topics the broker's, under the empty name."""
        response = await self.cluster.call(m.DescribeConfigsRequest(topics), m.DescribeConfigsResponse)
        return {
            checked(resource).name: {entry.name: entry for entry in resource.entries}
            for resource in response.resources
            if resource.error_code != UnknownTopicOrPartition.code
        }


def _log_dir(broker: int, directory: m.LogDir) -> LogDirDescription:
    """From the response of the broker with this node id."""
    error = None
    if directory.error_code:
        error = directory.error_message or str(error_from_code(directory.error_code, "offline"))
    return LogDirDescription(
        broker, directory.path, error, directory.total_bytes, directory.usable_bytes, directory.partitions
    )


async def _described(cluster: Cluster, topics: Sequence[Topic]) -> dict[str, list[PartitionDescription]]:
    """The partitions of each topic by its name; a partition that is offline or cannot be reached has an error."""
    asked = [(topic.name, part.partition) for topic in topics for part in topic.partitions]
    offsets: dict[TopicPartition, list[int]] = {tp: [] for tp in asked}
    errors: dict[TopicPartition, ApiError] = {}
    for timestamp_ms, isolation, replica_id in _MEASURES:
        times = {tp: timestamp_ms for tp in asked if tp not in errors}
        for tp, at in (await look_up(cluster, times, isolation=isolation, replica_id=replica_id)).items():
            if isinstance(at, OffsetAt):
                offsets[tp].append(at.offset)
            else:
                errors[tp] = at
    described: dict[str, list[PartitionDescription]] = {topic.name: [] for topic in topics}
    for topic in topics:
        for part in topic.partitions:
            tp = topic.name, part.partition
            start, stable, high, end = offsets[tp] if tp not in errors else [-1] * len(_MEASURES)
            leader, copies = (part.leader_id, part.leader_epoch), (part.replicas, part.in_sync_replicas)
            described[topic.name].append(
                PartitionDescription(part.partition, *leader, start, stable, high, end, errors.get(tp), *copies)
            )
    return described
