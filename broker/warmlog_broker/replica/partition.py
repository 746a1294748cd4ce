"""One partition as the broker serves it: its state, its role, its log, and the appends and readers that wait.

`append` is the only way to append and wait. Records below the high watermark are committed, so they can be read by
consumers and acknowledged. The log stores it and reads up to it, and a copy of a log takes over that of the original.
Otherwise only `Partition._raise_high_watermark` raises it: flushes, starts, and appends to a topic with write.caching
only change which records this broker holds for good. The state and the role say which operations are allowed
(`partition_state`), and change only here.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from warmlog_broker.replica.commitment import CommitRule, OnDurable, PendingAppends, Replication
from warmlog_broker.replica.disk_space import DiskRoom
from warmlog_broker.replica.partition_state import PartitionState, Role, allowed
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import CleanEnd, LogOffsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.os_errors import DiskReadOnly, SyncNotBegun, is_read_only, is_resource_exhaustion
from warmlog_broker.storage.log.appender import AppendInfo, CopiedBatch, read_copied
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.local_log import ReadBound
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import CheckedBatch, check_batch
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol import errors
from warmlog_protocol.batch import ControlType
from warmlog_protocol.batch.header import Buffer
from warmlog_protocol.messages import ACKS_ALL, ACKS_LEADER, NO_LEADER_EPOCH, IsolationLevel

COMPLAINT_INTERVAL_S = 10.0
"""At most this often a partition logs why requests for it fail."""

_log = logging.getLogger(__name__)


def read_bound(isolation: int) -> ReadBound:
    """Return the bound of a consumer's reads, whatever `replica_id` it sends."""
    return "committed" if isolation == IsolationLevel.READ_COMMITTED else "high_watermark"


class Disk(Protocol):
    """The interface of a partition's data directory: see `ServedDirectory` and `Flusher`."""

    @property
    def room(self) -> DiskRoom: ...
    def flush_soon(self, partition: "Partition") -> None: ...
    def flush_within(self, partition: "Partition", delay_ms: int) -> None: ...
    def probe_soon(self) -> None: ...


class ReadWaiter(Protocol):
    """A fetch that waits until there is more to read."""

    def partition_moved(self, partition: "Partition") -> None:
        """A bound moved, or the partition can no longer be read."""
        ...


