"""What the console reads of topics: with aborted, open and unreadable records, filters and a tail."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from broker_thread import BrokerThread
from warmlog import Admin, ApiError, NotLeaderOrFollower, Producer, UnknownTopicOrPartition
from warmlog.console import reading
from warmlog.console.reading import KEPT_BYTES, Budget, Query, Row, Tail, read, search, whole
from warmlog.points import EARLIEST, Point, PointKind
from warmlog_protocol.messages import DescribedPartition

TOPIC = "t"


class Undone(Exception):
    """Leaves a transaction's block so that it is aborted."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("read") / "data") as running:
        yield running


@pytest.fixture
async def admin(broker: BrokerThread) -> AsyncIterator[Admin]:
    """An admin client, with a topic of two partitions that is empty."""
    async with Admin(broker.address) as admin:
        await admin.create_topic(TOPIC, partitions=2)
        yield admin
        await admin.delete_topic(TOPIC)


def values(rows: list[Row]) -> list[bytes | None]:
    return [row.value for row in rows]


async def fill(broker: BrokerThread, count: int = 10, partition: int = 0) -> None:
    """Records with the numbers as values, every other one with the key "even", a second apart."""
    async with Producer(broker.address) as producer:
        for number in range(count):
            await producer.send(
                TOPIC,
                b"%d" % number,
                key=b"even" if number % 2 == 0 else None,
                headers=[("n", b"%d" % number)],
                timestamp_ms=1_000_000 + number * 1000,
                partition=partition,
            )


async def test_the_newest_records_of_all_partitions_come_first(broker: BrokerThread, admin: Admin) -> None:
    await fill(broker, partition=0)
    await fill(broker, 12, partition=1)
    rows = await search(admin, Query(TOPIC, limit=4))
    assert values(rows) == [b"11", b"10", b"9", b"9"]
    assert [row.partition for row in rows] == [1, 1, 1, 0]


async def test_records_are_found_by_partition_offset_time_key_header_and_text(
    broker: BrokerThread, admin: Admin
) -> None:
    await fill(broker)
    assert values(await search(admin, Query(TOPIC, 0, Point(PointKind.OFFSET, 7)))) == [b"7", b"8", b"9"]
    assert values(await search(admin, Query(TOPIC, 1))) == []
    assert values(await search(admin, Query(TOPIC, start=EARLIEST, limit=2))) == [b"0", b"1"]
    at = Point(PointKind.TIME, 1_004_000)
    assert values(await search(admin, Query(TOPIC, start=at, limit=3))) == [b"4", b"5", b"6"]
    assert values(await search(admin, Query(TOPIC, 0, Point(PointKind.TAIL, 2)))) == [b"8", b"9"]
    assert values(await search(admin, Query(TOPIC, key=b"even", limit=2))) == [b"8", b"6"]
    assert values(await search(admin, Query(TOPIC, header="n=3"))) == [b"3"]
    assert len(await search(admin, Query(TOPIC, header="n"))) == 10
    assert values(await search(admin, Query(TOPIC, text=b"7"))) == [b"7"]
    assert values(await search(admin, Query(TOPIC, text=b"1", scan=5))) == []


async def test_an_offset_outside_of_the_log_shows_what_there_is(broker: BrokerThread, admin: Admin) -> None:
    await fill(broker)
    await admin.delete_records({(TOPIC, 0): 5})
    assert values(await search(admin, Query(TOPIC, 0, Point(PointKind.OFFSET, 2)))) == [b"5", b"6", b"7", b"8", b"9"]
    assert await search(admin, Query(TOPIC, 0, Point(PointKind.OFFSET, 1_000))) == []


async def test_a_topic_that_does_not_exist_and_no_topic_are_errors(admin: Admin) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        await search(admin, Query("other"))
    with pytest.raises(ValueError, match="topic"):
        await search(admin, Query(""))


async def test_large_values_are_cut_and_read_whole_on_request(broker: BrokerThread, admin: Admin) -> None:
    value = b"a" * 500_000 + b"needle"
    async with Producer(broker.address) as producer:
        await producer.send(TOPIC, value, partition=0)
    (row,) = await search(admin, Query(TOPIC, text=b"needle"))
    assert row.is_cut
    assert row.value == value[:KEPT_BYTES]
    assert row.size_bytes == len(value)
    (found,) = await whole(admin, [row])
    assert found.value == value


async def test_large_keys_and_open_records_are_read_whole_and_what_is_gone_is_said(
    broker: BrokerThread, admin: Admin
) -> None:
    large = b"a" * 500_000
    async with Producer(broker.address, transactional_id="large") as producer, producer.transaction():
        producer.send(TOPIC, b"small", key=large, partition=0)
        producer.send(TOPIC, large, partition=0)
        await producer.flush()
        rows = await search(admin, Query(TOPIC, start=EARLIEST))
        assert [row.is_cut for row in rows] == [True, True]
        found = await whole(admin, rows)
        assert [(row.key, row.value, row.kind) for row in found] == [(large, b"small", "open"), (None, large, "open")]
    await admin.delete_records({(TOPIC, 0): 2})
    with pytest.raises((ApiError, ValueError)):
        await whole(admin, rows)


