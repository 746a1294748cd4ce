"""Brokers with one partition, a network, disks and a store, and everything that can happen to them.

One seed decides everything. A heap has what happens next; each seed has its own mix of faults. After the last event
everything is healed, and has to come to rest.
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from unit.broker.coordinator.group.simulation.checks import Violation, require
from unit.broker.replication.simulation.broker import FakeBroker
from unit.broker.replication.simulation.disk import NO_EPOCH, Entry, FakeDisk
from unit.broker.replication.simulation.etcd import ABSENT, TOPIC, FakeEtcd, Item, Txn, broker_key, record_key
from unit.broker.replication.simulation.truth import TopicTruth, Truth
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.record import NO_LEADER, PartitionRecord
from warmlog_broker.replication.replica import Role

TIMES = ev.Times(lag_ms=400, confirmation_ms=100, rank_ms=15, grace_ms=100, flush_ms=200, hand_over_ms=40, retry_ms=20)
PRODUCERS = 3


class World:
    """The state of a simulation."""

    tick_ms = 25
    ttl_ms = 240
    hold_ms = 50

    def __init__(self, seed: int, skipped: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.fate = Random(-seed - 1)
        """Decides the faults: so that one can be skipped without a change of the others."""
        self.skipped = skipped
        self.times = TIMES
        self.now_ms = 0
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.happened: list[tuple[int, int, str]] = []
        """The faults: number, time, what."""
        self.alarms: list[tuple[int, str]] = []
        self.is_calm = False
        self.etcd = FakeEtcd()
        self.truth = Truth(self)
        self.etcd_down_until_ms = 0
        self.unknown = self.random.choice((0.0, 0.03, 0.2))
        self.watch_lag_ms: dict[int, int] = {}
        self.cut_links: set[tuple[int, int]] = set()
        self.generation: dict[tuple[int, int], int] = {}
        self.last_arrival: dict[tuple[int, int], int] = {}
        nodes = self.random.choice((2, 3, 3, 3, 3, 4))
        self.brokers = {node: FakeBroker(self, node) for node in range(1, nodes + 1)}
        self.images: dict[int, tuple[int, Any]] = {}
        self.topic_number = 0
        self.topic_id = ""
        self.sequences: dict[int, int] = {}
        self.sent_ms: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        self.producer_ids = 1000
        self.create_topic()
        kinds = self.random.sample(list(FAULTS), self.random.randint(3, 7))
        self.kinds = kinds
        self.fault_pause_ms = self.random.choice((30, 60, 120))

    # The topic.

    def create_topic(self) -> None:
        """Create the topic, with another id if there is one; in some seeds with batches of before there were epochs."""
        self.topic_number += 1
        self.topic_id = f"topic {self.topic_number}"
        replicas = self.random.sample(list(self.brokers), min(3, len(self.brokers)))
        min_isr = self.random.choice((1, 2, 2))
        record = PartitionRecord(
            leader=NO_LEADER, leader_epoch=0, replicas=tuple(replicas), isr=tuple(replicas), min_isr=min_isr
        )
        old: list[Entry | None] = []
        if self.topic_number == 1 and self.random.random() < 0.3:
            old = [Entry(NO_EPOCH, 100, sequence) for sequence in range(1, self.random.randint(2, 6))]
            record = PartitionRecord(
                leader=NO_LEADER, leader_epoch=0, replicas=tuple(replicas), isr=(replicas[0],), min_isr=min_isr
            )
            self._adopt(replicas, old)
        self.truth.topics[self.topic_id] = TopicTruth(list(old))
        if old:
            self.truth.of(self.topic_id).sequences[100] = len(old)
        self.sequences = dict.fromkeys(range(PRODUCERS), 1)
        self.sent_ms, self.attempts = {}, {}
        deleted = {record_key(f"topic {self.topic_number - 1}"): None} if self.topic_number > 1 else {}
        self._apply(Txn({TOPIC: self.topic_id, record_key(self.topic_id): record, **deleted}))

    def _adopt(self, replicas: list[int], old: list[Entry | None]) -> None:
        """Give the first replica a log of before there were epochs, and the others copies that went on otherwise."""
        for node in replicas:
            broker = self.brokers[node]
            broker.directories[self.topic_id] = f"directory of {node}"
            disk = broker.disk = FakeDisk(self.topic_id, broker.directories[self.topic_id])
            disk.append_copy(old)
            if node != replicas[0]:
                disk.append_copy([Entry(NO_EPOCH, 200, sequence) for sequence in range(1, self.random.randint(1, 4))])
            disk.flushed = disk.end
            if node == replicas[0]:
                disk.high_watermark = disk.stored_high_watermark = disk.end

    @property
    def record(self) -> PartitionRecord:
        record: PartitionRecord = self.etcd.get(record_key(self.topic_id)).value
        return record

    # Time.

    def at(self, delay_ms: int, call: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now_ms + delay_ms, self.count, call))

    def short(self) -> int:
        return self.random.randint(1, 5)

    def flush_delay(self) -> int:
        return self.random.choice((1, 2, 3, 3, 30)) if not self.is_calm else 2

    # The store.

    def call(self, broker: FakeBroker, txn: Txn, then: Callable[[ev.Outcome, Item], None]) -> None:
        """Apply a transaction after a while; the outcome may be unknown, whether it is applied, never, or later."""
        is_lost, life = self.now_ms < self.etcd_down_until_ms, broker.life
        fate = self.random.random()
        if (is_lost or fate < self.unknown) and not self.is_calm:
            if fate < self.unknown * 0.7:
                self.at(self.random.choice((2, 100, 300, 700)), lambda: self._arrive(txn))
            broker.soon(60, lambda: then(ev.Outcome.UNKNOWN, ABSENT))
            return

        def arrive() -> None:
            is_applied, item = self._arrive(txn)
            outcome = ev.Outcome.SUCCEEDED if is_applied else ev.Outcome.FAILED
            broker.soon(self.short(), lambda: then(outcome, item), life)

        self.at(self.short(), arrive)

    def _arrive(self, txn: Txn) -> tuple[bool, Item]:
        is_applied = self._apply(txn)
        return is_applied, self.etcd.get(next(iter(txn.puts)))

    def _apply(self, txn: Txn) -> bool:
        if not self.etcd.apply(txn):
            return False
        for key, value in txn.puts.items():
            if isinstance(key, tuple) and key[0] == "record" and value is not None:
                self.truth.stored(key[1], value)
            if isinstance(key, tuple) and key[0] == "broker":
                if value is not None:
                    self.etcd.leases[key] = self.now_ms + self.ttl_ms
                self.truth.forget_lost(self.record)
        self._notify()
        return True

    def _notify(self) -> None:
        revision = self.etcd.revision
        for broker in self.brokers.values():
            lag_ms = self.watch_lag_ms.get(broker.node, 0) + self.short()
            broker.soon(lag_ms, lambda broker=broker: broker.watched(revision))  # type: ignore[misc]

    def read(self, broker: FakeBroker, then: Callable[[dict[Any, Item], int], None]) -> None:
        """Read everything at one revision; later, if the store is away."""
        life = broker.life

        def arrive() -> None:
            if self.now_ms < self.etcd_down_until_ms:
                broker.soon(50, lambda: self.read(broker, then), life)
                return
            items, revision = dict(self.etcd.items), self.etcd.revision
            broker.soon(self.short(), lambda: then(items, revision), life)

        self.at(self.short(), arrive)

    def renew(self, broker: FakeBroker) -> None:
        life = broker.life

        def arrive() -> None:
            key = broker_key(broker.node)
            if self.now_ms < self.etcd_down_until_ms:
                return
            if key in self.etcd.leases:
                self.etcd.leases[key] = self.now_ms + self.ttl_ms
            else:
                broker.soon(self.short(), broker.register_again, life)

        self.at(self.short(), arrive)

    def expire(self) -> None:
        """Let leases run out; none does while the store is away."""
        self.at(40, self.expire)
        if self.now_ms < self.etcd_down_until_ms:
            for key in self.etcd.leases:
                self.etcd.leases[key] = self.etcd_down_until_ms + self.ttl_ms
            return
        for key in self.etcd.expired(self.now_ms):
            self._apply(Txn({key: None}))

    # The network.

    def send(self, source: int, target: int, message: Any) -> None:
        """Deliver a message in order, unless the link is cut or reset; at times twice."""
        link = (source, target)
        if link in self.cut_links or target not in self.brokers:
            return
        arrival = max(self.now_ms + self.short(), self.last_arrival.get(link, 0))
        self.last_arrival[link] = arrival
        generation = self.generation.get(link, 0)
        broker = self.brokers[target]

        def deliver() -> None:
            if self.generation.get(link, 0) == generation and link not in self.cut_links:
                broker.received(message)

        self.at(arrival - self.now_ms, lambda: self._hand_to(broker, deliver))
        if not self.is_calm and self.random.random() < 0.02:
            self.at(self.random.randint(5, 300), lambda: self._hand_to(broker, lambda: broker.received(message)))

    def _hand_to(self, broker: FakeBroker, call: Callable[[], None]) -> None:
        if broker.is_alive and broker.is_paused:
            broker.inbox.append(call)
        elif broker.is_alive:
            call()

    # Clients.

    def client(self) -> None:
        """Let a producer, or a reader, go on."""
        self.at(6, self.client)
        leaders = [broker for broker in self.brokers.values() if broker.is_leading and not broker.is_paused]
        if not leaders:
            return
        broker = self.random.choice(leaders)
        if self.random.random() < 0.2:
            broker.ask(self.truth.of(broker.topic_id).seen)
            return
        producer = self.random.choice(list(self.sequences))
        if self.now_ms - self.sent_ms.get(producer, -1000) < 60 or broker.topic_id != self.topic_id:
            return
        self.sent_ms[producer] = self.now_ms
        self.attempts[producer] = self.attempts.get(producer, 0) + 1
        sequence = self.sequences[producer]
        key = sequence % 4 if sequence % 3 == 0 else None
        broker.produce(producer, sequence, key, is_tombstone=key is not None and sequence % 2 == 0)

    def acknowledge(self, topic_id: str, producer: int, sequence: int, offset: int) -> None:
        """Tell a producer that its batch is committed; the response may be lost."""
        self.truth.acknowledged(topic_id, producer, sequence, offset)
        if topic_id == self.topic_id and self.sequences.get(producer) == sequence and self.random.random() < 0.9:
            self.sequences[producer] = sequence + 1
            self.sent_ms.pop(producer, None)

    def has_sent(self, producer: int) -> bool:
        """Return whether a producer has sent anything before its last attempt."""
        return self.sequences[producer] > 1 or self.attempts[producer] > 1

    def replace_producer(self, producer: int) -> None:
        """Begin with a new producer id: what the leader knew of the old one was deleted."""
        self.producer_ids += 1
        del self.sequences[producer]
        self.sequences[self.producer_ids] = 1

    # Faults.

    def fault(self) -> None:
        """Let one thing go wrong."""
        self.at(self.fate.randint(1, 2 * self.fault_pause_ms), self.fault)
        number = len(self.happened)
        kind = self.fate.choice(self.kinds)
        node = self.fate.choice(list(self.brokers))
        chance = Random(self.fate.getrandbits(32))
        self.happened.append((number, self.now_ms, f"{kind} {node}"))
        if number not in self.skipped and not self.is_calm:
            FAULTS[kind](self, self.brokers[node], chance)

    # Running.

    def run(self, events: int) -> None:
        """Let so many events happen, then heal everything: it has to come to rest."""
        for broker in self.brokers.values():
            broker.start()
        self.expire()
        self.at(20, self.client)
        self.at(300, self.fault)
        self._steps(events)
        self.heal()
        self._until(self.now_ms + 2000)
        self.check_rest()

    def _steps(self, events: int) -> None:
        for _ in range(events):
            self.now_ms, _, call = heapq.heappop(self.heap)
            call()

    def _until(self, end_ms: int) -> None:
        while self.heap[0][0] < end_ms:
            self.now_ms, _, call = heapq.heappop(self.heap)
            call()

    def heal(self) -> None:
        """End all faults; one broker may stay off, if the others suffice."""
        self.is_calm = True
        self.cut_links.clear()
        self.watch_lag_ms.clear()
        self.etcd_down_until_ms = 0
        self.images.clear()
        off = self.random.choice(list(self.brokers)) if self.random.random() < 0.4 else None
        for broker in self.brokers.values():
            if broker.disk is not None:
                broker.disk.hangs = False
            resume(broker)
            if broker.node == off:
                broker.crash()
            elif not broker.is_alive:
                broker.start()
            if broker.is_draining:
                broker.crash()
                broker.start()

    def check_rest(self) -> None:
        """What has come to rest has a leader, and all that can be is in sync and committed."""
        record, topic = self.record, self.truth.of(self.topic_id)
        alive = {node for node, broker in self.brokers.items() if broker.is_alive}
        able = {node for node in alive if self._is_complete(node)}
        leader = self.brokers.get(record.leader)
        if not able:
            return
        if leader is None or not leader.is_leading:
            self.truth.fail("no leader, although {} are complete: {}, alarms {}", able, record, self.alarms[-3:])
        members = {node for node in record.replicas if node in alive}
        if not members <= set(record.isr):
            self.truth.fail("{} are alive, and not all in sync: {}, alarms {}", members, record, self.alarms[-3:])
        replica = leader.replica
        assert replica is not None
        if len(record.isr) >= record.required:
            require(
                replica.log.high_watermark >= replica.log.end - 3, "what is written is not committed: {}", replica.log
            )
            require(bool(leader.applied), "the coordinator at {} is not loaded", leader.node)
        for (producer, sequence), offset in topic.acknowledged.items():
            entry = leader.disk.entries[offset] if leader.disk is not None else None
            if entry is not None and (entry.producer, entry.sequence) != (producer, sequence):
                self.truth.fail("{} of {} was acknowledged, and is gone", sequence, producer)

    def _is_complete(self, node: int) -> bool:
        """Return whether a broker has all that is committed on a sound disk, and was never told to lose it."""
        disk, topic = self.brokers[node].disk, self.truth.of(self.topic_id)
        if disk is None or disk.topic_id != self.topic_id or disk.is_known_damaged or node not in self.record.replicas:
            return False
        return node in self.record.eligible and node not in self.truth.lost and disk.flushed >= len(topic.committed)


def resume(broker: FakeBroker) -> None:
    """Let a process go on that was stopped: what has come meanwhile is handled now."""
    if broker.is_alive and broker.is_paused:
        broker.is_paused = False
        inbox, broker.inbox = broker.inbox, []
        for call in inbox:
            broker.world.at(1, lambda call=call: broker.world._hand_to(broker, call))  # type: ignore[misc]


# The faults. Each takes what it does by chance from its own source.


def _crash(world: World, broker: FakeBroker, chance: Random) -> None:
    broker.crash()
    world.at(chance.choice((1, 50, 400, 900)), broker.start)


def _power_cut(world: World, _: FakeBroker, chance: Random) -> None:
    for broker in world.brokers.values():
        broker.crash()
        world.at(chance.choice((1, 20, 100, 600)), broker.start)


def _stop(world: World, broker: FakeBroker, chance: Random) -> None:
    """Stop cleanly: what it leads is handed over first."""
    if broker.is_alive and broker.replica is not None and not broker.is_draining:
        broker.is_draining = True
        world.at(1, lambda: _drain(world, broker, broker.life, 6))
        world.at(400 + chance.randint(1, 300), broker.start)


def _drain(world: World, broker: FakeBroker, life: int, rounds: int) -> None:
    if broker.life != life or not broker.is_alive:
        return
    if rounds and broker.is_leading and not broker.is_paused:
        broker.do(ev.HandOverAsked())
        world.at(25, lambda: _drain(world, broker, life, rounds - 1))
    else:
        broker.close()


def _pause(world: World, broker: FakeBroker, chance: Random) -> None:
    if broker.is_alive and not broker.is_paused:
        broker.is_paused = True
        world.at(chance.choice((20, 100, 300, 600)), lambda: resume(broker))


def _cut(world: World, broker: FakeBroker, chance: Random) -> None:
    other = chance.choice(list(world.brokers))
    links = {(broker.node, other), (other, broker.node)} if chance.random() < 0.7 else {(broker.node, other)}
    world.cut_links |= links
    world.at(chance.choice((30, 200, 600)), lambda: world.cut_links.difference_update(links))


def _reset(world: World, broker: FakeBroker, chance: Random) -> None:
    other = chance.choice(list(world.brokers))
    for link in ((broker.node, other), (other, broker.node)):
        world.generation[link] = world.generation.get(link, 0) + 1


def _slow_watch(world: World, broker: FakeBroker, chance: Random) -> None:
    world.watch_lag_ms[broker.node] = chance.choice((50, 300, 800))
    world.at(chance.choice((200, 800)), lambda: world.watch_lag_ms.pop(broker.node, None))


def _replay_watch(world: World, broker: FakeBroker, chance: Random) -> None:
    """Let a watch send what it has sent before."""
    if broker.is_alive and not broker.is_paused and broker.replica is not None:
        old = [change for change in world.etcd.history if change.key == record_key(broker.topic_id)]
        for change in chance.sample(old, min(2, len(old))):
            if change.revision <= broker.view_revision and change.item.value is not None:
                broker.do(ev.RecordSeen(change.item.value, change.revision))


def _compact_store(world: World, _: FakeBroker, __: Random) -> None:
    world.etcd.compact()


def _store_away(world: World, _: FakeBroker, chance: Random) -> None:
    world.etcd_down_until_ms = world.now_ms + chance.choice((50, 300, 900))


def _revoke_lease(world: World, broker: FakeBroker, _: Random) -> None:
    key = broker_key(broker.node)
    if key in world.etcd.items:
        world._apply(Txn({key: None}))


def _late_lease(world: World, broker: FakeBroker, _: Random) -> None:
    key = broker_key(broker.node)
    if key in world.etcd.leases:
        world.etcd.leases[key] += 3 * world.ttl_ms


def _hang_disk(world: World, broker: FakeBroker, chance: Random) -> None:
    disk = broker.disk
    if disk is not None:
        disk.hangs = True

        def end() -> None:
            disk.hangs = False

        world.at(chance.choice((100, 600, 2000)), end)


def _may_lose(world: World, broker: FakeBroker) -> bool:
    return (
        broker.disk is not None
        and broker.disk.topic_id == world.topic_id
        and world.truth.has_other_copy(world.topic_id, {broker.node})
    )


def _loses(world: World, broker: FakeBroker) -> None:
    world.truth.lost[broker.node] = world.etcd.get(broker_key(broker.node)).created


def _wipe(world: World, broker: FakeBroker, chance: Random) -> None:
    """Delete a data directory while its broker is down."""
    if _may_lose(world, broker):
        broker.crash()
        broker.disk = None
        world.truth.changed(broker, 0)
        _loses(world, broker)
        world.at(chance.choice((1, 20, 300)), broker.start)


def _damage(world: World, broker: FakeBroker, chance: Random) -> None:
    """Let bits flip below the high watermark; a read finds that."""
    disk = broker.disk
    if disk is None or disk.high_watermark <= disk.start or not _may_lose(world, broker):
        return
    offset = chance.randrange(disk.start, disk.high_watermark)
    disk.damaged.add(offset)
    world.truth.changed(broker, offset)
    _loses(world, broker)
    broker.soon(0, lambda: broker.fail("bits have flipped"))


def _fail_flush(world: World, broker: FakeBroker, _: Random) -> None:
    """Let the disk refuse a flush: the log cannot be trusted any more."""
    if _may_lose(world, broker):
        _loses(world, broker)
        broker.soon(0, lambda: broker.fail("a flush has failed"))


def _keep_image(world: World, broker: FakeBroker, chance: Random) -> None:
    """Keep a copy of the disks of a broker, or go back to one that is old enough."""
    kept = world.images.get(broker.node)
    if kept is None:
        if broker.disk is not None:
            world.images[broker.node] = (
                world.now_ms,
                (broker.disk.copy(), broker.marks, dict(broker.directories), broker.obeyed),
            )
        return
    at_ms, (disk, marks, directories, obeyed) = kept
    if at_ms + 3 * world.ttl_ms < world.now_ms and disk.topic_id == world.topic_id and _may_lose(world, broker):
        if marks.intended >= broker.marks.confirmed:
            return
        broker.crash()
        broker.disk, broker.marks, broker.directories, broker.obeyed = disk, marks, directories, obeyed
        disk.crash(chance)
        world.truth.changed(broker, 0)
        _loses(world, broker)
        del world.images[broker.node]
        world.at(chance.choice((1, 50)), broker.start)


def _old_directory(world: World, broker: FakeBroker, chance: Random) -> None:
    """Let a directory fail for good, so that the log is in another; or let the failed one come back in its place."""
    kept = world.images.get(-broker.node)
    if not _may_lose(world, broker):
        return
    if kept is None:
        world.images[-broker.node] = (world.now_ms, broker.disk)
        broker.crash()
        broker.disk = None
        broker.directories[world.topic_id] = f"other directory of {broker.node}"
    else:
        if kept[1].topic_id != world.topic_id:
            return
        broker.crash()
        broker.disk = kept[1].copy()
        broker.disk.crash(chance)
    world.truth.changed(broker, 0)
    _loses(world, broker)
    world.at(chance.choice((1, 50)), broker.start)


def _delete_records(world: World, broker: FakeBroker, chance: Random) -> None:
    disk, replica = broker.disk, broker.replica
    if disk is None or replica is None or not broker.is_leading or broker.is_paused:
        return
    if disk.high_watermark > disk.start and not replica.is_cutting:
        disk.raise_start(chance.randint(disk.start + 1, disk.high_watermark))
        broker.deleting = disk.start
        broker.do(ev.StartRaised(disk.start, disk.epochs.entries))


def _compact_log(world: World, broker: FakeBroker, _: Random) -> None:
    disk, replica = broker.disk, broker.replica
    if disk is None or replica is None or replica.is_cutting or replica.role not in (Role.LEADING, Role.FOLLOWING):
        return
    before = list(disk.entries)
    below = disk.compact()
    if below is not None:
        tombstone = before[below - 1]
        assert tombstone is not None
        world.truth.of(broker.topic_id).removed[below - 1] = tombstone.key or 0
        broker.do(ev.Compacted(below))


def _set_min_isr(world: World, _: FakeBroker, chance: Random) -> None:
    min_isr = chance.choice((1, 2, 3))
    for broker in world.brokers.values():
        if broker.replica is not None and broker.is_alive and not broker.is_paused:
            broker.do(ev.MinIsrSet(min_isr))


def _hand_over(world: World, broker: FakeBroker, chance: Random) -> None:
    if broker.is_leading and not broker.is_paused:
        broker.do(ev.HandOverAsked(chance.choice((None, *world.record.isr))))


def _recreate(world: World, _: FakeBroker, chance: Random) -> None:
    if chance.random() < 0.2:
        world.create_topic()


def _out_of_range(world: World, broker: FakeBroker, chance: Random) -> None:
    """Let a follower get the answer that its log ends before its leader's begins, as errors of the moment are."""
    replica = broker.replica
    if replica is not None and replica.fetch is not None and broker.is_alive and not broker.is_paused:
        fetch = replica.fetch
        answer = ev.Answer(fetch.number, fetch.leader_epoch, fetch.offset, ev.Verdict.OUT_OF_RANGE, log_start=0)
        broker.do(ev.Answered(answer, fetch.offset))


