"""The metadata log: what a broker knows beside its logs, in one crash-safe file.

`metadata.log` in the data directory::

    file   := "WLMETA1\\n" | record | record | …
    record := u32 size | u32 crc | u64 flushed | body        big-endian
              size     bytes of the body, at least 1
              crc      CRC-32C of size, flushed and body
              flushed  the file was known to be on disk up to this position when the record was written
              body     msgpack [kind, fields…]: one of the entries below, fields in order, new ones at the end

Entries, in the order in which things happened:

=====  ====================  ========================================================================================
kind   entry                 fields
=====  ====================  ========================================================================================
1      ClusterCreated        cluster id, node id, time: always the first entry
2      TopicCreated          name, topic id (16 bytes), number of partitions, the topic's own settings, leader epoch of
                             the partitions that no LeaderEpochsBegun names, whether it is an internal topic
3      TopicDeleted          topic id, name, number of partitions: its directories may still be there
4      TopicRemoved          topic id: the directories of a deleted topic are gone
5      ProducerIdsReserved   the next producer id that was not reserved yet
6      UncleanStart          all leader epochs rise by one. Written by 0.1.0 only, instead of LeaderEpochsBegun
10     DirectoryKnown        directory id (16 bytes), path: a data directory that belongs to the cluster
11     PartitionsAssigned    topic id, directory id, partitions: they are there, and nowhere else
12     PartitionMoved        topic id, partition, ids of its old and its new directory: what is left of it in the old
                             one is to be removed
13     DirectoryForgotten    directory id: it was removed from the configuration, and held no partition
14     LeaderEpochsBegun     topic id, leader epoch, partitions: it is in force for them
15     TopicAltered          topic id, name, all of the topic's own settings from now on
16     PartitionsAdded       topic id, name, number of partitions from now on. Their directories are created after this;
                             a smaller number takes back an addition whose directories could not be created
20     UserAltered           name, credentials (protocol sasl/credential), whether it is a token, time; the credentials
                             before these, and the time until which they are valid
21     UserDeleted           name
22     UserSecretMade        random bytes, from which the salts of users that do not exist are made
60     AclsCreated           rules (protocol messages/access/acls), none of which was there
61     AclsDeleted           rules, all of which were there
70     QuotaAltered          user or nil, client id or nil, all limits of this quota from now on, by their keys; none if
                             it was removed
80     BrokerAltered         all settings of the broker from now on that were altered while it ran
=====  ====================  ========================================================================================

An entry is in force once the file is flushed, and responses that depend on it are sent after that. Entries are appended
in groups, and each group is flushed before the next is written, so a crash leaves at most one group incomplete, at the
end. Invalid bytes at the end are cut and kept in `metadata.log.cut`. If a valid record follows that was written after
the damaged position had been flushed, the disk has lost data: the file is refused, and the error names the position. An
entry of an unknown kind comes from a newer version and is refused as well.

The file can be read by its owner only as soon as there was a user. A start rewrites the file (temporary file, fsync,
rename, fsync of the directory) when most of it is history.
"""

import os
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from struct import Struct as ByteLayout
from typing import NamedTuple, TypeVar

import msgspec

from warmlog_broker.storage.io.durable_files import replace_file, sync_directory, write_all
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_protocol.codec.crc32c import crc32c
from warmlog_protocol.errors import StorageError
from warmlog_protocol.messages import AclBinding
from warmlog_protocol.sasl.credential import Credential

FILE_NAME = "metadata.log"
CUT_FILE_NAME = "metadata.log.cut"
FILE_FAMILY = b"WLMETA"
FILE_HEAD = FILE_FAMILY + b"1\n"
MAX_BODY_BYTES = 16 * 1024 * 1024
PRIVATE = 0o600
"""The mode of a file with users: who reads their credentials can try passwords."""
RULES_AN_ENTRY = 1000
"""Each has at most 6 KiB."""
HISTORY_RECORDS = 256
"""The file is rewritten when it holds more records than twice those of the state and this number."""

Value = TypeVar("Value", bytes, int)

_RECORD = ByteLayout(">IIQ")
_SIZE = ByteLayout(">I")
_FLUSHED = ByteLayout(">Q")


class Entry(msgspec.Struct, array_like=True, frozen=True, tag_field="kind"):
    """The base of all entries: on disk an array that begins with its kind."""


class ClusterCreated(Entry, frozen=True, tag=1):
    cluster_id: str
    node_id: int
    created_ms: int