async def test_aborted_open_and_control_records_are_told_apart(broker: BrokerThread, admin: Admin) -> None:
    async with Producer(broker.address, transactional_id="console") as producer:
        async with producer.transaction():
            producer.send(TOPIC, b"committed", partition=0)
        with suppress(Undone):
            async with producer.transaction():
                producer.send(TOPIC, b"aborted", partition=0)
                await producer.flush()
                raise Undone
        async with producer.transaction():
            producer.send(TOPIC, b"open", partition=0)
            await producer.flush()
            shown = await search(admin, Query(TOPIC, start=EARLIEST))
            hidden = await search(admin, Query(TOPIC, start=EARLIEST, shows_hidden=True))
    assert [(row.value, row.kind) for row in shown] == [(b"committed", ""), (b"open", "open")]
    assert [row.kind for row in hidden] == ["", "commit marker", "aborted", "abort marker", "open"]


async def test_a_search_ends_when_its_budget_is_used_up_and_large_downloads_are_refused(
    broker: BrokerThread, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(broker.address) as producer:
        for _ in range(6):
            await producer.send(TOPIC, b"a" * 700_000, headers=[("h", b"b" * 100_000)], partition=0)
    budget = Budget(1_500_000)
    rows = await search(admin, Query(TOPIC, start=EARLIEST), budget)
    assert 2 <= len(rows) < 6
    assert budget.bytes_left <= 0
    assert [(len(row.value or b""), row.headers, row.size_bytes) for row in rows[:1]] == [(KEPT_BYTES, (), 800_000)]
    monkeypatch.setattr(reading, "WHOLE_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="show fewer"):
        await whole(admin, rows)
    (found,) = await whole(admin, rows[:1])
    assert list(found.headers) == [("h", b"b" * 100_000)]


async def test_a_tail_of_too_many_bytes_leaves_out_and_counts_too(
    broker: BrokerThread, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "TAIL_BYTES", 1_000_000)
    tail = Tail(admin, Query(TOPIC), 100)
    await tail.next()
    async with Producer(broker.address) as producer:
        for _ in range(6):
            await producer.send(TOPIC, b"a" * 700_000, partition=0)
    rows = await tail.next()
    assert 0 < len(rows) < 6
    assert tail.left_out == 6 - len(rows)


async def test_a_tail_has_what_was_appended_since(broker: BrokerThread, admin: Admin) -> None:
    await fill(broker, 3)
    tail = Tail(admin, Query(TOPIC), 100)
    assert await tail.next() == []
    await fill(broker, 2, partition=1)
    assert values(await tail.next()) == [b"1", b"0"]
    assert await tail.next() == []
    assert tail.left_out == 0


async def test_a_tail_that_fails_in_one_partition_loses_nothing_of_the_others(
    broker: BrokerThread, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = Tail(admin, Query(TOPIC), 100)
    await tail.next()
    await fill(broker, 2, partition=0)
    await fill(broker, 1, partition=1)

    async def failing(admin: Admin, log: DescribedPartition, start: int, end: int, _: Budget) -> AsyncIterator[Row]:
        if log.partition == 1:
            raise NotLeaderOrFollower("it moves")
        async for row in read(admin, log, start, end):
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(reading, "read", failing)
        with pytest.raises(NotLeaderOrFollower):
            await tail.next()
    assert sorted(values(await tail.next())) == [b"0", b"0", b"1"]


async def test_a_tail_leaves_out_what_is_too_much_and_counts_it(broker: BrokerThread, admin: Admin) -> None:
    tail = Tail(admin, Query(TOPIC), 4)
    await tail.next()
    await fill(broker, 10)
    assert values(await tail.next()) == [b"9", b"8", b"7", b"6"]
    assert tail.left_out == 6


async def test_a_damaged_batch_is_a_row_and_what_follows_is_read(broker: BrokerThread, admin: Admin) -> None:
    await fill(broker, 3)

    def damage(_: object) -> None:
        partition = broker.broker.services.topics.partition(TOPIC, 0)
        segment = partition.log.local.active
        position = segment.size_bytes // 3 + 70
        with segment.path.open("r+b") as file:
            file.seek(position)
            file.write(b"\xff")

    broker.in_loop(damage)
    log = (await admin.describe_partitions([TOPIC]))[TOPIC, 0]
    assert isinstance(log, DescribedPartition)
    rows = [row async for row in read(admin, log, 0, 3)]
    assert [(row.offset, row.kind) for row in rows] == [(0, ""), (1, "unreadable"), (2, "")]
