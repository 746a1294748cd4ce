"""Brokers with one partition, a network, disks and a store, and everything that can happen to them.

One seed decides everything. A heap has what happens next; each seed has its own mix of faults. After the last event
everything is healed, and has to come to rest.
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from unit.broker.coordinator.group.simulation.checks import Violation, require
from unit.broker.replication.simulation.broker import FakeBroker
from unit.broker.replication.simulation.disk import NO_EPOCH, Entry, FakeDisk
from unit.broker.replication.simulation.etcd import ABSENT, TOPIC, FakeEtcd, Item, Txn, broker_key, record_key
from unit.broker.replication.simulation.faults import FAULTS, PHASES, resume
from unit.broker.replication.simulation.truth import TopicTruth, Truth
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.record import NO_LEADER, PartitionRecord

TIMES = ev.Times(lag_ms=400, confirmation_ms=100, rank_ms=15, grace_ms=100, flush_ms=200, hand_over_ms=40, retry_ms=20)
PRODUCERS = 3
SEEDS_WITH_PHASES = (1, 4)
"""Two of five: few brokers, a store whose responses are often lost, and faults that come in phases."""


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
        self.times = replace(TIMES, grace_ms=self.random.choice((0, 100)))
        self.now_ms = 0
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.happened: list[tuple[int, int, str]] = []
        """The faults: number, time, what."""
        self.alarms: list[tuple[int, str]] = []
        self.is_calm = False
        self.hung: int | None = None
        """A leader whose disk hangs for ever."""
        self.etcd = FakeEtcd()
        self.truth = Truth(self)
        self.etcd_down_until_ms = 0
        self.unknown = self.random.choice((0.0, 0.03, 0.2))
        self.doubled = self.random.choice((0.0, 0.03, 0.15))
        self.usual_lag_ms = self.random.choice((0, 0, 40))
        self.watch_lag_ms: dict[int, int] = {}
        self.isolated: set[int] = set()
        self.unheard: dict[int, int] = {}
        """Brokers whose writes are applied so many milliseconds late, and which do not get the responses."""
        self.cut_links: set[tuple[int, int]] = set()
        self.generation: dict[tuple[int, int], int] = {}
        self.last_arrival: dict[tuple[int, int], int] = {}
        self.has_phases = seed % 5 in SEEDS_WITH_PHASES
        if self.has_phases:
            self.times = replace(TIMES, grace_ms=0)
            self.unknown = self.random.choice((0.0, 0.2, 0.5))
        nodes = self.random.choice((2, 2, 3) if self.has_phases else (2, 3, 3, 3, 3, 4))
        self.brokers = {node: FakeBroker(self, node) for node in range(1, nodes + 1)}
        self.images: dict[int, tuple[int, Any]] = {}
        self.topic_number = 0
        self.topic_id = ""
        self.sequences: dict[int, int] = {}
        self.sent_ms: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        self.producer_ids = 1000
        self.create_topic()
        self.kinds = self.random.sample(list(FAULTS), self.random.randint(3, 7))
        self.fault_pause_ms = self.random.choice((30, 60, 120))
        self.client_pause_ms = 6
        if self.has_phases:
            self.kinds = [*self.random.sample(list(PHASES), 2), self.kinds[0]]
            self.fault_pause_ms = self.random.choice((60, 120, 240))
            self.client_pause_ms = self.random.choice((6, 6, 30))

    # The topic.

    def create_topic(self) -> None:
        """Create the topic, with another id if there is one; in some seeds with batches of before there were epochs."""
        self.topic_number += 1
        self.topic_id = f"topic {self.topic_number}"
        replicas = self.random.sample(list(self.brokers), min(3, len(self.brokers)))
        min_isr = self.random.choice((1, 2) if self.has_phases else (1, 2, 2))
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
        is_lost, life = self._is_cut_off(broker), broker.life
        fate = self.random.random()
        if broker.node in self.unheard:
            self.at(self.unheard[broker.node] + self.short(), lambda: self._arrive(txn))
            broker.soon(60, lambda: then(ev.Outcome.UNKNOWN, ABSENT))
            return
        if (is_lost or fate < self.unknown) and not self.is_calm:
            if fate < self.unknown * 0.7:
                self.at(self.random.choice((2, 100, 300, 700)), lambda: self._arrive(txn))
            if fate < self.unknown * 0.4:
                self.slow_watch(broker.node, 300, 500)
            broker.soon(60, lambda: then(ev.Outcome.UNKNOWN, ABSENT))
            return

        def arrive() -> None:
            is_applied, item = self._arrive(txn)
            outcome = ev.Outcome.SUCCEEDED if is_applied else ev.Outcome.FAILED
            broker.soon(self.short(), lambda: then(outcome, item), life)

        self.at(self.short(), arrive)

    def _is_cut_off(self, broker: FakeBroker) -> bool:
        """Return whether a broker does not reach the store."""
        return self.now_ms < self.etcd_down_until_ms or broker.node in self.isolated

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
            lag_ms = self.watch_lag_ms.get(broker.node, 0 if self.is_calm else self.usual_lag_ms) + self.short()
            broker.soon(lag_ms, lambda broker=broker: broker.watched(revision))  # type: ignore[misc]

    def read(self, broker: FakeBroker, then: Callable[[dict[Any, Item], int], None]) -> None:
        """Read everything at one revision; later, if the store is away."""
        life = broker.life

        def arrive() -> None:
            if self._is_cut_off(broker):
                broker.soon(50, lambda: self.read(broker, then), life)
                return
            items, revision = dict(self.etcd.items), self.etcd.revision
            broker.soon(self.short(), lambda: then(items, revision), life)

        self.at(self.short(), arrive)

    def renew(self, broker: FakeBroker) -> None:
        life = broker.life

        def arrive() -> None:
            key = broker_key(broker.node)
            if self._is_cut_off(broker):
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

    def slow_watch(self, node: int, lag_ms: int, for_ms: int) -> None:
        """Let a broker hear late of what is stored."""
        self.watch_lag_ms[node] = lag_ms
        self.at(for_ms, lambda: self.watch_lag_ms.pop(node, None))

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
        if not self.is_calm and self.random.random() < self.doubled:
            self.at(self.random.randint(5, 300), lambda: self._hand_to(broker, lambda: broker.received(message)))

    def _hand_to(self, broker: FakeBroker, call: Callable[[], None]) -> None:
        if broker.is_alive and broker.is_paused:
            broker.inbox.append(call)
        elif broker.is_alive:
            call()

    # Clients.

    def client(self) -> None:
        """Let a producer, or a reader, go on."""
        self.at(self.client_pause_ms, self.client)
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
        key = sequence % 3 if sequence % 2 == 0 else None
        broker.produce(producer, sequence, key, is_tombstone=sequence % 4 == 0)

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
            (FAULTS | PHASES)[kind](self, self.brokers[node], chance)

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
        for _ in range(25):
            self._until(self.now_ms + 120)
            if self._is_at_rest():
                return
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
        self.isolated.clear()
        self.unheard.clear()
        self.watch_lag_ms.clear()
        self.etcd_down_until_ms = 0
        self.images.clear()
        off = self.random.choice(list(self.brokers)) if self.random.random() < 0.4 else None
        if len(self.record.isr) < self.record.required and self.random.random() < 0.5:
            off = self.record.leader
        for broker in self.brokers.values():
            if broker.disk is not None and broker.disk.hangs:
                if off is None and broker.is_leading and len(self.record.isr) > 1 and not broker.is_paused:
                    self.hung, off = broker.node, 0
                else:
                    broker.disk.hangs = False
            resume(broker)
            if broker.node == off:
                broker.crash()
            elif not broker.is_alive:
                broker.start()
            if broker.is_draining:
                broker.crash()
                broker.start()

    def _is_at_rest(self) -> bool:
        try:
            self.check_rest()
        except Violation:
            return False
        return True

    def check_rest(self) -> None:
        """What has come to rest has a leader, and all that can be is in sync and committed."""
        record, topic = self.record, self.truth.of(self.topic_id)
        alive = {node for node, broker in self.brokers.items() if broker.is_alive}
        able = {node for node in alive & topic.able if self._is_sound(node)}
        leader = self.brokers.get(record.leader)
        if not able:
            return
        if leader is None or not leader.is_leading or leader.node == self.hung:
            self.truth.fail("no leader, although {} are complete: {}, alarms {}", able, record, self.alarms[-3:])
        members = {node for node in record.replicas if node in alive and node != self.hung}
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

    def _is_sound(self, node: int) -> bool:
        """Return whether the disk of a broker has lost nothing."""
        disk = self.brokers[node].disk
        is_log = disk is not None and disk.topic_id == self.topic_id and not disk.is_known_damaged
        return is_log and node not in self.truth.lost


def simulate(seed: int, events: int) -> None:
    """Raise Violation, or AssertionError, if an invariant does not hold in the simulation of this seed."""
    World(seed).run(events)


def shrunk(seed: int, events: int) -> list[str]:
    """Return the faults that it takes for the finding of this seed, about: as few as leaving out one by one gives."""
    skipped: frozenset[int] = frozenset()
    found = _failing(seed, events, skipped)
    for number, _, _ in reversed(found):
        smaller = _failing(seed, events, skipped | {number})
        if smaller:
            skipped, found = skipped | {number}, smaller
    return [f"{at_ms} ms: {what}" for number, at_ms, what in found if number not in skipped]


def _failing(seed: int, events: int, skipped: frozenset[int]) -> list[tuple[int, int, str]]:
    """Return the faults of a simulation that finds something; none if it finds nothing."""
    world = World(seed, skipped)
    try:
        world.run(events)
    except (Violation, AssertionError):
        return world.happened
    return []
