"""Slow, stalled and greedy clients are cut, batches that become huge refused; others are served, memory comes back."""

import re
import struct
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, Self, cast

import pytest

import warmlog
from broker_process import BrokerProcess, port_to_keep
from faults.fuzzing.bodies import bomb, row_bomb
from faults.process_use import use_of
from kafka_client import KafkaClient
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch, read_batch, read_header, seal_batch
from warmlog_protocol.codec.compression import Codec, compress
from warmlog_protocol.errors import CorruptBatch, ErrorCode, InvalidRecord, InvalidRequest, TooManyConnections
from warmlog_protocol.kafka.schema import API
from warmlog_protocol.wire.frames import pack_frame
from wire_client import WireClient, batch_of

MIB = 2**20
RECEIVE_TIMEOUT_MS = 8000
PRODUCE_TIMEOUT_S = 7.0
"""Less than a request may take to come: who waits longer has waited for the stalled ones."""
STALLED_ENDS_WITHIN_S = PRODUCE_TIMEOUT_S + 4 * RECEIVE_TIMEOUT_MS / 1000
"""Who gets memory last sends much in its first window, and is cut at the end of the second: 23 s if nothing is busy."""


def resident_bytes(broker: BrokerProcess, field: str = "VmRSS") -> int:
    """The memory of the broker now; the most that it ever had, with the field VmHWM."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) * 1024


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = 40.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def half_sent(address: str, frame_bytes: int, sent_bytes: int) -> WireClient:
    """A client that has announced a Produce of `frame_bytes`, sent so much of it, and sends no more."""
    client = WireClient(address)
    message = m.ProduceRequest(-1, 1000, [m.ProducePartition("t", 0, frame_bytes)])
    _, frame = client.connection.request(message, frame_bytes)
    client.socket.settimeout(0.1)
    with suppress(TimeoutError):  # the broker has no memory for more, and does not read it
        client.socket.sendall(frame + bytes(sent_bytes))
    client.socket.settimeout(STALLED_ENDS_WITHIN_S)
    return client


def test_stalled_requests_that_fill_the_memory_do_not_stop_honest_ones_and_are_cut(tmp_path: Path) -> None:
    limits = {
        "socket_request_max_bytes": 20 * MIB,
        "queued_max_request_bytes": 50 * MIB,
        "connections_stall_timeout_ms": RECEIVE_TIMEOUT_MS,
    }
    with ExitStack() as held, BrokerProcess(tmp_path / "data", **limits) as broker:
        honest = held.enter_context(WireClient(broker.address))
        honest.create_topic("t")
        honest.produce("t", batch_of([b"x" * 100_000]))
        before_bytes = resident_bytes(broker)
        stalled = [held.enter_context(half_sent(broker.address, 18 * MIB, 9 * MIB)) for _ in range(12)]
        for _ in range(20):
            begin_s = time.monotonic()
            with WireClient(broker.address) as newcomer:  # its buffer is small: it needs memory from the budget
                newcomer.produce("t", batch_of([b"x" * 100_000]))
            assert time.monotonic() - begin_s < PRODUCE_TIMEOUT_S
        assert resident_bytes(broker) - before_bytes < 70 * MIB
        for client in stalled:
            client.wait_for_end()
        honest.produce("t", batch_of([b"x" * 100_000]))
        wait_until(lambda: resident_bytes(broker) - before_bytes < 15 * MIB, "memory did not come back")
        assert "others wait for memory that it holds" in broker.output


def test_who_is_not_read_while_its_fetches_wait_holds_no_memory(tmp_path: Path) -> None:
    limits = {"socket_request_max_bytes": 20 * MIB, "queued_max_request_bytes": 50 * MIB, "max_in_flight_requests": 8}
    with ExitStack() as held, BrokerProcess(tmp_path / "data", **limits) as broker:
        honest = held.enter_context(WireClient(broker.address))
        for topic in ("t", "empty"):
            honest.create_topic(topic)
        for frame_bytes in [18 * MIB] * 20 + [2 * MIB - 1000] * 10:
            peer = held.enter_context(WireClient(broker.address))
            waiting = m.FetchRequest(300_000, 1, 1000, [m.FetchPartition("empty", 0, 0, 1000)])
            fetches = b"".join(peer.connection.request(waiting)[1] for _ in range(8))
            message = m.ProduceRequest(-1, 1000, [m.ProducePartition("t", 0, frame_bytes)])
            peer.socket.sendall(fetches + peer.connection.request(message, frame_bytes)[1] + bytes(1000))
        for _ in range(3):
            begin_s = time.monotonic()
            with WireClient(broker.address, timeout_s=40) as newcomer:
                newcomer.produce("t", batch_of([b"x" * 100_000]))
            assert time.monotonic() - begin_s < PRODUCE_TIMEOUT_S


def test_who_reads_none_of_its_answers_is_pushed_back_and_then_cut(tmp_path: Path) -> None:
    settings = {"connections_stall_timeout_ms": 1500, "send_queue_bytes": 4 * MIB, "max_in_flight_requests": 1000}
    with ExitStack() as held, BrokerProcess(tmp_path / "data", **settings) as broker:
        other = held.enter_context(WireClient(broker.address))
        other.create_topic("t")
        for _ in range(4):
            other.produce("t", batch_of([b"x" * 1_000_000]))
        before_bytes = resident_bytes(broker)
        stalled = [held.enter_context(WireClient(broker.address)) for _ in range(10)]
        for client in stalled:
            for _ in range(100):
                client.send(m.FetchRequest(0, 1, 4 * MIB, [m.FetchPartition("t", 0, 0, 4 * MIB)]))
        for _ in range(20):
            assert len(other.fetch("t", 0)[1]) > MIB / 2
        assert resident_bytes(broker) - before_bytes < 40 * MIB
        wait_until(
            lambda: broker.output.count("it read less than 1024 bytes a second in 1.5 s of its responses") == 10,
            "not cut",
        )
        assert len(other.fetch("t", 0)[1]) > MIB / 2


def test_answers_that_nobody_reads_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Answers from memory: 2,000 descriptions of settings are more than the broker is allowed to hold."""
    with ExitStack() as held, BrokerProcess(tmp_path / "data", queued_max_response_bytes=8 * MIB) as broker:
        other = held.enter_context(WireClient(broker.address))
        names = [f"topic-{number}" for number in range(40)]
        for name in names:
            other.create_topic(name)
        before_bytes = resident_bytes(broker)
        greedy = [held.enter_context(WireClient(broker.address)) for _ in range(20)]
        for client in greedy:
            frames = [client.connection.request(m.DescribeConfigsRequest(names))[1] for _ in range(100)]
            client.socket.sendall(b"".join(frames))
        wait_until(lambda: "responses take more than queued.max.response.bytes" in broker.output, "nobody was cut")
        other.call(m.DescribeConfigsRequest(names))
        assert resident_bytes(broker) - before_bytes < 50 * MIB


