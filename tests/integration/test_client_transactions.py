"""Transactions of the Python client, against real brokers."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from waiting import until
from warmlog.producer.transaction import TransactionalId

BROKER_SETTINGS = {"transaction_coordinator_partitions": 2}


@pytest.fixture
async def topic(broker: BrokerProcess) -> str:
    name = f"t{uuid4().hex}"
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(name, partitions=3)
    return name


def named(broker: BrokerProcess, **options: object) -> warmlog.Producer[bytes, bytes]:
    return warmlog.Producer(broker.address, transactional_id=f"id-{uuid4().hex}", **options)  # type: ignore[arg-type]


async def read(broker: BrokerProcess, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    async with warmlog.Consumer(broker.address, topics=[topic], start="earliest", isolation=isolation) as consumer:
        return sorted([record.value async for record in consumer.records(until="latest")])  # type: ignore[type-var]


async def test_a_block_commits_all_of_its_records_in_all_partitions(broker: BrokerProcess, topic: str) -> None:
    async with named(broker) as producer:
        for round_number in range(3):
            async with producer.transaction():
                for partition in range(3):
                    producer.send(topic, b"%d-%d" % (round_number, partition), partition=partition)
                await producer.send_many(topic, [b"%d-many" % round_number] * 2)
                assert len(await read(broker, topic)) == 5 * round_number
        assert len(await read(broker, topic)) == 15


async def test_an_error_in_the_block_aborts_and_the_next_one_begins_at_once(broker: BrokerProcess, topic: str) -> None:
    async with named(broker) as producer:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - a transaction
                async with producer.transaction():
                    await producer.send(topic, b"aborted")
                    unsent = producer.send(topic, b"never sent")
                    raise ZeroDivisionError
            with pytest.raises(warmlog.errors.TransactionAborted):
                await unsent
            async with producer.transaction():
                producer.send(topic, b"committed")
    assert await read(broker, topic) == [b"committed"] * 3


async def test_no_record_is_committed_without_offsets_if_this_is_caught(broker: BrokerProcess, topic: str) -> None:
    async with (
        warmlog.Consumer(
            broker.address, topics=[topic], group=f"g{uuid4().hex}", start="earliest", commit="manual"
        ) as consumer,
        named(broker) as producer,
        warmlog.Producer(broker.address) as plain,
    ):
        await plain.send(topic, b"original")
        record = await anext(aiter(consumer.records()))
        with pytest.raises(warmlog.errors.StaleMemberEpoch):  # noqa: PT012 - a transaction
            async with producer.transaction() as transaction:
                producer.send(topic, b"copy")
                with suppress(warmlog.errors.StaleMemberEpoch):
                    await transaction.commit_offsets(consumer, {(topic, 9): 1})
        with pytest.raises(warmlog.errors.TransactionAborted, match="offsets were not added"):  # noqa: PT012 - a transaction
            async with producer.transaction() as transaction:
                producer.send(topic, b"copy")
                adding = asyncio.create_task(transaction.commit_offsets(consumer, record))
                await asyncio.sleep(0)
                adding.cancel()
                await asyncio.wait([adding])
        async with producer.transaction():
            pass
    assert await read(broker, topic) == [b"original"]


async def test_records_that_are_being_sent_go_into_no_later_transaction(broker: BrokerProcess, topic: str) -> None:
    values = [b"%06d" % number + b"x" * 1000 for number in range(3000)]
    async with named(broker, buffer_bytes=1 << 18, batch_bytes=1 << 16) as producer:
        async with producer.transaction():
            await producer.send(topic, b"first")
            sending = asyncio.create_task(producer.send_many(topic, values))
            await asyncio.sleep(0)
        async with producer.transaction():
            with pytest.raises(warmlog.errors.ClientError, match="transaction"):
                await sending
            count = len(await read(broker, topic))
            await producer.send(topic, b"second")
        assert len(await read(broker, topic)) == count + 1


async def test_a_topic_that_is_recreated_within_a_transaction_aborts_it(broker: BrokerProcess, topic: str) -> None:
    async with named(broker) as producer, warmlog.Admin(broker.address) as admin:
        with pytest.raises(warmlog.errors.InconsistentTopicId, match="what was written to it before is lost"):  # noqa: PT012 - a transaction
            async with producer.transaction():
                await producer.send(topic, b"lost", partition=0)
                await admin.delete_topic(topic)
                await admin.create_topic(topic, partitions=3)
                producer.send(topic, b"without the lost one", partition=0)
        async with producer.transaction():
            producer.send(topic, b"committed", partition=0)
    assert await read(broker, topic) == [b"committed"]


async def test_a_record_that_fails_aborts_also_if_its_error_was_caught(broker: BrokerProcess, topic: str) -> None:
    async with named(broker) as producer:
        with pytest.raises(warmlog.UnknownTopicOrPartition):  # noqa: PT012 - a transaction
            async with producer.transaction():
                producer.send(topic, b"a")
                with pytest.raises(warmlog.UnknownTopicOrPartition):
                    await producer.send("there-is-no-such-topic", b"b")
        async with producer.transaction():
            producer.send(topic, b"c")
    assert await read(broker, topic) == [b"c"]


async def test_nothing_is_sent_outside_of_a_transaction_and_one_is_open(broker: BrokerProcess, topic: str) -> None:
    async with named(broker) as producer:
        with pytest.raises(warmlog.ClientError, match="send within `async with producer"):
            producer.send(topic, b"x")
        with pytest.raises(warmlog.ClientError, match="send within `async with producer"):
            await producer.send_many(topic, [b"x"])
        async with producer.transaction():
            await producer.send(topic, b"y")
            with pytest.raises(warmlog.ClientError, match="of this producer is open"):
                await producer.transaction().__aenter__()
            producer.send(topic, b"y")
        with pytest.raises(warmlog.ClientError, match="send within `async with producer"):
            producer.send(topic, b"x")
    async with warmlog.Producer(broker.address) as plain:
        with pytest.raises(warmlog.ClientError, match="with a transactional_id"):
            plain.transaction()
    assert await read(broker, topic) == [b"y", b"y"]


async def test_a_producer_that_was_replaced_is_told_for_good(broker: BrokerProcess, topic: str) -> None:
    async with named(broker) as old:
        name = old._options.transactional_id
        with pytest.raises(warmlog.errors.ProducerFenced):  # noqa: PT012 - a transaction
            async with old.transaction():
                await old.send(topic, b"old")
                async with warmlog.Producer(broker.address, transactional_id=name) as new, new.transaction():
                    new.send(topic, b"new")
                old.send(topic, b"old")
        with pytest.raises(warmlog.errors.ProducerFenced):
            async with old.transaction():
                pass
    assert await read(broker, topic) == [b"new"]


async def test_a_transaction_over_its_timeout_is_told_and_the_next_goes_on(broker: BrokerProcess, topic: str) -> None:
    name = f"id-{uuid4().hex}"
    async with (
        warmlog.Admin(broker.address) as admin,
        warmlog.Producer(broker.address, transactional_id=name, transaction_timeout_ms=2000) as producer,
    ):
        with pytest.raises(warmlog.errors.TransactionAbortable):  # noqa: PT012 - a transaction
            async with producer.transaction():
                await producer.send(topic, b"late")
                while (await admin.describe_transaction(name)).state != "empty":  # noqa: ASYNC110 - a process
                    await asyncio.sleep(0.05)
        async with producer.transaction():
            producer.send(topic, b"in time")
    assert await read(broker, topic) == [b"in time"]


async def test_an_empty_transaction_asks_nobody(broker: BrokerProcess) -> None:
    async with named(broker) as producer:
        async with producer.transaction():
            pass
        with pytest.raises(ValueError, match="mine"):
            async with producer.transaction():
                raise ValueError("mine")


async def test_a_cancelled_block_is_aborted(broker: BrokerProcess, topic: str) -> None:
    sent = asyncio.Event()
    async with named(broker) as producer:

        async def work() -> None:
            async with producer.transaction():
                await producer.send(topic, b"cancelled")
                sent.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await sent.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with producer.transaction():
            producer.send(topic, b"next")
    assert await read(broker, topic) == [b"next"]


async def test_a_broker_that_is_killed_in_the_middle_costs_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("killed") / "data"
    with BrokerProcess(directory) as broker:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic("t", partitions=2)
        async with named(broker) as producer:
            async with producer.transaction():
                await producer.send("t", b"before", partition=0)
                broker.kill()
                broker.start()
                producer.send("t", b"after", partition=0)
                producer.send("t", b"after", partition=1)
            async with producer.transaction():
                producer.send("t", b"next")
        assert await read(broker, "t") == [b"after", b"after", b"before", b"next"]


@pytest.mark.parametrize("fails", [False, True])
async def test_records_and_offsets_are_committed_together(broker: BrokerProcess, topic: str, *, fails: bool) -> None:
    group, output = f"g{uuid4().hex}", f"out{uuid4().hex}"
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(output)
    async with warmlog.Producer(broker.address) as plain:
        await plain.send_many(topic, [b"%d" % number for number in range(30)])
    handled = 0
    async with (
        warmlog.Consumer(broker.address, topics=[topic], group=group, start="earliest", commit="manual") as consumer,
        named(broker) as producer,
    ):
        while handled < 30:
            batch = await anext(aiter(consumer.batches()))
            try:
                async with producer.transaction() as transaction:
                    await producer.send_many(output, [b"out-%s" % value for value in batch.values if value is not None])
                    await transaction.commit_offsets(consumer, batch)
                    if fails:
                        fails = False
                        raise ZeroDivisionError
                handled += len(batch.values)
            except ZeroDivisionError:
                await consumer.seek_to_committed()
        assert sum(offset or 0 for offset in (await consumer.committed()).values()) == 30
    assert await read(broker, output) == sorted(b"out-%d" % number for number in range(30))


async def test_a_consumer_goes_back_after_an_unheard_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionalId.abort, "__defaults__", (0.2,))
    with BrokerProcess(tmp_path / "data") as broker:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic("t")
        options: dict[str, Any] = {"partitions": [("t", 0)], "group": "g", "start": "earliest", "commit": "manual"}
        async with named(broker) as producer, warmlog.Consumer(broker.address, **options) as consumer:
            async with producer.transaction():
                await producer.send_many("t", [b"value"] * 10)
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - a transaction
                async with producer.transaction() as transaction:
                    await transaction.commit_offsets(consumer, {("t", 0): 7})
                    broker.kill()
                    raise ZeroDivisionError
            broker.start()
            async with asyncio.timeout(40):
                await consumer.seek_to_committed()
            assert consumer.position("t", 0) == 0
            async with producer.transaction() as transaction:
                await transaction.commit_offsets(consumer, {("t", 0): 8})
            assert (await consumer.committed())["t", 0] == 8


async def test_a_program_beside_an_old_one_begins_after_its_transaction(broker: BrokerProcess, topic: str) -> None:
    """Consumers with `partitions` are no members: nothing else keeps the new one from reading too early."""
    options = {"partitions": [(topic, 0)], "group": f"g{uuid4().hex}", "start": "earliest", "commit": "manual"}
    async with (
        named(broker) as producer,
        warmlog.Consumer(broker.address, **options) as old,  # type: ignore[arg-type]
        warmlog.Admin(broker.address, request_timeout_ms=2000) as admin,
    ):
        async with warmlog.Producer(broker.address) as plain:
            await asyncio.gather(*(plain.send(topic, b"value", partition=0) for _ in range(10)))
        async with producer.transaction() as transaction:
            await transaction.commit_offsets(old, {(topic, 0): 7})
            new = asyncio.create_task(warmlog.Consumer(broker.address, **options).start())  # type: ignore[arg-type]
            with pytest.raises(warmlog.UnstableOffsetCommit):
                await admin.reset_offsets(str(options["group"]), "latest", [(topic, 0)], dry_run=False)
            assert (await old.committed())[topic, 0] is None, "this does not wait"
        consumer = await new
        assert consumer.position(topic, 0) == 7
        await consumer.close()
        await admin.reset_offsets(str(options["group"]), "latest", dry_run=False)
        assert (await old.committed())[topic, 0] == 10


Values = AsyncIterator[bytes | None]


async def _by_batch(consumer: warmlog.Consumer) -> Values:
    for _ in range(3):
        for value in (await anext(consumer.batches())).values:
            yield value


async def _by_record_after_a_commit(consumer: warmlog.Consumer) -> Values:
    records = consumer.records()
    for _ in range(3):
        await consumer.commit(await anext(records))
        yield (await anext(records)).value


async def _by_part_after_a_commit(consumer: warmlog.Consumer) -> Values:
    parts = consumer.arrow()
    for _ in range(3):
        (record,) = (await anext(parts)).select(["topic", "partition", "offset"]).to_pylist()
        await consumer.commit({(record["topic"], record["partition"]): record["offset"] + 1})
        (value,) = (await anext(parts))["value"].to_pylist()
        yield value


@pytest.mark.parametrize("read_all", [_by_batch, _by_record_after_a_commit, _by_part_after_a_commit])
async def test_a_transaction_that_read_what_was_given_up_meanwhile_is_aborted(
    broker: BrokerProcess, read_all: Callable[[warmlog.Consumer], Values]
) -> None:
    """Of each partition there is one batch of two records, so large that each is an Arrow batch of its own."""
    group, topic, output = (f"{name}{uuid4().hex}" for name in ("g", "t", "out"))
    large, size_bytes = 2**23, 3_000_000
    options: dict[str, Any] = {"topics": [topic], "group": group, "start": "earliest", "commit": "manual"}
    async with warmlog.Admin(broker.address) as admin:
        for name, partitions in ((topic, 3), (output, 1)):
            await admin.create_topic(name, partitions=partitions, configs={"max.message.bytes": large})
    async with (
        warmlog.Producer(broker.address, compression="zstd", batch_bytes=large, high_water_bytes=4 * large) as plain,
        warmlog.Consumer(broker.address, **options) as consumer,
        named(broker, compression="zstd") as producer,
    ):
        for partition in range(3):
            values = [b"%d-%d" % (partition, number) + bytes(size_bytes) for number in range(2)]
            await plain.send_many(topic, values, partition=partition)
        with pytest.raises(warmlog.StaleMemberEpoch, match="was given up after records of it were delivered"):  # noqa: PT012 - a transaction
            async with producer.transaction() as transaction:
                async for value in read_all(consumer):
                    await producer.send(output, value)
                async with warmlog.Consumer(broker.address, **options), asyncio.timeout(40):
                    while len(kept := consumer.assignment) == 3:
                        assert [batch async for batch in consumer.batches(until="latest")] == []
                await transaction.commit_offsets(consumer)
        assert await read(broker, output) == []
        await consumer.seek_to_committed()
        async with producer.transaction() as transaction:
            async for batch in consumer.batches(until="latest"):
                await producer.send_many(output, batch.values)
            await transaction.commit_offsets(consumer)
        last = {b"%d-1" % partition + bytes(size_bytes) for _, partition in kept}
        assert last <= set(await read(broker, output))


async def test_a_transaction_with_a_table_that_was_given_up_in_part_is_aborted(broker: BrokerProcess) -> None:
    group, topic, output = (f"{name}{uuid4().hex}" for name in ("g", "t", "out"))
    options: dict[str, Any] = {"topics": [topic], "group": group, "start": "earliest", "commit": "manual"}
    async with warmlog.Admin(broker.address) as admin:
        for name in (topic, output):
            await admin.create_topic(name, partitions=2)
    async with (
        warmlog.Producer(broker.address) as plain,
        warmlog.Consumer(broker.address, **options) as consumer,
        named(broker) as producer,
    ):
        for partition in range(2):
            await plain.send_many(topic, [b"%d" % partition], partition=partition)
        with pytest.raises(warmlog.StaleMemberEpoch, match="was given up after records of it were delivered"):  # noqa: PT012 - a transaction
            async with producer.transaction() as transaction:
                values = (await consumer.to_arrow(columns=["value"])).column("value").to_pylist()
                async with warmlog.Consumer(broker.address, **options), asyncio.timeout(40):
                    while len(consumer.assignment) == 2:
                        with suppress(TimeoutError):
                            await asyncio.wait_for(anext(consumer.batches()), 0.2)
                assert sorted(values) == [b"0", b"1"]
                await producer.send_many(output, values)
                await transaction.commit_offsets(consumer)
    assert await read(broker, output) == []


async def test_a_producer_that_is_closed_within_a_block_aborts_at_once(broker: BrokerProcess, topic: str) -> None:
    producer = await named(broker).start()
    with pytest.raises(warmlog.errors.ClientClosed):  # noqa: PT012 - a transaction
        async with producer.transaction():
            await producer.send(topic, b"open", partition=0)
            await producer.close()
    async with warmlog.Producer(broker.address) as plain:
        await plain.send(topic, b"plain", partition=0)
    assert await read(broker, topic) == [b"plain"]


async def test_a_producer_that_is_closed_while_a_block_commits_waits(broker: BrokerProcess, topic: str) -> None:
    producer = await named(broker).start()
    has_left = asyncio.Event()

    async def write() -> None:
        async with producer.transaction():
            await producer.send(topic, b"committed")
            has_left.set()

    writing = asyncio.create_task(write())
    await has_left.wait()
    await asyncio.gather(producer.close(), writing)
    assert await read(broker, topic) == [b"committed"]


async def test_a_block_whose_producer_is_closed_early_is_not_committed(broker: BrokerProcess, topic: str) -> None:
    producer = await named(broker, linger_ms=60_000).start()
    with pytest.raises(warmlog.errors.ClientClosed, match="closed within the transaction"):  # noqa: PT012 - a transaction
        async with producer.transaction():
            producer.send(topic, b"unsent")
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
    await closing
    assert await read(broker, topic) == []


async def test_closing_within_a_block_waits_for_the_abort_no_longer_than_it_may(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic("t")
        producer = await named(broker).start()
        with pytest.raises(warmlog.errors.ClientClosed):  # noqa: PT012 - a transaction
            async with producer.transaction():
                await producer.send("t", b"open")
                broker.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
                begin_s = time.monotonic()
                await producer.close(timeout_s=0.1)
        assert time.monotonic() - begin_s < 20, "the broker would be waited for for 30 s"


async def test_a_transaction_that_read_what_was_lost_is_always_aborted(
    broker: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        warmlog.Producer(broker.address) as plain,
        warmlog.Consumer(
            broker.address, topics=[topic], group=topic, start="earliest", commit="manual", max_poll_interval_ms=1000
        ) as consumer,
        named(broker) as producer,
    ):
        await plain.send(topic, b"read twice", partition=0)
        records = consumer.records()
        with pytest.raises(warmlog.StaleMemberEpoch, match="was given up"):  # noqa: PT012 - a transaction
            async with producer.transaction() as transaction:
                producer.send(topic, (await anext(records)).value, partition=1)
                await until(lambda: "no longer a member of the group" in caplog.text)
                with pytest.raises(warmlog.MembershipLost):
                    await anext(records)
                producer.send(topic, (await anext(records)).value, partition=1)
                await transaction.commit_offsets(consumer)
        assert await read(broker, topic) == [b"read twice"]


async def test_a_consumer_that_commits_by_itself_is_refused(broker: BrokerProcess, topic: str) -> None:
    async with (
        warmlog.Consumer(broker.address, topics=[topic], group="auto", start="earliest") as consumer,
        named(broker) as producer,
    ):
        with pytest.raises(warmlog.InvalidConfig, match='commit="manual"'):
            async with producer.transaction() as transaction:
                await transaction.commit_offsets(consumer, {(topic, 0): 0})
        with pytest.raises(warmlog.ClientError, match="has ended"):
            await transaction.add_offsets(None)  # type: ignore[arg-type]


async def test_a_cancelled_transaction_ends_within_a_second_while_the_broker_is_away(
    broker: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    has_sent = asyncio.Event()

    async def work() -> None:
        async with named(broker) as producer, producer.transaction():
            await producer.send(topic, b"aborted")
            has_sent.set()
            await asyncio.sleep(60)

    working = asyncio.create_task(work())
    await has_sent.wait()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        before = time.monotonic()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert time.monotonic() - before < 10, "the broker would be waited for for 30 s"
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert "the abort is repeated until it is closed: no response within 0.5 s" in caplog.text
