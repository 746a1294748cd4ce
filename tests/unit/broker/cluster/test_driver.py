"""Replicas of one partition in several brokers, on real logs: commits, elections, cuts, and what a client is told."""

import asyncio
import errno
import os

import pytest
from msgspec.structs import replace

from unit.broker.cluster.room import KEY, MAX_BYTES, NOW_MS, TIMES, FakeMessages, Room, ThreadedDisk
from warmlog_broker.cluster.data_path import driver as drivers
from warmlog_broker.cluster.data_path.driver import Driver
from warmlog_broker.cluster.records import Seen
from warmlog_broker.etcd.coordination import Put
from warmlog_broker.replication.events import RecoveryAsked, Verdict
from warmlog_broker.replication.leading import is_known
from warmlog_broker.replication.record import PartitionRecord, to_bytes
from warmlog_broker.replication.replica import Role
from warmlog_broker.storage.log.local_log import ReadBound
from warmlog_broker.storage.log.reader import FetchData, LogReader
from warmlog_protocol.batch import ControlType
from warmlog_protocol.errors import ApiError, NotEnoughReplicas, NotLeaderOrFollower


async def test_what_is_acknowledged_is_flushed_on_all_in_sync_replicas(room: Room) -> None:
    await room.create(1, 2, 3)
    for number in range(5):
        offset = await room.produce(b"%d" % number)
        assert min(partition.log.recovery_point for partition in room.partitions.values()) > offset
    await room.agree(1, 2, 3)


async def test_after_the_leader_has_died_another_one_has_all_that_was_acknowledged(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"kept")
    await room.stop(1)
    assert await room.led() in (2, 3)
    assert (await room.record()).leader_epoch > 0
    assert await room.produce(b"more") == 1
    await room.start(1)
    await room.produce(b"most")
    await room.agree(1, 2, 3)
    await room.until(lambda: in_sync(room, 1, 2, 3))


async def test_with_write_caching_a_marker_waits_until_all_in_sync_replicas_have_flushed_it(room: Room) -> None:
    """A power cut of all could leave the transaction open else, and no coordinator knows it any more."""
    await room.create(1, 2, write_caching="true")
    partition, disk = room.partitions[1], room.partitions[2].disk
    assert isinstance(disk, ThreadedDisk)
    await room.produce(b"x")
    disk.is_stuck.clear()
    await room.produce(b"no flush is waited for")
    done: list[ApiError | None] = []
    partition.append_end_transaction(1, 1, ControlType.COMMIT, 0, done.append, now_ms=NOW_MS)
    waiting = asyncio.create_task(room.produce(b"after the marker"))
    await room.until(lambda: partition.log.recovery_point >= 3 and room.end(2) == 4)
    await asyncio.sleep(0.1)
    assert done == []
    disk.is_stuck.set()
    await room.until(lambda: done == [None])
    assert room.partitions[2].log.recovery_point >= 3
    await waiting


async def in_sync(room: Room, *nodes: int) -> bool:
    return set((await room.record()).isr) == set(nodes)


async def test_what_a_leader_has_alone_is_cut_when_it_follows(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"kept")
    room.cut |= {frozenset((1, 2)), frozenset((1, 3))}
    lost = asyncio.create_task(room.produce(b"lost", at=1))
    room.unregister(1)
    with pytest.raises(NotLeaderOrFollower):
        await lost
    assert await room.led() in (2, 3)
    await room.produce(b"instead")
    room.cut.clear()
    await room.register(1)
    await room.agree(1, 2, 3)
    assert b"instead" in room.content(1)
    assert b"lost" not in room.content(1)


async def test_a_replica_that_was_removed_here_never_fetches_with_its_old_log(room: Room) -> None:
    """Its record may name this broker again before the files are gone: a new replica begins then."""
    await room.create(1, 2, 3)
    await room.produce(b"x")
    driver = room.driver(3)
    room.partitions[3].deleted()
    await room.until(lambda: driver.replica.role is Role.IDLE)
    again, number = replace(await room.record(), leader_epoch=7), driver.replica.number
    room.brokers[3].record_seen(KEY, Seen(again, driver.replica.revision + 1))
    driver.tick()
    assert driver.replica.role is Role.IDLE
    assert driver.replica.number == number, "no fetch is sent"