def test_columns_converted_for_clients_of_kafka_that_do_not_read_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Each of 20 pipelines four fetches of 16 MB in columns: 1.3 GB of rows. One that reads gets on meanwhile."""
    address = f"127.0.0.1:{port_to_keep()}"
    settings = {"queued_max_response_bytes": 8 * MIB, "kafka_converted_cache_bytes": 0}
    request = API["Fetch"].request
    part = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=16 * MIB)
    wanted: dict[str, Any] = {
        "topics": [request.FetchTopic(topic="t", partitions=[part])],
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 16 * MIB,
        "session_epoch": -1,
    }
    with ExitStack() as held, BrokerProcess(tmp_path / "data", kafka_listen=address, **settings) as broker:
        own = held.enter_context(WireClient(broker.address))
        own.create_topic("t", retention_ms="-1")
        for _ in range(16):
            own.produce("t", batch_of([b"x" * 1_000_000]))
        before_bytes = resident_bytes(broker, "VmHWM")
        for client in [held.enter_context(KafkaClient(address)) for _ in range(20)]:
            for _ in range(4):
                client.send("Fetch", 11, **wanted)

        def is_cut() -> bool:
            with KafkaClient(address) as reader:  # no other response to it is in memory: the first has a batch for sure
                records = reader.call("Fetch", 11, **wanted).responses[0].partitions[0].records
                header = read_header(reader.body[records])
                assert read_batch(reader.body[records][: header.size_bytes]).base_offset == 0
                for each in [reader.send("Fetch", 11, **wanted) for _ in range(2)]:
                    assert reader.receive("Fetch", 11, each).responses[0].partitions[0].error_code == 0
            return "responses take more than queued.max.response.bytes" in broker.output

        wait_until(is_cut, "nobody was cut")
        assert resident_bytes(broker, "VmHWM") - before_bytes < 200 * MIB


@pytest.mark.parametrize("is_greeted", [False, True])
def test_who_sends_byte_by_byte_is_cut_at_its_deadline(tmp_path: Path, is_greeted: bool) -> None:
    settings = {"handshake_timeout_ms": 2000, "connections_stall_timeout_ms": 2000}
    with BrokerProcess(tmp_path / "data", **settings) as broker, WireClient(broker.address) as other:
        with WireClient(broker.address, handshake=is_greeted) as slow:
            frame = pack_frame((3, 0, 1), m.MetadataRequest(["t" * 200]))
            with suppress(ConnectionError):
                for byte in frame:
                    slow.socket.sendall(bytes((byte,)))
                    time.sleep(0.05)
            slow.wait_for_end()
        other.call(m.MetadataRequest())
        slow_reason = "it sent less than 1024 bytes a second in 2 s of a request"
        reason = slow_reason if is_greeted else "no handshake within 2000 ms"
        wait_until(lambda: reason in broker.output, "the reason is not in the log")


def test_one_address_may_hold_so_many_connections_and_is_told_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", max_connections_per_ip=3) as broker, ExitStack() as held:
        clients = [held.enter_context(WireClient(broker.address)) for _ in range(3)]
        for _ in range(5):
            with pytest.raises(TooManyConnections, match=r"127\.0\.0\.1 has 3 connections open"):
                WireClient(broker.address)
        for client in clients:
            client.call(m.MetadataRequest())


def test_a_header_beyond_its_limit_and_too_many_items_are_refused(tmp_path: Path) -> None:
    settings = {"request_header_max_bytes": 200_000, "request_max_items": 1000}
    with BrokerProcess(tmp_path / "data", **settings) as broker:
        with WireClient(broker.address) as client, pytest.raises(InvalidRequest, match="1001 topics in one request"):
            client.call(m.MetadataRequest(["t"] * 1001))
        with WireClient(broker.address) as client:
            client.socket.sendall(struct.pack(">II", 300_000, 250_000))
            client.wait_for_end()
        wait_until(lambda: "a header of 250000 bytes" in broker.output, "the reason is not in the log")
        with WireClient(broker.address) as client:
            client.call(m.MetadataRequest(["t"] * 1000))


def test_hostile_connections_cannot_flood_the_log(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        lines_before = broker.output.count("\n")
        for _ in range(500):
            with WireClient(broker.address, handshake=False) as client:
                client.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
                client.wait_for_end()
        assert broker.terminate() == 0
        assert broker.output.count("\n") - lines_before < 40
        assert "connections closed, frames too large: 490 more" in broker.output


def test_requests_that_name_much_get_one_answer_for_each_topic_or_an_error(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=100)
        answer = client.call(m.MetadataRequest(["t"] * 10_000))
        assert isinstance(answer, m.MetadataResponse)
        assert [topic.name for topic in answer.topics] == ["t"]
        with pytest.raises(InvalidRequest, match="1000 are allowed"):
            client.call(m.DescribeConfigsRequest(["t"] * 1001))
        with pytest.raises(InvalidRequest, match="1000 are allowed"):
            client.call(m.CreateTopicsRequest([m.NewTopic(f"new-{number}") for number in range(1001)]))
        client.call(m.MetadataRequest())


def test_a_fetch_that_names_much_leaves_others_their_turn(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address, timeout_s=60) as client:
        client.create_topic("t")
        client.produce("t", batch_of([b"x"]))
        items = [m.FetchPartition("t", 0, 0, 1000), *(m.FetchPartition("t", 0, 1, 1000) for _ in range(8999))]
        for request in (m.FetchRequest(0, 1, MIB, items), m.FetchRequest(300, MIB, MIB, items)):
            wide = client.send(request)
            answers = [client.fetch("t", 0)[0].size_bytes for _ in range(3)]
            assert not client.has_answer(wide), "all its partitions were read in one turn"
            response, payload = client.receive(wide)
            assert isinstance(response, m.FetchResponse)
            assert len(response.partitions) == 9000
            assert [response.partitions[0].size_bytes, *answers] == [len(payload)] * 4


def test_integers_beyond_their_field_are_refused_as_such(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for number in (2**31, 2**63, 2**64 - 1, -(2**63)):
            with WireClient(broker.address) as client, pytest.raises(InvalidRequest, match="Expected `int`"):
                client.fetch("t", 0, partition=number)
        with WireClient(broker.address) as client:
            client.call(m.MetadataRequest())
        assert "a bug" not in broker.output


LIMIT_BYTES = 4 << 20
TIME_MS = 1_700_000_000_000
BOMBS = [(codec, is_rows) for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD) for is_rows in (False, True)]


BROKER_SETTINGS = {"batch_max_decompressed_bytes": LIMIT_BYTES}


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"compression_type": "uncompressed"}])
def test_the_broker_refuses_bombs_and_keeps_its_memory(broker: BrokerProcess, settings: dict[str, str]) -> None:
    topic = next(iter(settings)).replace("_", "-")
    with WireClient(broker.address) as client:
        client.create_topic(topic, **settings)
        client.produce(topic, bomb_that_fits())
        before_bytes = use_of(broker.pid).memory_bytes
        for _ in range(3):
            for codec, is_rows in BOMBS:
                with pytest.raises(InvalidRecord, match=re.compile("limit", re.IGNORECASE)):
                    client.produce(topic, bomb(codec, is_rows=is_rows))
            with pytest.raises(InvalidRecord, match="100000 records: too many"):
                client.produce(topic, row_bomb())
        assert use_of(broker.pid).memory_bytes - before_bytes < 48 << 20
        client.produce(topic, bomb_that_fits())
    assert "a bug" not in broker.output


async def test_a_consumer_refuses_bombs_and_goes_on_behind_them(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("plain")
        for codec, is_rows in BOMBS:
            client.produce("plain", bomb(codec, is_rows=is_rows))
            client.produce("plain", batch_of([b"honest"]))
    honest = refused = 0
    async with warmlog.Consumer(broker.address, topics=["plain"], max_decompressed_bytes=LIMIT_BYTES) as consumer:
        tracemalloc.start()
        async for batch in consumer.batches(until="latest"):
            try:
                honest += batch.values == [b"honest"]
            except warmlog.UnreadableBatch as error:
                refused += "limit" in str(error)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (honest, refused) == (len(BOMBS), len(BOMBS))
    assert peak_bytes < 40 << 20


def test_a_lookup_by_time_refuses_bombs_and_the_brokers_memory_stays(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("looked-up", len(BOMBS) + 1, retention_ms="-1")
        for partition, (codec, is_rows) in enumerate(BOMBS):
            client.produce("looked-up", bomb(codec, is_rows=is_rows), partition=partition)
        client.produce("looked-up", bomb_that_fits(), partition=len(BOMBS))
        before_bytes = use_of(broker.pid).memory_bytes
        for timestamp_ms in (TIME_MS, m.MAX_TIMESTAMP):
            for partition in range(len(BOMBS)):
                with pytest.raises(CorruptBatch, match=re.compile("limit", re.IGNORECASE)):
                    client.offset_at("looked-up", timestamp_ms, partition=partition)
            assert client.offset_at("looked-up", timestamp_ms, partition=len(BOMBS)) == 0
        assert use_of(broker.pid).memory_bytes - before_bytes < 24 << 20
    assert "a bug" not in broker.output


@pytest.mark.parametrize("kind", ["values", "records"])
def test_many_lookups_of_times_in_large_batches_stop_nobody_and_take_memory_of_one(tmp_path: Path, kind: str) -> None:
    """A batch of less than 1 MiB that becomes 100 MiB, or 16 million records."""
    lookups = 12 if kind == "values" else 3
    batch, timestamp_ms, offset = many_values() if kind == "values" else many_records()
    with Crowd(tmp_path / "data", lookups) as crowd:
        crowd.honest.create_topic("large", retention_ms="-1")
        crowd.honest.produce("large", batch)
        wanted = m.ListOffsetsRequest([m.ListOffsetsPartition("large", 0, timestamp_ms)])
        answers = crowd.ask(lambda client: client.send(wanted))
    found = [cast("m.ListOffsetsResponse", answer).partitions[0] for answer in answers]
    assert [(each.error_code, each.timestamp_ms, each.offset) for each in found] == [
        (0, timestamp_ms, offset)
    ] * lookups


@pytest.mark.parametrize("kind", ["uncompressed", "lz4"])
def test_many_who_have_large_batches_packed_stop_nobody_and_take_the_memory_of_one(tmp_path: Path, kind: str) -> None:
    """Also where they are refused: an error must not keep what was decompressed before it."""
    batch, _, _ = many_values()
    with Crowd(tmp_path / "data", 12) as crowd:
        crowd.honest.create_topic("packed", compression_type=kind, retention_ms="-1")
        answers = crowd.ask(lambda client: client.send_produce("packed", batch, timeout_ms=100_000))
    found = [cast("m.ProduceResponse", answer).partitions[0].error_code for answer in answers]
    assert found == [ErrorCode.MESSAGE_TOO_LARGE if kind == "uncompressed" else ErrorCode.NONE] * 12


class Crowd:
    """A broker, many clients who ask it for the same at once, and one who sees to it that this hurts nobody."""

    def __init__(self, data_dir: Path, count: int) -> None:
        self._count = count
        self._held = ExitStack()
        self._broker = BrokerProcess(data_dir)

    def __enter__(self) -> Self:
        self._held.enter_context(self._broker)
        self._clients = [
            self._held.enter_context(WireClient(self._broker.address, timeout_s=120)) for _ in range(self._count)
        ]
        self.honest = self._held.enter_context(WireClient(self._broker.address))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def ask(self, send: Callable[[WireClient], int]) -> list[m.Message]:
        """What all are answered. Meanwhile the broker is as quick as ever, and takes little memory."""
        honest = self.honest
        honest.create_topic("small", retention_ms="-1")
        honest.produce("small", batch_of([b"a"], timestamp_ms=TIME_MS))
        before_bytes, largest_bytes = use_of(self._broker.pid).memory_bytes, 0
        rounds_s: list[float] = []
        begin_s = time.monotonic()
        sent = [(client, send(client)) for client in self._clients]
        with ThreadPoolExecutor(1) as waiting:
            answers = waiting.submit(lambda: [client.receive(correlation_id)[0] for client, correlation_id in sent])
            while not answers.done():
                round_s = time.monotonic()
                assert honest.offset_at("small", m.LATEST_TIMESTAMP) == 1
                rounds_s.append(time.monotonic() - round_s)
                largest_bytes = max(largest_bytes, use_of(self._broker.pid).memory_bytes)
                if len(rounds_s) % 10 == 0:
                    assert honest.offset_at("small", TIME_MS) == 0, "small batches are opened beside large ones"
        took_s = time.monotonic() - begin_s
        assert largest_bytes - before_bytes < 180 << 20
        assert len(rounds_s) > 10
        assert median(rounds_s) < max(0.1, took_s / 20)
        assert max(rounds_s) < max(1, took_s / 4)
        return answers.result()


def many_values() -> tuple[bytes, int, int]:
    """A batch, the time of its last record, and that one's offset."""
    times = [TIME_MS + number for number in range(100)]
    return encode_batch([bytes(1 << 20)] * 100, timestamps_ms=times, codec=Codec.ZSTD), times[-1], 99


def many_records() -> tuple[bytes, int, int]:
    """The same of records of one byte, which are so many that no list of them should be made."""
    count = 2**24 - 1
    times = b"\x04" + bytes(4 * (count - 1)) + (1000).to_bytes(4, "little")
    plain = times + b"\x00" + (1).to_bytes(8, "little")
    header = read_header(encode_batch([b"a"], timestamps_ms=TIME_MS, codec=Codec.ZSTD))
    header = header._replace(
        record_count=count, last_offset_delta=count - 1, base_timestamp_ms=TIME_MS, max_timestamp_ms=TIME_MS + 1000
    )
    body = b"\x00" + len(plain).to_bytes(4, "little") + compress(Codec.ZSTD, plain)
    return seal_batch(header, body), TIME_MS + 1000, count - 1


def bomb_that_fits() -> bytes:
    """A batch with a key that becomes a hundred times as large."""
    return encode_batch([bytes(500_000)], keys=[b"k"], timestamps_ms=TIME_MS, codec=Codec.ZSTD)
