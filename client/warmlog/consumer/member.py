"""A consumer that is a member of a group: what the coordinator assigns is carried out between two batches."""

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Never
from uuid import uuid4

from warmlog.consumer.committing import INTERRUPTED_COMMIT_S, Committable, Committing
from warmlog.consumer.consumer_core import ConsumerCore
from warmlog.consumer.group.heartbeats import INTERRUPTED_LEAVE_S, LEAVE_TIMEOUT_S, Heartbeats
from warmlog.consumer.group.membership import NOTHING, Owned, Partitions, Phase, View
from warmlog.consumer.group.offsets import Errors, GroupMetadata, OffsetTransaction
from warmlog.consumer.group.options import GroupOptions, OnPartitions
from warmlog.consumer.partition_reader import Place
from warmlog.consumer.starting import look_up_points
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    FencedInstanceId,
    FencedMemberEpoch,
    MembershipLost,
    StaleMemberEpoch,
    UnknownMemberId,
    UnstableOffsetCommit,
    WarmlogError,
)
from warmlog.points import EARLIEST, Point, PointKind, Points, fit_points
from warmlog_protocol.messages import JOINING, GroupHeartbeatRequest
from warmlog_transport.cluster import Topic
from warmlog_transport.errors import TOPIC_IS_GONE
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition

_log = logging.getLogger("warmlog")

RETRY_S = 0.25
"""The pause before an assignment is carried out again, if a topic in it is gone, the epoch has changed, or an open
transaction commits an offset of it."""
FIRST_ASSIGNMENT_S = 5.0
"""How long a read with an end that is to get no partitions waits for some."""
LOOK_UP_S = 5.0
"""How long a start waits for the ends of one topic, of which a partition may be offline."""
FROM_END = (PointKind.LATEST, PointKind.TAIL)
"""Starts that mean a later offset the later they are looked up."""
NO_MEMBER = (UnknownMemberId, FencedMemberEpoch, FencedInstanceId)


