"""Producers, pairs and jobs with one coordinator, and everything that can happen to them.

Everything is decided by one seed. Each event changes one thing: a message is sent or arrives, a client or the
coordinator fails, a batch or a marker becomes durable or is lost, time passes. The functions under test are called as
the broker's services call them.
"""

from collections.abc import Callable
from random import Random

from unit.broker.coordinator.group.simulation.checks import Violation, require
from unit.broker.coordinator.group.simulation.network import Faults, Network
from unit.broker.coordinator.group.topics import Topics, run_steps
from unit.broker.coordinator.transaction.simulation.coordinator import Coordinator
from unit.broker.coordinator.transaction.simulation.drivers import Driver
from unit.broker.coordinator.transaction.simulation.partition import Partition
from unit.broker.coordinator.transaction.simulation.producers import (
    GROUP,
    INPUT,
    STEADY,
    VOLATILE,
    Client,
    Pair,
    PlainProducer,
)
from unit.broker.coordinator.transaction.simulation.truth import Token, Truth
from warmlog_broker.coordinator.group.decisions import membership, target
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_broker.coordinator.transaction.decisions import records
from warmlog_protocol.batch.header import LAST_PRODUCER_EPOCH

PLAIN = ("a", "b")
PAIRS = ("p", "q", "r")
JOBS = ("j", "k")
MAX_ZOMBIES = 6
PATIENCES_MS = (300, 3000)