class TopicCreated(Entry, frozen=True, tag=2):
    name: str
    topic_id: bytes
    partitions: int
    settings: dict[str, str]
    leader_epoch: int = 0
    is_internal: bool = False


class TopicDeleted(Entry, frozen=True, tag=3):
    topic_id: bytes
    name: str
    partitions: int


class TopicRemoved(Entry, frozen=True, tag=4):
    topic_id: bytes


class ProducerIdsReserved(Entry, frozen=True, tag=5):
    next_producer_id: int


class UncleanStart(Entry, frozen=True, tag=6):
    started_ms: int


class DirectoryKnown(Entry, frozen=True, tag=10):
    directory_id: bytes
    path: str


class PartitionsAssigned(Entry, frozen=True, tag=11):
    topic_id: bytes
    directory_id: bytes
    partitions: list[int]


class PartitionMoved(Entry, frozen=True, tag=12):
    topic_id: bytes
    partition: int
    from_id: bytes
    directory_id: bytes


class DirectoryForgotten(Entry, frozen=True, tag=13):
    directory_id: bytes


class LeaderEpochsBegun(Entry, frozen=True, tag=14):
    topic_id: bytes
    leader_epoch: int
    partitions: list[int]


class TopicAltered(Entry, frozen=True, tag=15):
    topic_id: bytes
    name: str
    settings: dict[str, str]


class PartitionsAdded(Entry, frozen=True, tag=16):
    topic_id: bytes
    name: str
    partitions: int


class UserAltered(Entry, frozen=True, tag=20):
    name: str
    credentials: list[Credential]
    is_token: bool
    changed_ms: int
    previous: list[Credential] = msgspec.field(default_factory=list)
    previous_end_ms: int = -1


class UserDeleted(Entry, frozen=True, tag=21):
    name: str


class UserSecretMade(Entry, frozen=True, tag=22):
    secret: bytes

    def __repr__(self) -> str:
        return "UserSecretMade(…)"


class AclsCreated(Entry, frozen=True, tag=60):
    rules: list[AclBinding]


class AclsDeleted(Entry, frozen=True, tag=61):
    rules: list[AclBinding]


class QuotaAltered(Entry, frozen=True, tag=70):
    user: str | None
    client_id: str | None
    limits: dict[str, int]


class BrokerAltered(Entry, frozen=True, tag=80):
    settings: dict[str, str]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(reduce(or_, Entry.__subclasses__()))


class ClusterState:
    """The facts about which all brokers of a cluster agree: topics, leader epochs, producer ids, users, rights."""

    def __init__(self) -> None:
        self.cluster: ClusterCreated | None = None
        self.topics: dict[str, TopicCreated] = {}
        """By name."""
        self.leader_epochs: dict[bytes, dict[int, int]] = {}
        """By topic id, for the partitions whose leader epoch is not that of their topic: see `leader_epoch`."""
        self.next_producer_id = 0
        self.users: dict[str, UserAltered] = {}
        """By name."""
        self.user_secret = b""
        self.acls: dict[AclBinding, None] = {}
        """The rules about rights, each once, in the order in which they were added."""
        self.quotas: dict[tuple[str | None, str | None], dict[str, int]] = {}
        """The limits of each quota by their keys; quotas by user and client id."""

    def apply(self, entry: Entry) -> None:
        """Change the state by `entry`, if it is about the cluster."""
        match entry:
            case ClusterCreated():
                self.cluster = entry
            case ProducerIdsReserved():
                self.next_producer_id = max(self.next_producer_id, entry.next_producer_id)
            case UncleanStart():
                for name, topic in self.topics.items():
                    self.topics[name] = msgspec.structs.replace(topic, leader_epoch=topic.leader_epoch + 1)
                for epochs in self.leader_epochs.values():
                    epochs.update({partition: epoch + 1 for partition, epoch in epochs.items()})
            case LeaderEpochsBegun():
                epochs = self.leader_epochs.setdefault(entry.topic_id, {})
                epochs.update(dict.fromkeys(entry.partitions, entry.leader_epoch))
            case TopicCreated() | TopicDeleted() | TopicAltered() | PartitionsAdded():
                self._alter_topics(entry)
            case _:
                self._alter_access(entry)

    def _alter_topics(self, entry: Entry) -> None:
        match entry:
            case TopicCreated():
                self.topics[entry.name] = entry
            case TopicDeleted():
                if self._has(entry):
                    del self.topics[entry.name]
                self.leader_epochs.pop(entry.topic_id, None)
            case TopicAltered() if self._has(entry):
                self.topics[entry.name] = msgspec.structs.replace(self.topics[entry.name], settings=entry.settings)
            case PartitionsAdded() if self._has(entry):
                self.topics[entry.name] = msgspec.structs.replace(self.topics[entry.name], partitions=entry.partitions)
                _forget_from(entry.partitions, self.leader_epochs, entry.topic_id)

    def _has(self, entry: TopicDeleted | TopicAltered | PartitionsAdded) -> bool:
        """Return whether the topic of `entry` is there, and not another one of its name."""
        return entry.name in self.topics and self.topics[entry.name].topic_id == entry.topic_id

    def _alter_access(self, entry: Entry) -> None:
        match entry:
            case UserAltered():
                self.users[entry.name] = entry
            case UserDeleted():
                self.users.pop(entry.name, None)
            case UserSecretMade():
                self.user_secret = entry.secret
            case AclsCreated():
                self.acls |= dict.fromkeys(entry.rules)
            case AclsDeleted():
                for rule in entry.rules:
                    self.acls.pop(rule, None)
            case QuotaAltered():
                self.quotas.pop((entry.user, entry.client_id), None)
                if entry.limits:
                    self.quotas[entry.user, entry.client_id] = entry.limits

    def leader_epoch(self, topic: TopicCreated, partition: int) -> int:
        """Return the leader epoch in force for one partition of `topic`."""
        return self.leader_epochs.get(topic.topic_id, {}).get(partition, topic.leader_epoch)


