"""Members that are refused, lose their place, are silent or closed meanwhile, against a coordinator in memory."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import warmlog
import warmlog.blocking
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator
from group_consumer import ALL, FIRST, PATIENCE_S, Calls, consumer, fill, place, take
from waiting import until
from warmlog.consumer import starting as group_start
from warmlog.consumer.starting import look_up_points
from warmlog_protocol.errors import CoordinatorLoadInProgress, GroupMaxSizeReached, UnknownMemberId
from warmlog_protocol.messages import GroupHeartbeatRequest, Message, OffsetFetchRequest
from warmlog_transport.cluster import Cluster

pytestmark = pytest.mark.usefixtures("coordinator")


@pytest.mark.parametrize("notices_by", ["heartbeat", "commit"])
async def test_a_member_that_lost_its_place_is_told_once_and_joins_again(
    broker: FakeBroker, coordinator: FakeCoordinator, notices_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.initial, calls = FIRST, Calls()
    async with consumer(broker, **calls.options) as client:
        batches = client.batches()
        await take(batches, 1)
        await client.commit()
        (batch,) = await take(batches, 1)
        await until(lambda: coordinator.member.owned == FIRST)
        coordinator.expire()
        call: Callable[[], Awaitable[object]] = lambda: client.commit(batch)  # noqa: E731
        if notices_by == "heartbeat":
            await until(lambda: "no longer a member of the group" in caplog.text)
            call = lambda: anext(batches)  # noqa: E731
        with pytest.raises(warmlog.MembershipLost, match=r"its session has expired; not committed.*t-0 from 4 to 7"):
            await asyncio.wait_for(call(), PATIENCE_S)
        assert calls.all == [("assigned", [0]), ("lost", [0])]
        assert client.assignment == []
        await asyncio.sleep(0.1)
        assert coordinator.members == {}
        (again,) = await take(batches, 1)
        assert place(again) == (0, 8)
        assert coordinator.member.first.member_epoch == 0
    assert coordinator.committed == {("t", 0): 4}


@pytest.mark.parametrize("notices_by", ["heartbeat", "commit"])
async def test_a_fenced_instance_raises_at_every_call(
    broker: FakeBroker, coordinator: FakeCoordinator, notices_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    async with consumer(broker, instance_id="i", **calls.options) as client:
        batches = client.batches()
        (batch,) = await take(batches, 1)
        coordinator.fence()
        if notices_by == "commit":
            with pytest.raises(warmlog.FencedInstanceId, match="another process"):
                await client.commit(batch)
        await until(lambda: "another process has this instance id" in caplog.text)
        for _ in range(2):
            with pytest.raises(warmlog.FencedInstanceId, match="another process"):
                await take(batches, 1)
        with pytest.raises(warmlog.FencedInstanceId, match="another process"):
            client.positions()
        with pytest.raises(warmlog.FencedInstanceId, match="another process"):
            await client.commit()
        assert calls.all == [("assigned", [0, 1]), ("lost", [0, 1])]
        sent = len(coordinator.heartbeats)
        await asyncio.sleep(0.1)
        assert len(coordinator.heartbeats) == sent
    assert coordinator.left == []


async def test_a_member_that_is_closed_after_it_was_lost_tells_what_is_lost(
    broker: FakeBroker, coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    async with consumer(broker, **calls.options) as client:
        await take(client.batches(), 1)
        coordinator.expire()
        await until(lambda: "no longer a member of the group" in caplog.text)
    assert calls.all == [("assigned", [0, 1]), ("lost", [0, 1])]
    assert coordinator.committed == {}


async def test_a_member_that_goes_back_is_told_of_its_loss(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    calls = Calls()
    async with consumer(broker, commit="manual", **calls.options) as client:
        await take(client.batches(), 1)
        coordinator.expire()
        with pytest.raises(warmlog.MembershipLost):
            await client.seek_to_committed()
        await client.seek_to_committed()
        assert calls.all == [("assigned", [0, 1]), ("lost", [0, 1])]
        assert place((await take(client.batches(), 1))[0]) in {(0, 4), (1, 4)}


async def test_what_is_lost_while_its_start_is_looked_up_is_not_assigned(
    broker: FakeBroker, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    async with consumer(broker, **calls.options) as client:
        look_up = group_start.look_up_points

        async def look_up_then_lose(*args: Any) -> Any:
            found = await look_up(*args)
            coordinator.expire()
            await until(lambda: "no longer a member of the group" in caplog.text)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(group_start, "look_up_points", look_up_then_lose)
            with pytest.raises(warmlog.MembershipLost):
                await take(client.batches(), 1)
        assert (calls.all, client.assignment) == ([], [])
        await take(client.batches(), 1)
        assert calls.all == [("assigned", [0, 1])]


async def test_a_refused_join_is_raised_by_start(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.refuses = lambda _: GroupMaxSizeReached("the group is full")
    with pytest.raises(warmlog.GroupMaxSizeReached, match="full"):
        await consumer(broker).start()
    await until(lambda: broker.connections == 0)


async def test_a_refused_rejoin_is_repeated_by_the_next_call(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial = FIRST
    async with consumer(broker) as client:
        batches = client.batches()
        await take(batches, 1)
        coordinator.expire()
        coordinator.refuses = lambda beat: None if beat.member_epoch else GroupMaxSizeReached("the group is full")
        await until(lambda: client.group_metadata().member_epoch == 1 and not coordinator.members)
        await asyncio.sleep(0.1)
        with pytest.raises(warmlog.MembershipLost):
            await take(batches, 1)
        for _ in range(2):
            with pytest.raises(warmlog.GroupMaxSizeReached):
                await take(batches, 1)
        coordinator.refuses = lambda _: None
        assert place((await take(batches, 1))[0])[0] == 0


async def test_a_close_while_partitions_are_taken_is_no_loss(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    def refuse(message: Message) -> warmlog.ApiError | None:
        if not isinstance(message, OffsetFetchRequest):
            return None
        closing.append(asyncio.create_task(client.close()))
        return UnknownMemberId("it has left") if len(closing) > 1 else CoordinatorLoadInProgress("loading")

    closing: list[asyncio.Task[None]] = []
    coordinator.refuses = lambda beat: CoordinatorLoadInProgress("loading") if len(closing) == 1 else None
    client, broker.refusal = consumer(broker), refuse
    await client.start()
    with pytest.raises(warmlog.ClientClosed):
        await take(client.batches(), 1)
    await asyncio.gather(*closing)


async def test_heartbeats_outlast_a_load_and_lost_connections(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    refusals = iter([CoordinatorLoadInProgress("loading")] * 3)
    coordinator.refuses = lambda _: next(refusals, None)
    async with consumer(broker) as client:
        batches = client.batches()
        await take(batches, 2)
        broker.disconnect()
        sent = len(coordinator.heartbeats)
        await until(lambda: len(coordinator.heartbeats) > sent + 2)
        fill(broker, 0, 1)
        await take(batches, 3)
        assert len([beat for beat in coordinator.heartbeats if beat.member_epoch == 0]) == 4


async def test_a_member_that_owns_its_share_waits_for_news(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.interval_ms = 600_000
    async with consumer(broker) as client:
        await take(client.batches(), 1)
        await until(lambda: coordinator.member.owned == ALL and coordinator.heartbeats[-1].max_wait_ms > 0)


async def test_a_user_that_reads_nothing_for_too_long_is_told(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial = FIRST
    async with consumer(broker, max_poll_interval_ms=2000) as client:
        records = client.records()
        for _ in range(4):
            await anext(records)
            await asyncio.sleep(0.55)
        assert coordinator.left == []
        await until(lambda: coordinator.left == [-1])
        with pytest.raises(warmlog.MembershipLost, match=r"nothing was read for 2 s, which is max_poll_interval_ms"):
            await anext(records)
        assert (await anext(records)).offset == 0
        await records.aclose()
        waiting = asyncio.ensure_future(take(client.batches(), 9))
        await asyncio.sleep(2.3)
        assert coordinator.left == [-1]
        waiting.cancel()


@pytest.mark.filterwarnings("ignore:Exception ignored in")
async def test_a_consumer_whose_loop_has_ended_leaves_it(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async def abandon() -> None:
        client = await consumer(broker).start()
        await take(client.batches(), 1)

    await asyncio.to_thread(asyncio.run, abandon())
    await until(lambda: coordinator.left == [-1])
    await until(lambda: "warmlog heartbeats" not in {thread.name for thread in threading.enumerate()})
    gc.collect()  # the connection of the consumer was not closed, which a warning says


async def test_a_heartbeat_that_cannot_be_sent_is_repeated_with_pauses_and_the_member_goes_on(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = Cluster.call, 0

    async def call(self: Cluster, message: Message, *arguments: Any, **options: Any) -> Any:
        nonlocal failures
        if isinstance(message, GroupHeartbeatRequest) and failures < 4:
            failures += 1
            raise RuntimeError("broken on purpose")
        return await real(self, message, *arguments, **options)

    monkeypatch.setattr(Cluster, "call", call)
    began_s = time.monotonic()
    async with consumer(broker, retry_backoff_ms=100) as client:
        assert len(await take(client.batches(), 1)) == 1
    assert time.monotonic() - began_s > 0.1 * 0.5 * (1 + 2 + 4 + 8)
    assert caplog.text.count("a heartbeat could not be sent") == failures == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "group='': a name of 1 to 249 bytes"),
        ({"group": "g" * 250}, "a name of 1 to 249 bytes"),
        ({"instance_id": ""}, "instance_id=''"),
        ({"commit": "often"}, "commit='often': one of auto, manual expected"),
        ({"commit_interval_ms": 0}, "commit_interval_ms=0: at least 1 expected"),
        ({"session_timeout_ms": -5}, "session_timeout_ms=-5: at least 1 expected"),
        ({"on_lost": 5}, "on_lost=5: a function that takes a list of partitions is expected"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(warmlog.InvalidConfig, match=message):
        warmlog.Consumer("127.0.0.1:1", topics=["t"], **{"group": "etl", **options})


def test_options_of_members_need_a_group() -> None:
    texts = [{"instance_id": "i"}, {"commit": "manual"}, {"assignor": "range"}, {"on_lost": print}]
    for option in [*texts, {"session_timeout_ms": 6000}, {"commit_interval_ms": 100}, {"max_poll_interval_ms": 1000}]:
        with pytest.raises(TypeError, match=rf"^{next(iter(option))}=.* is for a consumer with a group"):
            warmlog.Consumer("127.0.0.1:1", topics=["t"], **option)


def test_callbacks_of_members_are_refused_with_partitions() -> None:
    with pytest.raises(TypeError, match=r"^on_revoked=.* is for members of a group: give topics or pattern"):
        warmlog.Consumer("127.0.0.1:1", partitions=["t-0"], group="etl", on_revoked=print)
    warmlog.Consumer("127.0.0.1:1", partitions=["t-0"], group="etl", commit="manual", commit_interval_ms=100)


def test_callbacks_of_the_blocking_consumer_are_plain_functions() -> None:
    async def revoked(_: object) -> None: ...

    with pytest.raises(warmlog.InvalidConfig, match="a plain function is expected, not a coroutine function"):
        warmlog.blocking.Consumer("127.0.0.1:1", topics=["t"], group="etl", on_revoked=revoked)


@pytest.mark.parametrize("option", ["group", "instance_id", "pattern"])
def test_text_without_utf_8_is_refused_before_a_broker_is_asked(option: str) -> None:
    options = {"group": "g", **({} if option == "pattern" else {"topics": ["t"]}), option: "\udcff"}
    with pytest.raises(warmlog.InvalidConfig, match=option):
        warmlog.Consumer("127.0.0.1:1", **options)  # type: ignore[arg-type]


async def test_a_callback_that_reads_is_told_that_it_cannot(broker: FakeBroker) -> None:
    async def assigned(_: list[tuple[str, int]]) -> None:
        await anext(client.batches())

    async with consumer(broker, on_assigned=assigned) as client, asyncio.timeout(25):
        with pytest.raises(warmlog.ConsumerBusy, match="on_assigned, on_revoked and on_lost cannot read"):
            await anext(client.batches())
        assert place(await anext(client.batches())) in {(0, 4), (1, 4)}


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.11 has no eager tasks")
async def test_a_loop_whose_tasks_begin_at_once_commits_and_closes(broker: FakeBroker) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]

    async def close(_: list[tuple[str, int]]) -> None:
        await client.close()

    async with consumer(broker, commit="manual", on_revoked=close) as client, asyncio.timeout(25):
        batch = await anext(client.batches())
        await client.commit(batch)
        assert (await client.committed())[batch.topic, batch.partition] == 4


async def test_a_callback_that_waits_for_a_task_or_a_thread_that_reads_is_told_so(broker: FakeBroker) -> None:
    async def assigned(_: list[tuple[str, int]]) -> None:
        await asyncio.create_task(anext(client.batches()))  # type: ignore[arg-type]

    async with consumer(broker, on_assigned=assigned) as client, asyncio.timeout(25):
        with pytest.raises(warmlog.ConsumerBusy, match="cannot read"):
            await anext(client.batches())

    def read_blocking() -> None:
        options = {"topics": ["t"], "group": "etl", "on_assigned": lambda _: next(client.batches())}
        with warmlog.blocking.Consumer(broker.address, **options) as client:
            next(client.batches())

    with pytest.raises(warmlog.ConsumerBusy, match="cannot read"):
        await asyncio.to_thread(read_blocking)


@pytest.mark.parametrize("options", [{}, {"group": None}], ids=["with a group", "without"])
async def test_a_reader_that_waits_is_told_of_a_close_by_another(broker: FakeBroker, options: dict[str, None]) -> None:
    async with consumer(broker, **options, start="latest") as client, asyncio.timeout(25):
        reading = asyncio.ensure_future(anext(client.batches()))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(warmlog.ClientClosed, match="the consumer is closed"):
            await reading


async def test_a_consumer_closed_as_it_starts_takes_none(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, may_go_on, calls = asyncio.Event(), asyncio.Event(), Calls()

    async def look_up_slowly(*given: Any) -> Any:
        looks.set()
        await may_go_on.wait()
        return await look_up_points(*given)

    monkeypatch.setattr(group_start, "look_up_points", look_up_slowly)
    client = await consumer(broker, **calls.options).start()
    async with asyncio.timeout(25):
        reading = asyncio.create_task(anext(client.batches()))
        await looks.wait()
        closing = asyncio.create_task(client.close())
        may_go_on.set()
        await closing
        with pytest.raises(warmlog.ClientClosed):
            await reading
    assert calls.all == []


@pytest.mark.parametrize("turns", range(1, 9))
@pytest.mark.parametrize("options", [{}, {"group": None}], ids=["with a group", "without"])
async def test_a_cancelled_close_ends_and_others_wait(broker: FakeBroker, options: dict[str, None], turns: int) -> None:
    threads = threading.enumerate()
    client = await consumer(broker, **options).start()
    async with asyncio.timeout(25):
        await anext(client.batches())
        closing = asyncio.create_task(client.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await client.close()
    assert threading.enumerate() == threads
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "warmlog close"]
