"""Rebuilds the keys of a cluster whose etcd is lost, or was restored from an old backup, from what its brokers have.

All brokers are stopped. Of each, or as many as there are, its copy of etcd and its logs are read. The newest copy is
what the cluster was. The logs say what each partition has: of the replicas that are asked, those lead and are in sync
whose logs have the latest epoch, and in that the greatest end. One of them has all that was committed, if one that was
in sync is among them, which is sure as long as fewer replicas are missing than a record needs to be committed. The
next epochs are far above all that is known, so that none comes twice, whatever a broker has seen that was not asked.

The keys get a new generation. Only it lets brokers start that know of a later etcd (`replication/membership`).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from warmlog_broker.cluster.copy_of_etcd import CopyOfEtcd, read_copy
from warmlog_broker.cluster.keys import ClusterValue, NodeValue, ProducerIdsValue, from_bytes, to_bytes
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.settling import OUTCOME_TIMEOUT_S, new_author, settled
from warmlog_broker.cluster.store import KEYS_A_TRANSACTION
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import ChangedAt, Coordination, Delete, Failed, Operation, Put, prefix_end
from warmlog_broker.metadata.log_file import FILE_NAME, PRIVATE, read_state
from warmlog_broker.replication import record as records
from warmlog_broker.replication.membership import Comparison, Mark, NodeMarks, compare
from warmlog_broker.replication.record import Author, PartitionRecord
from warmlog_broker.storage.directory.data_dir import RECOVERY_POINTS_NAME, DataDirectory
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.partition_files import METADATA_NAME, stored_topic_id
from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.recovery.latest_epoch import latest_epoch
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_broker.storage.segment.scan import Damage, Place, scan
from warmlog_broker.storage.segment.segment_files import LOG_KIND, base_offsets_in, segment_file_name
from warmlog_broker.tools.backup.restore import SKIPPED_PRODUCER_IDS
from warmlog_protocol.batch.header import NO_LEADER_EPOCH
from warmlog_protocol.errors import InvalidRequest, RequestTimedOut, StorageError

COPIED = frozenset(
    ("acls", "deleted", "drained", "names", "nodes", "quotas", "settings", "topics", "user_secret", "users")
)
"""Kinds of keys that become what the newest copy has. Orders are to be given again."""
SKIPPED_EPOCHS = 1000
"""More than a partition has between the newest copy and the loss of etcd."""


class LogEnd(NamedTuple):
    """Where a log ends, for a start that checks it."""

    epoch: int
    """Of its last batch."""
    offset: int


class Source(Struct, frozen=True):
    """What one broker has."""

    node: int
    marks: NodeMarks
    copy: CopyOfEtcd
    logs: dict[str, LogEnd]
    """By the id of the topic in hexadecimal digits, a slash, and the number of the partition."""
    missing: list[str]
    """Data directories that are not there."""


def read_sources(path: Path, tell: Callable[[str], None]) -> list[Source]:
    """Return what the stopped broker has whose first data directory is `path`, or what `save_sources` has written.

    `tell` gets the name of each log. Raises DirectoryLocked if the broker runs, StorageError, OSError.
    """
    if path.is_dir():
        return [_read_source(path, tell)]
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Source])
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path} was not written by `warmlog cluster recover --save`: {error}") from None


def save_sources(path: Path, sources: Sequence[Source]) -> None:
    """Write the file from which `read_sources` reads these."""
    replace_file(path, msgspec.json.encode(sources), mode=PRIVATE)


def _read_source(data_dir: Path, tell: Callable[[str], None]) -> Source:
    try:
        state, copy = read_state(data_dir / FILE_NAME), read_copy(data_dir)
    except FileNotFoundError:
        raise StorageError(f"{data_dir} has no {FILE_NAME}: give the first data directory of the broker") from None
    if state.cluster is None or state.marks is None or copy is None:
        raise StorageError(f"{data_dir} is not of a broker of a cluster, or that never ran with this version")
    logs, paths = {}, {data_dir, *map(Path, state.directories.values())}
    for path in filter(Path.is_dir, paths):
        with closing(DataDirectory.lock(path, must_exist=True)) as directory:
            recovery_points = read_offsets(path / RECOVERY_POINTS_NAME)
            for name, partition in directory.partitions().items():
                topic_id = stored_topic_id(partition / METADATA_NAME)
                assigned = {} if topic_id is None else state.assignments.get(topic_id.bytes, {})
                own = directory.format.directory_id
                if topic_id is not None and own is not None and assigned.get(name.partition) == own.bytes:
                    tell(name.directory_name)
                    end = end_of(partition, recovery_points.get(name, 0))
                    logs[f"{topic_id.hex}/{name.partition}"] = end
    missing = [str(path) for path in paths if not path.is_dir()]
    return Source(state.cluster.node_id, copy.marks(state.marks), copy, logs, missing)


def end_of(directory: Path, recovery_point: int) -> LogEnd:
    """Return where the log in `directory` ends for a start, which cuts it at damage above the recovery point."""
    bases = base_offsets_in(directory)
    epoch, end = NO_LEADER_EPOCH, max(bases, default=0)
    first = max(bisect_left(bases, recovery_point) - 1, 0)
    for base, next_base in zip_longest(bases[first:], bases[first + 1 :]):
        place = Place(base, base + MAX_RELATIVE_OFFSET + 1 if next_base is None else next_base)
        path = directory / segment_file_name(base, LOG_KIND)
        with closing(FileRecords.open_read_only(path, OpenFiles())) as records:
            records.drop_cache()
            for found in scan(records, 0, place, checks_crc=True):
                if not isinstance(found, Damage):
                    epoch, end = found[0].partition_leader_epoch, found[0].next_offset
                elif found.next_offset > recovery_point:
                    return LogEnd(epoch, end)
    return LogEnd(epoch if epoch > NO_LEADER_EPOCH else latest_epoch(directory, 0, was_closed=False)[0], end)


class Recovery(NamedTuple):
    """What the keys of a cluster will be."""

    view: View
    """The newest copy of them."""
    generation: int
    records: dict[PartitionKey, PartitionRecord]
    missing: list[tuple[str, int, list[int]]]
    """Topic and number of the partitions that may lack acknowledged records, and the nodes that were not asked."""


def plan(sources: Sequence[Source], now: View) -> Recovery:
    """Return what the cluster's keys become; `now` is what etcd has.

    InvalidRequest if the sources are not of that cluster, if brokers run, or if etcd has lost nothing.
    """
    if (found := {source.copy.cluster_id for source in sources}) != {now.keys.cluster_id}:
        raise InvalidRequest(f"brokers of {', '.join(sorted(found))}: not all are of the cluster {now.keys.cluster_id}")
    if now.brokers:
        raise InvalidRequest(
            f"brokers {sorted(now.brokers)} are registered: stop all brokers, and wait until their registrations end"
        )
    if now.items.get(now.keys.cluster) is not None and not any(_has_lost(source, now) for source in sources):
        raise InvalidRequest("etcd has all that these brokers know of it: there is nothing to recover")
    views = [source.copy.view() for source in sources]
    newest = max(views, key=lambda view: (view.generation, view.revision))
    generation = max(now.generation, newest.generation, *(source.marks.generation for source in sources)) + 1
    recovery, nonce = Recovery(newest, generation, {}, []), str(uuid4())
    for topic in newest.state.topics.values():
        for number in range(topic.partitions):
            key, name = PartitionKey(topic.topic_id, number), f"{topic.topic_id.hex()}/{number}"
            record = newest.records[key].record
            ends = {
                each.node: each.logs[name] for each in sources if name in each.logs and each.node in record.replicas
            }
            epochs = [view.records[key].record.leader_epoch for view in views if key in view.records]
            epoch = max(*epochs, *(end.epoch for end in ends.values()), record.leader_epoch)
            after = recovered(replace(record, leader_epoch=epoch + SKIPPED_EPOCHS), ends)
            missing = [node for node in record.replicas if node not in ends and node not in record.adding]
            if len(missing) >= record.required:
                recovery.missing.append((topic.name, number, missing))
                after = replace(after, recovering=nonce) if ends else after
            recovery.records[key] = after
    return recovery


def recovered(record: PartitionRecord, ends: dict[int, LogEnd]) -> PartitionRecord:
    """Return the record with those in sync that have the most; unchanged if none was asked: one of them may come."""
    if not ends:
        return record
    isr = tuple(node for node in record.replicas if node in ends and ends[node] == max(ends.values()))
    leader = record.leader if record.leader in isr else isr[0]
    return replace(record, leader=leader, isr=isr, elr=(), last_known_elr=())


def _has_lost(source: Source, now: View) -> bool:
    """Return whether etcd lacks what a broker knows, or was rebuilt, and the broker not started since."""
    item, mark = now.items.get(now.keys.node(source.node)), Mark()
    if item is not None:
        value = from_bytes(item.key, item.value, NodeValue)
        mark = Mark(value.incarnation, value.beat)
    comparison = compare(source.marks, mark, now.revision, now.generation)
    return comparison is Comparison.STORE_HAS_GONE_BACK or now.generation > source.marks.generation


async def rebuild(etcd: Coordination, now: View, recovery: Recovery) -> None:
    """Replace all that etcd has of the cluster. Its own key comes last: without it no broker starts.

    RequestTimedOut if the outcome is not known, or if etcd is changed meanwhile: then it is to be made again.
    """
    keys, view, by = now.keys, recovery.view, new_author(-1)
    cluster = from_bytes(keys.cluster, view.items[keys.cluster].value, ClusterValue)
    next_id = view.state.next_producer_id + SKIPPED_PRODUCER_IDS
    values = {key: _by(item.value, by) for key, item in view.items.items() if keys.parts(key)[0] in COPIED}
    values[keys.producer_ids] = to_bytes(ProducerIdsValue(by=by, next=next_id))
    values |= {keys.partition(*key): records.to_bytes(replace(each, by=by)) for key, each in recovery.records.items()}
    await _apply(etcd, by, {keys.cluster: now.changed_at(keys.cluster)}, Delete(keys.prefix, prefix_end(keys.prefix)))
    puts = [Put(*each) for each in values.items()]
    for at in range(0, len(puts), KEYS_A_TRANSACTION):
        part = puts[at : at + KEYS_A_TRANSACTION]
        await _apply(etcd, by, {each.key: 0 for each in part}, *part)
    last = to_bytes(replace(cluster, by=by, generation=recovery.generation))
    await _apply(etcd, by, {keys.cluster: 0}, Put(keys.cluster, last))


def _by(value: bytes, by: Author) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(value) | {"by": by})


async def _apply(etcd: Coordination, by: Author, changed_at: dict[str, int], *operations: Operation) -> None:
    compares = [ChangedAt(*each) for each in changed_at.items()]
    done = await settled(etcd, by, compares, operations, timeout_s=OUTCOME_TIMEOUT_S)
    if isinstance(done, Failed):
        raise RequestTimedOut("etcd was changed at the same time: stop all brokers, and try again")
