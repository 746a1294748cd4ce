"""Members of Kafka's classic protocol as a service: requests that wait, a timer for each group, and what is saved.

`classic/events` decides. A step that saves something takes effect when that is durable, and only then are its requests
answered; if it cannot be written, the step is forgotten and its request fails. All other steps take effect at once.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from warmlog_broker.coordinator.classic import events, phases
from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic.state import Rebalance
from warmlog_broker.coordinator.framework.decision import Decision
from warmlog_broker.coordinator.group.decisions import classic_members
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits
from warmlog_broker.coordinator.group.duties import GRACE_MS, LATE_MS, RETRY_S, Alarm, GroupShard
from warmlog_broker.network.request import Deferred
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_protocol.errors import ApiError, CoordinatorNotAvailable
from warmlog_protocol.messages import Message

CLIENT_ID_BYTES = 200
"""Of a client id, as a part of member ids."""

Decide = Callable[[Groups], Decision[phases.Step]]
Run = Callable[[str, Decide], phases.Step | Awaitable[phases.Step]]
"""As `Coordinator.run`."""


class Waiter(Deferred):
    """A request that waits for its response, or has it already."""

    __slots__ = ("_let_go",)

    def __init__(self, let_go: "Callable[[Waiter], None]") -> None:
        """`let_go` is called if the connection ends before."""
        super().__init__()
        self._let_go = let_go

    def answer(self, response: Message | Exception) -> None:
        if isinstance(response, Exception):
            self.fail(response)
        else:
            self.complete(response)

    def drop(self) -> bool:
        self._let_go(self)
        return True


class _Change:
    """A decision about a group, as the framework calls it. Its step takes effect at once, or when it is durable."""

    def __init__(self, name: str, decide: Decide, happened: Callable[[Groups, str, phases.Step], None]) -> None:
        self._name = name
        self._decide = decide
        self._happened = happened
        self._undurable: tuple[Groups, phases.Step] | None = None

    def __call__(self, groups: Groups) -> Decision[phases.Step]:
        decision = self._decide(groups)
        if decision.records:
            groups.steps[self._name] = decision.result
            self._undurable = groups, decision.result
        else:
            self._happened(groups, self._name, decision.result)
        return decision

    def forget(self) -> None:
        """The records are not in the log: the step does not take effect."""
        if self._undurable is not None:
            groups, step = self._undurable
            if groups.steps.get(self._name) is step:
                del groups.steps[self._name]


class ClassicGroups:
    """The classic members of all groups of one broker."""

    def __init__(
        self,
        run: Run,
        limits_for: Callable[[Groups, str], Limits],
        *,
        timers: TimerWheel,
        now_ms: Callable[[], int],
        now_s: Callable[[], float],
        lines: RepeatedLines,
        tasks: Tasks,
    ) -> None:
        """`now_ms` is the clock of members, `now_s` that of `timers`."""
        self._run = run
        self._limits_for = limits_for
        self._timers = timers
        self._now_ms = now_ms
        self._now_s = now_s
        self._lines = lines
        self._tasks = tasks
        self._loaded: dict[GroupShard, Groups] = {}
        self._alarms: dict[GroupShard, dict[str, Alarm]] = {}
        self.rebalances: Counter[str] = Counter()
        """Rebalances that began, by reason, since the start."""

    # --- requests ---------------------------------------------------------------------------------------------------

    def join(self, request: m.JoinGroupRequest, *, host: str, principal: str) -> Waiter:
        """Let a member join. Raises what `classic_members.decide_join` does; so does the response."""
        waiter = Waiter(partial(self._let_go, request.group))
        client_id = request.client_id.encode()[:CLIENT_ID_BYTES].decode(errors="ignore")
        new_id = f"{request.instance_id or client_id}-{uuid.uuid4()}"

        def decide(groups: Groups) -> Decision[phases.Step]:
            return classic_members.decide_join(
                groups,
                request,
                waiter,
                new_id=new_id,
                host=host,
                owner=principal,
                now_ms=self._now_ms(),
                time_ms=now_ms(),
                limits=self._limits_for(groups, request.group),
            )

        return self._begin(request.group, decide, waiter)

    def sync(self, request: m.SyncGroupRequest) -> Waiter:
        """Give a member its assignment."""
        return self._take(events.sync, request)

    def heartbeat(self, request: m.HeartbeatRequest) -> Waiter:
        """Note that a member is alive."""
        return self._take(events.heartbeat, request)

    def leave(self, request: m.LeaveGroupRequest) -> Waiter:
        """Remove members."""
        return self._take(events.leave, request)

    def end_waits(self) -> None:
        """Fail the requests that wait: the broker stops."""
        for groups in self._loaded.values():
            _fail_waiters(groups, "the broker stops")

    def _take(
        self, event: Callable[..., phases.Step], request: m.SyncGroupRequest | m.HeartbeatRequest | m.LeaveGroupRequest
    ) -> Waiter:
        waiter = Waiter(partial(self._let_go, request.group))
        return self._begin(request.group, self._deciding(request.group, event, request, waiter), waiter)

    def _deciding(self, name: str, event: Callable[..., phases.Step], *arguments: Any) -> Decide:
        """Return the decision about an event in a group, at the time when it is called."""

        def decide(groups: Groups) -> Decision[phases.Step]:
            return classic_members.decide(
                groups,
                name,
                lambda before: event(before, *arguments, now_ms=self._now_ms()),
                now_ms=now_ms(),
                limits=self._limits_for(groups, name),
            )

        return decide

    def _begin(self, name: str, decide: Decide, waiter: Waiter) -> Waiter:
        change = _Change(name, decide, self._happened)
        try:
            outcome = self._run(name, change)
        except Exception:
            change.forget()
            raise
        if isinstance(outcome, Awaitable):
            self._tasks.start(self._finish(outcome, change, waiter), f"a change of group {name}")
        return waiter

    def _let_go(self, name: str, waiter: Waiter) -> None:
        """As `events.let_go`. If that cannot be written, the member stays until its group is loaded again."""
        try:
            self._begin(name, self._deciding(name, events.let_go, waiter), waiter)
        except ApiError:
            return  # the shard is not here any more, and its requests have failed

    async def _finish(self, outcome: Awaitable[phases.Step], change: _Change, waiter: Waiter) -> None:
        """Fail a request whose step cannot be carried out."""
        try:
            await outcome
        except Exception as error:
            change.forget()
            waiter.answer(error)

    # --- what happens -------------------------------------------------------------------------------------------------

    def loaded(self, shard: GroupShard) -> None:
        """Start the timers of a shard."""
        self._loaded[shard] = shard.state
        for group in shard.state:
            self._watch(shard, group.name)

    def unloaded(self, shard: GroupShard) -> None:
        """Fail the requests that wait: what is durable is loaded again."""
        groups = self._loaded.pop(shard, None)
        for alarm in self._alarms.pop(shard, {}).values():
            alarm.timer.cancel()
        if groups is not None:
            _fail_waiters(groups, "the group is loaded again")

    def changed(self, shard: GroupShard, name: str) -> None:
        """Let a step take effect, if one is durable now."""
        step = shard.state.steps.pop(name, None)
        if step is not None:
            self._happened(shard.state, name, step)

    def _happened(self, groups: Groups, name: str, step: phases.Step) -> None:
        groups.happened(name, step)
        if step.reason:
            self.rebalances[step.reason] += 1
        for member, why in step.removed:
            text = f"member {member.member_id} ({member.host}) of group {name!r} is removed: {why}"
            self._lines.write(logging.INFO, "members that were removed", text, self._now_s())
        for waiter, response in step.answers:
            waiter.answer(response)
        if not step.is_quiet:
            shard = next((shard for shard, state in self._loaded.items() if state is groups), None)
            if shard is not None:
                self._watch(shard, name)

    # --- timers -----------------------------------------------------------------------------------------------------

    def _watch(self, shard: GroupShard, name: str, *, not_before_ms: int = 0) -> None:
        """Have an alarm when something is due in the group, or earlier; none if it has no members."""
        alarms = self._alarms.setdefault(shard, {})
        rebalance, present = _rebalance(shard, name), alarms.get(name)
        if rebalance is None:
            if present is not None:
                alarms.pop(name).timer.cancel()
            return
        due_ms = max(rebalance.next_due_ms(), not_before_ms)
        if present is not None:
            if present.due_ms <= due_ms:
                return
            present.timer.cancel()
        due_s = self._now_s() + (due_ms - self._now_ms()) / 1000
        alarms[name] = Alarm(self._timers.schedule(due_s, partial(self._rang, shard, name)), due_ms)

    def _rang(self, shard: GroupShard, name: str) -> None:
        due_ms = self._alarms[shard].pop(name).due_ms
        now, rebalance = self._now_ms(), _rebalance(shard, name)
        if rebalance is None or rebalance.next_due_ms() > now:
            self._watch(shard, name)
        elif now - due_ms > LATE_MS:
            self._tasks.start(self._carry_out(shard, name, partial(events.give_grace, grace_ms=GRACE_MS)))
        else:
            self._tasks.start(self._carry_out(shard, name, events.expire), "what is due in a group")

    async def _carry_out(self, shard: GroupShard, name: str, event: Callable[..., phases.Step]) -> None:
        change = _Change(name, self._deciding(name, event), self._happened)
        retry_ms = 0
        try:
            await shard.carry_out(name, change)
        except Exception as error:
            change.forget()
            if not isinstance(error, ApiError):
                own_failure(f"what is due in group {name!r}")
            retry_ms = self._now_ms() + int(RETRY_S * 1000)
        if shard in self._loaded:
            self._watch(shard, name, not_before_ms=retry_ms)


def _rebalance(shard: GroupShard, name: str) -> Rebalance | None:
    group = shard.state.get(name)
    return None if group is None else group.rebalance


def _fail_waiters(groups: Groups, why: str) -> None:
    error = CoordinatorNotAvailable(f"{why}: retry")
    for group in groups:
        for member in group.rebalance.members.values() if group.rebalance is not None else ():
            for waiter in (member.joining, member.syncing):
                if waiter is not None:
                    waiter.answer(error)
