"""What happens in consumer groups without a request: silent members are removed, targets computed, members told.

Nothing of this is in the log before it has happened: after a load all members get their full time again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.framework.decision import Decision, holds_anything
from warmlog_broker.coordinator.framework.shard import Shard
from warmlog_broker.coordinator.group.decisions.membership import expire_member
from warmlog_broker.coordinator.group.decisions.state import Group, Groups
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_broker.coordinator.group.decisions.target import assign, compute, needs_target
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Slices, Tasks
from warmlog_broker.runtime.timer_wheel import Timer, TimerWheel
from warmlog_protocol.errors import ApiError

LATE_MS = 2000
"""A timer that is called later than this shows that the broker stood still, so that heartbeats are not read yet."""
GRACE_MS = 3000
"""What members then get, for their heartbeats to be read."""
RETRY_S = 1.0
"""The pause after a change that the log did not take, before it is decided again."""

WAKES_A_TURN = 50
"""Heartbeats that are decided again in one turn of the event loop."""
WAKE_S = 0.02
"""How long changes of a group are collected before its waiting heartbeats are decided again: each takes some 30 µs."""

GroupShard = Shard[Groups]


class Alarm(NamedTuple):
    timer: Timer
    due_ms: int


class Sessions:
    """The timers of all members: each removes its member, unless that was heard of in time."""

    def __init__(
        self,
        timers: TimerWheel,
        *,
        now_ms: Callable[[], int],
        now_s: Callable[[], float],
        lines: RepeatedLines,
        tasks: Tasks,
    ) -> None:
        """`now_ms` is the clock of `Groups.heard`, `now_s` that of `timers`."""
        self._lines = lines
        self._tasks = tasks
        self._timers = timers
        self._now_ms = now_ms
        self._now_s = now_s
        self._deadlines: dict[GroupShard, dict[tuple[str, str], Alarm]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._deadlines.values()))

    def watch(self, shard: GroupShard, group: str, member_id: str) -> None:
        """Have a timer that is due when the member's time is over or earlier, or none if it is gone."""
        member = shard.state.member(group, member_id)
        if member is not None:
            self._set(shard, group, member_id, member.deadline_ms())
            return
        deadline = self._deadlines.get(shard, {}).pop((group, member_id), None)
        if deadline is not None:
            deadline.timer.cancel()

    def forget(self, shard: GroupShard) -> None:
        """Cancel the timers of a shard."""
        for deadline in self._deadlines.pop(shard, {}).values():
            deadline.timer.cancel()

    def _set(self, shard: GroupShard, group: str, member_id: str, due_ms: int) -> None:
        deadlines = self._deadlines.setdefault(shard, {})
        present = deadlines.get((group, member_id))
        if present is not None:
            if present.due_ms <= due_ms:
                return
            present.timer.cancel()
        due_s = self._now_s() + (due_ms - self._now_ms()) / 1000
        timer = self._timers.schedule(due_s, partial(self._rang, shard, group, member_id))
        deadlines[group, member_id] = Alarm(timer, due_ms)

    def _rang(self, shard: GroupShard, group: str, member_id: str) -> None:
        due_ms = self._deadlines[shard].pop((group, member_id)).due_ms
        now_ms = self._now_ms()
        member = shard.state.member(group, member_id)
        if member is None:
            return
        if member.deadline_ms() > now_ms:
            self._set(shard, group, member_id, member.deadline_ms())
        elif now_ms - due_ms > LATE_MS:
            self._set(shard, group, member_id, now_ms + GRACE_MS)
        else:
            self._tasks.start(self._expire(shard, group, member_id), "end of a session")

    async def _expire(self, shard: GroupShard, group: str, member_id: str) -> None:
        try:
            await shard.carry_out(group, lambda groups: self._decide(groups, group, member_id))
            retry_ms = 0
        except ApiError:
            retry_ms = self._now_ms() + int(RETRY_S * 1000)
        if shard in self._deadlines:
            if retry_ms:
                self._set(shard, group, member_id, retry_ms)
            else:
                self.watch(shard, group, member_id)

    def _decide(self, groups: Groups, group: str, member_id: str) -> Decision[bool]:
        """Decide when the group's turn has come: until then a heartbeat may have been accepted."""
        member = groups.member(group, member_id)
        if member is None or member.deadline_ms() > self._now_ms():
            return Decision((), False)
        is_silent = member.heard_ms + member.settings.session_timeout_ms <= self._now_ms()
        why = "not heard of in its session" if is_silent else "it has not given up its partitions in time"
        text = f"member {member_id} ({member.settings.host}) of group {group!r} is removed: {why}"
        self._lines.write(logging.INFO, "members that were removed", text, self._now_s())
        return expire_member(groups, group, member_id, now_ms=now_ms())


