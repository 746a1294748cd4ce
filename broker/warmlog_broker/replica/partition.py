"""One partition as the broker serves it: its log, its high watermark, and who waits for that to move.

With one replica the high watermark is the flushed offset; on a topic with write.caching it is the log end offset. What
is appended lies between the two until a flush is over. A partition whose disk failed is offline: every use of it raises
StorageError until a restart has read it again. One whose disk has become read-only is frozen: it is read, and no more.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import LogOffsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.os_errors import DiskReadOnly
from warmlog_broker.storage.log.appender import AppendInfo
from warmlog_broker.storage.log.bounds import ReadBound
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard
from warmlog_broker.storage.record.validation import CheckedBatch, check_batch
from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata
from warmlog_protocol.batch import ControlType
from warmlog_protocol.batch.header import Buffer
from warmlog_protocol.errors import (
    ApiError,
    FencedLeaderEpoch,
    InvalidRequiredAcks,
    StorageError,
    UnknownLeaderEpoch,
    UnknownProducerId,
)
from warmlog_protocol.messages import ACKS_ALL, ACKS_LEADER, NO_LEADER_EPOCH, IsolationLevel

if TYPE_CHECKING:
    from warmlog_broker.replica.served_directories import ServedDirectory

COMPLAINT_INTERVAL_S = 10.0
"""How often a partition says in the log why requests for it fail."""

OnDurable = Callable[[ApiError | None], None]
"""Called once: with None when a batch is below the high watermark, or with the error because of which it never will."""

_log = logging.getLogger(__name__)


def read_bound(isolation: int, *, is_replica: bool) -> ReadBound:
    """Up to where a peer reads: a consumer by its isolation level, a replica up to the log end.

    `is_replica` is what the broker knows of the peer (`RequestContext.is_replica`). The `replica_id` in a request is a
    claim, and counts for nothing: with any id, a client reads what a consumer may.
    """
    if is_replica:
        return "log_end"
    return "committed" if isolation == IsolationLevel.READ_COMMITTED else "high_watermark"


class ReadWaiter(Protocol):
    """Somebody who waits until there is more to read."""

    def partition_moved(self, partition: "Partition") -> None:
        """A bound moved, or the partition went away."""
        ...


class Partition:
    """The leader's view of one partition. All methods belong to the event loop's thread."""

    def __init__(
        self, key: TopicPartition, log: Log | None, config: LogConfig, leader_epoch: int, failure: str = ""
    ) -> None:
        """`log` None: it could not be opened (`failure` says why), and the partition is offline."""
        self.key = key
        self.config = config
        self.leader_epoch = leader_epoch
        self.is_deleted = False
        self.is_moving = False
        """Whether it is being copied to another data directory."""
        self.is_settling = False
        """Whether it has just moved, and a crash would still take back what is appended: nothing is acknowledged."""
        self.home: ServedDirectory | None = None
        """The data directory in which it lies; None when that is not known, or not there."""
        self._failure = failure or "its log could not be opened"
        self._frozen = ""
        """Why no records are taken until a restart, although what is there can be read; empty while they are."""
        self._log = log
        self._waiting_appends: deque[tuple[int, OnDurable]] = deque()
        """End offsets, in their order, and what to call once they are durable."""
        self._complained_s = -COMPLAINT_INTERVAL_S
        self._readers: set[ReadWaiter] = set()
        self._log_end_readers: set[ReadWaiter] = set()

    def __repr__(self) -> str:
        return f"Partition({self.key.directory_name})"

    @property
    def is_offline(self) -> bool:
        """Whether its disk failed."""
        return self._log is None or self._log.failure != ""

    @property
    def is_frozen(self) -> bool:
        """Whether its disk has become read-only: it can be read, and nothing of it may be changed."""
        return self._frozen != ""

    @property
    def log(self) -> Log:
        """The log; StorageError while the partition is offline."""
        if self._log is None or self._log.failure:
            raise self._offline()
        return self._log

    @property
    def offsets(self) -> LogOffsets | None:
        """What checkpoints keep of the log, also of one that has failed; None when it could not be opened."""
        return None if self._log is None else self._log.offsets

    def check_leader_epoch(self, epoch: int) -> None:
        """Passes when the asker knows of the leader epoch in force, or does not care (-1)."""
        if epoch in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.key.directory_name}: leader epoch {epoch}, it is {self.leader_epoch} now")
        raise UnknownLeaderEpoch(
            f"{self.key.directory_name}: leader epoch {epoch}, it is only {self.leader_epoch} here"
        )

    # --- writing ----------------------------------------------------------------------------------------------------

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
        """Append one client's batch, have it flushed, and wake the readers. The batch is not durable on return.

        `batch` may be borrowed memory, or have passed `check_batch` already. `on_durable` is called once: with None
        when the batch is below the high watermark (a duplicate: when its original is), or with the error because of
        which it never will be. It is never called before this returns, and not at all when this raises. Without it the
        batch is flushed within the topic's `flush.ms`. acks=all needs it; acks=1 needs it if `must_wait` says so.

        `next_producer_id` is the first producer id that was never given out. `guard` comes with a transactional batch,
        as from `Log.start_verification` (NO_GUARD if that says so); without one, such a batch is refused.

        Raises what `check_batch` and `Log.append_as_leader` raise, InvalidRequiredAcks and UnknownProducerId. DiskFull
        can be tried again, as can OutOfResources; after any other failure of the disk the partition is offline.
        """
        log = self._writable()
        if self.home is not None and self.home.room.is_short:
            raise self.home.room.refusal(self.key.directory_name)
        if not isinstance(batch, CheckedBatch):
            batch = check_batch(batch, self.config.max_message_bytes, may_be_transactional=guard is not None)
        producer_id = batch.header.producer_id
        if producer_id >= 0:
            if acks != ACKS_ALL:
                raise InvalidRequiredAcks(f"an idempotent producer needs acks=all (-1), not {acks}")
            if producer_id >= next_producer_id:
                raise UnknownProducerId(f"producer id {producer_id} was never given out by this broker")
        try:
            info = log.append_as_leader(
                batch, leader_epoch=self.leader_epoch, now_ms=now_ms, guard=NO_GUARD if guard is None else guard
            )
        except StorageError as error:
            self._append_failed(error)
            raise
        self._appended(info.last_offset + 1, on_durable)
        return info

    def append_end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        control_type: ControlType,
        coordinator_epoch: int,
        on_durable: OnDurable,
        *,
        now_ms: int,
    ) -> AppendInfo:
        """Append the marker with which a coordinator ends a producer's transaction; `on_durable` as for `append`.

        It may use the room that `disk.reserve.bytes` keeps, as it ends what holds back readers and compaction. Raises
        what `Log.append_end_transaction` raises.
        """
        log = self._writable()
        try:
            info = log.append_end_transaction(
                producer_id,
                producer_epoch,
                control_type,
                coordinator_epoch,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
            )
        except StorageError as error:
            self._append_failed(error)
            raise
        self._appended(info.last_offset + 1, on_durable)
        return info

    def must_wait(self, acks: int) -> bool:
        """Whether a batch with these `acks` is acknowledged only once it is durable.

        With acks=1 that is so while the partition settles after a move: a crash of the broker alone would take back
        what is in the page cache, as the next start would serve the directory that the partition has left.
        """
        return acks == ACKS_ALL or (self.is_settling and acks == ACKS_LEADER)

    def _writable(self) -> Log:
        """The log, if it may be appended to."""
        log = self._log
        if log is None or log.failure:
            raise self._offline()
        if self._frozen:
            raise self._read_only()
        return log

    def _append_failed(self, error: StorageError) -> None:
        self.complain(f"{self.key.directory_name}: a batch was refused: {error}")
        self.check_failure()
        if isinstance(error, DiskReadOnly) and self.home is not None:
            self.home.suspect()

    def _appended(self, end_offset: int, on_durable: OnDurable | None) -> None:
        """A batch that ends at `end_offset` is in the log: has it flushed, and tells those who want to know."""
        assert self._log is not None
        if self._log_end_readers:
            self._wake(self._log_end_readers)
        if self.config.write_caching:
            self.wake()
        is_waited_for = False
        if on_durable is not None:
            is_waited_for = end_offset > self._log.high_watermark
            if is_waited_for:
                self._wait(end_offset, on_durable)
            else:
                asyncio.get_running_loop().call_soon(on_durable, None)
        if self.home is not None:
            self.home.flusher.appended(self, is_waited_for=is_waited_for)

    def _wait(self, end_offset: int, on_durable: OnDurable) -> None:
        """`on_durable` is called once the high watermark is at or above `end_offset`."""
        waiting = self._waiting_appends
        if not waiting or waiting[-1][0] <= end_offset:
            waiting.append((end_offset, on_durable))
            return
        # A duplicate waits for its original, after which other batches were appended.
        position = next(i for i, (other_offset, _) in enumerate(waiting) if other_offset > end_offset)
        waiting.insert(position, (end_offset, on_durable))

    def prepare_flush(self) -> FlushPlan | None:
        """What to sync; None when everything is durable, or nothing can be done for it any more, or not now."""
        log = self._log
        if log is None or log.failure or self._frozen or self.is_deleted or self.is_settling:
            return None
        return log.prepare_flush()

    def owns(self, plan: FlushPlan) -> bool:
        """Whether `plan` is for the log as it is: not if the partition has moved or was deleted since."""
        if self.is_deleted or self._log is None:
            return False
        directory = self._log.directory
        return plan.directory is directory or plan.directory == directory

    def flushed(self, plan: FlushPlan) -> None:
        """Takes note that `plan` has run. Nobody is told before `wake`."""
        log = self._log
        if log is not None and not log.failure and self.owns(plan):
            log.update_high_watermark(log.mark_flushed(plan))

    def not_flushed(self, plan: FlushPlan) -> None:
        """`plan` has raised SyncNotBegun: the next one does its part, too."""
        if not self.is_offline and self.owns(plan):
            self.log.put_back(plan)

    # --- waking -----------------------------------------------------------------------------------------------------

    def add_reader(self, reader: ReadWaiter, bound: ReadBound) -> None:
        """`reader.partition_moved` is called whenever `bound` moves, until it is removed."""
        (self._log_end_readers if bound == "log_end" else self._readers).add(reader)

    def remove_reader(self, reader: ReadWaiter) -> None:
        """The inverse of `add_reader`; harmless when that was done before."""
        self._readers.discard(reader)
        self._log_end_readers.discard(reader)

    def wake(self) -> None:
        """The high watermark may have moved: tells those who wait for a flush, and those who wait for data."""
        waiting = self._waiting_appends
        if waiting and self._log is not None:
            high_watermark = self._log.high_watermark
            while waiting and waiting[0][0] <= high_watermark:
                waiting.popleft()[1](None)
        if self._readers:
            self._wake(self._readers)

    def end_of(self, bound: ReadBound) -> LogOffsetMetadata:
        """Where reading ends for `bound`; StorageError while the partition is offline."""
        return self.log.end_of(bound)

    def checkpointed(self, offsets: LogOffsets | None) -> None:
        """The checkpoints hold `offsets`, durably; None when they say nothing of this partition."""
        if offsets is not None and self._log is not None and not self.is_offline and not self.is_deleted:
            self._log.checkpointed(offsets)

    def complain(self, text: str) -> None:
        """Logs why a request failed: clients try again and again, and one line in a while says it."""
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAINT_INTERVAL_S:
            self._complained_s = now_s
            _log.error("%s", text)

    # --- moving -----------------------------------------------------------------------------------------------------

    def switch_to(self, log: Log) -> None:
        """`log` is a copy in another data directory: it is written and read from now on, acknowledged after `settled`.

        Readers look again, for what they wait for is counted in the files of the old one.
        """
        self._log = log
        self.is_settling = True
        self._wake(self._readers)
        self._wake(self._log_end_readers)

    def settled(self) -> None:
        """A crash leaves the partition where it is now."""
        self.is_settling = False
        self.log.update_high_watermark(self.log.recovery_point)
        self.wake()

    # --- the end ----------------------------------------------------------------------------------------------------

    def take_offline(self, reason: str) -> None:
        """The disk failed: fails everybody who waits, and everybody who comes. Nothing more is written."""
        if self._log is not None:
            self._log.fail(reason)
        self.check_failure()

    def freeze(self, reason: str) -> None:
        """The disk has become read-only: fails who waits for a flush. Reading goes on below the high watermark."""
        if not (self.is_offline or self.is_deleted or self._frozen):
            self._frozen = reason
            _log.error("%s takes no records until a restart: %s", self.key.directory_name, reason)
            self._fail_waiters(self._read_only())

    def check_failure(self) -> None:
        """Fails everybody who waits, if the log has failed; then its data directory is looked at, too."""
        if self.is_offline and not self.is_deleted:
            self._fail_waiters(self._offline())
            if self.home is not None:
                self.home.suspect()

    def deleted(self, error: ApiError) -> None:
        """The topic is gone: whoever waits gets `error`."""
        self.is_deleted = True
        self._fail_waiters(error)

    def _read_only(self) -> DiskReadOnly:
        return DiskReadOnly(
            f"{self.key.directory_name} can be read, and takes no records until a restart of the broker: {self._frozen}"
        )

    def _offline(self) -> StorageError:
        reason = self._failure if self._log is None else self._log.failure
        return StorageError(
            f"{self.key.directory_name} is offline until a restart of the broker has checked it: {reason}"
        )

    def _fail_waiters(self, error: ApiError) -> None:
        waiting, self._waiting_appends = self._waiting_appends, deque()
        for _, on_durable in waiting:
            on_durable(error)
        self._wake(self._readers)
        self._wake(self._log_end_readers)

    def _wake(self, readers: Collection[ReadWaiter]) -> None:
        for reader in list(readers):
            reader.partition_moved(self)
