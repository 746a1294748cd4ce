"""What a consumer commits for its group, by itself and by hand, and where it continues: a coordinator in memory."""

import asyncio
import logging
import time
from typing import Any, Never

import pytest

import warmlog
from fake_broker import FakeBroker, FakePartition
from fake_coordinator import FakeCoordinator, owned
from group_consumer import ALL, FIRST, PATIENCE_S, consumer, fill, place, take
from waiting import until
from warmlog.consumer import offset_commits
from warmlog.points import Where
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.messages import ListOffsetsRequest, OffsetFetchRequest

pytestmark = pytest.mark.usefixtures("coordinator")


@pytest.fixture
def coordinator(broker: FakeBroker) -> FakeCoordinator:
    return FakeCoordinator(broker, FIRST)


async def test_it_starts_where_the_group_has_committed(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial = ALL
    coordinator.offsets[next(iter(FIRST))] = (6, 0)
    async with consumer(broker, start=7) as client:
        batches = await take(client.batches(), 2)
        assert {batch.partition: batch.values for batch in batches} == {0: [b"6", b"7"], 1: [b"7"]}
        assert await client.committed() == {("t", 0): 6, ("t", 1): None}
        assert await client.committed(["t-1", ("t", 0)]) == {("t", 1): None, ("t", 0): 6}


@pytest.mark.parametrize("names", [{"topics": ["t"]}, {"pattern": "t"}], ids=["topics", "pattern"])
@pytest.mark.parametrize(("start", "first"), [("latest", b"8"), ("-2", b"6"), ({"t-0": "latest"}, b"8")])
async def test_latest_is_the_end_when_the_consumer_starts_and_what_is_added_later_is_read_as_a_whole(
    broker: FakeBroker, coordinator: FakeCoordinator, start: Where, first: bytes, names: dict[str, Any]
) -> None:
    async with consumer(broker, start=start, **names) as client:
        batches = client.batches()
        fill(broker, 0, 1)
        (batch,) = await take(batches, 1)
        assert batch.values[0] == first
        broker.topics["t"].append(FakePartition())
        fill(broker, 2, 3)
        coordinator.assign(owned(("t", 2)))
        while batch.partition == 0:
            (batch,) = await take(batches, 1)
        assert batch.values == [b"0", b"1", b"2"]


@pytest.mark.parametrize(("look_up_s", "request_timeout_ms"), [(10.0, 1000), (0.1, 60_000)])
async def test_an_end_that_cannot_be_looked_up_at_the_start_is_looked_up_when_the_partition_is_read(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, look_up_s: float, request_timeout_ms: int
) -> None:
    monkeypatch.setattr("warmlog.consumer.starting.LOOK_UP_S", look_up_s)
    broker.refusal = lambda message: (
        warmlog.StorageError("offline") if isinstance(message, ListOffsetsRequest) else None
    )
    async with asyncio.timeout(25), consumer(broker, start="-2", request_timeout_ms=request_timeout_ms) as client:
        broker.refusal = lambda _: None
        assert (await take(client.batches(), 1))[0].values == [b"6", b"7"]


async def test_on_revoked_can_commit_only_what_is_given_up(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial = ALL

    async def commit(partitions: list[tuple[str, int]]) -> None:
        await client.commit({each: client.position(*each) for each in partitions})
        committed.append(dict(coordinator.committed))

    committed: list[dict[tuple[str, int], int]] = []
    async with consumer(broker, commit="manual", on_revoked=commit) as client:
        batches = client.batches()
        await take(batches, 4)
        coordinator.assign(FIRST)
        while not committed:
            fill(broker, 0, 1)
            await take(batches, 1)
        assert committed == [{("t", 1): 8}]
    assert committed[1]["t", 0] > 8


@pytest.mark.parametrize(
    "names", [{"topics": ["t"]}, {"partitions": ["t-0", "t-1"]}], ids=["a member", "with partitions"]
)
async def test_where_it_begins_is_committed_if_the_next_process_would_begin_later(
    broker: FakeBroker, coordinator: FakeCoordinator, names: dict[str, Any]
) -> None:
    coordinator.initial = ALL
    async with consumer(broker, start={"t-0": "latest", "t-1": "earliest"}, **names) as client:
        fill(broker, 0, 1)
        await take(client.batches(), 1)
        assert coordinator.committed == {("t", 0): 8}
    coordinator.offsets.clear()
    async with consumer(broker, start="latest", commit="manual", **names) as client:
        fill(broker, 0, 1)
        await take(client.batches(), 1)
        assert coordinator.committed == {}


async def test_what_the_loop_has_finished_with_is_committed(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, commit_interval_ms=10) as client:
        batches = client.batches()
        await take(batches, 1)
        await until(lambda: coordinator.committed == {("t", 0): 0})
        await asyncio.sleep(0.05)
        assert coordinator.committed == {("t", 0): 0}
        await take(batches, 1)
        await until(lambda: coordinator.committed == {("t", 0): 4})
        waiting = asyncio.ensure_future(anext(batches))
        await until(lambda: coordinator.committed == {("t", 0): 8})
        fill(broker, 0, 2)
        await waiting
    assert coordinator.committed == {("t", 0): 8}


async def test_the_record_in_hand_is_not_committed(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker) as client:
        seen = []
        async for record in client:
            seen.append(record.offset)
            if record.offset == 5:
                break
        assert client.position("t", 0) == 6
    assert seen == [0, 1, 2, 3, 4, 5]
    assert coordinator.committed == {("t", 0): 5}


async def test_a_loop_that_ends_by_itself_commits_all(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.initial = ALL
    async with consumer(broker) as client:
        assert len([batch async for batch in client.batches(until="latest")]) == 4
    assert coordinator.committed == {("t", 0): 8, ("t", 1): 8}


async def test_an_error_in_the_loop_commits_what_is_finished(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async def handle() -> None:
        async with consumer(broker) as client:
            async for batch in client.batches():
                if batch.next_offset == 8:
                    raise RuntimeError("in the handler")

    with pytest.raises(RuntimeError, match="in the handler"):
        await handle()
    assert coordinator.committed == {("t", 0): 4}


async def test_commits_by_hand_of_batch_record_and_mapping(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, commit="manual") as client:
        batches = client.batches()
        (batch,) = await take(batches, 1)
        assert coordinator.commits == []
        await client.commit(batch)
        assert coordinator.committed == {("t", 0): 4}
        assert coordinator.commits[-1].partitions[0].leader_epoch == batch.leader_epoch
        await client.commit(next(iter(batch)))
        assert coordinator.committed == {("t", 0): 1}
        await client.commit({"t-0": 3})
        assert coordinator.committed == {("t", 0): 3}
        await client.commit()
        assert coordinator.committed == {("t", 0): 4}
        sent = len(coordinator.commits)
        await client.commit()
        assert len(coordinator.commits) == sent
        await take(batches, 1)
        await batches.aclose()
        records = client.records()
        fill(broker, 0, 3)
        assert (await anext(records)).offset == 8
        await client.commit()
        assert coordinator.committed == {("t", 0): 9}
        with pytest.raises(warmlog.StaleMemberEpoch, match="t-1 is not assigned to this consumer"):
            await client.commit({("t", 1): 3})
        with pytest.raises(TypeError, match="a Batch, a Record or a mapping"):
            await client.commit(17)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="offset -1"):
            await client.commit({("t", 0): -1})
    assert coordinator.committed == {("t", 0): 9}


async def test_metadata_is_kept_with_an_offset_until_the_next_commit(broker: FakeBroker) -> None:
    async with consumer(broker, commit="manual") as client:
        (batch,) = await take(client.batches(), 1)
        assert await client.committed_metadata(["t-0"]) == {("t", 0): None}
        await client.commit(batch, metadata="July, ½")
        assert await client.committed_metadata() == {("t", 0): "July, ½"}
        await client.commit(metadata="August")
        assert await client.committed_metadata() == {("t", 0): "August"}, "the same offset with another text"
        await client.commit()
        assert await client.committed_metadata() == {("t", 0): "August"}, "there was nothing to commit"
        await client.commit({"t-0": 2})
        assert await client.committed_metadata() == {("t", 0): ""}
        assert await client.committed() == {("t", 0): 2}
        with pytest.raises(TypeError, match="metadata must be a str, not 17"):
            await client.commit(batch, metadata=17)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="metadata must be text that UTF-8 can encode"):
            await client.commit(batch, metadata="\udcff")


async def test_automatic_commits_never_go_back(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker) as client:
        batches = client.batches()
        (batch,) = await take(batches, 1)
        await client.commit(batch)
        client.seek("t", 0, 1)
        (batch,) = await take(batches, 1)
        assert batch.values == [b"1", b"2", b"3"]
        await client.seek_to_beginning()
    assert coordinator.committed == {("t", 0): 4}


async def test_a_batch_of_before_a_move_takes_no_offset_back(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, commit="manual") as client:
        batches = client.batches()
        (old,) = await take(batches, 1)
        coordinator.assign(ALL - FIRST)
        await until(lambda: client.group_metadata().member_epoch == 2)
        await take(batches, 1)
        coordinator.offsets[next(iter(FIRST))] = (6, 0)
        coordinator.assign(FIRST)
        await until(lambda: client.group_metadata().member_epoch == 3)
        (new,) = await take(batches, 1)
        assert new.base_offset == 6
        for stale in (old, next(iter(old))):
            with pytest.raises(warmlog.StaleMemberEpoch, match="the group has come to offset 6 since"):
                await client.commit(stale)
        await client.commit(new)
        client.seek("t", 0, 2)
        await client.commit(old)
        assert coordinator.committed == {("t", 0): 4}


async def test_a_committed_offset_that_is_gone_is_an_error_or_a_reset_with_a_warning(
    broker: FakeBroker, coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.offsets[next(iter(FIRST))] = (2, -1)
    partition = broker.topics["t"][0]
    partition.log_start_offset = 4
    async with consumer(broker) as client:
        with pytest.raises(warmlog.OffsetOutOfRange, match="offset 2 is not in the log, which goes from 4 to 8"):
            await take(client.batches(), 1)
    assert coordinator.committed == {("t", 0): 2}
    with caplog.at_level(logging.WARNING):
        async with consumer(broker, on_out_of_range="earliest") as client:
            assert place((await take(client.batches(), 1))[0]) == (0, 8)
    assert "t-0: offset 2 is not in the log; continuing at its earliest offset, 4" in caplog.text


async def test_a_consumer_of_partitions_commits_from_outside(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    coordinator.offsets[next(iter(FIRST))] = (4, 0)
    async with consumer(broker, partitions=["t-0"]) as client:
        assert client.position("t", 0) == 4
        assert [batch.values async for batch in client.batches(until="latest")] == [[b"4", b"5", b"6", b"7"]]
        assert client.group_metadata() == ("etl", "", -1, "")
    assert coordinator.committed == {("t", 0): 8}
    assert coordinator.heartbeats == []
    async with consumer(broker), consumer(broker, partitions=["t-0"], commit="manual") as outside:
        with pytest.raises(warmlog.NonEmptyGroup):
            await outside.commit({"t-0": 1})
        with pytest.raises(ValueError, match="does not read t-1"):
            await outside.commit({"t-1": 1})


@pytest.mark.usefixtures("quick_clock")
async def test_a_consumer_that_did_not_start_commits_nothing(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    def refuse(_: OffsetFetchRequest) -> Never:
        raise warmlog.UnstableOffsetCommit("a transaction is open")

    coordinator.offsets[next(iter(FIRST))] = (4, 0)
    broker.further_handlers[OffsetFetchRequest] = refuse
    with pytest.raises(warmlog.UnstableOffsetCommit):
        await consumer(broker, partitions=["t-0"], request_timeout_ms=5_000).start()
    assert coordinator.committed == {("t", 0): 4}


async def test_commits_at_once_share_requests_in_their_order(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, commit="manual") as client:
        await take(client.batches(), 1)
        before = len(coordinator.commits)
        await asyncio.gather(*(client.commit({"t-0": offset}) for offset in range(100)))
        assert coordinator.committed == {("t", 0): 99}
        assert len(coordinator.commits) - before <= 3


async def test_batches_taken_at_once_are_committed_one_by_one(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    pytest.importorskip("pyarrow")
    for count in (900, 3500):
        broker.add_batch("t", 0, encode_batch([b"x" * 1000] * count, timestamps_ms=[1000] * count))
    async with consumer(broker, start=8, commit="manual", partition_max_bytes=8 * 1024 * 1024) as client:
        parts = client.arrow(until="latest")
        for rows, committed in ((900, 8 + 900), (3500, 8 + 4400)):
            part = await asyncio.wait_for(anext(parts), PATIENCE_S)
            assert part.num_rows == rows
            await client.commit()
            assert coordinator.committed == {("t", 0): committed}


async def test_an_automatic_commit_takes_none_by_hand_back(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker) as client:
        (batch,) = await take(client.batches(), 1)
        by_hand = asyncio.ensure_future(client.commit(batch))
        await asyncio.sleep(0)
    await by_hand
    assert coordinator.committed == {("t", 0): 4}


async def test_automatic_commits_take_no_cancelled_one_back(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker) as client:
        (batch,) = await take(client.batches(), 1)
        by_hand = asyncio.ensure_future(client.commit(batch))
        await asyncio.sleep(0)
        assert by_hand.cancel()
    assert coordinator.committed == {("t", 0): 4}


async def test_seeking_to_committed_waits_for_cancelled_ones(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, commit="manual") as client:
        batches = client.batches()
        for _ in range(2):
            await take(batches, 1)
            by_hand = asyncio.ensure_future(client.commit())
            await asyncio.sleep(0)
            assert by_hand.cancel()
        await client.seek_to_committed()
        assert client.position("t", 0) == 8
        await client.commit()
    assert coordinator.committed == {("t", 0): 8}


async def test_an_automatic_commit_follows_a_refused_one(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker) as client:
        batches = client.batches()
        await take(batches, 2)
        coordinator.most = 8
        with pytest.raises(warmlog.OffsetOutOfRange):
            await client.commit({"t-0": 100})
    assert coordinator.committed == {("t", 0): 4}


async def test_a_commit_that_the_close_of_the_consumer_interrupts_says_so(
    broker: FakeBroker, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_commits, "LAST_COMMIT_TIMEOUT_S", 0.1)
    async with consumer(broker, commit="manual") as client:
        (batch,) = await take(client.batches(), 1)
        broker.is_silent = True
        by_hand = asyncio.ensure_future(client.commit(batch))
        await asyncio.sleep(0)
    with pytest.raises(warmlog.ClientClosed, match="closed before the commit had a response"):
        await by_hand
    assert coordinator.committed == {}


async def test_a_cancelled_block_ends_without_a_broker(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    read = asyncio.Event()

    async def work() -> None:
        async with consumer(broker) as client:
            async for _ in client.batches():
                broker.is_silent = client.position("t", 0) > 4
                if broker.is_silent:
                    read.set()

    working = asyncio.create_task(work())
    await read.wait()
    before = time.monotonic()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert time.monotonic() - before < 4
    assert "the last commit had no response within 0.5 s: records may be handled twice" in caplog.text


async def test_a_commit_of_on_revoked_ends_if_the_block_was_cancelled_without_a_broker(broker: FakeBroker) -> None:
    read = asyncio.Event()

    async def write_out(_: object) -> None:
        await client.commit()

    async def work() -> None:
        async with client:
            async for _ in client.batches():
                broker.is_silent = True
                read.set()
                await asyncio.sleep(60)

    client = consumer(broker, commit="manual", on_revoked=write_out)
    working = asyncio.create_task(work())
    await read.wait()
    before = time.monotonic()
    working.cancel()
    with pytest.raises(warmlog.ClientClosed, match="closed before the commit had a response"):
        await working
    assert time.monotonic() - before < 4


async def test_a_commit_beside_the_close_finds_the_consumer_closed_and_nothing_lost(broker: FakeBroker) -> None:
    lost: list[object] = []
    client = consumer(broker, on_lost=lost.append)
    await client.start()
    await take(client.batches(), 2)

    async def commit_on_and_on() -> None:
        while True:
            await client.commit()
            await asyncio.sleep(0)

    committing_task = asyncio.ensure_future(commit_on_and_on())
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(warmlog.ClientClosed):
        await committing_task
    assert lost == []


async def test_tables_count_as_reading(broker: FakeBroker, coordinator: FakeCoordinator) -> None:
    async with consumer(broker, max_poll_interval_ms=2500) as client:
        await take(client.batches(), 1)
        for _ in range(4):
            await client.to_arrow()
            await asyncio.sleep(0.8)
        assert coordinator.left == []
