"""One coordinator with one group, processes with consumers, and a network that loses, doubles and delays messages.

Everything is decided by one seed. Each event changes one thing: a message is sent or arrives, a process or the
coordinator fails, a topic changes, time passes. The functions under test are called as the broker's service calls them.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from unit.broker.coordinator.group.simulation.checks import Violation, Watch, check_beliefs, check_target, require
from unit.broker.coordinator.group.simulation.network import Faults, Network
from unit.broker.coordinator.group.simulation.process import Process
from unit.broker.coordinator.group.topics import Topics, follow_topics, know_pattern, run_steps
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record
from warmlog_broker.coordinator.group.decisions import membership, offsets, target
from warmlog_broker.coordinator.group.decisions.state import Group, Groups, Limits
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_protocol.errors import ApiError, FencedInstanceId, NonEmptyGroup
from warmlog_protocol.messages.coordinators.groups import (
    GroupHeartbeatRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

GROUP = "g"
LIMITS = Limits(BrokerConfig(group_min_session_timeout_ms=1000, group_heartbeat_interval_ms=300))
NAMES = ("orders", "orders.eu", "payments", "users")
MAX_PROCESSES = 7
RETENTION_MS = 3000


class World:
    """The state of a simulation, and its events as methods."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000_000
        self.groups = Groups()
        self.log: list[Record] = []
        self.latest: dict[bytes, Record] = {}
        """The log as compaction leaves it: the last record of each key, in their order."""
        self.topics = Topics(orders=4, payments=3)
        self.subscriptions = Subscriptions(self.topics)
        self.target: target.Target | None = None
        """That was computed, and is assigned later."""
        self.processes: list[Process] = []
        self.started = 0
        self.pending: list[tuple[Sequence[Record], dict[PartitionId, int]]] = []
        """Commits that were decided and are not durable yet."""
        self.committed: dict[PartitionId, int] = {}
        self.watch = Watch()
        self.network = Network(self.random)
        self.start_process()

    @property
    def group(self) -> Group | None:
        return self.groups.get(GROUP)

    # What happens.

    def run(self, events: int) -> None:
        """Let so many events happen, and let the group become stable four times in between."""
        kinds = list(_EVENTS)
        for _ in range(4):
            for happen in self.random.choices(kinds, list(_EVENTS.values()), k=events // 4):
                self.now_ms += self.random.getrandbits(4)
                happen(self)
            self.become_stable()
            self.change_topics()
            self.become_stable()
        self.check_replay()

    def start_process(self) -> None:
        """Start a process, with the instance id of another one at times. One at a time never gives up partitions.

        Two of that kind would take turns: what is taken from one is given to the other, which then has to revoke it.
        """
        if len(self.processes) >= MAX_PROCESSES:
            return
        self.started += 1
        random = self.random
        process = Process(
            GROUP,
            f"m{self.started}",
            random.choice(("", "", "", "one", "two", "three")),
            assignor=random.choice(("", "uniform", "uniform", "range")),
            session_timeout_ms=random.choice((1500, 3000)),
            rebalance_timeout_ms=random.choice((1000, 2500)),
            never_revokes=random.random() < 0.1 and not any(other.never_revokes for other in self.processes),
        )
        _subscribe(process, random)
        self.processes.append(process)

    def end_process(self) -> None:
        """Kill a process, or let it leave."""
        process = self._any_process()
        if process is None or len(self.processes) < 2:
            return
        self.processes.remove(process)
        if process.is_running and not process.is_final and self.random.random() < 0.6:
            self._send(process, process.leave())
        process.is_running = False

    def stop_or_continue(self) -> None:
        """SIGSTOP and SIGCONT."""
        process = self._any_process()
        if process is not None and (not process.is_running or self.random.random() < 0.3):
            process.is_running = not process.is_running
            if process.is_running and self.random.random() < 0.5:
                self._commit(process)
            process.check_session(self.now_ms)

    def subscribe(self) -> None:
        """Change the subscription of a process."""
        process = self._any_process()
        if process is not None:
            _subscribe(process, self.random)

    def change_topics(self) -> None:
        """Create, recreate, delete a topic, or add partitions."""
        name = self.random.choice(NAMES)
        topic = self.topics.by_name(name)
        if topic is None or self.random.random() < 0.2:
            self.topics.create(name, self.random.randint(1, 5))
        elif self.random.random() < 0.4:
            self.topics.delete(name)
        else:
            self.topics.grow(name, topic.partitions + self.random.randint(1, 2))

    def heartbeat(self) -> None:
        """Let a process send a heartbeat, unless it waits for a response."""
        process = self._any_process()
        if process is None or not process.is_running or process.is_final:
            return
        process.check_session(self.now_ms)
        if not process.is_waiting or self.now_ms - process.waiting_since_ms > self.network.patience_ms:
            self._send(process, process.heartbeat(self.now_ms, with_owned=self.random.random() < 0.7))

    def commit(self) -> None:
        """Let a process commit, also one that does not know yet that its membership is over."""
        process = self._any_process()
        if process is not None and process.is_running:
            self._commit(process)

    def revoke(self) -> None:
        """Let a process end `on_revoked`."""
        process = self._any_process()
        if process is not None and process.is_running and not process.never_revokes:
            if self.random.random() < 0.5:
                self._commit(process)
            process.finish_revoking()

    def make_durable(self) -> None:
        """Let commits become durable, in the order of the log."""
        for records, values in self.pending:
            self._apply(records)
            self.committed.update(values)
        self.pending.clear()
        self._check_offsets()

    def coordinate(self) -> None:
        """Let the timers of the coordinator fire: sessions, and the target."""
        group = self.group
        for member in list(group.members.values()) if group else ():
            if self.now_ms >= member.deadline_ms():
                self._expire(member.member_id)
        if self.random.random() < 0.5:
            self.make_durable()
            self._assign(has_time=self.random.random() < 0.3)

    def _assign(self, *, has_time: bool) -> None:
        """Assign the target that was computed, or one that is computed now; if it `has_time`, at a later event."""
        is_fresh = self.target is None
        if self.target is None:
            self.target = self._compute()
        if self.target is None or has_time:
            return
        is_assigned = self._decided(target.assign(self.groups, self.target, self.subscriptions))
        self.target = None
        if is_fresh:
            require(is_assigned, "a group needs a target, and none was assigned")
            assert self.group is not None
            check_target(self.group, self.topics)

    def _compute(self) -> target.Target | None:
        follow_topics(self.subscriptions, self.topics)
        group = self.group
        if group is None or not target.needs_target(group, self.subscriptions):
            return None
        return run_steps(target.compute(group, self.subscriptions))

    def expire_offsets(self) -> None:
        """Remove what is out of use: never an offset of a live group, except of deleted topics."""
        self.make_durable()
        members, before = self._member_count(), dict(self.committed)
        self._decided(
            offsets.expire_offsets(
                self.groups, GROUP, now_ms=self.now_ms, retention_ms=RETENTION_MS, topics=self.topics
            )
        )
        kept = self.group.offsets if self.group else {}
        self.committed = {partition: offset for partition, offset in before.items() if partition in kept}
        for partition in before.keys() - kept.keys():
            require(not members or not self.topics.by_id(partition.topic_id), "an offset of a live group expired")

    def administer(self) -> None:
        """Try to delete the group and to commit from outside: both only without members."""
        self.make_durable()
        members = self._member_count()
        partition = self._any_partition()
        if partition is not None:
            item = OffsetCommitPartition(partition.topic_id, "", partition.number, self.random.randint(0, 1000))
            request = OffsetCommitRequest(GROUP, [item])
            try:
                decision = offsets.commit(
                    self.groups, request, self.topics, owner="User:etl", now_ms=self.now_ms, limits=LIMITS
                )
            except NonEmptyGroup:
                require(members, "an empty group refused a commit from outside")
            else:
                require(not members, "a commit from outside was accepted by a live group")
                self._decided(decision)
                self.committed[partition] = item.offset
        if self.random.random() < 0.1 and not members and self.group is not None:
            self._decided(offsets.delete_group(self.groups, GROUP))
            self.committed.clear()
            require(self.group is None, "something is left of a deleted group")

    def restart_coordinator(self) -> None:
        """Crash and load: what was in flight is lost, of undecided commits a part is in the log."""
        for records, values in self.pending[: self.random.randint(0, len(self.pending))]:
            self._apply(records)
            self.committed.update(values)
        self.pending.clear()
        self.network.lose_all()
        loaded = Groups()
        for record in self.latest.values():
            if record.value is not None or self.random.random() < 0.5:
                loaded.replay(record)
        require(loaded == self.groups, "the state is not what a replay of the compacted log gives")
        require(loaded.held == self.groups.held, "what the groups hold is not what a replay of the compacted log gives")
        self.groups = loaded
        self.target = None
        for member in self.group.members.values() if self.group else ():
            know_pattern(self.subscriptions, member.settings.pattern)
            self.subscriptions.of(member)
        self.groups.start_timers(self.now_ms)

    # What the events are made of.

    def _any_process(self) -> Process | None:
        return self.random.choice(self.processes) if self.processes else None

    def _any_partition(self) -> PartitionId | None:
        names = [name for name in self.topics.names() if self.topics.partitions(name)]
        return self.random.choice(self.topics.partitions(self.random.choice(names))) if names else None

    def _member_count(self) -> int:
        return len(self.group.members) if self.group else 0

    def _send(self, process: Process, request: GroupHeartbeatRequest) -> None:
        number, sent_ms = process.request_number, self.now_ms

        def told(result: Any) -> None:
            if process.is_running:
                self._respond(process, number, sent_ms, result)

        self.network.send(lambda then: then(self._decide_heartbeat(request)), told)

    def _commit(self, process: Process) -> None:
        owned = sorted(process.owned)
        if not owned:
            return
        chosen = self.random.sample(owned, min(2, len(owned)))
        items = []
        for partition in chosen:
            process.positions[partition] += self.random.randint(0, 3)
            items.append(OffsetCommitPartition(*partition[:1], "", partition.number, process.positions[partition]))
        process.commit_sequence += 1
        believed = {partition: process.holdings[partition] for partition in chosen}
        request = OffsetCommitRequest(
            GROUP, items, process.member_id, process.epoch, process.instance_id, process.commit_sequence
        )
        self.network.send(lambda _: self._decide_commit(request, believed), lambda _: None)

    def _decide_heartbeat(self, request: GroupHeartbeatRequest) -> Any:
        self.make_durable()
        twin = self._twin(request.member_id, request.instance_id)
        before = self.groups.member(GROUP, request.member_id)
        held = {*before.assigned, *before.revoking} if before else set()
        pattern = know_pattern(self.subscriptions, request.pattern)
        try:
            decision = membership.heartbeat(
                self.groups, request, host="host", owner="User:etl", now_ms=self.now_ms, limits=LIMITS
            )
        except ApiError as error:
            require(
                twin is None or request.member_epoch <= 0 or isinstance(error, FencedInstanceId),
                "{} was replaced by {}, and told {}",
                request.member_id,
                twin,
                type(error).__name__,
            )
            return error
        if request.member_epoch > 0:
            require(twin is None, "{} was replaced by {}, and goes on", request.member_id, twin)
            claimed = {PartitionId(t.topic_id, n) for t in request.owned or () for n in t.partitions}
            require(claimed <= held, "{} goes on with what it does not hold", request.member_id)
        elif request.member_epoch == 0 and twin is not None:
            self._disown(twin)
        response = self._decided(decision)
        if pattern is not None and (member := self.groups.member(GROUP, request.member_id)) is not None:
            self.subscriptions.of(member)
        self.groups.heard(GROUP, request.member_id, now_ms=self.now_ms, epoch=request.member_epoch, owned=request.owned)
        return response

    def _twin(self, member_id: str, instance_id: str) -> str | None:
        """Return the member with the same instance id and another member id."""
        for member in self.group.members.values() if self.group and instance_id else ():
            if member.settings.instance_id == instance_id and member.member_id != member_id:
                return member.member_id
        return None

    def _decide_commit(self, request: OffsetCommitRequest, believed: dict[PartitionId, int]) -> None:
        try:
            decision = offsets.commit(
                self.groups, request, self.topics, owner="User:etl", now_ms=self.now_ms, limits=LIMITS
            )
        except ApiError:
            return
        self.groups.heard(GROUP, request.member_id, now_ms=self.now_ms, commit_sequence=request.sequence)
        values = {}
        for item, result in zip(request.partitions, decision.result.partitions, strict=True):
            partition = PartitionId(item.topic_id, item.partition)
            if result.error_code:
                continue
            holder = self.watch.holdings[partition][0]
            require(holder == request.member_id, "{} committed {} of {}", request.member_id, partition, holder)
            require(believed[partition] == self.watch.changes[partition], "{} was assigned again since", partition)
            last = max([self.committed.get(partition, 0), *(v[partition] for _, v in self.pending if partition in v)])
            require(item.offset >= last, "the offset of {} went back from {} to {}", partition, last, item.offset)
            values[partition] = item.offset
        self.pending.append((decision.records, values))
        if self.random.random() < 0.7:
            self.make_durable()

    def _respond(self, process: Process, number: int, sent_ms: int, result: Any) -> None:
        gained = process.respond(number, result, sent_ms)
        for partition in gained:
            process.positions[partition] = self._fetch(partition)
        process.holdings.update((partition, self.watch.changes[partition]) for partition in process.owned)
        check_beliefs(self.processes, self.group, self.now_ms)

    def _fetch(self, partition: PartitionId) -> int:
        for found in offsets.fetch_offsets(self.groups, OffsetFetchRequest(GROUP)).partitions:
            if (found.topic_id, found.partition) == partition:
                return found.offset
        return 0

    def _expire(self, member_id: str) -> None:
        self.make_durable()
        self._disown(member_id)
        self._decided(membership.expire_member(self.groups, GROUP, member_id, now_ms=self.now_ms))

    def _disown(self, member_id: str) -> None:
        """Note that a process loses its place although its session may be good, as it cannot know."""
        member = self.groups.member(GROUP, member_id)
        for process in self.processes:
            if process.member_id == member_id and member is not None and (member.revoking or process.instance_id):
                process.is_disowned = True

    def _decided(self, decision: Decision[Any]) -> Any:
        self._apply(decision.records)
        return decision.result

    def _apply(self, records: Sequence[Record]) -> None:
        if not records:
            return
        self.log += records
        for record in records:
            self.groups.replay(record)
            self.latest.pop(record.key, None)
            self.latest[record.key] = record
        if self.group is None:
            self.watch = Watch()
        else:
            self.watch.look(self.group)
        check_beliefs(self.processes, self.group, self.now_ms)

    def _check_offsets(self) -> None:
        kept = self.group.offsets if self.group else {}
        require(
            {partition: value.offset for partition, value in kept.items()} == self.committed,
            "a committed offset is not what its owner committed last",
        )

    def check_replay(self) -> None:
        """The state is what a replay of the whole log gives."""
        replayed = Groups()
        for record in self.log:
            replayed.replay(record)
        require(replayed == self.groups, "the state is not what a replay of the log gives")

    # Without faults.

    def become_stable(self) -> None:
        """EventuallyConverges: without faults the group is stable soon, and each process owns what it is assigned."""
        self.network.lose_all()
        faults, self.network.faults = self.network.faults, Faults()
        for process in self.processes:
            process.is_running = True
        for _ in range(60):
            self.now_ms += 300
            self._calm_round()
            if self._is_stable():
                break
        else:
            raise Violation(f"EventuallyConverges: not stable, but {self.group and self.group.state}")
        self.network.faults = faults

    def _calm_round(self) -> None:
        for process in self.processes:
            if not process.is_final:
                process.check_session(self.now_ms)
                self._send(process, process.heartbeat(self.now_ms, with_owned=self.random.random() < 0.7))
                self.network.deliver_request()
                self.network.deliver_response()
                if not process.never_revokes:
                    process.finish_revoking()
        self.coordinate()

    def _is_stable(self) -> bool:
        group = self.group
        live = [process for process in self.processes if not process.is_final]
        if group is None or not live:
            return not live and not self._member_count()
        if group.state != "stable" or self.target is not None or self._compute() is not None:
            return False
        if group.members.keys() != {process.member_id for process in live}:
            return False
        check_target(group, self.topics)
        return all(
            process.owned == set(group.members[process.member_id].assigned)
            and (tuple(process.topics), process.pattern) == _subscription(group, process)
            for process in live
        )


def _subscription(group: Group, process: Process) -> tuple[tuple[str, ...], str]:
    settings = group.members[process.member_id].settings
    return settings.topics, settings.pattern


def _subscribe(process: Process, random: Random) -> None:
    kind = random.random()
    process.pattern = "orders.*" if kind < 0.2 else ""
    process.topics = (
        [] if kind < 0.1 else sorted(random.sample(NAMES, random.randint(1, 2))) if kind < 0.6 else list(NAMES)
    )


_EVENTS: dict[Callable[[World], None], int] = {
    World.heartbeat: 250,
    lambda world: world.network.deliver_request(): 320,
    lambda world: world.network.deliver_response(): 250,
    World.revoke: 60,
    World.commit: 60,
    World.make_durable: 20,
    World.coordinate: 60,
    World.start_process: 6,
    World.end_process: 4,
    World.stop_or_continue: 6,
    World.subscribe: 3,
    World.change_topics: 3,
    World.restart_coordinator: 2,
    World.expire_offsets: 2,
    World.administer: 4,
}


def simulate(seed: int, events: int) -> None:
    """Raise Violation if an invariant does not hold in the simulation of this seed."""
    World(seed).run(events)
