"""What happens in groups without a request, on a clock and a log that the test decides about."""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from functools import partial

import msgspec
import pytest

from unit.broker.conftest import NOW_MS, MakePartition, flush
from unit.broker.coordinator.framework.toy import turn
from unit.broker.coordinator.group.topics import Topics
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.framework.shard import Shard, ShardSurroundings
from warmlog_broker.coordinator.group.decisions.membership import heartbeat
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_broker.coordinator.group.duties import GRACE_MS, Sessions, Targets, Waits
from warmlog_broker.replica.partition import Partition as ServedPartition
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Slices, Tasks
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_protocol.messages import GroupHeartbeatRequest

SESSION_MS = 10_000


class Room:
    """A shard of groups, with sessions and targets, and a clock that stands still."""

    def __init__(self, partition: ServedPartition, threads: Executor) -> None:
        self.partition = partition
        self.now_ms = NOW_MS
        self.wheel = TimerWheel(0.2)
        self.tasks = Tasks()
        self.sessions = Sessions(
            self.wheel,
            now_ms=lambda: self.now_ms,
            now_s=lambda: self.now_ms / 1000,
            lines=RepeatedLines(logging.getLogger("sessions")),
            tasks=self.tasks,
        )
        config = BrokerConfig(group_assignment_interval_ms=40, group_initial_rebalance_delay_ms=20)
        self.targets = Targets(config, Subscriptions(Topics(t=4)), Slices(), self.tasks)
        self.shard = Shard(partition, ShardSurroundings(Groups, self, threads, lambda: NOW_MS))

    def fill_disk(self, *, is_full: bool = True) -> None:
        assert self.partition.disk is not None
        self.partition.disk.room.is_short = is_full

    def loaded(self, shard: Shard[Groups]) -> None:
        pass

    def unloaded(self, shard: Shard[Groups]) -> None:
        self.sessions.forget(shard)
        self.targets.forget(shard)

    def changed(self, shard: Shard[Groups], key: str) -> None:
        self.targets.changed(shard, key)

    async def settle(self) -> None:
        """Let what was decided become durable."""
        for _ in range(5):
            await turn()
            flush(self.partition)

    async def beat(self, member_id: str, epoch: int = 0, rebalance_timeout_ms: int = 60_000) -> int:
        """One heartbeat of a member that does what it is told at once, if its epoch is not 0; return its new epoch."""
        request = GroupHeartbeatRequest(
            "g",
            member_id,
            epoch,
            topics=["t"],
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        outcome = self.shard.run(
            "g", lambda groups: heartbeat(groups, request, host="h", now_ms=self.now_ms, limits=Limits())
        )
        await self.settle()
        response = await outcome if isinstance(outcome, asyncio.Future) else outcome
        self.shard.state.heard("g", member_id, now_ms=self.now_ms, epoch=epoch)
        self.sessions.watch(self.shard, "g", member_id)
        return response.member_epoch

    async def pass_time(self, ms: int, step_ms: int = 500) -> None:
        """Let the clock go on in steps, as a broker does that is not busy."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + step_ms)
            self.wheel.advance(self.now_ms / 1000)
            await self.settle()

    @property
    def members(self) -> set[str]:
        group = self.shard.state.get("g")
        return set(group.members) if group is not None else set()

    @property
    def target_epoch(self) -> int:
        group = self.shard.state.get("g")
        return 0 if group is None else group.target_epoch


@pytest.fixture
async def room(make_partition: MakePartition, threads: Executor) -> AsyncIterator[Room]:
    made = Room(make_partition(), threads)
    made.shard.load()
    await made.shard.wait_until_loaded()
    yield made
    made.shard.close("the test is over")


async def test_a_member_is_removed_when_its_session_is_over_and_not_before(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await room.beat("a")
    await room.pass_time(SESSION_MS // 2)
    await room.beat("b")
    await room.pass_time(SESSION_MS // 2 - 400)
    assert room.members == {"a", "b"}
    await room.pass_time(1000)
    assert room.members == {"b"}
    assert len(room.sessions) == 1
    assert "member a (h) of group 'g' is removed: not heard of in its session" in caplog.text


async def test_heartbeats_keep_a_member_and_one_timer_for_each(room: Room) -> None:
    epoch = await room.beat("a")
    for _ in range(10):
        await room.pass_time(SESSION_MS // 2)
        await room.beat("a", epoch)
    assert room.members == {"a"}
    assert (len(room.sessions), len(room.wheel)) == (1, 1)


async def test_a_member_that_has_left_takes_no_timer(room: Room) -> None:
    await room.beat("a")
    await room.beat("a", -1)
    assert (room.members, len(room.sessions), len(room.wheel)) == (set(), 0, 0)


async def test_a_broker_that_stood_still_gives_members_time_to_be_heard(room: Room) -> None:
    epoch = await room.beat("a")
    await room.beat("b")
    await room.pass_time(SESSION_MS * 3, step_ms=SESSION_MS * 3)
    assert room.members == {"a", "b"}
    await room.beat("a", epoch)
    await room.pass_time(GRACE_MS + 1000)
    assert room.members == {"a"}


async def test_a_removal_that_the_log_refuses_is_decided_again(room: Room) -> None:
    await room.beat("a")
    room.fill_disk()
    await room.pass_time(SESSION_MS + 3000)
    assert room.members == {"a"}
    room.fill_disk(is_full=False)
    await room.pass_time(2000)
    assert room.members == set()


async def test_a_heartbeat_that_is_decided_before_the_removal_keeps_the_member(room: Room) -> None:
    epoch = await room.beat("a")
    room.now_ms += SESSION_MS + 500
    blocked = room.shard.run("g", lambda _: _touch())
    room.wheel.advance(room.now_ms / 1000)
    room.shard.state.heard("g", "a", now_ms=room.now_ms, epoch=epoch)
    await room.settle()
    assert isinstance(blocked, asyncio.Future)
    assert room.members == {"a"}
    assert len(room.sessions) == 1


def _touch() -> Decision[None]:
    return Decision([Record(msgspec.msgpack.encode([99, "g"]), b"")], None)


@pytest.mark.usefixtures("quick_clock")
async def test_the_first_target_waits_for_more_members_and_further_ones_for_their_interval(room: Room) -> None:
    slow = BrokerConfig(group_assignment_interval_ms=1000, group_initial_rebalance_delay_ms=500)
    room.targets = Targets(slow, Subscriptions(Topics(t=4)), Slices(), room.tasks)
    for number in range(5):
        await room.beat(f"m{number}")
    assert room.target_epoch == 0
    await asyncio.sleep(0.6)
    await room.settle()
    assert room.target_epoch == 5
    await room.beat("m5")
    await room.beat("m6")
    assert room.target_epoch == 5
    await asyncio.sleep(1.1)
    await room.settle()
    assert room.target_epoch == 7


@pytest.mark.usefixtures("quick_clock")
async def test_a_target_that_the_log_refuses_is_computed_later(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmlog_broker.coordinator.group.duties.RETRY_S", 0.02)
    await room.beat("a")
    room.fill_disk()
    await asyncio.sleep(0.03)
    await room.settle()
    assert room.target_epoch == 0
    room.fill_disk(is_full=False)
    await asyncio.sleep(0.04)
    await room.settle()
    assert room.target_epoch == 1


@pytest.mark.usefixtures("quick_clock")
async def test_after_an_unload_no_timer_is_left(room: Room) -> None:
    await room.beat("a")
    room.shard.close("another broker leads")
    assert (len(room.sessions), len(room.wheel)) == (0, 0)
    await asyncio.sleep(0.03)
    assert room.targets._waiting == {}


class Noted:
    """A heartbeat that waits."""

    def __init__(self, waits: Waits, group: str, member_id: str) -> None:
        self.events: list[str] = []
        self._remove = partial(waits.remove, group, member_id, self)
        waits.add(group, member_id, self)

    def wake(self) -> None:
        self.events.append("wake")

    def expire(self) -> None:
        self.events.append("expire")
        self._remove()


@pytest.mark.usefixtures("quick_clock")
async def test_waiting_heartbeats_are_woken_once_for_several_changes_of_their_group() -> None:
    waits = Waits()
    first, second, other = Noted(waits, "g", "a"), Noted(waits, "g", "b"), Noted(waits, "h", "c")
    for _ in range(10):
        waits.changed("g")
    waits.end_of("g", "b")
    waits.end_of("g", "b")
    assert len(waits) == 2
    await asyncio.sleep(0.05)
    assert (first.events, second.events, other.events) == (["wake"], ["expire"], [])
    waits.expire_all()
    assert (first.events, other.events) == (["wake", "expire"], ["expire"])
    assert len(waits) == 0


async def test_of_a_member_one_heartbeat_waits() -> None:
    waits = Waits()
    earlier, later = Noted(waits, "g", "a"), Noted(waits, "g", "a")
    assert (len(waits), earlier.events, later.events) == (1, ["expire"], [])
    waits.remove("g", "a", earlier)
    assert len(waits) == 1
    waits.remove("g", "a", later)
    assert len(waits) == 0
