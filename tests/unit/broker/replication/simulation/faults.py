"""What can go wrong. Each fault takes what it does by chance from its own source."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from unit.broker.replication.simulation.broker import FakeBroker
from unit.broker.replication.simulation.etcd import Txn, broker_key, record_key
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.replica import Role

if TYPE_CHECKING:
    from unit.broker.replication.simulation.world import World


def resume(broker: FakeBroker) -> None:
    """Let a process go on that was stopped: what has come meanwhile is handled now."""
    if broker.is_alive and broker.is_paused:
        broker.is_paused = False
        inbox, broker.inbox = broker.inbox, []
        for call in inbox:
            broker.world.at(1, lambda call=call: broker.world._hand_to(broker, call))  # type: ignore[misc]


def _crash(world: "World", broker: FakeBroker, chance: Random) -> None:
    broker.crash()
    world.at(chance.choice((1, 50, 400, 900)), broker.start)


def _power_cut(world: "World", _: FakeBroker, chance: Random) -> None:
    for broker in world.brokers.values():
        broker.crash()
        world.at(chance.choice((1, 20, 100, 600)), broker.start)


def _stop(world: "World", broker: FakeBroker, chance: Random) -> None:
    """Stop cleanly: what it leads is handed over first."""
    if broker.is_alive and broker.replica is not None and not broker.is_draining:
        broker.is_draining = True
        world.at(1, lambda: _drain(world, broker, broker.life, 6))
        world.at(400 + chance.randint(1, 300), broker.start)


def _drain(world: "World", broker: FakeBroker, life: int, rounds: int) -> None:
    if broker.life != life or not broker.is_alive:
        return
    if rounds and broker.is_leading and not broker.is_paused:
        broker.do(ev.HandOverAsked())
        world.at(25, lambda: _drain(world, broker, life, rounds - 1))
    else:
        broker.close()


def _pause(world: "World", broker: FakeBroker, chance: Random) -> None:
    if broker.is_alive and not broker.is_paused:
        broker.is_paused = True
        world.at(chance.choice((20, 100, 300, 600)), lambda: resume(broker))


def _isolate(world: "World", broker: FakeBroker, for_ms: int) -> None:
    """Cut a broker off from the others and from the store, where its lease ends."""
    links = {link for other in world.brokers for link in ((broker.node, other), (other, broker.node))}
    world.cut_links |= links
    world.isolated.add(broker.node)
    world.slow_watch(broker.node, for_ms, for_ms)
    _revoke_lease(world, broker, world.random)

    def end() -> None:
        world.cut_links.difference_update(links)
        world.isolated.discard(broker.node)

    world.at(for_ms, end)


def _cut(world: "World", broker: FakeBroker, chance: Random) -> None:
    other = chance.choice(list(world.brokers))
    leaders = [each for each in world.brokers.values() if each.is_leading]
    if leaders and chance.random() < 0.4:
        _isolate(world, leaders[-1], chance.choice((150, 300, 600)))
        return
    links = {(broker.node, other), (other, broker.node)} if chance.random() < 0.7 else {(broker.node, other)}
    world.cut_links |= links
    world.at(chance.choice((30, 200, 600)), lambda: world.cut_links.difference_update(links))


def _reset(world: "World", broker: FakeBroker, chance: Random) -> None:
    other = chance.choice(list(world.brokers))
    for link in ((broker.node, other), (other, broker.node)):
        world.generation[link] = world.generation.get(link, 0) + 1


def _slow_watch(world: "World", broker: FakeBroker, chance: Random) -> None:
    world.slow_watch(broker.node, chance.choice((50, 300, 800)), chance.choice((200, 800)))


def _replay_watch(world: "World", broker: FakeBroker, chance: Random) -> None:
    """Let a watch send what it has sent before."""
    if broker.is_alive and not broker.is_paused and broker.replica is not None:
        old = [change for change in world.etcd.history if change.key == record_key(broker.topic_id)]
        for change in chance.sample(old, min(2, len(old))):
            if change.revision <= broker.view_revision and change.item.value is not None:
                broker.do(ev.RecordSeen(change.item.value, change.revision))


def _compact_store(world: "World", _: FakeBroker, __: Random) -> None:
    world.etcd.compact()


def _store_away(world: "World", _: FakeBroker, chance: Random) -> None:
    world.etcd_down_until_ms = world.now_ms + chance.choice((50, 300, 900))


def _revoke_lease(world: "World", broker: FakeBroker, _: Random) -> None:
    key = broker_key(broker.node)
    if key in world.etcd.items:
        world._apply(Txn({key: None}))


def _late_lease(world: "World", broker: FakeBroker, _: Random) -> None:
    key = broker_key(broker.node)
    if key in world.etcd.leases:
        world.etcd.leases[key] += 3 * world.ttl_ms


def _hang_disk(world: "World", broker: FakeBroker, chance: Random) -> None:
    disk = broker.disk
    if disk is not None:
        disk.hangs = True

        def end() -> None:
            if broker.node != world.hung:
                disk.hangs = False

        world.at(chance.choice((100, 600, 2000)), end)


def _may_lose(world: "World", broker: FakeBroker) -> bool:
    return (
        broker.disk is not None
        and broker.disk.topic_id == world.topic_id
        and world.truth.has_other_copy(world.topic_id, {broker.node})
    )


def _loses(world: "World", broker: FakeBroker) -> None:
    world.truth.lost[broker.node] = world.etcd.get(broker_key(broker.node)).created


def _wipe(world: "World", broker: FakeBroker, chance: Random) -> None:
    """Delete a data directory while its broker is down."""
    if _may_lose(world, broker):
        broker.crash()
        broker.disk = None
        world.truth.changed(broker, 0)
        _loses(world, broker)
        world.at(chance.choice((1, 20, 300)), broker.start)


def _cutting(world: "World") -> FakeBroker | None:
    """Return a broker whose log is being cut."""
    return next((each for each in world.brokers.values() if each.replica is not None and each.replica.is_cutting), None)


def _damage(world: "World", broker: FakeBroker, chance: Random) -> None:
    """Let bits flip below the high watermark; a read finds that."""
    broker = _cutting(world) or broker
    disk = broker.disk
    if disk is None or disk.high_watermark <= disk.start or not _may_lose(world, broker):
        return
    offset = chance.randrange(disk.start, disk.high_watermark)
    disk.damaged.add(offset)
    world.truth.changed(broker, offset)
    _loses(world, broker)
    broker.soon(0, lambda: broker.fail("bits have flipped"))


def _fail_flush(world: "World", broker: FakeBroker, _: Random) -> None:
    """Let the disk refuse a flush: the log cannot be trusted any more."""
    if _may_lose(world, broker):
        _loses(world, broker)
        broker.soon(0, lambda: broker.fail("a flush has failed"))


def _keep_image(world: "World", broker: FakeBroker, chance: Random) -> None:
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


def _old_directory(world: "World", broker: FakeBroker, chance: Random) -> None:
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
        is_used = kept[1].directory == broker.directories.get(world.topic_id)  # an image has brought it back before
        if kept[1].topic_id != world.topic_id or is_used:
            return
        broker.crash()
        broker.disk = kept[1].copy()
        broker.disk.crash(chance)
    world.truth.changed(broker, 0)
    _loses(world, broker)
    world.at(chance.choice((1, 50)), broker.start)


def _delete_records(world: "World", broker: FakeBroker, chance: Random) -> None:
    disk, replica = broker.disk, broker.replica
    if disk is None or replica is None or not broker.is_leading or broker.is_paused:
        return
    other = world.brokers[chance.choice(list(world.brokers))]
    if chance.random() < 0.4 and other is not broker:
        _hang_disk(world, other, chance)
    if disk.high_watermark > disk.start and not replica.is_cutting:
        broker.delete_records(chance.randint(disk.start + 1, disk.high_watermark))


def _compact_log(world: "World", broker: FakeBroker, chance: Random) -> None:
    disk, replica = broker.disk, broker.replica
    if disk is None or replica is None or replica.is_cutting or replica.role not in (Role.LEADING, Role.FOLLOWING):
        return
    if chance.random() < 0.2:
        _crash(world, world.brokers[chance.choice(list(world.brokers))], chance)
    if broker.replica is not None:
        _compact(world, broker)


def _compact(world: "World", broker: FakeBroker) -> None:
    disk = broker.disk
    assert disk is not None
    if removed := disk.compact():
        world.truth.of(broker.topic_id).removed.update(removed)
        broker.do(ev.Compacted(disk.removed_below))


def _set_min_isr(world: "World", _: FakeBroker, chance: Random) -> None:
    _set(world, chance.choice((1, 2, 3)))


def _set(world: "World", min_isr: int) -> None:
    for broker in world.brokers.values():
        if broker.replica is not None and broker.is_alive and not broker.is_paused:
            broker.do(ev.MinIsrSet(min_isr))


def _recover(world: "World", broker: FakeBroker, _: Random) -> None:
    """Let an operator make a replica the leader that may lack something, as none of those that lack nothing runs."""
    record = world.record
    runs = any(world.brokers[node].is_alive for node in record.eligible)
    if not runs and broker.topic_id == world.topic_id and broker.is_alive and not broker.is_paused:
        broker.do(ev.RecoveryAsked(f"recovery at {world.now_ms}"))


def _pass_on(world: "World") -> None:
    """Let who leads by now hand over again."""
    for broker in world.brokers.values():
        if broker.is_leading and not broker.is_paused:
            broker.do(ev.HandOverAsked())


def _reassign(world: "World", _: FakeBroker, chance: Random) -> None:
    _move(world, tuple(chance.sample(list(world.brokers), min(chance.choice((2, 3, 3)), len(world.brokers)))))


def _move(world: "World", target: tuple[int, ...]) -> None:
    for broker in world.brokers.values():
        if broker.replica is not None and broker.is_alive and not broker.is_paused:
            broker.do(ev.TargetSet(target))


def _hand_over(world: "World", broker: FakeBroker, chance: Random) -> None:
    if broker.is_leading and not broker.is_paused:
        if chance.random() < 0.5:
            for node in world.brokers:
                world.slow_watch(node, 150, 200)
            world.at(20, lambda: _pass_on(world))
        broker.do(ev.HandOverAsked(chance.choice((None, *world.record.isr))))


def _recreate(world: "World", _: FakeBroker, chance: Random) -> None:
    if chance.random() < 0.2:
        world.create_topic()


def _out_of_range(world: "World", broker: FakeBroker, chance: Random) -> None:
    """Let a follower get the answer that its log ends before its leader's begins, as errors of the moment are."""
    replica = broker.replica
    if replica is not None and replica.fetch is not None and broker.is_alive and not broker.is_paused:
        fetch = replica.fetch
        answer = ev.Answer(fetch.number, fetch.leader_epoch, fetch.offset, ev.Verdict.OUT_OF_RANGE, log_start=0)
        broker.do(ev.Answered(answer, fetch.offset))