class World:
    """The state of a simulation, and its events as methods."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.truth = Truth()
        self.topics = Topics(**{INPUT: 2})
        self.partitions = {number: Partition(number) for number in (*STEADY, VOLATILE)}
        self.created = len(self.partitions)
        self.subscriptions = Subscriptions(self.topics)
        self.coordinator = Coordinator(self.random, self.truth, self.topics, self.partitions)
        self.network = Network(self.random)
        self.network.patience_ms = self.random.choice(PATIENCES_MS)
        self.serial = 0
        self._near_the_last_epoch()
        self.clients: dict[str, Client] = {name: self._started(name) for name in (*PLAIN, *PAIRS, *JOBS)}
        self.zombies: list[Client] = []
        """Clients that others have taken the place of, and that do not know it."""

    def _near_the_last_epoch(self) -> None:
        """Let one id and one slot have used up most of their epochs."""
        epoch = LAST_PRODUCER_EPOCH - self.random.randint(0, 4)
        value = records.IdValue(
            1, epoch, records.Status.EMPTY, records.End.INITIALISED, changed_ms=self.coordinator.now_ms
        )
        job = records.JobValue(records.NO_VERSION, records.Status.EMPTY, changed_ms=self.coordinator.now_ms)
        self.coordinator.ids.seed(PLAIN[0], [records.put(records.IdKey(PLAIN[0]), value)])
        slots = [
            records.put(
                records.MemberKey(JOBS[0], slot), records.MemberValue(slot + 2, epoch, records.MemberStatus.FREE)
            )
            for slot in range(2)
        ]
        self.coordinator.ids.seed(JOBS[0], [records.put(records.JobKey(JOBS[0]), job), *slots])

    def _started(self, name: str) -> Client:
        self.serial += 1
        if name in JOBS:
            version = max(0, self.truth.last_version(name) + self.random.choice((-1, 0, 0, 1, 1, 1, 1, 3)))
            return Driver(self.network, self.coordinator, name, version)
        kind = Pair if name in PAIRS else PlainProducer
        return kind(self.network, self.coordinator, name, self.serial)

    # What happens.

    def run(self, events: int) -> None:
        """Let so many events happen, and twice let everything come to its end in between."""
        kinds = list(_EVENTS)
        for _ in range(2):
            for happen in self.random.choices(kinds, list(_EVENTS.values()), k=events // 2):
                self.coordinator.now_ms += self.random.getrandbits(4)
                happen(self)
            self.come_to_rest()
            self.make_progress()
        self.coordinator.ids.check_replay()

    def step(self) -> None:
        """Let a client go on."""
        client = self.random.choice(list(self.clients.values()))
        if self.zombies and self.random.random() < 0.2:
            client = self.random.choice(self.zombies)
        self._let_go_on(client)

    def _let_go_on(self, client: Client) -> None:
        if isinstance(client, Driver):
            attempts = [each for each in (*client.attempts, *client.zombies) if each.is_running]
            if attempts and self.random.random() < 0.8:
                self.random.choice(attempts).step()
                return
        if client.is_running:
            client.step()

    def replace_client(self) -> None:
        """Start another process in the place of one, which is dead, or goes on without knowing it."""
        name = self.random.choice(list(self.clients))
        old = self.clients[name]
        if old.is_running and self.random.random() < 0.6:
            self.zombies = [*self.zombies[-MAX_ZOMBIES + 1 :], old]
        else:
            old.is_running = False
        self.clients[name] = self._started(name)

    def replace_final_clients(self) -> None:
        """Start others for those that gave up."""
        for name, client in self.clients.items():
            if client.is_final:
                self.clients[name] = self._started(name)

    def kill_attempt(self) -> None:
        """Let an attempt of a task die."""
        driver = self.clients[self.random.choice(JOBS)]
        assert isinstance(driver, Driver)
        if driver.attempts:
            self.random.choice(driver.attempts).is_running = False

    def heartbeat(self) -> None:
        """Let the group of pairs go on."""
        for client in (*self.clients.values(), *self.zombies):
            if isinstance(client, Pair) and client.is_running and self.random.random() < 0.5:
                client.heartbeat()
        self._coordinate_group()

    def _coordinate_group(self) -> None:
        shard, now_ms = self.coordinator.groups, self.coordinator.now_ms
        shard.make_durable()
        group = shard.state.get(GROUP)
        for member in list(group.members.values()) if group else ():
            if now_ms >= member.deadline_ms():
                name = member.member_id
                shard.run(GROUP, lambda groups, name=name: _expired(groups, name, now_ms), lambda _: None)
        shard.make_durable()
        group = shard.state.get(GROUP)
        computed = run_steps(target.compute(group, self.subscriptions)) if group else None
        if computed is not None:
            shard.run(GROUP, lambda groups: target.assign(groups, computed, self.subscriptions), lambda _: None)
            shard.make_durable()

    def make_durable(self) -> None:
        """Let what was decided become durable."""
        self.coordinator.ids.make_durable()
        self.coordinator.groups.make_durable()

    def flush(self) -> None:
        """Let a partition become durable, and its reader go on."""
        partition = self.random.choice(list(self.partitions.values()))
        partition.flush(self.random.choice((0.5, 1.0)))
        partition.read(self.truth)

    def crash_partition(self) -> None:
        """Lose what a partition has not made durable."""
        self.random.choice(list(self.partitions.values())).crash(self.random)

    def forget_producers(self) -> None:
        """Let a partition forget the producers that have nothing open."""
        self.random.choice(list(self.partitions.values())).forget_producers()

    def recreate_topic(self) -> None:
        """Delete a topic, and create it again: with another id."""
        self.created += 1
        self.partitions[VOLATILE] = Partition(self.created)

    def end_loading(self) -> None:
        """Let the coordinator accept requests."""
        self.coordinator.is_loading = False

    def administer(self) -> None:
        """Let an operator abort a transaction."""
        self.coordinator.abort(self.random.choice((*PLAIN, *PAIRS, *JOBS)))

    def jump(self) -> None:
        """Let so much time pass that transactions time out, and ids expire at times."""
        self.coordinator.now_ms += self.random.choice((500, 2500, 12_000, 70_000))

    # Without faults.

    def come_to_rest(self) -> None:
        """Each transaction ends soon if no client goes on; all or nothing of it is there then."""
        self.network.lose_all()
        self.network.faults = Faults()
        coordinator = self.coordinator
        coordinator.is_loading = False
        for _ in range(400):
            coordinator.now_ms += 100
            coordinator.append_verified()
            coordinator.append_stalled()
            coordinator.carry_out()
            coordinator.fire_timers()
            self.make_durable()
            for partition in self.partitions.values():
                partition.flush()
        coordinator.check_at_rest()
        for partition in self.partitions.values():
            partition.read(self.truth)
            require(partition.last_stable_offset == partition.end_offset, "a transaction is open for ever")
        self._check_everything()

    def _check_everything(self) -> None:
        delivered: dict[Token, int] = {}
        for partition in self.partitions.values():
            for value, count in partition.delivered.items():
                delivered[value] = delivered.get(value, 0) + count
        self.truth.check(delivered, [] if self.created == len(self.partitions) else [VOLATILE])
        late = [value for value in delivered if value[-1] == "late"]
        require(not late, "what a task wrote after the decision is there: {}", late)
        group = self.coordinator.groups.state.get(GROUP)
        offsets = {partition.number: value.offset for partition, value in group.offsets.items()} if group else {}
        outputs = sorted(value[1:3] for value in delivered if value[0] == "input")
        expected = [(number, at) for number in sorted(offsets) for at in range(offsets[number])]
        require(outputs == expected, "offsets {} and outputs {} disagree", offsets, outputs)

    def make_progress(self) -> None:
        """Without faults each client commits something soon."""
        self.zombies.clear()
        self.replace_final_clients()
        for client in self.clients.values():
            client.is_running = True
        before = {name: _commits(client) for name, client in self.clients.items()}
        for _ in range(3000):
            self.coordinator.now_ms += 10
            for client in self.clients.values():
                if isinstance(client, Pair) and self.random.random() < 0.05:
                    client.heartbeat()
                self._let_go_on(client)
            self._calm_round()
            behind = [name for name, client in self.clients.items() if _commits(client) == before.get(name, 0)]
            if set(behind) <= self._idle_pairs():
                return
        raise Violation(f"no progress of {behind}")

    def _calm_round(self) -> None:
        for _ in range(4):
            self.network.deliver_request()
            self.network.deliver_response()
            self.coordinator.append_verified()
            self.coordinator.append_stalled()
            self.coordinator.carry_out()
        self.make_durable()
        self.coordinator.fire_timers()
        self._coordinate_group()
        for partition in self.partitions.values():
            partition.flush()
        for name, client in list(self.clients.items()):
            if client.is_final:
                self.clients[name] = self._started(name)

    def _idle_pairs(self) -> set[str]:
        """Return the pairs without a partition: there are more pairs than partitions."""
        return {name for name, client in self.clients.items() if isinstance(client, Pair) and not client.process.owned}


def _expired(groups: membership.Groups, name: str, now_ms: int) -> membership.Decision[bool]:
    return membership.expire_member(groups, GROUP, name, now_ms=now_ms)


def _commits(client: Client) -> int:
    assert isinstance(client, (PlainProducer, Driver))
    return client.commit_count


_EVENTS: dict[Callable[[World], None], int] = {
    World.step: 300,
    lambda world: world.network.deliver_request(): 250,
    lambda world: world.network.deliver_response(): 200,
    lambda world: world.coordinator.append_verified(): 120,
    lambda world: world.coordinator.append_stalled(): 3,
    lambda world: world.coordinator.carry_out(): 150,
    lambda world: world.coordinator.repeat_marker(): 5,
    lambda world: world.coordinator.fire_timers(): 10,
    lambda world: world.coordinator.expire(): 1,
    lambda world: world.coordinator.fail_over(): 3,
    World.end_loading: 10,
    World.make_durable: 100,
    World.flush: 120,
    World.crash_partition: 3,
    World.forget_producers: 2,
    World.recreate_topic: 1,
    World.heartbeat: 15,
    World.replace_client: 4,
    World.replace_final_clients: 5,
    World.kill_attempt: 5,
    World.administer: 2,
    World.jump: 2,
}


def simulate(seed: int, events: int) -> None:
    """Raise Violation if an invariant does not hold in the simulation of this seed."""
    World(seed).run(events)
