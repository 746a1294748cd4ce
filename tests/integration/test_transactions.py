"""Readers of committed data against real brokers: over transactions that Kafka wrote, and over ones made here."""

import asyncio
from collections.abc import Iterator
from typing import cast
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from broker_thread import BrokerThread
from integration.command_line import CommandLine, succeeded
from transactions import SAMPLE, PrintedRecord, TransactionalProducer, printed_records, serve_sample
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.ranges.read_settings import ReadSettings
from warmlog_protocol import messages as m
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import InvalidRecord, InvalidTxnState
from wire_client import WireClient, batch_of

COMMITTED, UNCOMMITTED = m.IsolationLevel.READ_COMMITTED, m.IsolationLevel.READ_UNCOMMITTED
TOPIC = "transfers"


@pytest.fixture(scope="module")
def kafkas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that serves Kafka's partition; the consumer's answers are small, so that they begin anywhere."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        serve_sample(process, TOPIC)
        yield process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker") / "data") as thread:
        yield thread


@pytest.fixture
def topic(client: WireClient) -> str:
    name = f"t{uuid4().hex}"
    client.create_topic(name, segment_bytes="1048576", index_interval_bytes="100", retention_ms="-1")
    return name


async def consumed(address: str, topic: str, isolation: str, start: int = 0, **options: int) -> list[PrintedRecord]:
    """All that a consumer delivers from an offset to the end."""
    async with warmlog.Consumer(address, topics=[topic], isolation=isolation, start="earliest", **options) as consumer:
        consumer.seek(topic, 0, start)
        return [
            PrintedRecord(
                record.offset,
                record.timestamp_ms,
                (record.key or b"").decode(),
                None if record.value is None else record.value.decode(),
            )
            async for record in consumer.records(until="latest")
        ]


def fetch(client: WireClient, topic: str, offset: int, isolation: int, max_bytes: int = 1 << 20) -> m.FetchedPartition:
    wanted = m.FetchPartition(topic, 0, offset, max_bytes)
    response, _ = client.receive(client.send(m.FetchRequest(0, 1, max_bytes, [wanted], isolation)))
    return cast("m.FetchResponse", response).partitions[0]


def latest(client: WireClient, topic: str, isolation: int) -> int:
    request = m.ListOffsetsRequest([m.ListOffsetsPartition(topic, 0, m.LATEST_TIMESTAMP)], isolation)
    return cast("m.ListOffsetsResponse", client.call(request)).partitions[0].offset


# What Kafka wrote


async def test_all_records_that_kafka_wrote_are_read_uncommitted(kafkas: BrokerProcess) -> None:
    records = await consumed(kafkas.address, TOPIC, "read_uncommitted")
    assert records == printed_records(committed_only=False)
    assert len(records) == 300


async def test_only_committed_records_that_kafka_wrote_are_read_committed(kafkas: BrokerProcess) -> None:
    expected = printed_records(committed_only=True)
    assert await consumed(kafkas.address, TOPIC, "read_committed") == expected
    assert 200 < len(expected) < 230


@pytest.mark.parametrize("start", range(0, 375, 17))
@pytest.mark.parametrize("fetch_bytes", [1, 700])
async def test_a_committed_reader_may_begin_within_one(kafkas: BrokerProcess, start: int, fetch_bytes: int) -> None:
    expected = [record for record in printed_records(committed_only=True) if record.offset >= start]
    records = await consumed(kafkas.address, TOPIC, "read_committed", start, partition_max_bytes=fetch_bytes)
    assert records == expected


async def test_arrow_batches_hold_committed_records_only(kafkas: BrokerProcess) -> None:
    async with warmlog.Consumer(
        kafkas.address, topics=[TOPIC], isolation="read_committed", start="earliest"
    ) as consumer:
        batches = [batch async for batch in consumer.arrow(until="latest")]
    rows = [
        PrintedRecord(row["offset"], int(row["timestamp"].timestamp() * 1000 + 0.5), row["key"].decode(), row["value"])
        for batch in batches
        for row in batch.to_pylist()
    ]
    found = [row._replace(value=None if row.value is None else cast("bytes", row.value).decode()) for row in rows]
    assert found == printed_records(committed_only=True)