class NodeState:
    """The facts about one broker: its data directories, what is in them, and its own settings."""

    def __init__(self) -> None:
        self.deleted: dict[bytes, TopicDeleted] = {}
        """Deleted topics, by id, whose directories may still be there."""
        self.directories: dict[bytes, str] = {}
        """Paths of the data directories by their ids."""
        self.assignments: dict[bytes, dict[int, bytes]] = {}
        """By topic id: the directory of each partition whose directory was created."""
        self.leaving: dict[tuple[bytes, int], bytes] = {}
        """The directories from which partitions moved, as long as something of them may still be there."""
        self.broker_settings: dict[str, str] = {}
        """Those of the broker that were altered while it ran."""

    def apply(self, entry: Entry) -> None:
        """Change the state by `entry`, if it is about this broker, or removes partitions that may be here."""
        match entry:
            case DirectoryKnown():
                self.directories[entry.directory_id] = entry.path
            case DirectoryForgotten():
                self.directories.pop(entry.directory_id, None)
            case BrokerAltered():
                self.broker_settings = entry.settings
            case TopicDeleted():
                self.assignments.pop(entry.topic_id, None)
                self.leaving = {key: old for key, old in self.leaving.items() if key[0] != entry.topic_id}
                self.deleted[entry.topic_id] = entry
            case TopicRemoved():
                self.deleted.pop(entry.topic_id, None)
            case PartitionsAdded():
                _forget_from(entry.partitions, self.assignments, entry.topic_id)
            case PartitionsAssigned() | PartitionMoved() if entry.topic_id not in self.deleted:
                self._assign(entry)

    def _assign(self, entry: PartitionsAssigned | PartitionMoved) -> None:
        assignments = self.assignments.setdefault(entry.topic_id, {})
        for partition in entry.partitions if isinstance(entry, PartitionsAssigned) else (entry.partition,):
            assignments[partition] = entry.directory_id
            self.leaving.pop((entry.topic_id, partition), None)
        if isinstance(entry, PartitionMoved):
            self.leaving[entry.topic_id, entry.partition] = entry.from_id


