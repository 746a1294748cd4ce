"""One replica of a partition on this broker: what happens to it goes through `step`, and what follows is carried out.

Events are handled one after the other, and the actions of one before the next event. The log is the truth about its
bounds: before each event the replica is told how far the log has come, by appends of producers, by flushes, retention
and compaction. What takes time (a write of the record, a cut) is a task that reports by an event.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from warmlog_broker.cluster.data_path.answers import Answers, Reply
from warmlog_broker.cluster.data_path.log_facts import bounds_of, epochs_in
from warmlog_broker.cluster.records import PartitionKey, Records
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.partition_state import PartitionState, Role
from warmlog_broker.replication import events as ev
from warmlog_broker.replication import leading
from warmlog_broker.replication.alignment import Log as Bounds
from warmlog_broker.replication.record import NO_LEADER
from warmlog_broker.replication.replica import Replica, accepts_appends
from warmlog_broker.replication.replica import Role as ReplicaRole
from warmlog_broker.replication.step import step
from warmlog_broker.runtime.clock import now_ms as wall_ms
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.storage.log.appender import CopiedBatch, UnexpectedAppendOffset
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.truncation import Cut
from warmlog_broker.storage.segment.file_records import DamagedLog
from warmlog_broker.storage.segment.segment_indexes import LostIndex
from warmlog_protocol.batch.header import Buffer
from warmlog_protocol.errors import (
    ApiError,
    CorruptBatch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestTimedOut,
    StorageError,
    WarmlogError,
)
from warmlog_protocol.messages import ACKS_ALL

DELETION_S = 20.0
READ_S = 0.1
"""If the followers have not confirmed it by then, the store is asked."""
TICK_MS = 1_000
"""A replica that nothing is wrong with, and that is not at rest, is ticked so often."""

_TIMELESS = (ev.Fetch, ev.Report, ev.Answered, ev.Flushed)
"""Events of which nothing follows that depends on when the others were heard."""

_ROLES = {ReplicaRole.LEADING: Role.LEADING, ReplicaRole.FOLLOWING: Role.FOLLOWING}

_log = logging.getLogger(__name__)


class Messages(Protocol):
    """The messages between brokers: see `fetching` and `serving`."""

    def send(self, to: int, driver: "Driver", message: ev.Fetch | ev.Report) -> None:
        """Send to the leader."""
        ...

    def is_due(self, node: int, driver: "Driver") -> None:
        """Take the answer to this follower by `take_answer`, as soon as there is room in a response to it."""
        ...

    def heard_ms(self, leader: int, driver: "Driver", fetch: ev.Fetch) -> int:
        """Return when the leader last responded to anything, if it has this fetch, which waits; else NEVER."""
        ...

    def echoed_ms(self, node: int, driver: "Driver", number: int) -> int:
        """Return the latest of this broker's times that a follower has echoed, if this fetch of it waits; else NEVER.

        The fetch was under way when the follower sent the echo.
        """
        ...

    def all_heard_ms(self) -> float:
        """Return the time since which each broker that has fetches of this one, or whose fetches wait, was heard."""
        ...


class Node(NamedTuple):
    """This broker, and what its replicas need of its other parts."""

    node: int
    incarnation: int
    threads: Executor
    """For work that waits for the disk."""
    checkpoint: Callable[[Partition], Coroutine[Any, Any, None]]
    """Make the log start of a partition durable. OSError."""
    register: Callable[[], None]
    """Register again, under a new broker epoch."""
    obeyed: Callable[[PartitionKey, str], None]
    """Remember the nonce of a recovery."""
    times: ev.Times = ev.Times()


class Shell(Protocol):
    """What the replicas of one broker share: see `Replicas`."""

    node: Node
    records: Records
    messages: Messages
    tasks: Tasks
    restless: "set[Driver]"
    """Those that have to look at the time often: the others are ticked once in a while."""

    def is_restless(self, driver: "Driver") -> None:
        """Add one to `restless`, from the next tick on."""
        ...

    def now_ms(self) -> int: ...

    def read_soon(self) -> None:
        """Read all records, linearizably: each driver gets a `RecordSeen` with the time at which that began."""
        ...


class Driver:
    """One replica. All methods belong to the event loop's thread."""

    def __init__(self, key: PartitionKey, partition: Partition, replica: Replica, shell: Shell) -> None:
        """`replica` has the bounds of the log of `partition`, if that could be opened, and nothing else yet."""
        self.key = key
        self.partition = partition
        self.replica = replica
        self._shell = shell
        self._loop = asyncio.get_running_loop()
        self._events: deque[ev.Event] = deque()
        self._is_busy = False
        self._is_wake_due = False
        self._incoming: list[CopiedBatch] = []
        self._flush_below = 0
        """As the leader has told. With write.caching it is the end of a marker, which counts once it is flushed."""
        messages = shell.messages
        self._answers = Answers(
            partition,
            lambda node: messages.is_due(node, self),
            lambda node, number: messages.echoed_ms(node, self, number),
        )
        self._questions: dict[asyncio.Future[None], int] = {}
        """Reads that wait for a confirmation, with the time at which each was asked."""
        self._deletions: dict[asyncio.Future[None], int] = {}
        """Deletions of records that wait, with the offset below which these are deleted."""
        partition.replication = self
        partition.add_reader(self, "log_end")
        self._state = PartitionState.ONLINE
        """The state of the disk that the replica knows."""
        self._ticked: Replica | None = None
        """The replica as the last tick has left it: `replica` is another one once anything has happened."""
        self._ticked_ms = ev.NEVER
        self.is_resting = False
        """Whether it was found at rest: nothing has happened to it since, as far as all brokers are heard."""
        self.partition_moved(partition)

    @property
    def is_in_sync(self) -> bool:
        return self.replica.node in self.replica.record.isr

    @property
    def missing_records(self) -> int:
        """As `Replication`."""
        return max(0, self.replica.leader_high_watermark - self.replica.log.end)

    # --- what happens to it ------------------------------------------------------------------------------------------

    def do(self, event: ev.Event) -> None:
        """Let the replica take its turn, and carry out what follows; nothing does if the partition was deleted here."""
        if self._state is not PartitionState.DELETED:
            self._events.append(event)
            self._work()

    def answered(self, answer: ev.Answer, batches: Buffer, flush_below: int) -> None:
        """Take in the answer to a fetch. Batches that cannot be read are fetched again."""
        fetch, log = self.replica.fetch, self._log
        if fetch is None or fetch.number != answer.number or log is None:
            return
        copied: list[CopiedBatch] = []
        next_offset = answer.offset
        try:
            if answer.verdict is ev.Verdict.AGREES and len(batches):
                copied = log.follower.read(batches)
                next_offset = copied[-1].header.last_offset + 1 if copied else answer.offset
        except WarmlogError as error:
            is_empty = log.log_end_offset <= log.log_start_offset
            if is_empty and isinstance(error, UnexpectedAppendOffset) and error.last_offset >= log.log_start_offset:
                next_offset = error.first_offset
            else:
                self.partition.complain(f"what the leader has sent cannot be appended: {error}")
                answer = replace(answer, verdict=ev.Verdict.REFUSED)
        self._incoming, self._flush_below = copied, flush_below
        self.do(ev.Answered(answer, next_offset, epochs_in(copied)))
        self._incoming = []

    def unanswered(self, fetch: ev.Fetch) -> None:
        """The fetch was not sent, or its connection is lost: it is sent again after a while."""
        self.do(ev.Answered(leading.refusal(fetch), fetch.offset))

    def partition_moved(self, partition: Partition) -> None:
        """As `ReadWaiter`: something was appended, or the state of the disk has changed."""
        if partition.state is not self._state:
            self._state = partition.state
            self._loop.call_soon(self._state_changed)
        elif not self._is_wake_due:
            self._is_wake_due = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_wake_due = False
        self._work()

    def _state_changed(self) -> None:
        if self._state is PartitionState.OFFLINE:
            self.do(ev.Failed(f"{self.partition.key.directory_name} is offline"))
        elif self._state is PartitionState.READ_ONLY:
            self.do(ev.HandOverAsked())
        elif self._state is PartitionState.DELETED:
            self._events.append(ev.RecordSeen(None, self.replica.revision))
            self._work()

    def tick(self, *, may_rest: bool = False) -> None:
        """Tell the replica that time has passed; with `may_rest` not if it is at rest."""
        now_ms, time = self._shell.now_ms(), self._time()
        if may_rest and self._is_at_rest(time, now_ms):
            self.is_resting = True
            return
        self._ticked_ms = now_ms
        self.do(time)
        self._ticked = self.replica

    def must_tick(self, now_ms: int) -> bool:
        """Return whether there is news of which nothing tells it: of the log start, or as the last tick is long ago."""
        replica, age_ms = self.replica, now_ms - self._ticked_ms
        if replica.leading is None:
            return age_ms >= replica.times.lag_ms * 3  # it may have to repeat its fetch
        log = self._log
        is_old = age_ms >= replica.times.lag_ms * 3 // 4  # its followers must not seem to lag
        return is_old or log is None or log.log_start_offset != replica.log.start

    def _time(self) -> ev.Ticked:
        messages, replica = self._shell.messages, self.replica
        heard_ms = ev.NEVER
        if replica.fetch is not None:
            heard_ms = messages.heard_ms(replica.record.leader, self, replica.fetch)
        return ev.Ticked(heard_ms, self._answers.echoes())

    def _is_at_rest(self, time: ev.Ticked, now_ms: int) -> bool:
        """Return whether a tick would find what the last one has left: all is committed, and the others are heard.

        What they have said is noted before anything happens that depends on it (`_take_turn`).
        """
        replica, record = self.replica, self.replica.record
        others = [time.heard_ms] if replica.leading is None else time.echoes.values()
        return (
            replica is self._ticked
            and not self.must_tick(now_ms)
            and self not in self._shell.restless
            and replica.log.high_watermark == replica.log.end
            and len(record.isr) == len(record.replicas)
            and (replica.leading is None or len(time.echoes) == len(record.replicas) - 1)
            and all(now_ms - each < replica.times.unconfirmed_ms for each in others)
        )

    # --- what clients of the partition need --------------------------------------------------------------------------

    def check_append(self, acks: int) -> None:
        """As `Replication`."""
        replica = self.replica
        if not accepts_appends(replica):
            raise NotLeaderOrFollower(f"{self.partition.key.directory_name}: this broker hands it over")
        record = replica.record
        if acks == ACKS_ALL and len(record.isr) < record.required:
            raise NotEnoughReplicas(
                f"{self.partition.key.directory_name}: {len(record.isr)} of its replicas are in sync, and acks=all "
                f"needs {record.required}"
            )

    def check_serves(self) -> None:
        """As `Replication`."""
        if not leading.may_serve(self.replica, self._shell.now_ms()):
            self.tick()
            if not leading.may_serve(self.replica, self._shell.now_ms()):
                raise self._unconfirmed()

    def near_replica(self, rack: str, offset: int) -> int:
        """As `Replication`. That replica is told the high watermark at once from now on."""
        node = leading.near_replica(self.replica, rack, offset)
        if node != NO_LEADER:
            self._answers.read_near(node, self._shell.now_ms())
        return node

    def damaged(self, reason: str) -> None:
        """As `Replication`."""
        if self.replica.record.eligible - {self.replica.node}:
            self.do(ev.Failed(reason))

    async def confirm(self) -> None:
        """As `Replication`."""
        asked_ms = self._shell.now_ms()
        if not leading.is_confirmed(self.replica, asked_ms, asked_ms):
            reading = self._loop.call_later(READ_S, self._shell.read_soon)
            try:
                await self._wait(
                    self._questions, asked_ms, self.replica.times.confirmation_ms / 1000, self._unconfirmed()
                )
            finally:
                reading.cancel()

    async def deleted(self, offset: int) -> None:
        """As `Replication`."""
        if leading.deleted_below(self.replica) < offset:
            late = RequestTimedOut(
                f"{self.partition.key.directory_name}: the records are deleted here, and another replica that is in "
                f"sync, or may lead, has not confirmed it within {DELETION_S:g} s: try again"
            )
            await self._wait(self._deletions, offset, DELETION_S, late)

    async def _wait(
        self, waiting: dict[asyncio.Future[None], int], value: int, timeout_s: float, late: ApiError
    ) -> None:
        """Wait until `look` says that it is so. Raises `late`, and NotLeaderOrFollower in another role."""
        so: asyncio.Future[None] = self._loop.create_future()
        waiting[so] = value
        self._work()
        try:
            async with asyncio.timeout(timeout_s):
                await so
        except TimeoutError:
            raise late from None
        finally:
            waiting.pop(so, None)

    def _unconfirmed(self) -> NotLeaderOrFollower:
        return NotLeaderOrFollower(
            f"{self.partition.key.directory_name}: this broker cannot know whether another one leads it now"
        )

    # --- one turn ----------------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Log | None:
        """The log, while it can be used."""
        return self.partition.log if self.partition.allows.read else None

    def _work(self) -> None:
        """Handle the events that are there, and what the log has to tell. No-op within itself."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            self._tell_progress()
            while self._events:
                self._take_turn(self._events.popleft())
                self._tell_progress()
        finally:
            self._is_busy = False
        self.look()

    def _tell_progress(self) -> None:
        """Tell the replica how far the log has come by itself."""
        log = self._log
        if log is None or self.replica.is_cutting:
            return
        leads = self.replica.leading is not None
        if leads and log.log_end_offset > self.replica.log.end:
            self._take_turn(ev.Produced(log.log_end_offset))
        is_cached = self.partition.config.write_caching and log.recovery_point >= self._flush_below
        held_offset = log.log_end_offset if is_cached else log.recovery_point
        if held_offset > self.replica.log.flushed:
            self._take_turn(ev.Flushed(held_offset, self.replica.log.truncations))
        if leads and log.log_start_offset > self.replica.log.start:
            self._take_turn(ev.StartRaised(log.log_start_offset, log.epochs.entries))
        if log.compaction.removed_below > self.replica.removed_below:
            self._take_turn(ev.Compacted(log.compaction.removed_below))

    def _take_turn(self, event: ev.Event) -> None:
        self.is_resting = False
        now_ms = self._shell.now_ms()
        was_at_rest = self.replica is self._ticked and now_ms - self._ticked_ms > TICK_MS
        if was_at_rest and not isinstance(event, _TIMELESS):
            self._ticked_ms = now_ms
            self._take_turn(self._time())
        self.replica, actions = step(self.replica, event, now_ms)
        self._take_role()
        for action in actions:
            if not isinstance(action, ev.Append):
                self._perform(action)
            elif not self._append():
                break

    def _take_role(self) -> None:
        """Give the partition the role of the replica, if it is another one."""
        partition, replica = self.partition, self.replica
        role = _ROLES.get(replica.role, Role.IDLE)
        if role is Role.IDLE:
            if partition.role is not Role.IDLE:
                partition.resign(max(replica.epoch, partition.leader_epoch))
                self._forget_others()
        elif (partition.role, partition.leader_epoch) != (role, replica.epoch):
            self._forget_others()
            if role is Role.LEADING:
                self._end_at_start()
            take = partition.become_leader if role is Role.LEADING else partition.become_follower
            take(replica.epoch, self._committed)

    def _end_at_start(self) -> None:
        """Let the log take appends although the batch that holds its start never came: a recovery leads."""
        if (log := self._log) is not None:
            try:
                log.truncation.end_at_start(wall_ms())
            except (OSError, StorageError) as error:
                log.fail(f"a truncation failed: {error}")

    def _forget_others(self) -> None:
        """What the other replicas and clients have asked for is refused in another role."""
        self._answers.refuse_all()
        waiting = [*self._questions, *self._deletions]
        self._questions, self._deletions = {}, {}
        for question in waiting:
            if not question.done():
                question.set_exception(NotLeaderOrFollower(f"{self.partition.key.directory_name}: led elsewhere now"))

    def _committed(self) -> int:
        """Return what is committed, as the `CommitRule` of the partition."""
        self._work()
        return self.replica.log.high_watermark

    def _perform(self, action: ev.Action) -> None:
        """Carry out one action, but `Append`."""
        shell = self._shell
        match action:
            case ev.Send(to, ev.Answer() as answer):
                self._answers.say(to, answer)
            case ev.Send(to, ev.Fetch() | ev.Report() as message):
                shell.messages.send(to, self, message)
            case ev.Hold(fetch):
                self._answers.hold(fetch, shell.now_ms())
            case ev.Flush():
                if self.partition.disk is not None:
                    self.partition.disk.flush_soon(self.partition)
            case ev.Commit():
                self.partition.advance()
            case ev.Truncate() | ev.Empty() | ev.RaiseStart():
                self._change_log(action)
            case _:
                self._ask(action)

    def _ask(self, action: ev.Action) -> None:
        """Carry out an action that is about the broker, or the store."""
        shell = self._shell
        match action:
            case ev.Write():
                shell.tasks.start(self._write(action))
            case ev.Register():
                shell.node.register()
            case ev.ReadRecord():
                shell.read_soon()
            case ev.Obey(recovering):
                shell.node.obeyed(self.key, recovering)
            case ev.Alarm(text):
                _log.error("%s: %s", self.partition.key.directory_name, text)

    def _change_log(self, action: ev.Truncate | ev.Empty | ev.RaiseStart) -> None:
        """Cut the log, empty it or raise its start. A log that has failed stays as it is until a restart."""
        log, start = self._log, self._shell.tasks.start
        if log is None:
            return
        match action:
            case ev.Truncate(end):
                start(self._cut(log, lambda: log.truncation.begin(end)))
            case ev.Empty(offset, removed_below, base):
                base = offset if base is None else base
                start(self._cut(log, lambda: log.truncation.begin_fully(base, offset, removed_below)))
            case ev.RaiseStart(offset):
                start(self._raise_start(log, offset))

    def _append(self) -> bool:
        """Append the batches of the answer that has come; return False if the disk does not take all of them."""
        partition = self.partition
        try:
            partition.append_copied(self._incoming, flush_below=self._flush_below, now_ms=wall_ms())
        except ApiError as error:
            partition.complain(f"what the leader has sent was not appended: {error}")
            if (log := self._log) is not None:
                self._events.append(ev.NotAppended(self._bounds(log)))
            return False
        return True

    # --- what takes time ---------------------------------------------------------------------------------------------

    async def _write(self, write: ev.Write) -> None:
        self.do(await self._shell.records.write(self.key, write))

    async def _cut(self, log: Log, begin: Callable[[], Cut | None]) -> None:
        """Cut the log; if the disk fails, the partition is offline, and its state tells it."""
        in_thread = self._loop.run_in_executor
        try:
            cut = begin()
            if cut is not None:
                await in_thread(self._shell.node.threads, cut.write_down)
                log.truncation.carry_out(cut, wall_ms())
                await in_thread(self._shell.node.threads, cut.sync)
                log.truncation.end(cut)
        except CorruptBatch as error:
            self.do(ev.Cut(bounds_of(log, self.partition)))
            self.do(ev.Failed(f"damage hides where to cut: {error}"))
        except (OSError, StorageError) as error:
            log.fail(f"a truncation failed: {error}")
        else:
            self.do(ev.Cut(self._bounds(log) if cut is None else bounds_of(log, self.partition)))

    def _bounds(self, log: Log) -> Bounds:
        """Return the bounds of a log that was not cut: its start may have been raised, and not be on disk yet."""
        return replace(bounds_of(log, self.partition), start=self.replica.log.start)

    async def _raise_start(self, log: Log, offset: int) -> None:
        """Remove what the leader has removed; durable before the leader is told. A disk that fails is tried again."""
        truncations = log.local.truncations
        while self.replica.raising_start == offset and self._log is log:
            try:
                log.bounds.raise_log_start(offset)
                await self._shell.node.checkpoint(self.partition)
            except (OSError, ApiError) as error:
                self.partition.complain(f"the log start is not on disk: {error}")
                await asyncio.sleep(self.replica.times.retry_ms / 1000)
                continue
            replica = self.replica
            if offset > replica.log.start and not replica.is_cutting and log.local.truncations == truncations:
                self.do(ev.StartRaised(offset, log.epochs.entries))
            return

    # --- answers to followers ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Answer what there is something to say to."""
        replica, now_ms, questions = self.replica, self._shell.now_ms(), self._questions
        answered = [each for each, asked_ms in questions.items() if leading.is_confirmed(replica, asked_ms, now_ms)]
        if self._deletions:
            gone_below = leading.deleted_below(replica)
            answered += [each for each, offset in self._deletions.items() if gone_below >= offset]
        for each in answered:
            if not each.done():
                each.set_result(None)
        is_deleting = bool(self._deletions)
        is_waiting = self._answers.look(replica, questions.values(), now_ms, is_deleting=is_deleting)
        if not (self.is_urgent or is_deleting or is_waiting):
            self._shell.restless.discard(self)
        elif self not in self._shell.restless:
            self._shell.is_restless(self)

    @property
    def is_urgent(self) -> bool:
        """Return whether something waits for time to pass: it does not lead or follow as it should."""
        replica = self.replica
        if replica.leading is not None:
            return replica.proposal is not None or replica.leading.hand_over_ms is not None
        follows = replica.role is ReplicaRole.FOLLOWING and replica.vacant_since_ms is None
        return replica.role is not ReplicaRole.IDLE and not (follows and replica.fetch is not None)

    def take_answer(self, node: int, max_bytes: int) -> Reply | None:
        """Return the answer to a follower's fetch, which is answered then; None if there is none to answer.

        It has at most `max_bytes`, or the first batch if that is larger. Damage in what is to be read is a failure of
        this replica. A follower that asks for the same batches again may have refused them: their CRCs are checked.
        """
        try:
            reply = self._answers.take(node, self.replica, self._log, max_bytes, self._shell.now_ms())
        except LostIndex as error:
            self._shell.tasks.start(self._rebuild(error, node))
        except (DamagedLog, CorruptBatch, OSError) as error:
            self.partition.unreadable(error)
        except ApiError as error:
            self.partition.complain(f"a follower's fetch failed: {error}")
        else:
            self.is_resting = self.is_resting and reply is None
            return reply
        return None

    async def _rebuild(self, lost: LostIndex, node: int) -> None:
        """Have an index rebuilt that a follower's fetch needs, and answer then."""
        try:
            await asyncio.shield(asyncio.wrap_future(lost.rebuild.begin(self._shell.node.threads)))
        except (OSError, MemoryError) as error:
            _log.error("an index cannot be rebuilt: %s", error)
        finally:
            lost.rebuild.finish()
        self._shell.messages.is_due(node, self)