class Targets:
    """Computes the targets of groups, not too often: changes that come soon after another share the next target."""

    def __init__(
        self,
        config: BrokerConfig,
        subscriptions: Subscriptions,
        slices: Slices,
        tasks: Tasks,
        may_hold: Callable[[str, int], None] = holds_anything,
    ) -> None:
        """`may_hold`: see `Holdings.check`."""
        self._interval_s = config.group_assignment_interval_ms / 1000
        self._initial_delay_s = config.group_initial_rebalance_delay_ms / 1000
        self._subscriptions = subscriptions
        self._slices = slices
        self._tasks = tasks
        self._may_hold = may_hold
        self.count = 0
        """Targets that were computed, since the start."""
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[GroupShard, dict[str, asyncio.TimerHandle | None]] = {}
        """The groups that get a target soon, or got one a short while ago; None while it is computed."""

    def changed(self, shard: GroupShard, name: str) -> None:
        """Compute a target for the group if its members have changed: now, or when it may have one."""
        group = shard.state.get(name)
        if group is not None and group.target_epoch < group.epoch:
            self.consider(shard, name)

    def consider(self, shard: GroupShard, name: str) -> None:
        """As `changed`, also if the topics may have changed, which takes longer to find out."""
        waiting = self._waiting.setdefault(shard, {})
        if name in waiting:
            return
        group = shard.state.get(name)
        if group is not None and needs_target(group, self._subscriptions):
            delay_s = 0.0 if group.owners else self._initial_delay_s
            waiting[name] = self._loop.call_later(delay_s, self._begin, shard, name)

    def forget(self, shard: GroupShard) -> None:
        """Compute no more targets for a shard."""
        for handle in self._waiting.pop(shard, {}).values():
            if handle is not None:
                handle.cancel()

    def _begin(self, shard: GroupShard, name: str) -> None:
        """Compute a target if the group still needs one."""
        group = shard.state.get(name)
        if group is not None and needs_target(group, self._subscriptions):
            self._waiting[shard][name] = None
            self._tasks.start(self._assign(shard, group), f"target of {name}")
        else:
            self._waiting[shard].pop(name, None)

    async def _assign(self, shard: GroupShard, group: Group) -> None:
        name = group.name
        try:
            target = await self._slices.run(compute(group, self._subscriptions))
            if target is not None:
                await shard.carry_out(name, lambda groups: assign(groups, target, self._subscriptions, self._may_hold))
                self.count += 1
        except ApiError:
            group.target_version = -1
            self._next(shard, name, RETRY_S)
        else:
            self._next(shard, name, self._interval_s)

    def _next(self, shard: GroupShard, name: str, delay_s: float) -> None:
        """Compute the next target after a pause, if it is needed then."""
        if shard in self._waiting:
            self._waiting[shard][name] = self._loop.call_later(delay_s, self._begin, shard, name)


class Waiter(Protocol):
    """A heartbeat that waits."""

    def wake(self) -> None:
        """The group has changed, or cannot be used any more."""
        ...

    def expire(self) -> None:
        """End the wait, and remove itself: there is nothing to tell."""
        ...


class Waits:
    """Heartbeats that wait for something to tell, one for each member: woken soon after their group has changed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, dict[str, Waiter]] = {}
        """By group and member id."""
        self._wakes: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, group: str, member_id: str, waiter: Waiter) -> None:
        """Wake `waiter` whenever the group has changed, until it is removed. An earlier one of the member ends."""
        self.end_of(group, member_id)
        self._waiting.setdefault(group, {})[member_id] = waiter

    def remove(self, group: str, member_id: str, waiter: Waiter) -> None:
        """Wake `waiter` no more; a later heartbeat of the member may have its place by now."""
        members = self._waiting.get(group, {})
        if members.get(member_id) is waiter:
            del members[member_id]
            if not members:
                del self._waiting[group]

    def changed(self, group: str) -> None:
        """Wake the heartbeats of a group soon, once for all changes until then."""
        if group in self._waiting and group not in self._wakes:
            self._wakes[group] = self._loop.call_later(WAKE_S, self._wake, group)

    def wake_all(self) -> None:
        """Wake everything soon: groups cannot be used any more."""
        for group in self._waiting:
            self.changed(group)

    def expire_all(self) -> None:
        """End all waits: the broker stops."""
        for group in list(self._waiting):
            self.end(group)

    def end(self, group: str) -> None:
        for waiter in list(self._waiting.get(group, {}).values()):
            waiter.expire()

    def end_of(self, group: str, member_id: str) -> None:
        """End the wait of a member's heartbeat, if one waits."""
        waiter = self._waiting.get(group, {}).get(member_id)
        if waiter is not None:
            waiter.expire()

    def _wake(self, group: str) -> None:
        del self._wakes[group]
        self._wake_some(group, list(self._waiting.get(group, {}).items()))

    def _wake_some(self, group: str, waiting: Sequence[tuple[str, Waiter]]) -> None:
        for member_id, waiter in waiting[:WAKES_A_TURN]:
            if self._waiting.get(group, {}).get(member_id) is waiter:
                waiter.wake()
        if len(waiting) > WAKES_A_TURN:
            self._loop.call_soon(self._wake_some, group, waiting[WAKES_A_TURN:])