class Member(Committing):
    """The membership of one consumer."""

    def __init__(
        self,
        core: ConsumerCore,
        options: GroupOptions,
        *,
        topics: Sequence[str] | None,
        pattern: str | None,
        start: Points,
        isolation: int,
    ) -> None:
        super().__init__(core, options, start)
        self._topics = list(topics or ())
        self._pattern = pattern or ""
        self._ends: dict[Owned, Point] = {}
        """Where a start that is counted from the end was when this consumer started, of partitions that existed."""
        self._isolation = isolation
        self._member_id = uuid4().hex
        self._heartbeats: Heartbeats | None = None
        self._owned = NOTHING
        self._seen: View | None = None
        self._told_life = 0
        """The life whose loss the user has been told of."""
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()

    # --- life -------------------------------------------------------------------------------------------------------

    async def begin(self, bootstrap: str | Sequence[str], connection: ConnectionOptions) -> None:
        """Join the group. Raises the coordinator's refusal."""
        self._core.group = self
        await self._look_up_start()
        self._heartbeats = Heartbeats(
            bootstrap,
            connection,
            self._first_heartbeat(connection.client_name),
            max_idle_s=self._options.max_poll_interval_ms / 1000,
            progress=self._progress,
            is_abandoned=self._loop.is_closed,
            on_news=lambda: self._loop.call_soon_threadsafe(self._on_news),
        )
        self._heartbeats.join()
        try:
            async with asyncio.timeout(connection.request_timeout_ms / 1000):
                await self._has_joined()
        except TimeoutError:
            silent = BrokerUnavailable(f"the coordinator of group {self._options.group!r} did not respond")
            raise self._heartbeats.failure or silent from None
        self._commit_always()

    def _first_heartbeat(self, client_name: str) -> GroupHeartbeatRequest:
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
            client_name,
        )

    async def _look_up_start(self) -> None:
        """Check that `start` fits, and find what "latest" or a tail means now, for partitions that come later."""
        if isinstance(self._start, Point) and self._start.kind not in FROM_END:
            return
        topics = await self._core.cluster.topics(None if self._pattern else self._topics)
        fitting = [topic for topic in topics if not self._pattern or re.fullmatch(self._pattern, topic.name)]
        present = [(topic.name, each.partition) for topic in fitting for each in topic.partitions]
        fit_points(self._start, present, "start", left_out=EARLIEST)
        await asyncio.gather(*map(self._look_up_ends_of, fitting))

    async def _look_up_ends_of(self, topic: Topic) -> None:
        present = [Owned(topic.topic_id.bytes, topic.name, each.partition) for each in topic.partitions]
        points = {owned: at for owned in present if (at := self._given_start(owned)).kind in FROM_END}
        self._ends |= points
        with suppress(ApiError, TimeoutError):  # one is offline, or was deleted: looked up when they are assigned
            asked = {owned.tp: at for owned, at in points.items()}
            async with asyncio.timeout(LOOK_UP_S):
                found = await look_up_points(self._core.cluster, asked, self._isolation)
            self._ends |= {owned: Point(PointKind.OFFSET, found[owned.tp].offset) for owned in points}

    async def _has_joined(self) -> None:
        while (view := self._view).phase is not Phase.MEMBER:
            if view.phase is Phase.OUT and view.reason is not None:
                self._told_life = view.life
                raise view.reason
            self._core.arrived.clear()
            if self._view is view:
                await self._core.arrived.wait()

    async def stop(self, *, is_interrupted: bool) -> None:
        """Commit what is finished, unless that is done by hand, and leave the group."""
        self._is_stopping = True
        try:
            await self._end_task()
            if is_interrupted:
                self._offsets.limit_s = INTERRUPTED_COMMIT_S  # for those of on_revoked
            if self._owned and self._view.phase is Phase.MEMBER:
                await self._last_commit(is_interrupted)
                await _call(self._options.on_revoked, self._owned)
            elif self._owned:
                await _call(self._options.on_lost, self._owned)
        finally:
            await self._offsets.close()
            if self._heartbeats is not None:
                await self._heartbeats.stop(
                    for_a_while=self._options.instance_id is not None,
                    limit_s=INTERRUPTED_LEAVE_S if is_interrupted else LEAVE_TIMEOUT_S,
                )

    def check(self) -> None:
        """Raise FencedInstanceId if another process has the instance id: nothing can be done with this consumer."""
        view = self._view
        if view.is_final and view.reason is not None:
            raise FencedInstanceId(str(view.reason))

    # --- what the coordinator assigns ---------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        return self._view is not self._seen

    @property
    def is_complete(self) -> bool:
        """Whether it reads all that it is to get, unless the group changes."""
        view = self._view
        return view.is_settled and view.assigned == self._owned

    async def turn(self, *, waits: bool = False, for_all: bool = False) -> None:
        """Give up and take partitions as the coordinator says, or raise that the membership is lost."""
        give_up_at = self._loop.time() + FIRST_ASSIGNMENT_S
        is_told = False
        while True:
            if self.has_news:
                await self._follow(self._view)
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

    async def _follow(self, view: View) -> None:
        self._check_running()
        if view.life <= self._told_life:
            self.check()
            self._running.join()
            self._seen = view
        elif view.phase in (Phase.OUT, Phase.LEAVING):
            await self._lose(view.life, view.reason)
        else:
            if view.phase is Phase.MEMBER and (revoked := self._owned - view.assigned):
                await self._give_up(revoked, view)
            is_done = True
            if view.phase is Phase.MEMBER and (added := view.assigned - self._owned):
                is_done = await self._take(added, view)
            self._seen = view
            if not is_done:
                self._loop.call_later(RETRY_S, self._look_again)

    def _check_running(self) -> None:
        if self._is_stopping:
            raise ClientClosed("the consumer is closed")

    async def _give_up(self, revoked: Partitions, view: View) -> None:
        if self._options.commit == "auto":
            error = await self._commit_finished(revoked)
            if isinstance(error, NO_MEMBER):
                await self._lose(view.life, error)
        try:
            await _call(self._options.on_revoked, revoked, to_end=True)
        finally:
            self._drop(revoked)
            self._running.own(view.life, self._owned)

    async def _take(self, added: Partitions, view: View) -> bool:
        """Read these from where they are committed. False if that has to be tried again later."""
        try:
            if not await self._running.claim(view.life, added):  # there is another view
                return True
            return await self._read_claimed(added, view)
        finally:
            self._running.own(view.life, self._owned)

    async def _read_claimed(self, added: Partitions, view: View) -> bool:
        try:
            places = await self._places(added, view)
            ends = await self._core.ends_of_read([(owned.topic, owned.partition) for owned in added])
        except (StaleMemberEpoch, UnstableOffsetCommit, *TOPIC_IS_GONE) as error:
            if isinstance(error, UnstableOffsetCommit) and len(added) > 1:  # the others need not wait for one
                return all([await self._read_claimed(frozenset([each]), view) for each in sorted(added)])
            _log.debug("group %s: the assignment is carried out later: %s", self._options.group, error)
            return False
        except NO_MEMBER as error:
            self._check_running()  # else it has left in `stop`
            await self._lose(view.life, error)
        self._check_running()
        if not self._is_member_of(view):  # lost meanwhile, as a heartbeat or a commit in another task has found
            return True
        readers = []
        for owned, (place, committed) in places.items():
            reader = self._core.assign(owned.topic, owned.partition, owned.topic_id)
            reader.seek(*place)
            readers.append(reader)
            self._committed[owned] = committed
        self._owned |= added
        try:
            await _call(self._options.on_assigned, added, to_end=True)
            await self._commit_begun(added)
        finally:
            self._core.read_assigned(readers, ends)
        return True

    def _is_member_of(self, view: View) -> bool:
        """Whether the life of `view` goes on, as far as is known."""
        now = self._view
        return self._told_life < view.life == now.life and now.phase is Phase.MEMBER

    async def _places(self, added: Partitions, view: View) -> dict[Owned, tuple[Place, int]]:
        """Where to begin in each partition, and what is committed."""
        await self._core.cluster.topics(sorted({owned.topic for owned in added}))
        found = await self._offsets.fetch(added, self._metadata(view), final=(UnstableOffsetCommit,))
        fresh = {owned.tp: self._start_of(owned) for owned, at in found.items() if at.offset < 0}
        starts = await look_up_points(self._core.cluster, fresh, self._isolation) if fresh else {}
        begins = {owned: at if at.offset >= 0 else starts[owned.tp] for owned, at in found.items()}
        return {owned: ((at.offset, at.leader_epoch), found[owned].offset) for owned, at in begins.items()}

    def _start_of(self, owned: Owned) -> Point:
        """Where to begin if nothing is committed; what was added since the start is read from its beginning."""
        point = self._given_start(owned)
        return self._ends.get(owned, EARLIEST) if point.kind in FROM_END else point

    # --- loss ---------------------------------------------------------------------------------------------------

    async def _lose(self, life: int, reason: WarmlogError | None) -> Never:
        """Drop everything and tell the user, once in each life."""
        self._told_life, self._seen = life, None
        if reason is not None:
            self._running.lost(life, reason)
        lost = self._owned
        error = self._loss(reason or ClientError("it has left"))
        self._drop(lost)
        if lost:
            await _call(self._options.on_lost, lost)
        raise error

    def _loss(self, reason: WarmlogError) -> WarmlogError:
        if isinstance(reason, FencedInstanceId) or not (self._owned or isinstance(reason, (*NO_MEMBER, ClientError))):
            return reason
        handled = {}
        for owned in self._owned:
            committed = self._committed.get(owned, -1)
            begin = committed if committed >= 0 else self._core.readers[owned.tp].began
            handled[owned.tp] = range(begin, max(begin, self._core.delivered(owned.tp)[0]))
        return MembershipLost(self._options.group, self._running.heard_at, str(reason), handled)

    def _drop(self, partitions: Partitions) -> None:
        for owned in partitions & self._owned:
            self._core.revoke(owned.tp)
            self._committed.pop(owned, None)
            self._asked.pop(owned, None)
        self._owned -= partitions

    # --- commits ------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> GroupMetadata:
        return self._metadata(self._view)

    def _metadata(self, view: View) -> GroupMetadata:
        return GroupMetadata(self._options.group, self._member_id, view.epoch, self._options.instance_id or "")

    async def commit(
        self, what: Committable | None, metadata: str = "", transaction: OffsetTransaction | None = None
    ) -> None:
        view = self._view
        if view.phase in (Phase.OUT, Phase.LEAVING) and view.life > self._told_life:
            self._check_running()
            await self._lose(view.life, view.reason)
        if transaction is not None and what is None:
            self._check_nothing_given_up()
        try:
            await super().commit(what, metadata, transaction)
        except NO_MEMBER as error:
            await self._lose(view.life, error)

    def _check_nothing_given_up(self) -> None:
        """Raise StaleMemberEpoch, once, if a partition was given up after records of it that are not committed."""
        given_up, self._core.given_up = self._core.given_up, set()
        if given_up:
            topic, number = min(given_up)
            raise StaleMemberEpoch(
                f"{topic}-{number} was given up after records of it were delivered, and its next owner handles them "
                "again: what was made of them must not be committed. Abort, and seek to the committed offsets"
            )

    async def rewind(self) -> None:
        self._core.given_up.clear()
        life = self._view.life
        try:
            await super().rewind()
        except NO_MEMBER as error:
            await self._lose(life, error)

    async def _commit(
        self, places: Mapping[Owned, Place], metadata: str = "", transaction: OffsetTransaction | None = None
    ) -> Errors:
        life = self._view.life
        try:
            return await super()._commit(places, metadata, transaction)
        except NO_MEMBER as error:
            self._running.lost(life, error)
            raise

    def _partitions(self) -> Collection[Owned]:
        return self._owned

    def _refuse(self, partition: TopicPartition) -> Never:
        raise StaleMemberEpoch(
            f"{partition[0]}-{partition[1]} is not assigned to this consumer, and only its owner may commit: its owner "
            "handles again what was not committed"
        )

    # --- within -----------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Heartbeats:
        assert self._heartbeats is not None
        return self._heartbeats

    @property
    def _view(self) -> View:
        return self._running.view

    def _progress(self) -> object:
        return None if self._core.is_waiting else self._core.progress

    def _on_news(self) -> None:
        """Have the next step of the user's loop come here, also if records of a batch are still in hand."""
        view = self._view
        if view.phase is not Phase.MEMBER or self._owned - view.assigned:
            self._core.put_back()
        self._core.arrived.set()

    def _look_again(self) -> None:
        self._seen = None
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
