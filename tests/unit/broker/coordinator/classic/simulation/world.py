"""One coordinator with one group of the classic protocol, processes, and a network that loses, doubles and delays.

Everything is decided by one seed. Each event changes one thing. The functions under test are called as the broker's
service calls them: one change of the group at a time, and what a change saves is durable before anything of it counts.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from unit.broker.coordinator.classic.simulation.process import PARTITIONS, Process
from unit.broker.coordinator.classic.simulation.truth import LATE_MS, LONGEST_MS, Truth
from unit.broker.coordinator.group.simulation.checks import Violation, require
from unit.broker.coordinator.group.simulation.network import Faults, Network, Then
from unit.broker.coordinator.group.topics import Topics
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.classic import events, phases
from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic.state import Phase, Rebalance
from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.group.decisions import classic_members, membership, offsets
from warmlog_broker.coordinator.group.decisions.state import Group, Groups, Limits
from warmlog_protocol import errors
from warmlog_protocol.messages.coordinators.groups import (
    GroupHeartbeatRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
)

GROUP = "g"
LIMITS = Limits(
    BrokerConfig(group_min_session_timeout_ms=1000, group_initial_rebalance_delay_ms=150, group_max_size=12)
)
MAX_PROCESSES = 7
RETENTION_MS = 3000
STALLS = 10
GRACE_MS = 1000
RANGE, STICKY = ("range", b"r"), ("sticky", b"s")


class Waiter:
    """A request, until its response."""

    def __init__(self, then: Then, began_ms: int) -> None:
        self.then = then
        self.began_ms = began_ms
        self.is_over = False
        self.is_lost = False
        """Its connection has ended."""


class Change(NamedTuple):
    """A decision that is not durable yet."""

    records: Sequence[Record]
    waiter: Waiter | None


class World:
    """The state of a simulation, and its events as methods."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000_000
        self.groups = Groups()
        self.latest: dict[bytes, Record] = {}
        """The log as compaction leaves it."""
        self.topics = Topics(orders=PARTITIONS)
        self.topic_id = self.topics.partitions("orders")[0].topic_id
        self.processes: list[Process] = []
        self.network = Network(self.random)
        self.under_way: Change | None = None
        self.queue: deque[Callable[[], None]] = deque()
        """What waits for the change that is under way."""
        self.waiting: dict[Waiter, None] = {}
        self.next_id = 0
        self.syncs = 0
        self.truth = Truth()
        self.other_kind: tuple[str, int] | None = None
        """The member of KIP-848, and its epoch."""
        self.start_process()

    @property
    def group(self) -> Group | None:
        return self.groups.get(GROUP)

    @property
    def rebalance(self) -> Rebalance:
        return classic_members.rebalance_of(self.group)

    # What happens.

    def run(self, count: int) -> None:
        """Let so many events happen, and let the group become stable four times in between.

        Then some more, while the coordinator stands still at times.
        """
        for _ in range(4):
            self._let_happen(count // 4)
            self.become_stable()
        for _ in range(STALLS):
            self._let_happen(count // 10 // STALLS)
            self.stall()
        self.become_stable()

    def _let_happen(self, count: int) -> None:
        for happen in self.random.choices(list(_EVENTS), list(_EVENTS.values()), k=count):
            self.pass_time(self.random.getrandbits(4))
            happen(self)

    def stall(self) -> None:
        """Stand still, and give grace: from then on nothing is due for a time."""
        while self.under_way:
            self.finish_write()
        by_ms = self.random.randint(LATE_MS, 2 * LATE_MS)
        self.now_ms += by_ms
        more_ms = by_ms + GRACE_MS
        for waiter in self.waiting:
            waiter.began_ms += more_ms
        self.truth.allow(more_ms)
        if self.group is not None:
            self._run(None, lambda: self._decide(partial(events.give_grace, now_ms=self.now_ms, grace_ms=GRACE_MS)))
            require(self.rebalance.next_due_ms() >= self.now_ms + GRACE_MS, "something is due in spite of grace")

    def pass_time(self, by_ms: int) -> None:
        """Let the timer of the group ring, and look for what has waited too long."""
        self.now_ms += by_ms
        if self.group is not None and self.rebalance.next_due_ms() <= self.now_ms and not self.under_way:
            self._run(None, self._expire)
        self.truth.check_time(self.rebalance, self.now_ms)
        for waiter in self.waiting:
            require(self.now_ms - waiter.began_ms <= LONGEST_MS + LATE_MS, "a request waits for ever")

    def start_process(self) -> None:
        """Start a process, with the instance id of another one at times."""
        if len(self.processes) >= MAX_PROCESSES:
            return
        random = self.random
        self.next_id += 1
        process = Process(
            GROUP,
            f"p{self.next_id}",
            random.choice(("", "", "", "one", "two", "three")),
            session_timeout_ms=random.choice((1500, 3000)),
            rebalance_timeout_ms=random.choice((1000, LONGEST_MS)),
            needs_member_id=random.random() < 0.7,
            protocols=random.choice(([RANGE], [RANGE, STICKY], [STICKY, RANGE], [STICKY, RANGE])),
            never_syncs=random.random() < 0.15,
            never_joins_again=random.random() < 0.05,
        )
        self.processes.append(process)

    def end_process(self) -> None:
        """Kill a process, or let it leave."""
        process = self._any_process()
        if process is None:
            return
        self.processes.remove(process)
        if process.is_running and process.member_id and self.random.random() < 0.6:
            leaving = m.LeavingMember(process.member_id, process.instance_id)
            if process.instance_id and self.random.random() < 0.3:
                leaving = m.LeavingMember("", process.instance_id)
            request = m.LeaveGroupRequest(GROUP, [leaving])
            self._send(process, self._event(events.leave, request))
        process.is_running = False

    def stop_or_continue(self) -> None:
        """SIGSTOP and SIGCONT."""
        process = self._any_process()
        if process is not None and (not process.is_running or self.random.random() < 0.3):
            process.is_running = not process.is_running

    def change_metadata(self) -> None:
        """Let a process change what it says about itself, and join again."""
        process = self._any_process()
        if process is not None and process.is_running:
            process.protocols = [(name, b"%d" % self.random.getrandbits(2)) for name, _ in process.protocols]
            process.must_join = True

    def act(self) -> None:
        """Let a process send its next request, unless it waits for a response."""
        process = self._any_process()
        if process is not None and process.is_running:
            self._act(process)

    def commit(self) -> None:
        """Let a process commit, also one that does not know yet that its membership is over."""
        process = self._any_process()
        if process is None or not process.is_running or not process.owned:
            return
        partition = self.random.choice(sorted(process.owned))
        item = OffsetCommitPartition(self.topic_id, "", partition, self.random.randint(0, 1000))
        generation = self.random.choice((process.owned_generation, process.generation))  # the same, if all is well
        request = OffsetCommitRequest(GROUP, [item], process.member_id, generation, process.instance_id)
        self.network.send(lambda _: self._run(None, lambda: self._commit(request)), lambda _: None)

    def administer(self) -> None:
        """Try to delete the group and to commit from outside: both only without members."""
        if self.under_way:
            return
        has_members = self.group is not None and self.group.member_count > 0
        item = OffsetCommitPartition(self.topic_id, "", 0, 1)
        try:
            decision = self._decide_commit(OffsetCommitRequest(GROUP, [item]))
        except errors.NonEmptyGroup:
            require(has_members, "an empty group refused a commit from outside")
        else:
            require(not has_members, "a commit from outside was accepted by a live group")
            self._apply(decision.records)
        try:
            decision_on_group = offsets.delete_group(self.groups, GROUP) if self.random.random() < 0.05 else None
        except errors.ApiError:
            require(has_members or self.group is None, "an empty group cannot be deleted")
        else:
            if decision_on_group is not None:
                require(not has_members, "a group with members was deleted")
                self._apply(decision_on_group.records)
                self.truth.deleted(self.group)

    def expire_offsets(self) -> None:
        """Remove what is out of use: never of a group with members."""
        if self.under_way:
            return
        has_members = self.group is not None and self.group.member_count > 0
        before = len(self.group.offsets) if self.group is not None else 0
        decision = offsets.expire_offsets(
            self.groups, GROUP, now_ms=self.now_ms, retention_ms=RETENTION_MS, topics=self.topics
        )
        self._apply(decision.records)
        if has_members:
            is_whole = self.group is not None and self.group.member_count and len(self.group.offsets) == before
            require(is_whole and not decision.records, "something of a live group has expired")
        elif self.group is None:
            self.truth.deleted(self.group)

    def change_kind(self) -> None:
        """Let a member of KIP-848 join or leave."""
        if self.under_way:
            return
        name, epoch = self.other_kind or (f"other{self.next_id}", 0)
        request = GroupHeartbeatRequest(GROUP, name, -1 if epoch else 0, topics=["orders"])
        is_classic = self.group is not None and self.group.is_classic
        try:
            decision = membership.heartbeat(self.groups, request, host="host", now_ms=self.now_ms, limits=LIMITS)
        except errors.InconsistentGroupProtocol:
            require(is_classic, "a group without classic members refused one of KIP-848")
            return
        require(not is_classic, "a group has members of both kinds")
        self._apply(decision.records)
        self.other_kind = None
        if not epoch:
            self.other_kind = name, decision.result.member_epoch
            self.truth.has_epoch(decision.result.member_epoch)

    def finish_write(self) -> None:
        """Let the change that is under way become durable, or fail."""
        change = self.under_way
        if change is None:
            return
        self.under_way = None
        if self.random.random() < 0.1:
            self.groups.steps.clear()
            if change.waiter is not None:
                self._answer(change.waiter, errors.CoordinatorNotAvailable("the disk is full"))
        else:
            self._apply(change.records)
            step = self.groups.steps.pop(GROUP)
            self._happened(step)
        while self.queue and self.under_way is None:
            self.queue.popleft()()

    def restart_coordinator(self) -> None:
        """Crash and load; what is under way may be in the log or not."""
        if self.under_way is not None and self.random.random() < 0.5:
            self._apply(self.under_way.records)
        self.under_way = None
        self.queue.clear()
        self.waiting.clear()
        self.network.lose_all()
        loaded = Groups()
        for record in self.latest.values():
            if record.value is not None or self.random.random() < 0.5:
                loaded.replay(record)
        require(loaded == self.groups, "the state is not what a replay of the compacted log gives")
        self.groups = loaded
        self.groups.start_timers(self.now_ms)
        self.truth.restarted(self.rebalance)
        self.truth.check(self.group, self.rebalance, self.now_ms)

    def lose_connection(self) -> None:
        """Let the connection of a request that waits end."""
        if not self.waiting:
            return
        waiter = self.random.choice(list(self.waiting))
        self.waiting.pop(waiter, None)
        waiter.is_lost = True

        def decide() -> Decision[phases.Step]:
            decision = self._decide(lambda before: events.let_go(before, waiter, now_ms=self.now_ms))
            members = decision.result.after.members.values()
            is_held = any(waiter in (member.joining, member.syncing) for member in members)
            require(not is_held, "the group waits for a request whose connection has ended")
            return decision

        self._run(None, decide)

    # What the events are made of.

    def _any_process(self) -> Process | None:
        return self.random.choice(self.processes) if self.processes else None

    def _act(self, process: Process) -> None:
        patience_ms = self.network.patience_ms * (6 if process.must_join else 2)
        is_idle = process.waits_since_ms is None or self.now_ms - process.waits_since_ms > patience_ms
        if is_idle and not process.is_final:
            self._next_request(process)

    def _next_request(self, process: Process) -> None:
        if process.must_join:
            process.waits_since_ms = self.now_ms
            join = process.join()
            self._send(process, lambda waiter: self._decide_join(join, waiter))
        elif process.must_sync and not process.never_syncs:
            process.waits_since_ms = self.now_ms
            self.syncs += 1
            self.truth.generations[self.syncs] = process.generation
            sync = process.sync(self.syncs)
            self._send(process, self._event(events.sync, sync))
        else:
            beat = m.HeartbeatRequest(GROUP, process.member_id, process.generation, process.instance_id)
            self._send(process, self._event(events.heartbeat, beat))

    def _event(self, event: Callable[..., phases.Step], request: Any) -> Callable[[Waiter], Decision[phases.Step]]:
        return lambda waiter: self._decide(lambda before: event(before, request, waiter, now_ms=self.now_ms))

    def _send(self, process: Process, decide: Callable[[Waiter], Decision[phases.Step]]) -> None:
        process.request_number += 1
        number = process.request_number

        def told(response: Any) -> None:
            if process.is_running and number == process.request_number:
                process.waits_since_ms = None
                _respond(process, response)

        def arrive(then: Then) -> None:
            waiter = Waiter(then, self.now_ms)
            self._run(waiter, lambda: decide(waiter))

        self.network.send(arrive, told)

    def _run(self, waiter: Waiter | None, decide: Callable[[], Decision[phases.Step] | None]) -> None:
        """Carry out one change of the group, after the one that is under way."""
        if self.under_way is not None:
            self.queue.append(lambda: self._run(waiter, decide))
            return
        if waiter is not None:
            waiter.began_ms = self.now_ms
            self.waiting[waiter] = None
        try:
            decision = decide()
        except errors.ApiError as error:
            if waiter is not None:
                self._answer(waiter, error)
            return
        if decision is None:
            return
        if decision.records:
            self.groups.steps[GROUP] = decision.result
            self.under_way = Change(decision.records, waiter)
            if self.random.random() < 0.7:
                self.finish_write()
        else:
            if self.group is not None:
                before = self.rebalance
                self.groups.happened(GROUP, decision.result)
                self.truth.note_gone(before, self.rebalance)
            self._happened(decision.result)

    def _decide(self, event: classic_members.Event) -> Decision[phases.Step]:
        return classic_members.decide(self.groups, GROUP, event, now_ms=self.now_ms, limits=LIMITS)

    def _expire(self) -> Decision[phases.Step]:
        decision = self._decide(lambda before: events.expire(before, now_ms=self.now_ms))
        for _, response in decision.result.answers:
            require(not isinstance(response, errors.UnknownMemberId), "a member is removed while its request waits")
        return decision

    def _decide_join(self, request: m.JoinGroupRequest, waiter: Waiter) -> Decision[phases.Step]:
        self.next_id += 1
        is_other = self.group is not None and bool(self.group.members)
        decision = classic_members.decide_join(
            self.groups,
            request,
            waiter,
            new_id=f"m{self.next_id}",
            host="host",
            owner="User:etl",
            now_ms=self.now_ms,
            time_ms=self.now_ms,
            limits=LIMITS,
        )
        require(not is_other, "a group has members of both kinds")
        return decision

    def _decide_commit(self, request: OffsetCommitRequest) -> Decision[Any]:
        return offsets.commit(self.groups, request, self.topics, owner="User:etl", now_ms=self.now_ms, limits=LIMITS)

    def _commit(self, request: OffsetCommitRequest) -> None:
        decision = self._decide_commit(request)
        self.truth.commits(request, self.group)
        self._apply(decision.records)
        self.groups.heard(GROUP, request.member_id, now_ms=self.now_ms)

    def _apply(self, records: Sequence[Record]) -> None:
        before = self.rebalance
        for record in records:
            self.groups.replay(record)
            self.latest.pop(record.key, None)
            self.latest[record.key] = record
        self.truth.note_saved(self.group)
        step = self.groups.steps.get(GROUP)
        if step is not None:
            self.groups.happened(GROUP, step)
            self.truth.note_gone(before, self.rebalance)

    def _happened(self, step: phases.Step) -> None:
        self.truth.check(self.group, self.rebalance, self.now_ms)
        for waiter, response in step.answers:
            self._answer(waiter, response)

    def _answer(self, waiter: Waiter, response: Any) -> None:
        if waiter.is_lost:
            return
        require(not waiter.is_over, "a request gets two responses")
        waiter.is_over = True
        self.waiting.pop(waiter, None)
        if isinstance(response, m.JoinGroupResponse):
            self.truth.joins(response, self.rebalance)
            require(self.other_kind is None, "a group has members of both kinds")
        elif isinstance(response, m.SyncGroupResponse):
            self.truth.syncs(response, self.group)
        waiter.then(response)

    # Without faults.

    def become_stable(self) -> None:
        """Without faults the group is stable soon, and each partition has one owner."""
        if self.other_kind is not None:
            while self.under_way:
                self.finish_write()
            self.change_kind()
        self.network.lose_all()
        faults, self.network.faults = self.network.faults, Faults()
        for process in self.processes:
            process.is_running, process.never_syncs, process.never_joins_again = True, False, False
            process.waits_since_ms = None
        for _ in range(200):
            self._calm_round()
            if self._is_stable():
                break
        else:
            raise Violation(f"not stable, but {self.rebalance.phase} with {len(self.rebalance.members)} members")
        self.network.faults = faults

    def _calm_round(self) -> None:
        self.pass_time(100)
        self.finish_write()
        for process in self.processes:
            self._act(process)
            self.network.deliver_request()
            self.finish_write()
            self.network.deliver_response()

    def _is_stable(self) -> bool:
        live = [process for process in self.processes if not process.is_final]
        rebalance = self.rebalance
        if not live or self.group is None:
            return not live and not rebalance.members
        if rebalance.phase is not Phase.STABLE or self.waiting:
            return False
        if rebalance.members.keys() != {process.member_id for process in live}:
            return False
        if any(process.must_join or process.must_sync for process in live):
            return False
        require(
            sorted(n for process in live for n in process.owned) == list(range(PARTITIONS)),
            "a partition has no owner or two: {}",
            [sorted(process.owned) for process in live],
        )
        return all(process.generation == rebalance.generation for process in live)


def _respond(process: Process, response: Any) -> None:
    match response:
        case m.JoinGroupResponse():
            process.joined(response)
        case m.SyncGroupResponse():
            process.synced(response)
        case errors.ApiError():
            process.failed(response)


_EVENTS: dict[Callable[[World], None], int] = {
    World.act: 250,
    lambda world: world.network.deliver_request(): 300,
    lambda world: world.network.deliver_response(): 250,
    World.commit: 60,
    World.finish_write: 60,
    World.start_process: 6,
    World.end_process: 4,
    World.stop_or_continue: 6,
    World.change_metadata: 3,
    World.lose_connection: 4,
    World.restart_coordinator: 2,
    World.administer: 4,
    World.expire_offsets: 2,
    World.change_kind: 2,
}


def simulate(seed: int, count: int) -> None:
    """Raise Violation if an invariant does not hold in the simulation of this seed."""
    World(seed).run(count)
