"""The shell of one replica: it starts as a broker does, carries out what `step` asks for, and fails at any moment."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from unit.broker.replication.simulation.disk import Entry, FakeDisk
from unit.broker.replication.simulation.etcd import ABSENT, TOPIC, Item, Txn, broker_key, node_key, record_key
from unit.broker.replication.simulation.start import Start
from unit.broker.replication.simulation.values import (
    Poll,
    Polled,
    Question,
    Registration,
    Waiting,
    epochs_of,
    session_of,
)
from warmlog_broker.replication import events as ev
from warmlog_broker.replication import leading
from warmlog_broker.replication.membership import Mark, NodeMarks
from warmlog_broker.replication.replica import Replica, Role, accepts_appends
from warmlog_broker.replication.step import step

if TYPE_CHECKING:
    from unit.broker.replication.simulation.world import World

BATCHES_AN_ANSWER = 4
COPIES_UNTIL_FULL = 40
POLLED = 0.25
"""So many ticks of a follower also tell that its fetch is under way, but in most of the seeds that look for rules."""
SEEDS_THAT_BEGIN_WITHIN_A_BATCH = 6
"""Every thirteenth: an emptied log begins where the first batch does that it gets, as if that held the log's start."""
SEEDS_WITH_FULL_DISKS = 5
"""Every fifth."""