async def test_with_too_few_replicas_in_sync_nothing_is_taken(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    for node in (2, 3):
        await room.stop(node)
    await room.until(lambda: in_sync(room, 1))
    with pytest.raises(NotEnoughReplicas, match="acks=all needs 2"):
        await room.produce(b"y")
    assert (await room.record()).elr != ()
    await room.start(2)
    await room.until(lambda: in_sync(room, 1, 2))
    await room.produce(b"y")


async def test_a_clean_stop_hands_over_to_one_that_has_everything(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    await room.brokers[1].hand_over(10)
    assert await room.led() in (2, 3)
    record = await room.record()
    assert set(record.isr) == {1, 2, 3}, "a hand-over takes no replica out"
    await room.produce(b"y")
    await room.agree(1, 2, 3)


async def test_a_stop_waits_until_the_next_leader_knows_what_is_committed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not learn it when it is left alone, with fewer replicas than a record needs. It answers at once."""
    await room.create(1, 2, min_isr=2)
    await room.produce(b"x")
    room.cut.add(frozenset((1, 2)))
    handing_over = asyncio.create_task(room.brokers[1].hand_over(100))
    await room.led(by=2)
    for _ in range(2):
        await room.brokers[1]._ticked.wait()
    assert not handing_over.done()
    now_ms = room.brokers[2].now_ms()
    monkeypatch.setattr(room.brokers[2], "now_ms", lambda: now_ms)
    room.cut.clear()
    await handing_over
    assert is_known(room.driver(2).replica)
    assert room.driver(1).replica.role is Role.FOLLOWING


async def test_a_stop_does_not_wait_for_a_replica_that_is_not_in_sync(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    await room.stop(3)
    await room.until(lambda: in_sync(room, 1, 2))
    room.cut |= {frozenset((1, 3)), frozenset((2, 3))}
    await room.start(3)
    await room.until(lambda: room.driver(3).replica.role is Role.ALIGNING)
    await asyncio.wait_for(room.brokers[3].hand_over(300), 100)


async def test_a_leader_that_is_cut_off_serves_no_reader_after_a_while(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    await room.partitions[1].confirm()
    room.cut |= {frozenset((1, 2)), frozenset((1, 3))}
    room.etcd.is_away = True
    await room.until(lambda: is_refused(room, 1))
    with pytest.raises(NotLeaderOrFollower, match="cannot know"):
        await room.partitions[1].confirm()
    room.cut.clear()
    await room.until(lambda: not is_refused(room, 1))
    await room.partitions[1].confirm()
    await room.produce(b"y")


async def test_a_leader_beside_which_no_other_replica_may_be_elected_does_not_ask_etcd_whether_it_leads(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.create(1, 2, min_isr=1)
    await room.produce(b"x")
    await room.stop(2)
    await room.until(lambda: in_sync(room, 1))
    asked: list[None] = []
    monkeypatch.setattr(room.brokers[1], "read_soon", lambda: asked.append(None))
    await room.partitions[1].confirm()
    assert not asked


def rests(driver: Driver) -> bool:
    before = driver.replica
    driver.tick(may_rest=True)
    return driver.replica is before


def hear_all(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the brokers hear one another without a pause from now on, so that replicas come to rest."""
    for name in ("heard_ms", "echoed_ms"):
        monkeypatch.setattr(FakeMessages, name, lambda *_: room.brokers[1].now_ms())


async def test_a_replica_at_rest_is_not_ticked_and_notes_what_the_others_said_when_something_happens(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "TICK_MS", 0)
    await room.create(1, 2, 3)
    await room.produce(b"x")
    await room.agree(1, 2, 3)
    leader, follower = room.driver(1), room.driver(2)
    assert not rests(leader), "nothing is heard of the others"
    hear_all(room, monkeypatch)
    await room.until(lambda: rests(leader) and rests(follower))
    at_rest = leader.replica.leading
    assert at_rest is not None
    await asyncio.sleep(0.01)
    room.cut |= {frozenset((1, 2)), frozenset((1, 3))}
    produced = asyncio.create_task(room.produce(b"y", at=1))
    await room.until(lambda: leader.replica.log.end == 2)
    now = leader.replica.leading
    assert now is not None
    for node in (2, 3):
        assert now.followers[node].caught_up_ms > at_rest.followers[node].caught_up_ms
    assert not rests(leader), "something is not committed"
    room.cut.clear()
    await produced


async def test_a_replica_at_rest_is_left_alone_until_something_happens_or_a_broker_is_silent(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    hear_all(room, monkeypatch)
    await room.until(lambda: room.driver(1).is_resting and room.driver(2).is_resting)
    await room.produce(b"y", at=1)
    assert not room.driver(1).is_resting
    assert not room.driver(2).is_resting
    await room.until(lambda: room.driver(1).is_resting)
    assert room.driver(1).must_tick(room.brokers[1].now_ms() + TIMES.lag_ms)
    await room.until(lambda: room.driver(2).is_resting)
    assert not room.driver(2).must_tick(room.brokers[2].now_ms() + TIMES.lag_ms)
    assert room.driver(2).must_tick(room.brokers[2].now_ms() + 3 * TIMES.lag_ms)
    room.partitions[1].log.bounds.raise_log_start(1)
    await room.until(lambda: room.driver(1).replica.log.start == 1)
    await room.until(lambda: room.driver(1).is_resting)
    monkeypatch.setattr(FakeMessages, "all_heard_ms", lambda _: room.brokers[1].now_ms() - TIMES.unconfirmed_ms)
    await room.until(lambda: not room.driver(1).is_resting)


def is_refused(room: Room, node: int) -> bool:
    try:
        room.partitions[node].check_leader_epoch(-1)
    except NotLeaderOrFollower:
        return True
    return False


async def test_an_outcome_that_was_lost_is_settled_by_the_same_write(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    room.etcd.lose_outcomes = 3
    await room.stop(1)
    await room.led()
    await room.produce(b"y")
    await room.agree(2, 3)


async def test_the_log_start_of_the_leader_is_taken_over_below_the_own_high_watermark(room: Room) -> None:
    await room.create(1, 2, 3)
    for number in range(4):
        await room.produce(b"%d" % number)
    room.partitions[1].delete_records(3)
    driver = room.driver(1)
    await driver.deleted(3)
    assert [room.partitions[node].log.log_start_offset for node in (1, 2, 3)] == [3, 3, 3]


async def test_followers_at_rest_are_told_what_retention_has_removed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    hear_all(room, monkeypatch)
    await room.until(lambda: room.driver(1).is_resting)
    room.partitions[1].log.bounds.raise_log_start(1)
    await room.until(lambda: [room.partitions[node].log.log_start_offset for node in (2, 3)] == [1, 1])


async def test_a_follower_tells_of_a_deletion_once_it_is_on_disk(room: Room) -> None:
    await room.create(1, 2, 3)
    for _ in range(4):
        await room.produce(b"x")
    driver = room.driver(1)
    room.refuse_checkpoint.add(3)
    room.partitions[1].delete_records(2)
    await room.until(lambda: room.refused_checkpoints > 0)
    room.partitions[1].delete_records(3)
    deleted = asyncio.create_task(driver.deleted(2))
    before = room.refused_checkpoints
    await room.until(lambda: room.partitions[3].log.log_start_offset == 3 and room.refused_checkpoints > before + 2)
    await room.produce(b"y")  # all have fetched since
    await room.agree(1, 2, 3)
    assert not deleted.done()
    room.refuse_checkpoint.clear()
    await deleted
    await driver.deleted(3)


async def test_a_follower_whose_connection_was_lost_with_an_answer_is_told_again_what_is_committed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of that replica would wait for the last records until others are appended."""
    await room.create(1, 2, 3)
    await room.produce(b"x")
    await room.agree(1, 2, 3)
    hear_all(room, monkeypatch)
    await room.produce(b"y")
    room.cut.add(frozenset((1, 3)))
    lost = room.driver(1).take_answer(3, MAX_BYTES)
    assert lost is not None
    assert lost.answer.high_watermark == 2
    room.driver(3).unanswered(await room.fetch_of(3))
    room.cut.clear()
    await room.agree(1, 2, 3)


async def test_a_fetch_that_waits_is_refused_when_the_partition_is_led_no_more(room: Room) -> None:
    """Otherwise the follower would keep what it has asked of this broker, and poll it for an answer."""
    await room.create(1, 2, 3)
    await room.produce(b"x")
    leader, fetch = room.driver(1), await room.fetch_of(3)
    leader.do(fetch)
    room.brokers[1].record_seen(KEY, None)
    reply = leader.take_answer(3, MAX_BYTES)
    assert reply is not None
    assert (reply.answer.number, reply.answer.verdict) == (fetch.number, Verdict.REFUSED)


async def test_a_follower_whose_disk_refuses_takes_it_later(room: Room) -> None:
    await room.create(1, 2, 3)
    await room.produce(b"x")
    disk = room.partitions[3].disk
    assert disk is not None
    disk.room.is_short = True
    acknowledged = asyncio.create_task(room.produce(b"y"))
    await room.until(lambda: room.end(2) == 2)
    assert room.end(3) == 1
    room.partitions[1].log.bounds.raise_log_start(1)
    await room.until(lambda: room.partitions[3].log.log_start_offset == 1)  # what retention removes may make room
    assert room.end(3) == 1
    disk.room.is_short = False
    await acknowledged
    await room.agree(1, 2, 3)


async def test_a_leader_with_damage_lets_another_one_lead_and_is_refilled(room: Room) -> None:
    await room.create(1, 2, 3)
    for number in range(3):
        await room.produce(b"value-%d" % number)
    await room.agree(1, 2, 3)
    (path,) = (room.path / "1").glob("*/*.log")
    before = room.content(2)
    with path.open("r+b") as file:
        file.write(bytes(40))
    room.driver(1).damaged("the first batch has no header")
    assert await room.led() in (2, 3)
    await room.until(lambda: room.partitions[1].log.log_end_offset == 3)
    await room.until(lambda: in_sync(room, 1, 2, 3))
    assert room.content(1) == before


async def test_a_leader_whose_batch_followers_refuse_finds_that_it_has_damage(room: Room) -> None:
    await room.create(1, 2, 3)
    for number in range(3):
        await room.produce(b"value-%d" % number)
        if number == 0:
            await room.agree(1, 2, 3)
            await room.stop(3)
    before = room.content(2)
    (path,) = (room.path / "1").glob("*/*.log")
    content = path.read_bytes()
    position = content.index(b"value-1")
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"VALUE")  # the header is whole: only a check of the CRC finds it
    await room.start(3)
    await room.led(by=2)
    await room.until(lambda: in_sync(room, 1, 2, 3))
    await room.produce(b"more")
    await room.agree(1, 2, 3)
    assert room.content(1).startswith(before)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
async def test_a_leader_that_is_short_of_descriptors_or_space_has_no_damage(
    number: int, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.create(1, 2, 3)
    read, failures = LogReader.read, [OSError(number, os.strerror(number)) for _ in range(3)]

    def read_or_fail(reader: LogReader, start_offset: int, max_bytes: int, *, bound: ReadBound) -> FetchData:
        if failures:
            raise failures.pop()
        return read(reader, start_offset, max_bytes, bound=bound)

    monkeypatch.setattr(LogReader, "read", read_or_fail)
    await room.produce(b"x")
    await room.agree(1, 2, 3)
    assert not failures
    assert (await room.record()).leader == 1


async def test_a_replica_that_was_refilled_refills_others_after_its_restart_too(room: Room) -> None:
    await room.create(1, 2, 3, 4, min_isr=1)
    for number in range(3):
        await room.produce(b"old-%d" % number)
    await room.agree(1, 2, 3, 4)
    for node in (3, 4):
        await room.stop(node)
    await room.until(lambda: in_sync(room, 1, 2))
    for number in range(5):
        await room.produce(b"new-%d" % number)
    room.partitions[1].log.compaction.first_dirty_offset = 6  # as if keys were gone with their tombstones
    await room.start(3)
    await room.until(lambda: in_sync(room, 1, 2, 3))
    await room.stop(3)
    await room.start(3)
    await room.until(lambda: in_sync(room, 1, 2, 3))
    for node in (1, 2):
        await room.stop(node)
    await room.led(by=3)
    await room.start(4)
    await room.until(lambda: in_sync(room, 3, 4))
    assert room.partitions[4].log.compaction.removed_below == 6
    assert room.content(4) == room.content(3)


async def test_a_replica_that_was_new_refills_others_even_if_one_answer_has_filled_it(room: Room) -> None:
    record = PartitionRecord(leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1,), min_isr=1)
    await room.etcd.txn([], [Put(room.keys.partition(*KEY), to_bytes(record))])
    await room.start(1)
    await room.start(3)
    for number in range(3):
        await room.produce(b"old-%d" % number)
    await room.until(lambda: in_sync(room, 1, 3))
    await room.agree(1, 3)
    await room.stop(3)
    await room.until(lambda: in_sync(room, 1))
    for number in range(5):
        await room.produce(b"new-%d" % number)
    room.partitions[1].log.compaction.first_dirty_offset = 6  # as if keys were gone with their tombstones
    await room.start(2)
    await room.until(lambda: in_sync(room, 1, 2))
    await room.stop(1)
    await room.led(by=2)
    await room.start(3)
    await room.until(lambda: in_sync(room, 2, 3))
    assert room.partitions[3].log.compaction.removed_below == 6


async def new_replica_of_a_log_that_begins_within_a_batch(room: Room) -> None:
    """Broker 1 leads the log, whose batches begin at 0, 3 and 6, and which starts at 4; broker 2 has nothing."""
    record = PartitionRecord(leader=1, leader_epoch=0, replicas=(1, 2), isr=(1,), min_isr=1)
    await room.etcd.txn([], [Put(room.keys.partition(*KEY), to_bytes(record))])
    await room.start(1)
    for _ in range(3):
        await room.produce(b"a", b"b", b"c")
    room.partitions[1].delete_records(4)
    await room.driver(1).deleted(4)
    await room.start(2)


async def emptied_to_the_batch(room: Room) -> None:
    """Its disk is full before it has anything, as if it had died between the cut and the append."""
    await new_replica_of_a_log_that_begins_within_a_batch(room)
    room.disk(2).room.is_short = True
    await room.until(lambda: room.end(2) == 3 and not room.driver(2).replica.is_cutting)
    assert room.partitions[2].log.log_start_offset == 4


async def test_a_new_replica_is_filled_from_the_batch_that_holds_the_log_start(room: Room) -> None:
    await new_replica_of_a_log_that_begins_within_a_batch(room)
    await room.until(lambda: in_sync(room, 1, 2))
    assert (room.end(2), room.partitions[2].log.log_start_offset) == (9, 4)
    assert room.content(2) == room.content(1)
    await room.stop(1)
    await room.led(by=2)
    assert await room.produce(b"d") == 9


async def test_a_replica_whose_disk_was_full_before_the_batch_that_holds_the_log_start_takes_it_later(
    room: Room,
) -> None:
    await emptied_to_the_batch(room)
    room.disk(2).room.is_short = False
    await room.until(lambda: in_sync(room, 1, 2))
    assert room.content(2) == room.content(1)


async def test_a_replica_that_ended_before_the_batch_that_holds_the_log_start_is_filled_after_a_restart(
    room: Room,
) -> None:
    await emptied_to_the_batch(room)
    await room.stop(2)
    await room.start(2)
    await room.until(lambda: in_sync(room, 1, 2))
    assert room.content(2) == room.content(1)


async def test_what_is_appended_by_a_recovery_is_after_the_log_start_although_the_batch_that_holds_it_never_came(
    room: Room,
) -> None:
    await emptied_to_the_batch(room)
    await room.stop(1)
    room.disk(2).room.is_short = False
    await room.until(lambda: 1 not in room.driver(2).replica.sessions)
    room.driver(2).do(RecoveryAsked("by hand"))
    await room.led(by=2)
    assert await room.produce(b"new") == 4
    assert b"new" in room.content(2)


async def test_the_last_copy_is_not_given_away_because_of_damage(room: Room) -> None:
    await room.create(1, min_isr=1)
    await room.produce(b"x")
    room.driver(1).damaged("a batch has no header")
    assert await room.produce(b"y") == 1
