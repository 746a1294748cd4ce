"""Consumer groups as a service: requests, and what no request asks for (`duties`).

The state is kept in the internal topic `__groups`, a shard for each of its partitions; `decisions` decides, and
`framework` makes that durable. Changes of one group run one at a time; commits run side by side, and wait for a change
that came before them. A heartbeat that changes nothing writes nothing and gets its response in the same turn.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, R
from warmlog_broker.coordinator.framework.shard import Coordinator, ShardStatus, ShardSurroundings
from warmlog_broker.coordinator.group.classic_groups import ClassicGroups
from warmlog_broker.coordinator.group.decisions import membership, offsets
from warmlog_broker.coordinator.group.decisions.records import KnownTopic
from warmlog_broker.coordinator.group.decisions.state import Group, Groups, Limits, Reader
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_broker.coordinator.group.duties import GroupShard, Sessions, Targets, Waits
from warmlog_broker.coordinator.group.patterns import Patterns
from warmlog_broker.coordinator.surroundings import Surroundings
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.tasks import Slices, Tasks, in_turns
from warmlog_broker.security.authorizer import Authorizer
from warmlog_broker.topics.topics import Topic, Topics
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import NO_LEADER_EPOCH

TOPIC = "__groups"
GROUPS_A_TURN = 20
"""Groups that are looked at in one turn of the event loop."""
UNSETTLED_MS = 300
"""How soon a member sends the next heartbeat while it has not got what the target gives to it."""
OFFSETS_EXPIRATION_INTERVAL_S = 600.0
"""How often committed offsets to forget are looked for: they are kept for days."""
TOPIC_CHANGES_S = 0.2
"""How long changes of topics are collected before the groups are looked at."""


_log = logging.getLogger(__name__)


def has_news(request: m.GroupHeartbeatRequest, response: m.GroupHeartbeatResponse) -> bool:
    """Return whether `response` tells the member anything that it has not said in `request`."""
    return response.assignment is not None or response.member_epoch != request.member_epoch


class BrokerTopics:
    """The topics of the broker as groups see them, as a `TopicsView`."""

    def __init__(self, topics: Topics, authorizer: Authorizer) -> None:
        self._topics = topics
        self._authorizer = authorizer

    def names(self) -> list[str]:
        return [topic.name for topic in self._topics if not topic.is_internal]

    def may_describe(self, principal: str, name: str) -> bool:
        return self._authorizer.may(principal, m.Operation.DESCRIBE, m.ResourceType.TOPIC, name)

    def by_name(self, name: str) -> KnownTopic | None:
        return _known(self._topics.find(name))

    def by_id(self, topic_id: bytes) -> KnownTopic | None:
        return _known(self._topics.find_by_id(topic_id))

    def log_end(self, partition: PartitionId) -> int | None:
        """Return the log end offset; None if it is not known here: another broker leads the partition, or none."""
        topic = self._topics.find_by_id(partition.topic_id)
        if topic is None:
            return None
        try:
            found = topic.partition(partition.number)
            found.check_leader_epoch(NO_LEADER_EPOCH)
            return found.log.log_end_offset
        except ApiError:
            return None


def _known(topic: Topic | None) -> KnownTopic | None:
    if topic is None or topic.is_internal:
        return None
    return KnownTopic(topic.topic_id, topic.name, topic.count)


class GroupCoordinator:
    """The consumer groups of one broker."""

    def __init__(self, around: Surroundings) -> None:
        loop = asyncio.get_running_loop()
        config, topics, authorizer = around.config, around.topics, around.authorizer
        self._retention_now_ms = around.retention_now_ms
        self._config = config
        self._limits = Limits(config, around.holdings.check)
        self._asks_for_rights = authorizer.is_on
        self.tasks = Tasks()
        self._topics_changed = asyncio.Event()
        self._topics = BrokerTopics(topics, authorizer)
        self._subscriptions = Subscriptions(self._topics, on_unknown=self._topics_changed.set)
        slices = Slices()
        self._patterns = Patterns(self._subscriptions, slices)
        topics.on_changed.append(self._topic_changed)
        authorizer.on_changed += (self._subscriptions.rights_changed, self._topics_changed.set)
        self._started_ms = time.time_ns() // 1_000_000 - int(loop.time() * 1000)
        self._now_s = loop.time
        self._sessions = Sessions(
            around.timers, now_ms=self._steady_ms, now_s=loop.time, lines=around.lines, tasks=self.tasks
        )
        self.targets = Targets(config, self._subscriptions, slices, self.tasks, around.holdings.check)
        self._commits: dict[tuple[str, str], deque[int]] = {}
        """By group and member id: the numbers of the commits that are not decided or not durable yet, rising."""
        self.waits = Waits()
        """Heartbeats that had nothing to tell, and wait for that."""
        self.shards = Coordinator(
            TOPIC, config.group_coordinator_partitions, topics, ShardSurroundings(Groups, self, around.threads, now_ms)
        )
        self.classic = ClassicGroups(
            self._run,
            self._limits_for,
            timers=around.timers,
            now_ms=self._steady_ms,
            now_s=loop.time,
            lines=around.lines,
            tasks=self.tasks,
        )
        """The members of Kafka's classic protocol."""
        around.holdings.add_source(lambda: (shard.state.held for shard in self.shards.active))

    def start(self) -> None:
        """Load what is there, and begin the duties."""
        self.shards.start()
        self.tasks.start(self._follow_topics(), "group subscriptions")
        self.tasks.start(self._expire_offsets(), "offset expiry")

    def close(self) -> None:
        """Fail the requests that wait, and end all duties. Idempotent."""
        self.shards.close()
        self.tasks.cancel()

    def active_groups(self) -> list[Group]:
        """Return the groups of all shards that are loaded, to be looked at."""
        return [group for shard in self.shards.active for group in shard.state]

    # --- requests ---------------------------------------------------------------------------------------------------

    def heartbeat(
        self, request: m.GroupHeartbeatRequest, *, host: str, principal: str, is_waiting: bool = False
    ) -> m.GroupHeartbeatResponse | Awaitable[m.GroupHeartbeatResponse]:
        """Carry out one heartbeat; an awaitable, if that changes the group. `principal` is the peer's.

        `is_waiting`: it arrived earlier, and is decided again. If there is still no news, that is no sign of life.
        """
        if request.pattern and self._patterns.find(request.pattern) is None:
            membership.check_request(request)
            return self._heartbeat_with_pattern(request, host, principal)

        def decide(groups: Groups) -> Decision[m.GroupHeartbeatResponse]:
            limits, member = self._limits_for(groups, request.group), principal if self._asks_for_rights else ""
            return membership.heartbeat(
                groups, request, host=host, principal=member, owner=principal, now_ms=now_ms(), limits=limits
            )

        outcome = self._run(request.group, decide)
        if isinstance(outcome, m.GroupHeartbeatResponse):
            return self._heard(request, outcome, is_waiting)
        return self._heard_when_done(request, outcome, is_waiting)

    async def _heartbeat_with_pattern(
        self, request: m.GroupHeartbeatRequest, host: str, principal: str
    ) -> m.GroupHeartbeatResponse:
        """Carry out a heartbeat once it is known what its pattern stands for."""
        pattern = self._subscriptions.pattern(request.pattern or "")  # known as long as it is referenced
        await self._patterns.match(pattern)
        outcome = self.heartbeat(request, host=host, principal=principal)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    async def _heard_when_done(
        self, request: m.GroupHeartbeatRequest, outcome: Awaitable[m.GroupHeartbeatResponse], is_waiting: bool
    ) -> m.GroupHeartbeatResponse:
        return self._heard(request, await outcome, is_waiting)

    def _heard(
        self, request: m.GroupHeartbeatRequest, response: m.GroupHeartbeatResponse, is_waiting: bool
    ) -> m.GroupHeartbeatResponse:
        """Note that the member is alive, and what it owns; return the response with the time to the next one."""
        name, member_id = request.group, request.member_id
        shard = self.shards.find(name)
        if shard is None:
            return response
        group = shard.state.get(name)
        if not is_waiting or has_news(request, response):
            was_away = group is not None and member_id in group.away
            shard.state.heard(
                name, member_id, now_ms=self._steady_ms(), epoch=request.member_epoch, owned=request.owned
            )
            if group is not None and was_away and not group.away and group.target_epoch == group.epoch:
                self.waits.changed(name)  # others are settled again
            self._sessions.watch(shard, name, member_id)
        if group is not None and member_id in group.members:
            self._subscriptions.of(group.members[member_id])  # keeps what is known of its pattern
        return _with_progress(group, member_id, response)

    def with_progress(
        self, request: m.GroupHeartbeatRequest, response: m.GroupHeartbeatResponse
    ) -> m.GroupHeartbeatResponse:
        """Return `response` with whether the member has all that it is to get, and the time to its next heartbeat."""
        return _with_progress(self.shards.state_of(request.group).get(request.group), request.member_id, response)

    def went_away(self, name: str, member_id: str) -> None:
        """Note that the connection of a member that waited has ended: its process may have been killed."""
        with suppress(ApiError):  # the shard may not be here any more
            group = self.shards.state_of(name).get(name)
            if group is None or member_id not in group.members:
                return
            were_all_there = not group.away
            group.away.add(member_id)
            if were_all_there:
                self.waits.end(name)  # a read with an end waits then

    def commit(
        self, request: m.OffsetCommitRequest, principal: str, reader: Reader
    ) -> m.OffsetCommitResponse | Awaitable[m.OffsetCommitResponse]:
        """Commit offsets; an awaitable, unless all are refused. `reader` is the connection."""

        def decide(groups: Groups) -> Decision[m.OffsetCommitResponse]:
            limits = self._limits_for(groups, request.group)
            return offsets.commit(groups, request, self._topics, owner=principal, now_ms=now_ms(), limits=limits)

        under_way = self._commits.get((request.group, request.member_id))
        if under_way:
            offsets.check_sequence(request, under_way[-1])
        outcome = self._run(request.group, decide, is_shared=True)
        if isinstance(outcome, m.OffsetCommitResponse):
            self._heard_commit(request)
        elif isinstance(outcome, asyncio.Future) and not request.member_id:
            outcome.add_done_callback(lambda _: self._read_by(request.group, reader))
        elif isinstance(outcome, asyncio.Future) and request.member_id:
            if request.sequence > 0:
                self._commits.setdefault((request.group, request.member_id), deque()).append(request.sequence)
            outcome.add_done_callback(partial(self._commit_ended, request))
        return outcome

    async def add_pending(
        self, request: m.AddPendingOffsetsRequest, check: Callable[[], None]
    ) -> m.OffsetCommitResponse:
        """Keep offsets until the transaction of a producer ends. `check` raises if it has ended."""
        commit = request.commit

        def decide(groups: Groups) -> Decision[m.OffsetCommitResponse]:
            check()
            limits = self._limits_for(groups, commit.group)
            at_ms = now_ms()
            accepted, response = offsets.check_commit(
                groups, commit, self._topics, now_ms=at_ms, limits=limits, is_transactional=True
            )
            records = offsets.add_pending(
                groups,
                commit.group,
                request.producer_id,
                request.producer_epoch,
                accepted,
                coordinator_epoch=request.coordinator_epoch,
                owner=request.principal,
                now_ms=at_ms,
                limits=limits,
            )
            return Decision(records, response)

        return await self.shards.carry_out(commit.group, decide)

    def pending(self) -> Iterator[tuple[str, int, int, int]]:
        """Iterate over group, producer id, its epoch and its coordinator's of offsets that wait for a transaction.

        As `Coordinator.states`.
        """
        for groups in self.shards.states():
            for group in groups:
                for producer_id, value in group.pending.items():
                    if value.offsets:
                        yield group.name, producer_id, value.epoch, value.coordinator_epoch

    async def end_pending(self, request: m.EndPendingOffsetsRequest) -> None:
        """End a transaction that commits offsets of a group, with the epoch of its markers."""
        await self.shards.carry_out(
            request.group,
            lambda groups: offsets.end_pending(
                groups,
                request.group,
                request.producer_id,
                request.producer_epoch,
                commits=request.commits,
                keeps_epoch=request.keeps_epoch,
                coordinator_epoch=request.coordinator_epoch,
                now_ms=now_ms(),
            ),
        )

    def _commit_ended(self, request: m.OffsetCommitRequest, outcome: "asyncio.Future[m.OffsetCommitResponse]") -> None:
        if request.sequence > 0:
            under_way = self._commits[request.group, request.member_id]
            under_way.remove(request.sequence)
            if not under_way:
                del self._commits[request.group, request.member_id]
        if outcome.cancelled() or outcome.exception() is None:  # cancelled: no request waits for it, but it goes on
            self._heard_commit(request)

    def _heard_commit(self, request: m.OffsetCommitRequest) -> None:
        """Note that the member is alive, and the number of its commit."""
        with suppress(ApiError):  # the shard may be loaded again meanwhile
            groups = self.shards.state_of(request.group)
            groups.heard(request.group, request.member_id, now_ms=self._steady_ms(), commit_sequence=request.sequence)

    def fetch_offsets(self, request: m.OffsetFetchRequest, reader: Reader) -> m.OffsetFetchResponse:
        """Return committed offsets. Tools, which name no partitions, do not keep them from expiring."""
        if request.partitions is not None:
            self._read_by(request.group, reader)
        return offsets.fetch_offsets(self.shards.state_of(request.group), request)

    def _read_by(self, name: str, reader: Reader) -> None:
        """Note who keeps the offsets of a group. One is enough: clients fetch them again from time to time."""
        with suppress(ApiError):
            group = self.shards.state_of(name).get(name)
            if group is not None:
                group.reader = reader
                group.used_ms = self._retention_now_ms()

    async def groups(self) -> AsyncIterator[Group]:
        """Iterate over all groups, those of one shard in each turn of the event loop."""
        for groups in self.shards.states():
            for group in list(groups):
                yield group
            await asyncio.sleep(0)

    def group(self, name: str) -> Group:
        """Return a group, to be looked at. GroupIdNotFound, or InvalidGroupId if there can be none."""
        return offsets.existing_group(self.shards.state_of(name), name)

    async def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets. GroupIdNotFound, NonEmptyGroup."""
        await self.shards.carry_out(group, lambda groups: offsets.delete_group(groups, group))

    def delete_offsets(
        self, request: m.DeleteOffsetsRequest
    ) -> m.DeleteOffsetsResponse | Awaitable[m.DeleteOffsetsResponse]:
        """Remove committed offsets."""
        return self.shards.run(
            request.group, lambda groups: offsets.delete_offsets(groups, request, self._subscriptions)
        )

    def _run(self, name: str, decide: Callable[[Groups], Decision[R]], *, is_shared: bool = False) -> R | Awaitable[R]:
        """As `Coordinator.run`. Let a group that this may create count as existing until that is decided."""
        outcome = self.shards.run(name, decide, is_shared=is_shared)
        if isinstance(outcome, asyncio.Future):
            groups = self.shards.state_of(name)
            if groups.get(name) is None:
                groups.beginning.add(name)
                outcome.add_done_callback(lambda _: groups.beginning.discard(name))
        return outcome

    def _limits_for(self, groups: Groups, group: str) -> Limits:
        """Return the limits for a group. A new one in `groups` must leave all shards within `group.max.groups`."""
        if groups.get(group) is not None:
            return self._limits
        states = [shard.state for shard in self.shards.active]
        counted = len(groups) + (group in groups.beginning)
        others = sum(len(state) + len(state.beginning) for state in states) - counted
        return self._limits._replace(other_groups=others)

    def _steady_ms(self) -> int:
        """The time of day, as it goes on from the start: timers must not follow a clock that is set."""
        return self._started_ms + int(self._now_s() * 1000)

    # --- duties -------------------------------------------------------------------------------------------------------

    def loaded(self, shard: GroupShard) -> None:
        """As `ShardWatcher`: start all timers in full."""
        shard.state.start_timers(self._steady_ms())
        self.classic.loaded(shard)
        self.tasks.start(self._begin(shard), "group timers")

    def unloaded(self, shard: GroupShard) -> None:
        """As `ShardWatcher`."""
        self._sessions.forget(shard)
        self.targets.forget(shard)
        self.classic.unloaded(shard)
        self.waits.wake_all()

    def changed(self, shard: GroupShard, key: str) -> None:
        """As `ShardWatcher`."""
        self.classic.changed(shard, key)
        self.targets.changed(shard, key)
        group = shard.state.get(key)
        if group is None or group.has_news:
            self.waits.changed(key)
        if group is not None:
            group.has_news = False

    async def _begin(self, shard: GroupShard) -> None:
        state = shard.state
        async for name in in_turns([group.name for group in state if group.members], GROUPS_A_TURN):
            if shard not in self.shards.active or shard.state is not state:
                return
            group = state.get(name)
            if group is not None:
                for member_id, member in group.members.items():
                    self._sessions.watch(shard, name, member_id)
                    self._subscriptions.of(member)
        self._topics_changed.set()

    def _topic_changed(self, name: str) -> None:
        self._subscriptions.changed([name])
        self._topics_changed.set()

    async def _follow_topics(self) -> None:
        """After topics or rights have changed, compute the targets of groups that subscribe to them."""
        while True:
            await self._topics_changed.wait()
            await asyncio.sleep(TOPIC_CHANGES_S)
            self._topics_changed.clear()
            for pattern in self._subscriptions.patterns():
                was_refused = bool(pattern.problem)
                await self._patterns.match(pattern)
                if pattern.problem and not was_refused:
                    _log.warning("members of groups get no topics by a pattern: %s", pattern.problem)
            async for shard, name in self._in_turns():
                self.targets.consider(shard, name)

    async def _expire_offsets(self) -> None:
        while True:
            await asyncio.sleep(OFFSETS_EXPIRATION_INTERVAL_S)
            async for shard, name in self._in_turns():
                expire = partial(
                    offsets.expire_offsets,
                    group=name,
                    now_ms=self._retention_now_ms(),
                    retention_ms=self._config.offsets_retention_ms,
                    topics=self._topics,
                )
                with suppress(ApiError):
                    await shard.carry_out(name, expire)

    async def _in_turns(self) -> AsyncIterator[tuple[GroupShard, str]]:
        """Iterate over the groups that are there, GROUPS_A_TURN in each turn of the event loop, and their shards."""
        for shard in self.shards.active:
            async for name in in_turns([group.name for group in shard.state], GROUPS_A_TURN):
                if shard.status is ShardStatus.ACTIVE:
                    yield shard, name


def _with_progress(group: Group | None, member_id: str, response: m.GroupHeartbeatResponse) -> m.GroupHeartbeatResponse:
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None:
        return response
    if group.target_epoch != group.epoch or not member.is_settled(group.epoch):
        interval_ms = min(UNSETTLED_MS, response.heartbeat_interval_ms)
        return replace(response, heartbeat_interval_ms=interval_ms, is_settled=False)
    return replace(response, is_settled=not group.away)  # others may get what one that is away holds