class FakeBroker:
    """One broker; `disk`, `marks`, `directories`, `obeyed` and `was_closed` survive it."""

    def __init__(self, world: "World", node: int) -> None:
        self.world = world
        self.node = node
        self.disk: FakeDisk | None = None
        self.marks = NodeMarks()
        self.directories: dict[str, str] = {}
        """By topic id."""
        self.obeyed = ""
        self.was_closed = False
        self.is_alive = False
        self.is_paused = False
        self.is_draining = False
        self.inbox: list[Callable[[], None]] = []
        self.life = 0
        self.marked_at = 0
        self._forget()

    def _forget(self) -> None:
        self.replica: Replica | None = None
        self.topic_id = ""
        self.seen = ABSENT
        self.is_leaving = False
        """Whether the log is being removed, as other brokers have the partition now."""
        self.view_revision = 0
        self.sessions: dict[int, ev.Session] = {}
        self.held: dict[int, tuple[ev.Fetch, int]] = {}
        self.echoes: dict[int, Poll] = {}
        self.polled = Polled(-1, ev.NEVER)
        self.told: dict[int, int] = {}
        self.waiting: list[Waiting] = []
        self.questions: list[Question] = []
        self.applied: int | None = None
        """What the coordinator has applied of the log, if it is loaded."""
        self.incoming: list[Entry | None] = []
        self.is_registering = False
        self.failed_at = 0
        """The newest revision that a failed write has shown."""
        self.deleting = 0
        """Below this offset DeleteRecords has been asked for."""
        self.later: list[ev.Event] = []

    # How the world reaches it.

    def soon(self, delay_ms: int, call: Callable[[], None], life: int | None = None) -> None:
        """Call this after a while, if it is the same process then; when it goes on, if it is paused."""
        life = self.life if life is None else life

        def run() -> None:
            if self.life == life and self.is_alive:
                if self.is_paused:
                    self.inbox.append(run)
                else:
                    call()

        self.world.at(delay_ms, run)

    def write(self, txn: Txn, then: Callable[[Item], None]) -> None:
        """Apply a transaction, after an unknown outcome again; `then` gets what is there, applied or not."""

        def done(outcome: ev.Outcome, item: Item) -> None:
            if outcome is ev.Outcome.UNKNOWN:
                self.soon(30, lambda: self.write(txn, then))
            else:
                then(item)

        self.world.call(self, txn, done)

    def crash(self) -> None:
        if not self.is_alive:
            return
        self.stop_serving()
        self.was_closed = False
        if self.disk is not None:
            self.disk.crash(self.world.random)
            self.world.truth.changed(self, self.disk.end)

    def stop_serving(self) -> None:
        self.is_alive = self.is_paused = False
        self.inbox.clear()
        self._forget()

    def close(self) -> None:
        """Stop cleanly: everything is flushed."""
        if not self.is_alive or self.is_paused or self.replica is None or self.disk is None or self.disk.hangs:
            self.crash()
            return
        self.disk.flushed = self.disk.end
        self.disk.stored_high_watermark = self.disk.high_watermark
        self.disk.flush_offset = None
        self.stop_serving()
        self.was_closed = True

    # A start, and the registration that ends it.

    def start(self) -> None:
        if self.is_alive:
            return
        self.life += 1
        self.is_alive, self.is_draining = True, False
        self.soon(self.world.short(), Start(self).begin)

    def make_log(self, topic_id: str) -> None:
        directory = self.directories.setdefault(topic_id, f"directory of {self.node}")
        self.disk = FakeDisk(topic_id, directory)
        self.world.truth.changed(self, 0)

    def unregister(self, then: Callable[[], None]) -> None:
        """Delete the registration, whatever it is: this broker alone writes it."""
        key = broker_key(self.node)
        self.write(Txn({key: None}), lambda _: then())

    def register(self, *, is_first: bool) -> None:
        """Delete the registration of before, and create one."""
        if self.is_registering:
            return
        self.is_registering = True
        key = broker_key(self.node)
        value = Registration(self.life, not self.is_draining, self.was_closed)

        def created(item: Item) -> None:
            if item.value == value:
                self._list(is_first=is_first)
            else:
                self.is_registering = False
                self.soon(20, lambda: self.register(is_first=is_first))

        self.unregister(lambda: self.write(Txn({key: value}, created={key: 0}), created))

    def _list(self, *, is_first: bool) -> None:
        """Read everything, and watch from there."""

        def listed(items: Mapping[Any, Item], revision: int) -> None:
            self.is_registering = False
            if revision < self.view_revision:
                return
            self.view_revision = revision
            self.sessions = {
                key[1]: session_of(item) for key, item in items.items() if isinstance(key, tuple) and key[0] == "broker"
            }
            topic_id = items[TOPIC].value
            if (self.replica is None and not self.is_leaving) or topic_id != self.topic_id:
                self._take_topic(topic_id)
            item = items.get(record_key(topic_id))
            if item is not None:
                self._see_record(topic_id, item)
            self._see_sessions()
            if is_first:
                self.was_closed = False
                self.soon(self.world.random.randint(1, self.world.tick_ms), self.tick)
                self.soon(self.world.ttl_ms // 3, self.keep_alive)
                self.soon(self.world.ttl_ms, self.beat)

        self.world.read(self, listed)

    def _take_topic(self, topic_id: str) -> None:
        """Serve the topic with this id. The log of one that was deleted goes."""
        if self.replica is not None:
            self.do(ev.RecordSeen(None, self.view_revision))
        if self.disk is None or not self.disk.is_of(topic_id):
            self.make_log(topic_id)
        assert self.disk is not None
        self.disk.topic_id = topic_id
        self.topic_id = topic_id
        self._serve(self.disk)

    def _serve(self, disk: FakeDisk) -> None:
        self.is_leaving = False
        self.failed_at = 0
        self.later.clear()
        self.held.clear()
        self.questions.clear()
        self.replica = Replica(self.node, self.life, disk.bounds, self.world.times, self.obeyed)
        self.replica.removed_below = disk.removed_below
        if disk.is_known_damaged:
            self.later.append(ev.Failed("the log has damage"))

    def _leave(self) -> None:
        """Remove the log of a partition that other brokers have now: if it comes back, it begins with an empty one."""
        topic_id = self.topic_id
        self.do(ev.RecordSeen(None, self.view_revision))
        self.replica, self.is_leaving = None, True

        def noted() -> None:
            self.directories.pop(topic_id, None)
            self.soon(self.world.flush_delay(), gone)

        def gone() -> None:
            if self.topic_id == topic_id:
                self.make_log(topic_id)
                assert self.disk is not None
                self._serve(self.disk)
                self._see_sessions()
                self._see_record(topic_id, self.seen)

        self.soon(self.world.flush_delay(), noted)

    # What happens to it.

    def watched(self, revision: int) -> None:
        """Take in what the watch has up to a revision: one revision after the other."""
        if self.view_revision == 0:
            return
        since = self.world.etcd.since(self.view_revision)
        if since is None:
            self._list(is_first=False)
            return
        for change in list(since):
            if change.revision > revision:
                break
            self.view_revision = change.revision
            self._see(change.key, change.item)

    def _see(self, key: Any, item: Item) -> None:
        if key == TOPIC:
            self._take_topic(item.value)
            self._see_sessions()
        elif key[0] == "broker":
            if item.value is None:
                self.sessions = {node: each for node, each in self.sessions.items() if node != key[1]}
            else:
                self.sessions = {**self.sessions, key[1]: session_of(item)}
            self._see_sessions()
            if key[1] == self.node and item.value is None and self.replica is not None:
                self.register(is_first=False)
        elif key == record_key(self.topic_id):
            self._see_record(self.topic_id, item)

    def _see_sessions(self) -> None:
        own = self.sessions.get(self.node)
        if self.replica is not None:
            self.do(ev.SessionsSeen(self.sessions, own.broker_epoch if own is not None else 0))

    def _see_record(self, topic_id: str, item: Item) -> None:
        if topic_id != self.topic_id:
            return
        self.seen = item
        if self.replica is not None:
            self.do(ev.RecordSeen(item.value, item.changed))
            is_elsewhere = item.value is not None and self.node not in self.replica.record.replicas
            if is_elsewhere and self.disk is not None and self.disk.end:
                self._leave()

    def received(self, message: tuple[str, Any, list[Entry | None]]) -> None:
        """Take in what another broker has sent about a topic."""
        topic_id, body, entries = message
        if self.replica is None or topic_id != self.topic_id:
            return
        match body:
            case ev.Fetch() | ev.Report():
                self.do(body)
            case ev.Answer():
                self.incoming = entries
                if entries and body.verdict is ev.Verdict.AGREES and self.disk and self.disk.waits_for_base:
                    self.do(ev.Answered(body, body.offset - 1))
                    return
                self.do(ev.Answered(body, body.offset + len(entries), epochs_of(entries, body.offset)))
            case Poll():
                if body.node in self.held and self.held[body.node][0].number == body.number:
                    self.echoes[body.node] = body
                    self.world.send(self.node, body.node, (topic_id, Polled(body.number, self.world.now_ms), []))
            case Polled():
                self.polled = body

    def tick(self) -> None:
        self.soon(self.world.tick_ms, self.tick)
        if self.replica is None or self.disk is None:
            return
        if self.world.random.random() < 0.2:
            self.disk.stored_high_watermark = self.disk.high_watermark
        fetch, heard_ms = self.replica.fetch, ev.NEVER
        if fetch is not None and self.replica.record.leader != self.node:
            if self.polled.number == fetch.number:
                heard_ms = self.polled.sent_ms
            is_polling = self.world.seed > 200 or self.world.seed % 11 == 6
            if is_polling and self.world.random.random() < POLLED:
                poll = Poll(self.node, fetch.number, heard_ms)
                self.world.send(self.node, self.replica.record.leader, (self.topic_id, poll, []))
        echoes = {
            node: self.echoes[node].echo_ms
            for node, (held, _) in self.held.items()
            if node in self.echoes and self.echoes[node].number == held.number
        }
        self.do(ev.Ticked(heard_ms, echoes))

    def keep_alive(self) -> None:
        """Renew the lease."""
        self.soon(self.world.ttl_ms // 3, self.keep_alive)
        self.world.renew(self)

    def register_again(self) -> None:
        """The lease is gone."""
        if self.replica is not None and self.world.etcd.get(broker_key(self.node)).value is None:
            self.register(is_first=False)

    def beat(self) -> None:
        """Write the next mark."""
        following = Mark(self.marks.intended.incarnation, self.marks.intended.beat + 1)
        self.marks = replace(self.marks, intended=following)
        key = node_key(self.node)

        def marked(item: Item) -> None:
            assert item.value == following, "no other process writes this mark"
            self.marked_at = item.changed
            self.marks = replace(self.marks, confirmed=following)
            self.soon(self.world.ttl_ms, self.beat)

        self.write(Txn({key: following}, changed={key: self.marked_at}), marked)

    def fail(self, reason: str) -> None:
        """Find out that the disk is not to be trusted."""
        if self.disk is not None:
            self.disk.is_known_damaged = True
            if self.replica is not None and self.topic_id == self.disk.topic_id:
                self.do(ev.Failed(reason))

    def produce(self, producer: int, sequence: int, key: int | None, *, is_tombstone: bool) -> None:
        """Append a batch of a producer, or find the one that is there."""
        replica, disk = self.replica, self.disk
        if replica is None or disk is None or not accepts_appends(replica):
            return
        waits_for_all = self.world.random.random() < 0.7
        if (waits_for_all and len(replica.record.isr) < replica.record.required) or replica.is_cutting:
            return
        last, offset = disk.producers.get(producer, (0, -1))
        if not last and self.world.has_sent(producer) and (disk.start or disk.removed_below):
            self.world.replace_producer(producer)
            return
        if sequence > last + 1 or sequence < last:
            self.world.truth.out_of_order(self, producer, sequence, last)
            return
        if sequence == last + 1:
            entry = Entry(replica.epoch, producer, sequence, key, is_tombstone)
            offset = disk.append(entry)
            self.world.truth.appended(self, entry, offset)
            self._flush()
            self.do(ev.Produced(disk.end))
        self.waiting.append(Waiting(offset, producer, sequence))
        self._commit_waiting()

    def ask(self, floor: int) -> None:
        """Ask for the latest offset, which must not go back."""
        if self.replica is not None and leading.is_known(self.replica) and len(self.questions) < 5:
            self.questions.append(Question(self.world.now_ms, floor))
            self._answer_held()

    def delete_records(self, offset: int) -> None:
        """Remove what is before the offset, as the leader; `deleting` is answered when that cannot come back."""
        assert self.disk is not None
        self.disk.raise_start(offset)
        self.deleting = offset
        self.do(ev.StartRaised(offset, self.disk.epochs.entries))

    # What it does.

    def do(self, event: ev.Event) -> None:
        """Let the replica take its turn, and carry out what follows."""
        self.later.append(event)
        while self.later and self.replica is not None:
            before = self.replica
            self.replica, actions = step(before, self.later.pop(0), self.world.now_ms)
            self._take_role(before, self.replica)
            for action in actions:
                if isinstance(action, ev.Append) and not self._append():
                    break
                self._perform(action)
            if self.disk is not None and any(isinstance(action, ev.RaiseStart) for action in actions):
                # After what came with it is appended: a broker raises the start in a task.
                self.later.append(ev.StartRaised(self.disk.start, self.disk.epochs.entries))
            self._load()
        if self.replica is not None:
            self._answer_held()
            self._answer_questions()
            if self.deleting and leading.deleted_below(self.replica) >= self.deleting:
                self.world.truth.delete(self.topic_id, self.deleting)
                self.deleting = 0
            self.world.truth.check_broker(self)

    def _take_role(self, before: Replica, now: Replica) -> None:
        """Begin to lead, or cease to."""
        led, leads = (each.epoch if each.role is Role.LEADING else None for each in (before, now))
        if leads == led:
            return
        if led is not None:
            self.deleting = 0
            self.waiting.clear()
            self.questions.clear()
            self.applied = None
            self.held.clear()
        if leads is not None:
            assert self.disk is not None
            self.world.truth.leads(self, leads)
            self.disk.begin_epoch(leads)

    def _load(self) -> None:
        """Let the coordinator read the log once it is known what the leaders before have committed."""
        replica = self.replica
        if self.applied is None and replica is not None and replica.leading is not None and leading.is_known(replica):
            self.applied = max(replica.leading.epoch_start, replica.log.high_watermark)

    def _perform(self, action: ev.Action) -> None:
        disk, replica, world = self.disk, self.replica, self.world
        assert disk is not None
        assert replica is not None
        match action:
            case ev.Write():
                self._write(action)
            case ev.Send(to, message):
                world.send(self.node, to, (self.topic_id, message, list[Entry | None]()))
            case ev.Hold(fetch):
                self.held[fetch.node] = (fetch, world.now_ms)
            case ev.Register():
                self.register(is_first=False)
            case ev.ReadRecord():
                began_ms, topic_id = world.now_ms, self.topic_id
                world.read(self, lambda items, _: self._read(items, topic_id, began_ms))
            case ev.Obey(recovering):
                self.obeyed = recovering
            case ev.Alarm(text):
                world.alarms.append((self.node, text))
            case _:
                self._perform_on_disk(action, disk)

    def _append(self) -> bool:
        """Append what has come; in some seeds the disk takes only a part of it now and then."""
        disk = self.disk
        assert disk is not None
        disk.copies += 1
        if self.world.seed % SEEDS_WITH_FULL_DISKS or disk.copies % COPIES_UNTIL_FULL:
            disk.append_copy(self.incoming)
            self._flush()
            return True
        taken = self.incoming[: len(self.incoming) // 2]
        while taken and taken[-1] is None:
            taken.pop()  # a log ends with a batch
        disk.append_copy(taken)
        self.later.append(ev.NotAppended(disk.bounds))
        return False

    def _perform_on_disk(self, action: ev.Action, disk: FakeDisk) -> None:
        match action:
            case ev.Flush():
                self._flush()
            case ev.Truncate(end):
                self._later_cut(lambda: disk.cut(end), end)
            case ev.Empty(start, removed_below, base):
                waits_for_base = base is None and start > 0 and self.world.seed % 13 == SEEDS_THAT_BEGIN_WITHIN_A_BATCH
                removed_below = removed_below if base is None else disk.removed_below
                self._later_cut(lambda: disk.empty(start, removed_below, waits_for_base=waits_for_base), 0)
            case ev.Commit(high_watermark):
                self.world.truth.commits(self, disk.high_watermark, high_watermark)
                disk.high_watermark = high_watermark
                if self.applied is not None:
                    self.applied = high_watermark
                self._commit_waiting()
            case ev.RaiseStart(start):
                disk.raise_start(start)

    def _read(self, items: Mapping[Any, Item], topic_id: str, began_ms: int) -> None:
        item = items.get(record_key(topic_id))
        if item is not None and topic_id == self.topic_id:
            self.do(ev.RecordSeen(item.value, item.changed, began_ms))

    def _write(self, write: ev.Write) -> None:
        key, topic_id = record_key(self.topic_id), self.topic_id
        if write.revision < self.failed_at:
            self.world.truth.fail("node {} writes on {}, and was told of {}", self.node, write.revision, self.failed_at)
        created = {broker_key(node): epoch for node, epoch in write.sessions.items()}
        txn = Txn({key: write.record}, changed={key: write.revision}, created=created)

        def done(outcome: ev.Outcome, item: Item) -> None:
            if topic_id == self.topic_id:
                self.failed_at = max(self.failed_at, item.changed)
                self.do(ev.Written(write.number, outcome, item.changed, item.value))

        self.world.call(self, txn, done)

    def _flush(self) -> None:
        """Begin a flush, unless one is under way: it takes what is there when it begins."""
        disk = self.disk
        assert disk is not None
        if disk.flush_offset is not None:
            return
        disk.flush_offset = disk.end
        end, truncations = disk.end, disk.truncations

        def done() -> None:
            if self.disk is not disk:
                return
            if disk.hangs:
                self.soon(self.world.tick_ms, done)
                return
            disk.flush_offset = None
            if disk.truncations == truncations:
                disk.flushed = max(disk.flushed, end)
            self.do(ev.Flushed(end, truncations))
            if disk.end > end or disk.truncations != truncations:
                self._flush()

        self.soon(self.world.flush_delay(), done)

    def _later_cut(self, cut: Callable[[], None], end: int) -> None:
        disk = self.disk
        assert disk is not None

        def done() -> None:
            if self.disk is disk:
                cut()
                self.world.truth.changed(self, end)
                self.do(ev.Cut(disk.bounds))
                self.do(ev.Compacted(disk.removed_below))

        self.soon(self.world.flush_delay(), done)

    def _answer_held(self) -> None:
        """Answer fetches that there is something to say to."""
        replica, disk = self.replica, self.disk
        if replica is None or disk is None or replica.leading is None:
            return
        for node, (fetch, since_ms) in list(self.held.items()):
            is_news = replica.log.end > fetch.offset or replica.log.high_watermark > self.told.get(node, -1)
            if is_news or self.questions or self.world.now_ms - since_ms >= self.world.hold_ms:
                del self.held[node]
                answer = leading.answer(replica, fetch, self.world.now_ms)
                end = fetch.offset + BATCHES_AN_ANSWER if answer.verdict is ev.Verdict.AGREES else fetch.offset
                while end < disk.end and end > fetch.offset and disk.entries[end - 1] is None:
                    end += 1  # a log ends with a batch
                self.told[node] = replica.log.high_watermark
                self.world.send(self.node, node, (self.topic_id, answer, disk.entries[fetch.offset : end]))

    def _answer_questions(self) -> None:
        replica = self.replica
        if replica is None or not self.questions:
            return
        for question in list(self.questions):
            if leading.is_confirmed(replica, question.asked_ms, self.world.now_ms):
                self.questions.remove(question)
                self.world.truth.answered(self, question.floor)

    def _commit_waiting(self) -> None:
        disk = self.disk
        assert disk is not None
        for each in [each for each in self.waiting if each.offset < disk.high_watermark]:
            self.waiting.remove(each)
            self.world.acknowledge(self.topic_id, each.producer, each.sequence, each.offset)

    @property
    def is_leading(self) -> bool:
        return self.replica is not None and self.replica.role is Role.LEADING