FAULTS: dict[str, Callable[[World, FakeBroker, Random], None]] = {
    function.__name__[1:]: function
    for function in (
        _crash, _power_cut, _stop, _pause, _cut, _reset, _slow_watch, _replay_watch, _compact_store, _store_away,
        _revoke_lease, _late_lease, _hang_disk, _wipe, _damage, _fail_flush, _keep_image, _old_directory,
        _delete_records, _compact_log, _set_min_isr, _hand_over, _recreate, _out_of_range,
    )
}  # fmt: skip


def simulate(seed: int, events: int) -> None:
    """Raise Violation, or AssertionError, if an invariant does not hold in the simulation of this seed."""
    World(seed).run(events)


def shrunk(seed: int, events: int) -> World | None:
    """Return a world that fails with as few faults as simple trials give; None if this seed does not fail."""
    skipped: frozenset[int] = frozenset()
    world = _failing(seed, events, skipped)
    if world is None:
        return None
    for number, _, _ in reversed(world.happened):
        smaller = _failing(seed, events, skipped | {number})
        if smaller is not None:
            skipped, world = skipped | {number}, smaller
    return world


def _failing(seed: int, events: int, skipped: frozenset[int]) -> World | None:
    world = World(seed, skipped)
    try:
        world.run(events)
    except (Violation, AssertionError):
        return world
    return None