def test_the_broker_lists_the_aborted_transactions_that_kafkas_index_has(kafkas: BrokerProcess) -> None:
    dump = (SAMPLE / "00000000000000000000.txnindex.dump").read_text().splitlines()[1:]
    expected = [m.AbortedTransaction(int(line.split()[3]), int(line.split()[5])) for line in dump]
    with WireClient(kafkas.address) as client:
        result = fetch(client, TOPIC, 0, COMMITTED)
        assert list(result.aborted_transactions) == expected
        assert result.last_stable_offset == result.high_watermark == 375
        assert fetch(client, TOPIC, 0, UNCOMMITTED).aborted_transactions == []
        assert latest(client, TOPIC, COMMITTED) == latest(client, TOPIC, UNCOMMITTED) == 375


def test_the_command_line_prints_committed_records_where_it_is_asked_to(kafkas: BrokerProcess) -> None:
    warmlog_command = CommandLine(kafkas.address)
    for committed_only, options in ((False, []), (True, ["--committed"])):
        printed = succeeded(warmlog_command("consume", TOPIC, "--to", "latest", "--format", "%o %k", *options))
        expected = [f"{record.offset} {record.key}" for record in printed_records(committed_only=committed_only)]
        assert printed.decode().splitlines() == expected


# What is written here


def test_a_committed_fetch_ends_at_the_last_stable_offset(broker: BrokerThread, client: WireClient, topic: str) -> None:
    producer, other = TransactionalProducer(broker, topic, 1), TransactionalProducer(broker, topic, 2)
    client.produce(topic, batch_of([b"plain"]))
    producer.send(b"a", b"b")
    other.send(b"x")
    assert (latest(client, topic, COMMITTED), latest(client, topic, UNCOMMITTED)) == (1, 4)
    result = fetch(client, topic, 0, COMMITTED)
    assert (result.last_stable_offset, result.high_watermark) == (1, 4)
    assert result.size_bytes == fetch(client, topic, 0, UNCOMMITTED, max_bytes=1).size_bytes
    assert fetch(client, topic, 1, COMMITTED).size_bytes == 0
    producer.commit()
    assert latest(client, topic, COMMITTED) == 3
    other.abort()
    result = fetch(client, topic, 0, COMMITTED)
    assert result.last_stable_offset == result.high_watermark == 6
    assert result.aborted_transactions == [m.AbortedTransaction(2, 3)]


def test_a_committed_reader_is_woken_by_the_marker(broker: BrokerThread, client: WireClient, topic: str) -> None:
    producer = TransactionalProducer(broker, topic, 1)
    wanted = [m.FetchPartition(topic, 0, 0, 1 << 20)]
    waiting = client.send(m.FetchRequest(20_000, 1, 1 << 20, wanted, COMMITTED))
    producer.send(b"a", b"b")
    client.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.receive(waiting)
    client.socket.settimeout(20)
    producer.commit()
    _, payload = client.receive(waiting)
    assert [batch.record_count for batch in iter_batches(payload)] == [2, 1]


