"""A consumer that is a member of a group: what the coordinator assigns is carried out between two batches."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Never
from uuid import uuid4

from warmlog import errors
from warmlog.consumer.consumer_core import ConsumerCore
from warmlog.consumer.group.heartbeats import INTERRUPTED_LEAVE_S, LEAVE_TIMEOUT_S, Heartbeats
from warmlog.consumer.group.membership import NOTHING, Assignment, Owned, Partitions, Phase
from warmlog.consumer.group.offsets import Errors, GroupMetadata, OffsetTransaction
from warmlog.consumer.offset_commits import INTERRUPTED_COMMIT_S, Committable, OffsetCommits
from warmlog.consumer.options import GroupOptions, OnPartitions
from warmlog.consumer.partition_reader import Place
from warmlog.consumer.starting import GroupStart
from warmlog_protocol.messages import JOINING, GroupHeartbeatRequest
from warmlog_transport.connection import cancel
from warmlog_transport.errors import TOPIC_IS_GONE
from warmlog_transport.responses import TopicPartition

_log = logging.getLogger("warmlog")

RETRY_S = 0.25
"""The pause before an assignment is carried out again, if a topic in it is gone, the epoch has changed, or an open
transaction commits an offset of it."""
FIRST_ASSIGNMENT_S = 5.0
"""How long a read with an end that is to get no partitions waits for some."""
NO_MEMBER = (errors.UnknownMemberId, errors.FencedMemberEpoch, errors.FencedInstanceId)


class Member(OffsetCommits):
    """The membership of one consumer: what it is assigned is carried out when something is read."""

    def __init__(
        self,
        core: ConsumerCore,
        options: GroupOptions,
        start: GroupStart,
        *,
        topics: Sequence[str] | None,
        pattern: str | None,
        bootstrap: str | Sequence[str],
    ) -> None:
        super().__init__(core, options, start)
        self._topics = list(topics or ())
        self._pattern = pattern or ""
        self._connection = connection = core.cluster.options
        self._member_id = uuid4().hex
        self._owned = NOTHING
        self._followed: Assignment | None = None
        """The assignment that is carried out."""
        self._reported = 0
        """The incarnation whose loss was raised."""
        self._is_stopping = False
        self._loop = loop = asyncio.get_running_loop()
        self._heartbeats = Heartbeats(
            bootstrap,
            connection,
            self._first_heartbeat(),
            max_idle_s=options.max_poll_interval_ms / 1000,
            progress=lambda: None if core.is_waiting else core.progress,
            is_abandoned=loop.is_closed,
            on_news=lambda: loop.call_soon_threadsafe(self._on_news),
        )

    def _first_heartbeat(self) -> GroupHeartbeatRequest:
        options = self._options
        return GroupHeartbeatRequest(
            options.group,
            self._member_id,
            JOINING,
            options.instance_id or "",
            self._topics,
            self._pattern,
            options.assignor,
            options.rebalance_timeout_ms or -1,
            options.session_timeout_ms or -1,
            [],
            self._connection.client_name,
        )

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group. Raises the coordinator's refusal, and what `GroupStart.look_up` raises."""
        self._core.group = self
        await self._start.look_up(self._topics, self._pattern)
        self._heartbeats.join()
        try:
            async with asyncio.timeout(self._connection.request_timeout_ms / 1000):
                while (assignment := self._assignment).phase is not Phase.MEMBER:
                    if assignment.phase is Phase.OUT and assignment.reason is not None:
                        self._reported = assignment.incarnation
                        raise assignment.reason
                    self._core.arrived.clear()
                    if self._assignment is assignment:
                        await self._core.arrived.wait()
        except TimeoutError:
            silent = errors.BrokerUnavailable(f"the coordinator of group {self._options.group!r} did not respond")
            raise self._heartbeats.failure or silent from None
        self._commit_always()

    async def stop(self, *, is_interrupted: bool) -> None:
        """Commit what is finished, unless that is done by hand, and leave the group."""
        self._is_stopping = True
        try:
            await cancel(self._task)
            if is_interrupted:
                self._offsets.limit_s = INTERRUPTED_COMMIT_S  # limits commits made in on_revoked
            if self._owned and self._assignment.phase is Phase.MEMBER:
                await self._last_commit(is_interrupted)
                await _call(self._options.on_revoked, self._owned)
            elif self._owned:
                await _call(self._options.on_lost, self._owned)
        finally:
            await self._offsets.close()
            await self._heartbeats.stop(
                for_a_while=self._options.instance_id is not None,
                limit_s=INTERRUPTED_LEAVE_S if is_interrupted else LEAVE_TIMEOUT_S,
            )

    def check(self) -> None:
        """Raise FencedInstanceId if another process has the instance id: nothing can be done with this consumer."""
        reason = self._assignment.reason
        if isinstance(reason, errors.FencedInstanceId):
            raise errors.FencedInstanceId(str(reason))

    # --- what the coordinator assigns ---------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        return self._assignment is not self._followed

    @property
    def is_complete(self) -> bool:
        """Whether it reads all that it is to get, unless the group changes."""
        assignment = self._assignment
        return assignment.is_settled and assignment.partitions == self._owned

    async def turn(self, *, waits: bool = False, for_all: bool = False) -> None:
        """Give up and take partitions as the coordinator says, or raise that the membership is lost."""
        give_up_at = self._loop.time() + FIRST_ASSIGNMENT_S
        is_told = False
        while True:
            if self.has_news:
                await self._follow(self._assignment)
                continue
            left_s = give_up_at - self._loop.time()
            if not waits or (self._owned and not for_all) or (self.is_complete and (self._owned or left_s <= 0)):
                return
            if left_s <= 0 and not is_told:
                is_told = True
                _log.warning("group %s: waiting for partitions that other members hold", self._options.group)
            self._core.arrived.clear()
            timer = self._loop.call_later(left_s, self._core.arrived.set) if left_s > 0 else None
            try:
                await self._core.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def _follow(self, assignment: Assignment) -> None:
        self._check_running()
        if assignment.incarnation <= self._reported:
            self.check()
            self._heartbeats.join()
            self._followed = assignment
        elif assignment.phase in (Phase.OUT, Phase.LEAVING):
            await self._lose(assignment.incarnation, assignment.reason)
        else:
            is_done = True
            if assignment.phase is Phase.MEMBER:
                if revoked := self._owned - assignment.partitions:
                    await self._give_up(revoked, assignment)
                if added := assignment.partitions - self._owned:
                    is_done = await self._take(added, assignment)
            self._followed = assignment
            if not is_done:
                self._loop.call_later(RETRY_S, self._look_again)

    def _check_running(self) -> None:
        if self._is_stopping:
            raise errors.ClientClosed("the consumer is closed")

    async def _give_up(self, revoked: Partitions, assignment: Assignment) -> None:
        if self._options.commit == "auto":
            error = await self._commit_finished(revoked)
            if isinstance(error, NO_MEMBER):
                await self._lose(assignment.incarnation, error)
        try:
            await _call(self._options.on_revoked, revoked, to_end=True)
        finally:
            self._drop(revoked)
            self._heartbeats.own(assignment.incarnation, self._owned)

    async def _take(self, added: Partitions, assignment: Assignment) -> bool:
        """Read these from where they are committed. False if that has to be tried again later."""
        try:
            if not await self._heartbeats.claim(assignment.incarnation, added):  # there is another assignment
                return True
            return await self._read_claimed(added, assignment)
        finally:
            self._heartbeats.own(assignment.incarnation, self._owned)

    async def _read_claimed(self, added: Partitions, assignment: Assignment) -> bool:
        try:
            await self._core.cluster.topics(sorted({owned.topic for owned in added}))
            committed = await self._offsets.fetch(
                added, self._metadata(assignment), final=(errors.UnstableOffsetCommit,)
            )
            places = await self._start.places(committed)
            ends = await self._core.ends_of_read([(owned.topic, owned.partition) for owned in added])
        except (errors.StaleMemberEpoch, errors.UnstableOffsetCommit, *TOPIC_IS_GONE) as error:
            if isinstance(error, errors.UnstableOffsetCommit) and len(added) > 1:  # the others need not wait for one
                return all([await self._read_claimed(frozenset([each]), assignment) for each in sorted(added)])
            _log.debug("group %s: the assignment is carried out later: %s", self._options.group, error)
            return False
        except NO_MEMBER as error:
            self._check_running()  # else it has left in `stop`
            await self._lose(assignment.incarnation, error)
        self._check_running()
        now = self._assignment
        if not (self._reported < assignment.incarnation == now.incarnation and now.phase is Phase.MEMBER):
            return True  # lost meanwhile, as a heartbeat or a commit in another task has found
        readers = []
        for owned, place in places.items():
            reader = self._core.assign(owned.topic, owned.partition, owned.topic_id)
            reader.seek(*place)
            readers.append(reader)
            self._committed[owned] = committed[owned].offset
        self._owned |= added
        try:
            await _call(self._options.on_assigned, added, to_end=True)
            await self._commit_begun(added)
        finally:
            self._core.read_assigned(readers, ends)
        return True

    # --- loss ---------------------------------------------------------------------------------------------------

    async def _lose(self, incarnation: int, reason: errors.WarmlogError | None) -> Never:
        """Drop everything and raise that it is lost, once in each incarnation."""
        self._reported, self._followed = incarnation, None
        if reason is not None:
            self._heartbeats.lost(incarnation, reason)
        lost = self._owned
        error = self._loss(reason or errors.ClientError("it has left"))
        self._drop(lost)
        if lost:
            await _call(self._options.on_lost, lost)
        raise error

    def _loss(self, reason: errors.WarmlogError) -> errors.WarmlogError:
        if isinstance(reason, errors.FencedInstanceId) or not (
            self._owned or isinstance(reason, (*NO_MEMBER, errors.ClientError))
        ):
            return reason
        handled = {}
        for owned in self._owned:
            committed = self._committed.get(owned, -1)
            begin = committed if committed >= 0 else self._core.readers[owned.tp].began
            handled[owned.tp] = range(begin, max(begin, self._core.delivered(owned.tp)[0]))
        return errors.MembershipLost(self._options.group, self._heartbeats.heard_at, str(reason), handled)

    def _drop(self, partitions: Partitions) -> None:
        for owned in partitions & self._owned:
            self._core.revoke(owned.tp)
            self._committed.pop(owned, None)
            self._asked.pop(owned, None)
        self._owned -= partitions

    # --- commits ------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> GroupMetadata:
        return self._metadata(self._assignment)

    def _metadata(self, assignment: Assignment) -> GroupMetadata:
        return GroupMetadata(self._options.group, self._member_id, assignment.epoch, self._options.instance_id or "")

    async def commit(
        self, what: Committable | None, metadata: str = "", transaction: OffsetTransaction | None = None
    ) -> None:
        assignment = self._assignment
        if assignment.phase in (Phase.OUT, Phase.LEAVING) and assignment.incarnation > self._reported:
            self._check_running()
            await self._lose(assignment.incarnation, assignment.reason)
        if transaction is not None and what is None:
            given_up, self._core.given_up = self._core.given_up, set()
            if given_up:  # told once
                topic, number = min(given_up)
                raise errors.StaleMemberEpoch(
                    f"{topic}-{number} was given up after records of it were delivered, and its next owner handles "
                    "them again: what was made of them must not be committed. Abort, and seek to the committed offsets"
                )
        try:
            await super().commit(what, metadata, transaction)
        except NO_MEMBER as error:
            await self._lose(assignment.incarnation, error)

    async def rewind(self) -> None:
        self._core.given_up.clear()
        incarnation = self._assignment.incarnation
        try:
            await super().rewind()
        except NO_MEMBER as error:
            await self._lose(incarnation, error)

    async def _commit(
        self, places: Mapping[Owned, Place], metadata: str = "", transaction: OffsetTransaction | None = None
    ) -> Errors:
        incarnation = self._assignment.incarnation
        try:
            return await super()._commit(places, metadata, transaction)
        except NO_MEMBER as error:
            self._heartbeats.lost(incarnation, error)
            raise

    def _partitions(self) -> Collection[Owned]:
        return self._owned

    def _refuse(self, partition: TopicPartition) -> Never:
        raise errors.StaleMemberEpoch(
            f"{partition[0]}-{partition[1]} is not assigned to this consumer, and only its owner may commit: its owner "
            "handles again what was not committed"
        )

    # --- within -----------------------------------------------------------------------------------------------------

    @property
    def _assignment(self) -> Assignment:
        return self._heartbeats.assignment

    def _on_news(self) -> None:
        """Have the next step of the user's loop come here, also if records of a batch are still in hand."""
        assignment = self._assignment
        if assignment.phase is not Phase.MEMBER or self._owned - assignment.partitions:
            self._core.put_back()
        self._core.arrived.set()

    def _look_again(self) -> None:
        self._followed = None
        self._core.arrived.set()


async def _call(callback: OnPartitions | None, partitions: Iterable[Owned], *, to_end: bool = False) -> None:
    """With `to_end`, also if the read is cancelled meanwhile, as by a timeout: the next read does not call it again."""
    if callback is not None:
        result = callback(sorted(owned.tp for owned in partitions))
        if inspect.isawaitable(result):
            await (_ended(result) if to_end else result)


async def _ended(running: Awaitable[None]) -> None:
    task = asyncio.ensure_future(running)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task  # a second cancellation ends it
        raise