FAULTS: dict[str, Callable[["World", FakeBroker, Random], None]] = {
    function.__name__[1:]: function
    for function in (
        _crash, _power_cut, _stop, _pause, _cut, _reset, _slow_watch, _replay_watch, _compact_store, _store_away,
        _revoke_lease, _late_lease, _hang_disk, _wipe, _damage, _fail_flush, _keep_image, _old_directory,
        _delete_records, _compact_log, _set_min_isr, _hand_over, _reassign, _recover, _recreate, _out_of_range,
    )
}  # fmt: skip


# Phases: several things in short distances, of which each alone is harmless.


def _again(world: "World", pause_ms: int, rounds: int, call: Callable[[int], None]) -> None:
    """Call with the number of the round, now and after each pause, until the rounds are over or all is healed."""

    def go_on(number: int) -> None:
        if number < rounds and not world.is_calm:
            call(number)
            world.at(pause_ms, lambda: go_on(number + 1))

    go_on(0)


def _follower(world: "World", chance: Random) -> FakeBroker:
    return chance.choice([broker for broker in world.brokers.values() if broker.node != world.record.leader])


def _lose_responses(world: "World", nodes: set[int], late_ms: int, for_ms: int) -> None:
    """Let what these brokers write be applied late, and the responses be lost."""
    world.unheard.update(dict.fromkeys(nodes, late_ms))

    def end() -> None:
        for node in nodes:
            world.unheard.pop(node, None)

    world.at(for_ms, end)


