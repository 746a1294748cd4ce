"""One partition as the broker serves it: its log, its high watermark, and who waits for that to move.

With one replica the high watermark is the flushed offset; on a topic with write.caching it is the log end offset. What
is appended lies between the two until a flush is over. A partition whose disk failed is offline: every use of it raises
StorageError until a restart has read it again. One whose disk has become read-only is frozen: it is read, and no more.
"""

import logging
import time
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import LogOffsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.os_errors import DiskReadOnly
from warmlog_broker.storage.log.appender import AppendInfo
from warmlog_broker.storage.log.bounds import ReadBound
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.record.validation import CheckedBatch, check_batch
from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata
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

_log = logging.getLogger(__name__)


def read_bound(isolation: int, *, is_replica: bool) -> ReadBound:
    """Up to where a peer reads: a consumer by its isolation level, a replica up to the log end.

    `is_replica` is what the broker knows of the peer (`Asker.is_replica`). The `replica_id` in a request is a claim,
    and counts for nothing: with any id, a client reads what a consumer may.
    """
    if is_replica:
        return "log_end"
    return "committed" if isolation == IsolationLevel.READ_COMMITTED else "high_watermark"


class AppendWaiter(Protocol):
    """Somebody who waits until what was appended is durable."""

    def complete(self, index: int, error: ApiError | None) -> None:
        """Called once: the batch with the waiter's own `index` is below the high watermark, or never will be."""
        ...


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
        self._waiting_appends: deque[tuple[int, AppendWaiter, int]] = deque()
        """End offset, who waits for it to be durable, and under which index; in the order of the offsets."""
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

    def append(self, batch: Buffer, acks: int, now_ms: int, next_producer_id: int) -> AppendInfo:
        """Appends one client's batch. `batch` may be borrowed memory; not durable on return.

        Raises what `check_batch` and `Log.append_as_leader` raise. DiskFull can be tried again, as can StorageError for
        want of memory or descriptors; after any other failure of the disk the partition is offline. `next_producer_id`
        is the first that was never given out.
        """
        if self.is_offline:
            raise self._offline()
        return self.append_checked(check_batch(batch, self.config.max_message_bytes), acks, now_ms, next_producer_id)

    def append_checked(self, checked: CheckedBatch, acks: int, now_ms: int, next_producer_id: int) -> AppendInfo:
        """As `append`, with a batch that `check_batch` has passed."""
        log = self._log
        if log is None or log.failure:
            raise self._offline()
        if self._frozen:
            raise self._read_only()
        if self.home is not None and self.home.room.is_short:
            raise self.home.room.refusal(self.key.directory_name)
        producer_id = checked.header.producer_id
        if producer_id >= 0:
            if acks != ACKS_ALL:
                raise InvalidRequiredAcks(f"an idempotent producer needs acks=all (-1), not {acks}")
            if producer_id >= next_producer_id:
                raise UnknownProducerId(f"producer id {producer_id} was never given out by this broker")
        try:
            return log.append_as_leader(checked, leader_epoch=self.leader_epoch, now_ms=now_ms)
        except StorageError as error:
            self.complain(f"{self.key.directory_name}: a batch was refused: {error}")
            self.check_failure()
            if isinstance(error, DiskReadOnly) and self.home is not None:
                self.home.suspect()
            raise

    def must_wait(self, acks: int) -> bool:
        """Whether an append with these `acks` is answered once it is durable."""
        return acks == ACKS_ALL or (self.is_settling and acks == ACKS_LEADER)

    def is_durable_below(self, end_offset: int) -> bool:
        """Whether `acks=all` may be answered for what ends at `end_offset` (exclusive)."""
        assert self._log is not None
        return end_offset <= self._log.high_watermark

    def wait_for_flush(self, end_offset: int, waiter: AppendWaiter, index: int) -> None:
        """`waiter.complete(index, …)` is called once the high watermark is at or above `end_offset`."""
        waiting = self._waiting_appends
        if not waiting or waiting[-1][0] <= end_offset:
            waiting.append((end_offset, waiter, index))
            return
        # A duplicate waits for its original, behind which others wait already.
        position = next(i for i, (other_offset, _, _) in enumerate(waiting) if other_offset > end_offset)
        waiting.insert(position, (end_offset, waiter, index))

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

    @property
    def has_eager_readers(self) -> bool:
        """Whether somebody is to be told of an append before its flush."""
        return self.config.write_caching or bool(self._log_end_readers)

    def wake_after_append(self) -> None:
        """The log end moved, and with write.caching the high watermark too."""
        if self._log_end_readers:
            self._wake(self._log_end_readers)
        if self.config.write_caching:
            self.wake()

    def wake(self) -> None:
        """The high watermark may have moved: tells those who wait for a flush, and those who wait for data."""
        waiting = self._waiting_appends
        if waiting and self._log is not None:
            high_watermark = self._log.high_watermark
            while waiting and waiting[0][0] <= high_watermark:
                _, waiter, index = waiting.popleft()
                waiter.complete(index, None)
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
        for _, waiter, index in waiting:
            waiter.complete(index, error)
        self._wake(self._readers)
        self._wake(self._log_end_readers)

    def _wake(self, readers: Collection[ReadWaiter]) -> None:
        for reader in list(readers):
            reader.partition_moved(self)
