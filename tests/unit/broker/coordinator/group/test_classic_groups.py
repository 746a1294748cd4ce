"""Classic members as a service, on a clock and a log that the test decides about: what waits, and what is durable."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

import pytest

from unit.broker.conftest import NOW_MS, MakePartition, flush
from unit.broker.coordinator.framework.toy import turn
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.classic import events
from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.framework import shard
from warmlog_broker.coordinator.framework.decision import Decision
from warmlog_broker.coordinator.framework.shard import Shard, ShardSurroundings
from warmlog_broker.coordinator.group.classic_groups import ClassicGroups, Waiter
from warmlog_broker.coordinator.group.decisions import offsets
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits
from warmlog_broker.coordinator.group.duties import GRACE_MS
from warmlog_broker.replica.partition import Partition
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_protocol import errors

SESSION_MS = 10_000
LIMITS = Limits(BrokerConfig(group_initial_rebalance_delay_ms=500))


class Owner:
    """Takes the responses of requests, as a connection does."""

    def __init__(self) -> None:
        self.responses: dict[Any, Any] = {}

    def end(self, deferred: Any, work: Callable[[], Any]) -> None:
        if deferred in self.responses:  # as for a request runner
            return
        try:
            self.responses[deferred] = work()
        except Exception as error:
            self.responses[deferred] = error


class Room:
    """A shard of groups, its classic members, and a clock that stands still."""

    def __init__(self, partition: Partition, threads: Executor) -> None:
        self.partition = partition
        self.now_ms = NOW_MS
        self.wheel = TimerWheel(0.1)
        self.owner = Owner()
        self.tasks = Tasks()
        self.classic = ClassicGroups(
            self.run,
            lambda *_: LIMITS,
            timers=self.wheel,
            now_ms=lambda: self.now_ms,
            now_s=lambda: self.now_ms / 1000,
            lines=RepeatedLines(logging.getLogger("classic")),
            tasks=self.tasks,
        )
        self.shard = Shard(partition, ShardSurroundings(Groups, self, threads, lambda: NOW_MS))

    def run(self, name: str, decide: Callable[[Groups], Decision[Any]]) -> Any | Awaitable[Any]:
        return self.shard.run(name, decide)

    def fill_disk(self, *, is_full: bool = True) -> None:
        assert self.partition.disk is not None
        self.partition.disk.room.is_short = is_full

    def loaded(self, shard: Shard[Groups]) -> None:
        shard.state.start_timers(self.now_ms)
        self.classic.loaded(shard)

    def unloaded(self, shard: Shard[Groups]) -> None:
        self.classic.unloaded(shard)

    def changed(self, shard: Shard[Groups], key: str) -> None:
        self.classic.changed(shard, key)

    async def settle(self) -> None:
        for _ in range(5):
            await turn()
            flush(self.partition)

    async def pass_time(self, ms: int, step_ms: int = 500) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + step_ms)
            self.wheel.advance(self.now_ms / 1000)
            await self.settle()

    def join(self, member_id: str = "", **fields: Any) -> Waiter:
        request = m.JoinGroupRequest(
            "g", member_id, "consumer", [("range", b"topics")], SESSION_MS, 5000, **{"client_id": "c", **fields}
        )
        return self._begun(self.classic.join(request, host="h", principal="User:etl"))

    def sync(self, member_id: str, *assignments: tuple[str, bytes], generation: int = 1) -> Waiter:
        return self._begun(self.classic.sync(m.SyncGroupRequest("g", member_id, generation, "", list(assignments))))

    def leave(self, *member_ids: str) -> Waiter:
        leaving = [m.LeavingMember(each) for each in member_ids]
        return self._begun(self.classic.leave(m.LeaveGroupRequest("g", leaving)))

    def _begun(self, waiter: Waiter) -> Waiter:
        waiter.begin(self.owner)
        return waiter

    def response(self, waiter: Waiter) -> Any:
        """The response; None while there is none."""
        return self.owner.responses.get(waiter)

    async def member(self) -> str:
        """Let one member join and sync; return its id."""
        waiter = self.join()
        await self.settle()
        await self.pass_time(1000)
        member_id: str = self.response(waiter).member_id
        self.sync(member_id, (member_id, b"all"))
        await self.settle()
        return member_id


@pytest.fixture
async def room(make_partition: MakePartition, threads: Executor) -> AsyncIterator[Room]:
    made = Room(make_partition(), threads)
    made.shard.load()
    await made.shard.wait_until_loaded()
    yield made
    made.shard.close("the test is over")
    await made.tasks.finish(1)


async def test_an_assignment_is_given_out_when_it_is_durable(room: Room) -> None:
    leader, follower = room.join(), room.join()
    await room.settle()
    await room.pass_time(1000)
    ids = [room.response(each).member_id for each in (leader, follower)]
    assert ids[0].startswith("c-")
    waiting = room.sync(ids[1])
    own = room.sync(ids[0], (ids[0], b"one"), (ids[1], b"two"))
    await turn()
    assert (room.response(waiting), room.response(own)) == (None, None)
    await room.settle()
    assert (room.response(own).assignment, room.response(waiting).assignment) == (b"one", b"two")
    group = room.shard.state.get("g")
    assert group is not None
    assert (group.owner, group.state, group.member_count) == ("User:etl", "stable", 2)


async def test_an_assignment_that_cannot_be_written_fails_its_request_and_no_other(room: Room) -> None:
    leader, follower = room.join(), room.join()
    await room.settle()
    await room.pass_time(1000)
    ids = [room.response(each).member_id for each in (leader, follower)]
    waiting = room.sync(ids[1])
    room.fill_disk()
    failed = room.sync(ids[0], (ids[1], b"two"))
    await room.settle()
    assert isinstance(room.response(failed), errors.CoordinatorNotAvailable)
    assert (room.response(waiting), room.shard.state.steps) == (None, {})
    room.fill_disk(is_full=False)
    room.sync(ids[0], (ids[1], b"two"))
    await room.settle()
    assert room.response(waiting).assignment == b"two"


async def test_after_a_load_the_group_goes_on_and_what_waited_is_told_to_come_again(room: Room) -> None:
    member_id = await room.member()
    waiting = room.join()
    await room.settle()
    room.shard._reload("a test")
    assert isinstance(room.response(waiting), errors.CoordinatorNotAvailable)
    await room.shard.wait_until_loaded()
    again = room.sync(member_id)
    await room.settle()
    assert room.response(again).assignment == b"all"
    await room.pass_time(SESSION_MS + 1000)
    group = room.shard.state.get("g")
    assert group is not None
    assert (group.state, group.saved, group.epoch, group.empty_since_ms > 0) == ("empty", None, 2, True)
    assert len(room.wheel) == 0


async def test_who_leaves_gets_the_response_when_that_is_durable_if_the_group_is_empty_then(room: Room) -> None:
    member_id = await room.member()
    room.fill_disk()
    failed = room.leave(member_id)
    await room.settle()
    assert isinstance(room.response(failed), errors.CoordinatorNotAvailable)
    room.fill_disk(is_full=False)
    left = room.leave(member_id)
    await turn()
    assert room.response(left) is None
    await room.settle()
    assert room.response(left).error_codes == [0]
    deleted = room.shard.run("g", lambda groups: offsets.delete_group(groups, "g"))
    await room.settle()
    assert isinstance(deleted, Awaitable)
    assert (await deleted, room.shard.state.get("g"), room.shard.state.held) == (None, None, {})


async def test_a_session_that_ends_while_the_disk_is_full_ends_later(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    member_id = await room.member()
    room.fill_disk()
    await room.pass_time(SESSION_MS + 3000)
    group = room.shard.state.get("g")
    assert group is not None
    assert group.member_count == 1
    room.fill_disk(is_full=False)
    await room.pass_time(2000)
    assert (group.member_count, group.saved) == (0, None)
    assert f"member {member_id} (h) of group 'g' is removed: its session has expired" in caplog.text


async def test_a_broker_that_stood_still_gives_members_time_to_be_heard(room: Room) -> None:
    await room.member()
    group = room.shard.state.get("g")
    assert group is not None
    await room.pass_time(SESSION_MS * 3, step_ms=SESSION_MS * 3)
    assert group.member_count == 1
    await room.pass_time(GRACE_MS + 1000)
    assert group.member_count == 0


async def test_a_step_that_finds_no_room_to_wait_is_forgotten(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = room.join()
    await room.settle()
    await room.pass_time(1000)
    member_id = room.response(waiter).member_id
    with monkeypatch.context() as patch:
        patch.setattr(shard, "MAX_PENDING", 0)
        with pytest.raises(errors.CoordinatorNotAvailable):
            room.sync(member_id, (member_id, b"lost"))
    assert room.shard.state.steps == {}
    own = room.sync(member_id, (member_id, b"all"))
    await room.settle()
    assert room.response(own).assignment == b"all"


async def test_a_bug_in_a_decision_is_the_response_of_its_request(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    member_id = await room.member()
    left = room.leave(member_id)
    with monkeypatch.context() as patch:
        patch.setattr(events, "join", lambda *_, **__: 1 / 0)
        failed = room.join()
        await room.settle()
    assert room.response(left).error_codes == [0]
    assert isinstance(room.response(failed), ZeroDivisionError)


async def test_what_is_due_is_tried_again_after_a_bug(
    room: Room, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = room.join()
    await room.settle()
    with monkeypatch.context() as patch:
        patch.setattr(events, "expire", lambda *_, **__: 1 / 0)
        await room.pass_time(1000)
    assert "what is due in group 'g' failed: a bug" in caplog.text
    await room.pass_time(2000)
    assert room.response(waiting).generation == 1


@pytest.mark.parametrize("names", [{"client_id": "\u5b57" * 100}, {"instance_id": "i" * 249}])
async def test_a_member_can_join_again_with_the_id_that_it_was_given(room: Room, names: dict[str, str]) -> None:
    waiter = room.join(**names)
    await room.settle()
    await room.pass_time(1000)
    member_id = room.response(waiter).member_id
    again = room.join(member_id, **names)
    await room.settle()
    assert room.response(again).member_id == member_id
    with pytest.raises(errors.InvalidRequest, match="250 bytes: at most 249"):
        room.join(instance_id="i" * 250)


async def test_what_waits_while_the_broker_stops_is_told_to_come_again(room: Room) -> None:
    waiting = room.join()
    await room.settle()
    assert waiting.drop()
    room.classic.end_waits()
    assert isinstance(room.response(waiting), errors.CoordinatorNotAvailable)


async def test_rebalances_are_counted_by_their_reasons(room: Room) -> None:
    member_id = await room.member()
    room.join()
    await room.settle()
    room.leave(member_id)
    assert room.classic.rebalances == {"join": 2}