class MetadataState(ClusterState, NodeState):
    """The result of all entries so far: the file of a broker that is a cluster alone has the facts of both."""

    def __init__(self) -> None:
        ClusterState.__init__(self)
        NodeState.__init__(self)

    def apply(self, entry: Entry) -> None:
        """Change the state by `entry`."""
        ClusterState.apply(self, entry)
        NodeState.apply(self, entry)

    def entries(self) -> list[Entry]:
        """Return the fewest entries that result in this state."""
        entries: list[Entry] = [self.cluster] if self.cluster else []
        entries += self.deleted.values()
        entries += self.topics.values()
        for topic_id, epochs in self.leader_epochs.items():
            entries += leader_epochs_begun(topic_id, epochs)
        if self.next_producer_id:
            entries.append(ProducerIdsReserved(self.next_producer_id))
        entries += [DirectoryKnown(directory_id, path) for directory_id, path in self.directories.items()]
        for topic_id, assignments in self.assignments.items():
            entries += partitions_assigned(topic_id, assignments)
        for (topic_id, partition), from_id in self.leaving.items():
            entries.append(PartitionMoved(topic_id, partition, from_id, self.assignments[topic_id][partition]))
        entries += [UserSecretMade(self.user_secret)] if self.user_secret else []
        entries += self.users.values()
        rules = list(self.acls)
        entries += [AclsCreated(rules[at : at + RULES_AN_ENTRY]) for at in range(0, len(rules), RULES_AN_ENTRY)]
        entries += [QuotaAltered(*entity, limits) for entity, limits in self.quotas.items()]
        entries += [BrokerAltered(self.broker_settings)] if self.broker_settings else []
        return entries


def partitions_assigned(topic_id: bytes, assignments: Mapping[int, bytes]) -> list[PartitionsAssigned]:
    """Return the entries that assign partitions to directories: one for each directory."""
    return [PartitionsAssigned(topic_id, directory_id, numbers) for directory_id, numbers in _grouped(assignments)]


def leader_epochs_begun(topic_id: bytes, epochs: Mapping[int, int]) -> list[LeaderEpochsBegun]:
    """Return the entries that begin `epochs`, by partition: one for each epoch."""
    return [LeaderEpochsBegun(topic_id, epoch, numbers) for epoch, numbers in _grouped(epochs)]


def _grouped(values: Mapping[int, Value]) -> Iterable[tuple[Value, list[int]]]:
    """Return each value of `values` with the partitions that have it."""
    partitions: dict[Value, list[int]] = {}
    for partition, value in values.items():
        partitions.setdefault(value, []).append(partition)
    return partitions.items()


def _forget_from(first: int, values: dict[bytes, dict[int, Value]], topic_id: bytes) -> None:
    """Remove what `values` has for a topic's partitions from `first` on."""
    kept = {partition: value for partition, value in values.pop(topic_id, {}).items() if partition < first}
    if kept:
        values[topic_id] = kept


class Loaded(NamedTuple):
    """The content of a file, of which the last `cut_bytes` were not valid."""

    entries: list[Entry]
    valid_bytes: int
    cut_bytes: int

    def state(self) -> MetadataState:
        """Return the state that the entries result in."""
        state = MetadataState()
        for entry in self.entries:
            state.apply(entry)
        return state


def pack_record(entry: Entry, flushed_bytes: int) -> bytes:
    """Return the record of `entry`, written when the file was on disk up to `flushed_bytes`."""
    body = _encoder.encode(entry)
    crc = crc32c(_SIZE.pack(len(body)) + _FLUSHED.pack(flushed_bytes) + body)
    return _RECORD.pack(len(body), crc, flushed_bytes) + body


def read_state(path: Path) -> MetadataState:
    """Return the state in the metadata log at `path`, which a broker may be using; FileNotFoundError, StorageError.

    Entries at the end that are incomplete are left out, as after a crash.
    """
    return read_records(path.read_bytes(), path).state()


def read_records(data: bytes, path: Path) -> Loaded:
    """Return the entries in `data`, the content of `path`, up to a torn end.

    StorageError for a file of another kind, for damage to what is known to have been flushed, and for an unknown entry.
    """
    if not data.startswith(FILE_HEAD):
        if FILE_HEAD.startswith(data[: len(FILE_HEAD)]):
            return Loaded([], 0, len(data))
        found = data[: len(FILE_HEAD)]
        if found.startswith(FILE_FAMILY):
            raise StorageError(
                f"{path} has the format {found!r}, this version reads {FILE_HEAD!r} only: it was written by a newer "
                f"warmlog. Install that version again; nothing was changed"
            )
        raise StorageError(f"{path}: expected {FILE_HEAD!r} at its beginning, found {found!r}")
    entries: list[Entry] = []
    position = len(FILE_HEAD)
    while position < len(data):
        body = _read_body(data, position)
        if body is None:
            _refuse_damage_in_the_middle(data, position, path)
            break
        try:
            entries.append(_decoder.decode(body))
        except msgspec.DecodeError as error:
            raise StorageError(
                f"{path}, position {position}: an entry that this version does not know; a newer warmlog may have "
                f"written it: {error}"
            ) from None
        position += _RECORD.size + len(body)
    return Loaded(entries, position, len(data) - position)


