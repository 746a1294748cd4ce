"""The start of a broker of a cluster: whether it may start, and what it says of its replicas before it has a role.

The order is that of replication/membership: what etcd has of this node is read and compared; logs are opened; a replica
whose log may lack something leaves the in-sync set; the next mark is written; then the broker registers.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from warmlog_broker.cluster.copy_of_etcd import CopyOfEtcd
from warmlog_broker.cluster.records import PartitionKey, Seen
from warmlog_broker.cluster.session import NodeInUse, Session, in_use
from warmlog_broker.cluster.settling import new_author, settled
from warmlog_broker.cluster.store import KEYS_A_TRANSACTION
from warmlog_broker.cluster.view import View
from warmlog_broker.data_dirs.loader import LoadedPartition, StartGivenUp, StartRefused, Stored
from warmlog_broker.etcd.coordination import ChangedAt, Coordination, Put, Succeeded, Unavailable
from warmlog_broker.metadata.metadata_log import NodeState
from warmlog_broker.replication import record as records
from warmlog_broker.replication.membership import Comparison, FoundLog, Mark, NodeMarks, compare, lost, start_change
from warmlog_broker.replication.record import Change
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_protocol.errors import ApiError, WarmlogError

PAUSE_S = 1.0

_log = logging.getLogger(__name__)


async def read_cluster(view: View, is_given_up: Callable[[], bool]) -> None:
    """Read all facts of the cluster; wait for as long as etcd does not answer.

    Raises StartRefused if there is no such cluster, or if it cannot be read, and StartGivenUp.
    """
    while True:
        try:
            await view.read()
            break
        except Unavailable as error:
            _log.warning("waiting for etcd: %s", error)
        except WarmlogError as error:
            raise StartRefused(f"the cluster {view.keys.cluster_id!r} cannot be read from etcd: {error}") from error
        if is_given_up():
            raise StartGivenUp
        await asyncio.sleep(PAUSE_S)
    if view.items.get(view.keys.cluster) is None:
        raise StartRefused(
            f"etcd has no cluster {view.keys.cluster_id!r}: create it once with `warmlog cluster init`, correct "
            "cluster.id or cluster.etcd, or, if etcd has lost its data, see `warmlog cluster recover`"
        )


def are_disks_old(view: View, session: Session, state: NodeState, copy: CopyOfEtcd | None = None) -> bool:
    """Return whether the disks are older than the cluster, so that no log of theirs counts; `copy` is on them.

    Raises StartRefused if etcd has lost what it had, or if the disks have nothing that this node had.
    """
    marks, stored = state.marks or NodeMarks(), session.stored_mark()
    if state.marks is None and stored != Mark():
        raise StartRefused(
            f"node {view.node} was a broker of the cluster {view.keys.cluster_id!r} before, and these data directories "
            f"are not its: mount the right disks, or, if they are lost, run `warmlog cluster replace {view.node}`, "
            "which takes the node out of all in-sync sets, and start the broker again: its replicas are filled again"
        )
    marks = marks if copy is None else copy.marks(marks)
    match compare(marks, stored, view.revision, view.generation):
        case Comparison.STORE_HAS_GONE_BACK:
            raise StartRefused(
                f"etcd has lost what it had confirmed: it has {tuple(stored)} at revision {view.revision} for node "
                f"{view.node}, and had {tuple(marks.confirmed)} at {marks.revision}. It was restored from a backup, or "
                "is another one: restore its latest data, or see `warmlog cluster recover`. Nothing was changed"
            )
        case Comparison.DISKS_ARE_OLD:
            _log.critical(
                "THE DISKS OF THIS BROKER ARE OLDER THAN THE CLUSTER: an image was restored. Its replicas leave all "
                "in-sync sets, and are filled from others"
            )
            return True
    return False


async def wait_for_former(view: View, directories: Iterable[str], timeout_s: float) -> None:
    """Return when no other broker is registered under this node's id, before the view follows etcd.

    Raises NodeInUse if one stays, Unavailable, Refused.
    """
    own, deadline_s = set(directories), time.monotonic() + timeout_s
    while (other := view.brokers.get(view.node)) is not None and not own & set(other.value.directories):
        if time.monotonic() > deadline_s:
            raise NodeInUse(in_use(view.node, other.value))
        await asyncio.sleep(PAUSE_S)
        await view.read()


class Replica(Struct, frozen=True):
    """A partition of which this broker has a replica, as its start has found it."""

    key: PartitionKey
    name: TopicPartition
    seen: Seen
    reason: str | None
    """Why its log may lack something; None if it lacks nothing."""
    was_closed: bool


def replicas_of(
    view: View, stored: Stored, left_open: Iterable[TopicPartition], defaults: LogConfig, *, are_old: bool
) -> list[Replica]:
    """Return this broker's replicas; `defaults` are the settings of a topic without its own."""
    found = []
    open_names = set(left_open)
    for entry, loaded in stored.topics:
        is_cached = LogConfig.from_settings(entry.settings, base=defaults).write_caching
        for number in view.here(entry):
            key, name = PartitionKey(entry.topic_id, number), TopicPartition(entry.name, number)
            partition = loaded.get(number)
            if are_old:
                reason: str | None = "its disk is older than the cluster"
            else:
                reason = _why_lost(key, name, partition, stored, may_lack=is_cached and name in open_names)
            was_closed = partition is not None and name not in open_names
            found.append(Replica(key, name, view.records[key], reason, was_closed))
    return found