def _relay(world: "World", _: FakeBroker, chance: Random) -> None:
    """Cut off one leader after the other: each comes back as the next one goes."""
    for_ms = chance.choice((150, 200, 300))

    def cut_off(_: int) -> None:
        leader = world.record.leader
        if leader in world.brokers and leader not in world.isolated:
            _isolate(world, world.brokers[leader], for_ms)

    _again(world, for_ms, chance.randint(2, 4), cut_off)


def _store_out_of_reach(world: "World", _: FakeBroker, chance: Random) -> None:
    """Let a leader reach its followers, but not the store, where its lease ends; others hear late what they wrote."""
    leader, for_ms = world.record.leader, chance.choice((150, 300, 600))
    if leader in world.brokers and leader not in world.isolated:
        world.isolated.add(leader)
        for node in world.brokers:
            world.slow_watch(node, for_ms if node == leader else 60, for_ms)
        _lose_responses(world, set(world.brokers) - {leader}, 0, for_ms)
        _revoke_lease(world, world.brokers[leader], chance)
        world.at(for_ms, lambda: world.isolated.discard(leader))


def _retention(world: "World", _: FakeBroker, chance: Random) -> None:
    """Let a leader that may commit alone delete one record after the other, while followers leave and come back."""
    _set(world, 1)

    def delete(number: int) -> None:
        if number % 10 == 0:
            _revoke_lease(world, _follower(world, chance), chance)
        for broker in world.brokers.values():
            disk = broker.disk
            if broker.is_leading and not broker.is_paused and disk is not None and disk.high_watermark > disk.start:
                broker.delete_records(disk.start + 1)

    _again(world, 7, 40, delete)