class Partition:
    """One partition; the broker has no role for it at first.

    All methods belong to the event loop's thread unless they say otherwise.
    """

    def __init__(
        self,
        key: TopicPartition,
        log: Log | None,
        config: LogConfig,
        failure: str = "",
        *,
        on_leadership: Callable[["Partition"], None] = lambda _: None,
    ) -> None:
        """If `log` is None, since it could not be opened because of `failure`, the partition is offline.

        All of the log is on disk. `on_leadership` is called when this broker begins to lead the partition and when it
        ceases to, by its role or because of its disk.
        """
        self.key = key
        self.config = config
        self.leader_epoch = NO_LEADER_EPOCH
        """That in which the role was taken."""
        self.disk: Disk | None = None
        """Its data directory; None if that is unknown or missing."""
        self.replication: Replication | None = None
        """None if this broker is a cluster alone."""
        self._commit_rule: CommitRule | None = None
        self._log = log
        self._on_leadership = on_leadership
        self._reason = failure or "its log could not be opened"
        """The reason for the state READ_ONLY or OFFLINE."""
        self._state = PartitionState.OFFLINE if log is None else PartitionState.ONLINE
        self._role = Role.IDLE
        self.allows = allowed(self._state, self._role)
        self._pending = PendingAppends()
        self._pending_markers = PendingAppends()
        """By what is flushed, with write.caching too: a coordinator forgets a transaction when its markers are durable.
        One whose marker was lost in a power cut would stay open for ever."""
        self._complained_s = -COMPLAINT_INTERVAL_S
        self._readers: dict[ReadWaiter, None] = {}
        self._log_end_readers: dict[ReadWaiter, None] = {}
        if log is not None:
            log.local.on_failed = self._log_failed

    def __repr__(self) -> str:
        return f"Partition({self.key.directory_name}, {self._state.name}, {self._role.name})"

    @property
    def state(self) -> PartitionState:
        return self._state

    @property
    def role(self) -> Role:
        return self._role

    @property
    def log(self) -> Log:
        """The log; StorageError while the partition is offline, UnknownTopicOrPartition once it is deleted."""
        if self._log is None or not self.allows.read:
            raise self.refusal()
        return self._log

    @property
    def offsets(self) -> LogOffsets | None:
        """The log's offsets for the checkpoints, even if it has failed; None if it could not be opened."""
        return None if self._log is None else self._log.offsets

    @property
    def data_directory(self) -> Path | None:
        """The directory of the log's files; None if it could not be opened."""
        return None if self._log is None else self._log.local.directory.parent

    @property
    def awaited_below(self) -> int:
        """The offset below which appends wait for flushes: with write.caching only markers do."""
        markers = self._pending_markers.end_offset
        return markers if self.config.write_caching else max(self._pending.end_offset, markers)

    async def confirm(self) -> None:
        """Return once a read may be answered that must not go back: see `Replication.confirm`."""
        if self.replication is not None:
            await self.replication.confirm()

    def check_leader_epoch(self, epoch: int, *, may_follow: bool = False) -> None:
        """Raise NotLeaderOrFollower unless this broker leads the partition, and in `epoch`, if that is given (not -1).

        With `may_follow` it may also follow that leader. FencedLeaderEpoch or UnknownLeaderEpoch for another epoch.
        """
        if self._role is not Role.LEADING and not (may_follow and self._role is Role.FOLLOWING):
            raise self._not_leader()
        if self.replication is not None:
            self.replication.check_serves()
        if epoch in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if epoch < self.leader_epoch:
            raise errors.FencedLeaderEpoch(
                f"{self.key.directory_name}: leader epoch {epoch}, it is {self.leader_epoch} now"
            )
        raise errors.UnknownLeaderEpoch(
            f"{self.key.directory_name}: leader epoch {epoch}, it is only {self.leader_epoch} here"
        )

    def update_config(self, config: LogConfig) -> None:
        """Take over changed settings of the topic, in force from the next append on.

        What is unflushed is flushed at once: flush.ms may be shorter now, and write.caching off. An append that waits
        is then acknowledged by the earlier of the old and the new rule.
        """
        self.config = config
        log = self._log
        if log is None:
            return
        log.update_config(config)
        if self.disk is not None and self.allows.flush and log.log_end_offset > log.recovery_point:
            self.disk.flush_soon(self)

    # --- the role ---------------------------------------------------------------------------------------------------

    def become_leader(self, epoch: int, rule: CommitRule | None = None) -> None:
        """Lead the partition in `epoch`, newer than any before: append from the log end on, and commit by `rule`.

        Without a rule, all that this broker holds for good is committed.
        """
        self._take_role(Role.LEADING, epoch, rule)

    def become_follower(self, epoch: int, rule: CommitRule) -> None:
        """Follow the leader of `epoch`, and commit by `rule`. Appends that wait fail: their clients ask the leader."""
        self._take_role(Role.FOLLOWING, epoch, rule)

    def resign(self, epoch: int) -> None:
        """Do nothing more for the partition: in `epoch` this broker is not its leader. Waiting appends fail."""
        self._take_role(Role.IDLE, epoch, None)

    def _take_role(self, role: Role, epoch: int, rule: CommitRule | None) -> None:
        """A leader that leads in another epoch has ceased to lead in the one before."""
        is_idle = self._role is Role.IDLE
        is_same = epoch == self.leader_epoch and (is_idle or role is Role.IDLE)
        assert epoch > self.leader_epoch or is_same, f"{self}: {epoch} is no new epoch"
        if not is_idle:
            self._enter(self._state, Role.IDLE)
        self.leader_epoch, self._commit_rule = epoch, rule
        if role is Role.LEADING and self._log is not None and self._state.allows.append:
            self._log.begin_epoch(epoch)
        self._enter(self._state, role)
        self.advance()

    # --- appending --------------------------------------------------------------------------------------------------

    def append(
        self,
        batch: Buffer | CheckedBatch,
        acks: int,
        on_durable: OnDurable | None,
        *,
        now_ms: int,
        next_producer_id: int = 0,
        guard: VerificationGuard | None = None,
    ) -> AppendInfo:
        """Append one client's batch, schedule its flush, and wake the readers. The batch is not durable on return.

        `batch` may be borrowed memory, or have passed `check_batch` already. `on_durable` is called once: with None
        when the batch (of a duplicate: the original) is below the high watermark, or with the error that prevents that.
        It is never called before this returns, and not at all if this raises. Without it the batch is flushed within
        the topic's `flush.ms`. It is required for acks=all, and for acks=1 if `must_wait`.

        `next_producer_id` is the first producer id that was never assigned. A transactional batch needs a `guard` from
        `ProducerStates.start_verification`, or NO_GUARD.

        Raises what `check_batch` and `LogAppender.append_as_leader` raise, InvalidRequiredAcks and UnknownProducerId.
        DiskFull and OutOfResources can be retried; after any other failure of the disk the partition is offline.
        """
        if not self.allows.append:
            raise self.refusal()
        if self.replication is not None:
            self.replication.check_append(acks)
        log, disk = self._log, self.disk
        assert log is not None
        assert disk is not None
        if disk.room.is_short:
            raise disk.room.refusal(self.key.directory_name)
        if not isinstance(batch, CheckedBatch):
            batch = check_batch(batch, self.config.max_message_bytes, may_be_transactional=guard is not None)
        producer_id = batch.header.producer_id
        if producer_id >= 0:
            if acks != ACKS_ALL:
                raise errors.InvalidRequiredAcks(f"an idempotent producer needs acks=all (-1), not {acks}")
            if producer_id >= next_producer_id:
                raise errors.UnknownProducerId(f"producer id {producer_id} was never assigned")
        try:
            info = log.appender.append_as_leader(
                batch, leader_epoch=self.leader_epoch, now_ms=now_ms, guard=NO_GUARD if guard is None else guard
            )
        except errors.StorageError as error:
            self._append_failed(error, disk)
            raise
        self._appended(info.last_offset + 1, log, disk, on_durable)
        return info

    def append_end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        control_type: ControlType,
        coordinator_epoch: int,
        on_durable: OnDurable,
        *,
        keeps_epoch: bool = False,
        now_ms: int,
    ) -> AppendInfo:
        """Append the marker by which a coordinator ends a producer's transaction; `on_durable` as for `append`.

        Unlike a batch it has to be flushed, too, if the topic has write.caching. It may use the space reserved by
        `disk.reserve.bytes`, since the transaction holds back readers and compaction. `keeps_epoch`: the marker has the
        epoch of the batches. Raises what `LogAppender.append_end_transaction` raises.
        """
        if not self.allows.append:
            raise self.refusal()
        if self.replication is not None:
            self.replication.check_append(ACKS_ALL)
        log, disk = self._log, self.disk
        assert log is not None
        assert disk is not None
        try:
            info = log.appender.append_end_transaction(
                producer_id,
                producer_epoch,
                control_type,
                coordinator_epoch,
                keeps_epoch=keeps_epoch,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
            )
        except errors.StorageError as error:
            self._append_failed(error, disk)
            raise
        self._appended(info.last_offset + 1, log, disk, on_durable, is_marker=True)
        return info

    def append_copied(self, batches: Buffer | list[CopiedBatch], *, flush_below: int, now_ms: int) -> AppendInfo:
        """Append what this broker's leader has sent: whole batches, unchanged. They are not durable on return.

        They are flushed at once if appends wait for that below `flush_below`, an offset that the leader tells, else
        within the topic's `flush.ms`. Raises what `FollowerAppender.append` raises, and `refusal` because of the disk.
        """
        assert self._role is Role.FOLLOWING, f"{self} follows no leader"
        log, disk = self._log, self.disk
        if log is None or disk is None or not self._state.allows.append:
            raise self.refusal()
        if disk.room.is_short:
            raise disk.room.refusal(self.key.directory_name)
        try:
            info = log.follower.append(batches, now_ms=now_ms)
        except errors.StorageError as error:
            self._append_failed(error, disk)
            raise
        self._appended(log.log_end_offset, log, disk, None)
        if log.recovery_point < flush_below:
            disk.flush_soon(self)
        return info

    def must_wait(self, acks: int) -> bool:
        """Return whether a batch with these `acks` is acknowledged only once it is durable.

        In the state SWITCHING acks=1 waits too: after a crash of the broker the next start would serve the old
        directory.
        """
        return acks == ACKS_ALL or (acks == ACKS_LEADER and not self.allows.commit)

    def _append_failed(self, error: errors.StorageError, disk: Disk) -> None:
        self.complain(f"{self.key.directory_name}: a batch was refused: {error}")
        if isinstance(error, DiskReadOnly):
            disk.probe_soon()

    def _appended(
        self, end_offset: int, log: Log, disk: Disk, on_durable: OnDurable | None, *, is_marker: bool = False
    ) -> None:
        """Schedule the flush of a batch that ends at `end_offset`, and wake the readers."""
        if self._log_end_readers:
            self._wake(self._log_end_readers)
        if self.config.write_caching:
            self.advance()
        if on_durable is not None:
            pending = self._pending_markers if is_marker else self._pending
            if end_offset > (log.bounds.lasting_offset if is_marker else log.bounds.high_watermark.offset):
                pending.add(end_offset, on_durable)
                disk.flush_soon(self)
                return
            asyncio.get_running_loop().call_soon(on_durable, None)
        if log.flusher.is_due:
            disk.flush_soon(self)
        else:
            disk.flush_within(self, self.config.flush_ms)

    # --- flushing ---------------------------------------------------------------------------------------------------

    def prepare_flush(self) -> FlushPlan | None:
        """Return what to sync; None if everything is durable, or the state does not allow a flush.

        An OSError because descriptors or memory ran out can be retried. After any other error the log is unusable.
        """
        return self._log.flusher.prepare() if self._log is not None and self.allows.flush else None

    def flushed(self, plan: FlushPlan, error: Exception | None = None) -> bool:
        """Note the outcome of `plan`; return whether to retry it later. The caller calls `wake` after that.

        A plan from before a move is ignored.
        """
        log = self._log
        if log is None or not self.allows.read:
            return False
        if plan.directory is not log.local.directory and plan.directory != log.local.directory:
            return False
        if error is None:
            log.flusher.mark_flushed(plan)
            if self.allows.commit:
                self._raise_high_watermark(log)
        elif isinstance(error, SyncNotBegun):
            log.flusher.put_back(plan)
            return True
        elif isinstance(error, OSError) and is_read_only(error):
            self.set_read_only(f"a flush failed: {error}")
        else:
            _log.critical("%s IS OFFLINE: its flush failed: %s", self.key.directory_name, error)
            self.take_offline(f"a flush failed: {error}")
        return False

    def take_restart_point(self) -> bool:
        """Flush the log if it wants a restart point; return whether it does."""
        if self._log is None or self.disk is None or not self.allows.flush:
            return False
        wants = self._log.flusher.wants_restart_point()
        if wants:
            self.disk.flush_within(self, self.config.flush_ms)
        return wants

    def checkpointed(self, offsets: LogOffsets) -> None:
        """Note that `offsets` are durable in the checkpoints of its data directory. OSError from the disk."""
        if self._log is not None and self.allows.trim:
            self._log.truncation.checkpointed(offsets)
            if self._log.flusher.checkpointed(offsets.recovery_point) and self.disk is not None:
                self.disk.flush_within(self, self.config.flush_ms)

    # --- waking -----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Raise the high watermark to what is committed, as the commit rule may return more now; wake what waits."""
        if self._log is not None and self.allows.commit:
            self._raise_high_watermark(self._log)
            self.wake()

    def _raise_high_watermark(self, log: Log) -> None:
        """Raise it to what is committed; never lower it.

        This broker holds records for good once they are flushed or, with write.caching, written.
        """
        bounds = log.bounds
        if self._commit_rule is not None:
            bounds.raise_high_watermark(self._commit_rule())
        else:
            bounds.raise_high_watermark(log.log_end_offset if self.config.write_caching else bounds.flushed.offset)

    def wake(self) -> None:
        """Complete appends and wake readers after the high watermark may have moved."""
        if self._log is not None:
            bounds = self._log.bounds
            self._pending.complete(bounds.high_watermark.offset)
            self._pending_markers.complete(bounds.lasting_offset)
        if self._readers:
            self._wake(self._readers)

    def add_reader(self, reader: ReadWaiter, bound: ReadBound) -> None:
        """Call `reader.partition_moved` whenever `bound` moves, until it is removed."""
        (self._log_end_readers if bound == "log_end" else self._readers)[reader] = None

    def remove_reader(self, reader: ReadWaiter) -> None:
        """Undo `add_reader`. Idempotent."""
        self._readers.pop(reader, None)
        self._log_end_readers.pop(reader, None)

    def check_crcs(self, slices: Sequence[FileSlice]) -> None:
        """Read what is to be sent again, and raise CorruptBatch for a batch whose CRC is wrong.

        It blocks on the disk if the page cache has lost it since it was sent, and raises what `FileSlice.pread` raises.
        """
        read_copied(b"".join(piece.pread() for piece in slices), 0, name=self.key.directory_name)

    def check_again(self, slices: Sequence[FileSlice]) -> None:
        """Check what a reader has found damaged. NotLeaderOrFollower if it is, and another broker may lead."""
        try:
            self.check_crcs(slices)
        except (errors.CorruptBatch, OSError) as error:
            self.unreadable(error, slices)
            self.check_leader_epoch(NO_LEADER_EPOCH, may_follow=True)

    def unreadable(self, error: Exception, slices: Sequence[FileSlice] = ()) -> None:
        """Note that what is asked for cannot be read.

        It is damage unless memory, descriptors or space (for an index) were short, or the log was cut after `slices` of
        it were found.
        """
        self.complain(f"damaged or lost: {error}")
        is_short = isinstance(error, MemoryError) or (isinstance(error, OSError) and is_resource_exhaustion(error))
        if self.replication is not None and not is_short and not any(piece.is_cut for piece in slices):
            self.replication.damaged(str(error))

    def complain(self, text: str) -> None:
        """Log why a request failed, at most every COMPLAINT_INTERVAL_S, since clients retry."""
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAINT_INTERVAL_S:
            self._complained_s = now_s
            _log.error("%s", text)

    # --- deleting records -------------------------------------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """As `LogRetention.delete_records`; raises `refusal` as well."""
        self.check_leader_epoch(NO_LEADER_EPOCH)
        if not self.allows.trim:
            raise self.refusal()
        return self.log.retention.delete_records(offset)

    # --- moving -----------------------------------------------------------------------------------------------------

    def begin_move(self) -> None:
        """Note that it is being copied to another data directory. Raises `refusal` if it cannot be moved."""
        if not self.allows.move:
            raise self.refusal()
        self._enter(PartitionState.MOVING)

    def end_move(self) -> None:
        """Note that the move was cancelled, or has failed before `switch_to`."""
        if self._state is PartitionState.MOVING:
            self._enter(PartitionState.ONLINE)

    def switch_to(self, log: Log) -> None:
        """Use `log`, a copy in another data directory, from now on; acknowledge after `complete_switch`.

        Batches have the same positions in it, so waiting reads continue.
        """
        self._enter(PartitionState.SWITCHING)
        self._log = log
        log.local.on_failed = self._log_failed

    def complete_switch(self) -> None:
        """The move is durable: flush what was appended meanwhile."""
        if self._state is PartitionState.SWITCHING:
            self._enter(PartitionState.ONLINE)
            self.advance()
            if self.disk is not None:
                self.disk.flush_soon(self)

    # --- the end ----------------------------------------------------------------------------------------------------

    def take_offline(self, reason: str) -> None:
        """The disk failed: fail all waiting and later requests. Nothing more is written."""
        if self._log is not None:
            self._log.fail(reason)

    def set_read_only(self, reason: str) -> None:
        """The disk refuses writes: fail appends that wait. Reading continues below the high watermark."""
        if self._state.may_become(PartitionState.READ_ONLY):
            _log.error("%s takes no records until a restart: %s", self.key.directory_name, reason)
            self._stop(PartitionState.READ_ONLY, reason)

    def deleted(self) -> None:
        """The topic was deleted: fail all waiting requests."""
        self._enter(PartitionState.DELETED)

    def delete_log(self) -> Path | None:
        """In a thread, once the partition is deleted: as `Log.delete`; None if there is no usable log."""
        return None if self._log is None or self._log.local.failure else self._log.delete()

    def close(self, *, sync: bool) -> CleanEnd | None:
        """In a thread, once the partition is no longer used: as `Log.close`; None if the state does not allow it."""
        if self._log is None or not self.allows.flush:
            return None
        self._log.local.on_failed = lambda: None  # a thread must not call into the event loop
        return self._log.close(sync=sync)

    def refusal(self) -> errors.ApiError:
        """Return the error for an operation that the state or the role does not allow."""
        name = self.key.directory_name
        if self._state is PartitionState.DELETED:
            return errors.UnknownTopicOrPartition(f"topic {self.key.topic!r} was deleted")
        if self._state is PartitionState.READ_ONLY:
            return DiskReadOnly(
                f"{name} can be read, and takes no records until a restart of the broker: {self._reason}"
            )
        if self._state is PartitionState.SWITCHING:
            return errors.StorageError(f"{name} has just moved to another data directory: try again")
        if self._state.allows.read:
            return self._not_leader()
        return errors.StorageError(f"{name} is offline until a restart of the broker has checked it: {self._reason}")

    def _not_leader(self) -> errors.NotLeaderOrFollower:
        return errors.NotLeaderOrFollower(f"{self.key.directory_name}: this broker does not lead it")

    def _log_failed(self) -> None:
        assert self._log is not None
        if self._log.local.failure and self._state.may_become(PartitionState.OFFLINE):
            self._stop(PartitionState.OFFLINE, self._log.local.failure)

    def _stop(self, state: PartitionState, reason: str) -> None:
        """Enter `state` because of the disk, and have the disk probed."""
        self._reason = reason
        self._enter(state)
        if self.disk is not None:
            self.disk.probe_soon()

    def _enter(self, state: PartitionState, role: Role | None = None) -> None:
        """Enter `state`, or a role in the present one."""
        assert role is not None or self._state.may_become(state), f"{self} cannot become {state.name}"
        was_leading = self.allows.append
        self._state, self._role = state, role or self._role
        self.allows = allowed(state, self._role)
        if self.allows.append != was_leading:
            self._on_leadership(self)
        if self.allows.append:
            return
        self._pending.fail(self.refusal())
        self._pending_markers.fail(self.refusal())
        self._wake(self._readers)
        self._wake(self._log_end_readers)

    def _wake(self, readers: Iterable[ReadWaiter]) -> None:
        for reader in list(readers):
            reader.partition_moved(self)