def _why_lost(
    key: PartitionKey, name: TopicPartition, partition: LoadedPartition | None, stored: Stored, *, may_lack: bool
) -> str | None:
    known = stored.node.state.assignments.get(key.topic_id, {}).get(key.number)
    directory = None if known is None else known.hex()
    if partition is None or partition.log is None or partition.directory is None:
        return lost(None, directory, 0)
    log, kept = partition.log, partition.directory.stored_state(name).offsets
    found = FoundLog(
        directory=partition.directory.directory_id.bytes.hex(),
        end=log.log_end_offset,
        has_damage=bool(log.recovery_report.damage),
        may_lack_flushed=may_lack,
    )
    return lost(found, directory, kept.high_watermark)


async def change_records(etcd: Coordination, view: View, found: Iterable[Replica]) -> None:
    """Say in each record what the start of this broker changes in it."""
    wanted: list[tuple[Replica, Change]] = []
    for replica in found:
        is_lost = replica.reason is not None
        if is_lost:
            _log.error("%s leaves the in-sync set: %s", replica.name.directory_name, replica.reason)
        change = start_change(replica.seen.record, view.node, is_lost=is_lost, was_closed=replica.was_closed)
        if change is not None:
            wanted.append((replica, change))
    parts = [wanted[at : at + KEYS_A_TRANSACTION] for at in range(0, len(wanted), KEYS_A_TRANSACTION)]
    # At once: what others elect in place of the first ones would delay the last ones.
    await view.reached(max(await asyncio.gather(*(_changed_together(etcd, view, part) for part in parts)), default=0))


async def _changed_together(etcd: Coordination, view: View, part: Sequence[tuple[Replica, Change]]) -> int:
    """Change records in one transaction, or each by itself if another broker has changed one; return the revision."""
    by = new_author(view.node)
    changed = {
        ChangedAt(view.keys.partition(*replica.key), replica.seen.revision): after
        for replica, change in part
        if not isinstance(after := records.changed(replica.seen.record, change, by), ApiError)
    }
    if not changed:
        return 0
    puts = [Put(compare.key, records.to_bytes(after)) for compare, after in changed.items()]
    done = await settled(etcd, by, list(changed), puts)
    if isinstance(done, Succeeded):
        return done.revision
    return max([await changed_record(etcd, view, replica.key, replica.seen, change) for replica, change in part])


def forget_missing(stored: Stored) -> None:
    """Let partitions whose directories are missing be created again, to be filled, now that they are excluded.

    Those in data directories that are offline are not: these may come back.
    """
    for entry, loaded in stored.topics:
        for number, partition in list(loaded.items()):
            name, directory = TopicPartition(entry.name, number), partition.directory
            if partition.log is None and directory is not None and not directory.partition_path(name).exists():
                del loaded[number]


async def changed_record(
    etcd: Coordination, view: View, key: PartitionKey, seen: Seen, change: Change, node: int | None = None
) -> int:
    """Change a record, by this node or `node`; return the revision of it, 0 if the change is not needed any more."""
    name = view.keys.partition(key.topic_id, key.number)
    while True:
        by = new_author(view.node if node is None else node)
        after = records.changed(seen.record, change, by)
        if isinstance(after, ApiError):
            return 0
        done = await settled(etcd, by, [ChangedAt(name, seen.revision)], [Put(name, records.to_bytes(after))])
        if isinstance(done, Succeeded):
            return done.revision
        if (item := done.items.get(name)) is None:
            return 0
        seen = Seen(records.from_bytes(item.value), item.changed)