def _compaction(world: "World", _: FakeBroker, chance: Random) -> None:
    """Let a leader that may commit alone compact, while a follower is away."""
    _set(world, 1)
    _isolate(world, _follower(world, chance), 300)

    def compact(_: int) -> None:
        for broker in world.brokers.values():
            if broker.is_leading and not broker.is_paused:
                _compact(world, broker)

    _again(world, 20, 20, compact)


def _there_and_back(world: "World", _: FakeBroker, chance: Random) -> None:
    """Take a replica away from a broker, and give it back as soon as it is gone."""
    former, leaver = world.record.replicas, _follower(world, chance).node
    _move(world, tuple(node for node in former if node != leaver) or former)

    def give_back(number: int) -> None:
        if leaver not in world.record.replicas or number == 49:
            _move(world, former)

    _again(world, 4, 50, give_back)


def _damage_in_a_cut(world: "World", _: FakeBroker, chance: Random) -> None:
    """Cut off a leader, which has to cut its log when it comes back, and let bits flip there meanwhile."""
    leader, for_ms = world.record.leader, chance.choice((150, 300))
    if leader in world.brokers and leader not in world.isolated:
        _isolate(world, world.brokers[leader], for_ms)
        damaged: list[FakeBroker] = []

        def damage(_: int) -> None:
            if (broker := _cutting(world)) is not None and not damaged:
                damaged.append(broker)
                _damage(world, broker, chance)

        _again(world, 3, 150, damage)


def _damage_at_return(world: "World", _: FakeBroker, chance: Random) -> None:
    """Let a follower leave the in-sync set, and come back without knowing; then its bits flip, and the leader ends."""
    follower = _follower(world, chance)
    _revoke_lease(world, follower, chance)
    away: list[int] = []

    def end(number: int) -> None:
        if follower.node not in world.record.eligible:
            away.append(number)
            world.slow_watch(follower.node, 100, 100)
        elif away and away[-1] == number - 1:
            _damage(world, follower, chance)
            if (leader := world.brokers.get(world.record.leader)) is not None:
                _crash(world, leader, chance)

    _again(world, 3, 120, end)


def _unheard_hand_over(world: "World", _: FakeBroker, chance: Random) -> None:
    """Let a leader hand over, and neither it nor the next one hear of that for a while."""
    leader, for_ms = world.brokers.get(world.record.leader), chance.choice((150, 300))
    if leader is not None and leader.is_leading and not leader.is_paused:
        _lose_responses(world, {leader.node}, 0, for_ms)
        for node in world.brokers:
            world.slow_watch(node, for_ms, for_ms)
        leader.do(ev.HandOverAsked())


def _late_election(world: "World", _: FakeBroker, chance: Random) -> None:
    """Let a leader lose its registration, and again when what others have written meanwhile arrives; all hear late."""
    leader, late_ms = world.record.leader, chance.choice((150, 200))

    def lose(number: int) -> None:
        world.slow_watch(leader, 40, 80)
        if number == 0:
            _lose_responses(world, set(world.brokers) - {leader}, late_ms, late_ms // 2)
        else:
            for node in world.brokers:
                world.slow_watch(node, 150, 150)
        _revoke_lease(world, world.brokers[leader], chance)

    if leader in world.brokers:
        _again(world, late_ms, 2, lose)


PHASES: dict[str, Callable[["World", FakeBroker, Random], None]] = {
    function.__name__[1:]: function
    for function in (
        _relay, _store_out_of_reach, _retention, _compaction, _there_and_back, _damage_in_a_cut, _damage_at_return,
        _unheard_hand_over, _late_election,
    )
}  # fmt: skip