@pytest.mark.parametrize("fetch_bytes", [1, 1 << 20])
@pytest.mark.parametrize("rows", [False, True])
async def test_committed_readers_begin_anywhere(broker: BrokerThread, topic: str, fetch_bytes: int, rows: bool) -> None:
    one, two = TransactionalProducer(broker, topic, 1), TransactionalProducer(broker, topic, 2)
    committed: list[str] = []
    for number in range(12):  # more than a segment holds; 1 aborts every other one, 2 every third
        for producer, aborts in ((one, number % 2 == 0), (two, number % 3 == 0)):
            values = [b"%d/%d/%d/" % (producer.producer_id, number, n) + b"." * 20_000 for n in range(3)]
            for value in values:
                producer.send(value, rows=rows)
            if not aborts:
                committed += [value.decode() for value in values]
        for producer, aborts in ((one, number % 2 == 0), (two, number % 3 == 0)):
            _ = producer.abort() if aborts else producer.commit()
    whole = await consumed(broker.address, topic, "read_committed", partition_max_bytes=fetch_bytes)
    assert [record.value for record in whole] == committed
    for start in range(0, 96, 5):
        found = await consumed(broker.address, topic, "read_committed", start, partition_max_bytes=fetch_bytes)
        assert found == [record for record in whole if record.offset >= start]


async def test_a_consumer_that_follows_gets_what_is_committed(broker: BrokerThread, topic: str) -> None:
    async with warmlog.Consumer(
        broker.address, topics=[topic], isolation="read_committed", start="earliest"
    ) as consumer:
        records = consumer.records()
        producer = TransactionalProducer(broker, topic, 1)
        await asyncio.to_thread(producer.send, b"aborted")
        await asyncio.to_thread(producer.abort)
        await asyncio.to_thread(producer.send, b"committed")
        coming = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0.2)
        assert not coming.done()
        await asyncio.to_thread(producer.commit)
        assert (await asyncio.wait_for(coming, 40)).value == b"committed"


async def test_a_tail_counts_back_from_the_end_of_what_the_reader_may_see(broker: BrokerThread, topic: str) -> None:
    producer = TransactionalProducer(broker, topic, 1)
    for end in (producer.abort, producer.commit):
        await asyncio.to_thread(producer.send, b"done")
        await asyncio.to_thread(end)
    await asyncio.to_thread(producer.send, b"open")
    for isolation, end_offset in (("read_committed", 4), ("read_uncommitted", 5)):
        async with warmlog.Consumer(broker.address, topics=[topic], isolation=isolation, start="-2") as consumer:
            assert consumer.position(topic, 0) == end_offset - 2
            assert await consumer.available() == {(topic, 0): range(end_offset)}
            await consumer.seek_to("-100")
            assert consumer.position(topic, 0) == 0
            assert [record.value async for record in consumer.records(until="-1")] == [
                *([b"done"] if isolation == "read_uncommitted" else []),
                b"done",
            ]
        settings = ReadSettings(isolation=m.IsolationLevel[isolation.upper()])
        with arrow_reader(broker.address, [topic], start="-2", columns=["offset"], settings=settings) as reader:
            offsets = reader.read_all()["offset"].to_pylist()
        assert offsets == ([2] if isolation == "read_committed" else [4])
    await asyncio.to_thread(producer.abort)


# What clients must not write


def test_batches_that_belong_to_no_transaction_of_their_request_are_refused(client: WireClient, topic: str) -> None:
    batch = batch_of([b"a"], producer=client.producer_id(), base_sequence=0)
    transactional = with_attributes(batch, 1 << 4)
    with pytest.raises(InvalidTxnState, match="no open transaction, and its request no transactional id"):
        client.produce(topic, transactional)
    with pytest.raises(InvalidRecord, match="control batch"):
        client.produce(topic, with_attributes(batch, 3 << 4))
    request = m.ProduceRequest(-1, 1000, [m.ProducePartition(topic, 0, len(batch))], transactional_id="t")
    with pytest.raises(InvalidTxnState, match="a batch that is not transactional"):
        client.produced(client.send(request, batch))
    assert client.produce(topic, batch).base_offset == 0


def with_attributes(batch: bytes, attributes: int) -> bytes:
    """The batch with other attributes, and the CRC that belongs to them."""
    from warmlog_protocol.batch import HEADER_BYTES, read_header, seal_batch

    return seal_batch(read_header(batch)._replace(attributes=attributes), batch[HEADER_BYTES:])