def _read_body(data: bytes, position: int) -> bytes | None:
    """Return the body of the record at `position`; None if there is no valid record."""
    if position + _RECORD.size > len(data):
        return None
    size, crc, _ = _RECORD.unpack_from(data, position)
    start = position + _RECORD.size
    if not 1 <= size <= MAX_BODY_BYTES or start + size > len(data):
        return None
    body = data[start : start + size]
    covered = data[position : position + 4] + data[position + 8 : start] + body
    return body if crc32c(covered) == crc else None


def _refuse_damage_in_the_middle(data: bytes, damaged: int, path: Path) -> None:
    """Raise StorageError if a valid record shows that position `damaged` was flushed before it was written."""
    for position in range(damaged + 1, len(data) - _RECORD.size):
        flushed = _FLUSHED.unpack_from(data, position + 8)[0]
        if damaged < flushed <= position and _read_body(data, position) is not None:
            raise StorageError(
                f"{path} is damaged at position {damaged}: a valid record follows at {position}, so this is not a torn "
                f"end. Restore the file from a backup; nothing was changed"
            )


class MetadataLog:
    """The file, opened for appending. One caller at a time; `append` and `flush` may run in different threads."""

    def __init__(self, path: Path, descriptor: int, size_bytes: int, state: MetadataState) -> None:
        self.path = path
        self.state = state
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._flushed_bytes = size_bytes
        self._failure: OSError | None = None

    @classmethod
    def open(cls, data_dir: Path) -> "tuple[MetadataLog, int]":
        """Return the log of `data_dir`, created if there is none, and how many torn bytes were cut from its end.

        On return all that was read is on disk. Raises the errors of `read_records`, and OSError from the disk.
        """
        path = data_dir / FILE_NAME
        data = _read_from_disk(path) if path.exists() else b""
        loaded = read_records(data, path)
        state = loaded.state()
        if loaded.cut_bytes:
            replace_file(data_dir / CUT_FILE_NAME, data[loaded.valid_bytes :], mode=PRIVATE)
        is_rewritten = loaded.valid_bytes == 0 or len(loaded.entries) > 2 * len(state.entries()) + HISTORY_RECORDS
        if is_rewritten:
            replace_file(path, pack_file(state.entries()), mode=PRIVATE if state.user_secret else 0o644)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if loaded.cut_bytes and not is_rewritten:
                os.ftruncate(descriptor, loaded.valid_bytes)
            os.fsync(descriptor)
            sync_directory(data_dir)
            return cls(path, descriptor, os.fstat(descriptor).st_size, state), loaded.cut_bytes
        except BaseException:
            os.close(descriptor)
            raise

    def append(self, entries: Iterable[Entry]) -> None:
        """Write `entries` at the end; they are in force after `flush`, and only then belong in the state.

        A write that fails is undone; StorageError once a flush has failed or a write could not be undone.
        """
        self._check()
        entries = list(entries)
        data = b"".join(pack_record(entry, self._flushed_bytes) for entry in entries)
        try:
            if any(isinstance(entry, UserSecretMade) for entry in entries):
                os.fchmod(self._descriptor, PRIVATE)
            write_all(self._descriptor, data, self._size_bytes)
        except OSError as error:
            try:
                os.ftruncate(self._descriptor, self._size_bytes)
            except OSError as second:
                self._failure = second
            raise storage_error(f"cannot write to {self.path}: {error}", error) from error
        self._size_bytes += len(data)

    def flush(self) -> None:
        """Make appended entries durable, in any thread. After a failure every further call fails (StorageError)."""
        self._check()
        size_bytes = self._size_bytes
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._failure = error
            self._check()
        self._flushed_bytes = size_bytes

    def close(self) -> None:
        """Close the file, without a flush."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageError(
                f"{self.path} failed ({self._failure}): no topic can be changed until a restart has read it again"
            ) from self._failure


def pack_file(entries: Iterable[Entry]) -> bytes:
    """Encode a file of `entries`. Its records say that it is flushed, because it is only renamed after that."""
    data = bytearray(FILE_HEAD)
    for entry in entries:
        data += pack_record(entry, len(data))
    return bytes(data)


def _read_from_disk(path: Path) -> bytes:
    """Return the content on the disk.

    After a failed flush the kernel takes pages for clean that never reached the disk, and reads return them until a
    power cut. So what can be synced is synced, and all pages are dropped, before anything is read.
    """
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()
