"""Seen from inside: the broker's threads while requests are carried out, and who is told which partitions it leads."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from broker_thread import BrokerThread
from truncating import truncate_to
from warmlog_broker import Broker
from warmlog_broker.config.listeners import DEFAULT_LISTENER
from warmlog_broker.handlers import bind_endpoints
from warmlog_broker.handlers.produce import PARTITIONS_A_TURN, PendingProduce
from warmlog_broker.network.body_threads import BodyThreads
from warmlog_broker.network.codec import Pieces, ProtocolCodec
from warmlog_broker.network.request import (
    ANONYMOUS_PRINCIPAL,
    Deferred,
    RequestContext,
    Response,
    Slices,
    StartedRequest,
)
from warmlog_broker.network.request_runner import RequestRunner
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.log.local_log import LogBounds
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol import messages as m
from warmlog_protocol.batch import columns, encode_batch, iter_batches
from warmlog_protocol.codec import compression
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse
from warmlog_protocol.wire.connection import Request
from wire_client import WireClient, batch_of

TIME_MS = 1_700_000_000_000
MAX_BYTES = 1 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(
        tmp_path_factory.mktemp("broker") / "data", flush_ms=86_400_000, retention_ms=-1
    ) as broker_thread:
        yield broker_thread


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[WireClient]:
    with WireClient(broker.address) as wire_client:
        yield wire_client


class Peer:
    """Channel and codec of one request, without a connection: keeps the response."""

    def __init__(self) -> None:
        self.context = RequestContext(DEFAULT_LISTENER, "", ANONYMOUS_PRINCIPAL, "peer")
        self.has_ended = threading.Event()
        self.message: m.Message | None = None
        self.slices: Sequence[FileSlice] = ()

    def encode(self, _request: StartedRequest, message: m.Message, slices: Slices) -> Pieces:
        self.message, self.slices = message, [piece for of_partition in slices for piece in of_partition]
        return ()

    def encode_error(self, _request: StartedRequest, error: ApiError) -> Pieces:
        raise error

    def end(self, _started: StartedRequest, _pieces: Pieces | None) -> None:
        self.has_ended.set()

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def hold(self, _started: StartedRequest, payload_bytes: int) -> None: ...

    def release(self, _started: StartedRequest) -> None: ...

    @property
    def fetched(self) -> list[tuple[m.FetchedPartition, bytes]]:
        """The response to a fetch, each partition with its bytes, as a client cuts them out of the payload."""
        assert self.has_ended.wait(40)
        payload = b"".join(piece.pread() for piece in self.slices)
        found = []
        for each in cast("m.FetchResponse", self.message).partitions:
            found.append((each, payload[: each.size_bytes]))
            payload = payload[each.size_bytes :]
        assert not payload
        return found


def fetch_as(broker: BrokerThread, peer: Peer, *wanted: m.FetchPartition, max_wait_ms: int = 0) -> Peer:
    message = m.FetchRequest(max_wait_ms, 1, MAX_BYTES, list(wanted), replica_id=m.CONSUMER_REPLICA_ID)
    request = Request(m.APIS[m.ApiKey.FETCH], 0, 1, message, memoryview(b""), False)

    def start(inside: Broker) -> None:
        runner = RequestRunner(
            peer,
            cast("ProtocolCodec", peer),
            tasks=inside._tasks,
            timers=inside._timers,
            counters=inside._counters,
            quotas=inside.services.quotas,
            context=peer.context,
        )
        runner.start(request, StartedRequest(bind_endpoints(inside.services)[m.FetchRequest], request.correlation_id))

    broker.in_loop(start)
    return peer


def values_of(payload: bytes) -> list[bytes | None]:
    return [value for batch in iter_batches(payload) for value in batch.values()]


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_no_loop_opens_a_body(broker: BrokerThread, client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_in: set[str] = set()

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            opened_in.add(threading.current_thread().name)
            return function(*arguments)

        return noted

    def in_threads() -> set[str]:
        found = {name.rstrip("0123456789_") for name in opened_in}
        opened_in.clear()
        return found

    packed = encode_batch([b"v"] * 100, keys=[b"k"] * 100, timestamps_ms=TIME_MS, codec=compression.Codec.ZSTD)
    plain = encode_batch([b"v"] * 100, keys=[b"k"] * 100, timestamps_ms=TIME_MS)
    monkeypatch.setattr(compression, "_decompress_into", noting(compression._decompress_into))
    monkeypatch.setattr(columns, "read_column", noting(columns.read_column))
    for topic, settings in {
        "kept": {},
        "stamped": {"message_timestamp_type": "LogAppendTime"},
        "packed": {"compression_type": "lz4"},
        "compacted": {"cleanup_policy": "compact"},
    }.items():
        client.create_topic(topic, **settings)
        for batch in (packed, plain):
            assert client.produce(topic, batch).error_code == 0
        looks_at_records = topic in ("packed", "compacted")
        assert in_threads() == ({"prepare"} if looks_at_records else set())
        for timestamp_ms in (TIME_MS, m.MAX_TIMESTAMP):
            assert client.offset_at(topic, timestamp_ms) >= 0
            assert in_threads() == {"prepare"}
        wanted = [m.FetchPartition(topic, 0, 0, MAX_BYTES)]
        client.call(m.FetchRequest(0, 1, MAX_BYTES, wanted, isolation=m.IsolationLevel.READ_COMMITTED))
        client.call(m.FindSplitsRequest([m.FindSplitsPartition(topic, 0, 0, 200)], 4096, 1000))
        assert in_threads() == set()


def test_a_lookup_begins_anew_where_the_log_was_cut_meanwhile(
    broker: BrokerThread, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("cut")
    for number in range(3):
        client.produce("cut", batch_of([b"x"], timestamp_ms=TIME_MS + number))
    run = BodyThreads.run
    cuts = [2, 1]

    async def cut_and_run(bodies: BodyThreads, work: Callable[[int], object]) -> object:
        if cuts:
            log = next(each.log for each in broker.broker.topics.partitions if each.key.topic == "cut")
            truncate_to(log, cuts.pop(0), TIME_MS)
        return await run(bodies, work)

    monkeypatch.setattr(BodyThreads, "run", cut_and_run)
    assert client.offset_at("cut", TIME_MS + 1) == -1
    assert cuts == []
    assert client.offset_at("cut", TIME_MS) == 0


# --- produce, for many partitions ------------------------------------------------------------------------------------


def test_a_request_for_many_partitions_is_appended_in_turns_in_order(broker: BrokerThread, client: WireClient) -> None:
    """Those that follow on the same connection come after it; those on others are served in between."""
    count = 20 * PARTITIONS_A_TURN + 3
    client.create_topic("wide", count)
    producer = client.producer_id()

    def request(sequence: int) -> tuple[m.ProduceRequest, bytes]:
        batch = batch_of([b"%d" % sequence], producer=producer, base_sequence=sequence)
        wanted = [m.ProducePartition("wide", number, len(batch)) for number in range(count)]
        return m.ProduceRequest(-1, 60_000, wanted), batch * count

    turns: list[int] = []

    def count_appended(inside: Broker) -> None:
        ends = [partition.log.log_end_offset for partition in inside.topics.get("wide").local.values()]
        turns.append(sum(ends))
        if sum(ends) < 3 * count:
            asyncio.get_running_loop().call_soon(count_appended, inside)

    broker.in_loop(count_appended)
    sent = [client.send(*request(sequence)) for sequence in range(3)]
    for sequence, correlation_id in enumerate(sent):
        results = cast("m.ProduceResponse", client.receive(correlation_id)[0]).partitions
        assert [each.partition for each in results] == list(range(count))
        assert {(each.error_code, each.base_offset) for each in results} == {(0, sequence)}
    assert len(set(turns)) > 3 * 20 / 2
    assert max(after - before for before, after in pairwise(turns)) <= 2 * PARTITIONS_A_TURN
    for number in (0, PARTITIONS_A_TURN, count - 1):
        assert values_of(client.fetch("wide", 0, partition=number)[1]) == [b"0", b"1", b"2"]


def test_each_of_many_partitions_has_its_own_outcome(broker: BrokerThread, client: WireClient) -> None:
    count = 5 * PARTITIONS_A_TURN
    client.create_topic("mixed", count)
    client.create_topic("mixed-packed", count, compression_type="zstd")
    good, bad = batch_of([b"x"]), bytearray(batch_of([b"y"]))
    bad[-1] ^= 1
    wanted, payload = [], b""
    for number in range(count):
        for topic in ("mixed", "mixed-packed"):
            batch = bytes(bad) if number % 7 == 3 else good
            wanted.append(m.ProducePartition(topic, number, len(batch)))
            payload += batch
        wanted.append(m.ProducePartition("no-such-topic", number, len(good)))
        payload += good
    for acks, offset in ((-1, 0), (1, 1)):
        results = cast("m.ProduceResponse", client.call(m.ProduceRequest(acks, 60_000, wanted), payload)).partitions
        assert [(each.topic, each.partition) for each in results] == [(each.topic, each.partition) for each in wanted]
        for each in results:
            if each.topic == "no-such-topic":
                assert each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif each.partition % 7 == 3:
                assert each.error_code == ErrorCode.CORRUPT_MESSAGE
            else:
                assert (each.error_code, each.base_offset) == (ErrorCode.NONE, offset)


def test_many_who_wait_are_told_in_any_order_without_looking_through_a_list() -> None:
    """A comparison for each of those before it would be 50 million of them."""
    compared = 0

    class Place(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

    ended: list[object] = []

    class Owner:
        def end(self, _deferred: Deferred, work: Callable[[], Response]) -> None:
            ended.append(work())

    pending = PendingProduce(1000)
    for number in range(10_000):
        pending.waiting.add(number)
        pending.results.append(m.ProducedPartition("t", number, 0))
    assert pending.appended(0.0) is pending
    pending.begin(Owner())
    for number in reversed(range(10_000)):
        assert ended == []
        pending.batch_done(Place(number), None)
    assert len(ended) == 1
    assert compared <= 4 * 10_000


# --- fetch -----------------------------------------------------------------------------------------------------------


def test_a_partition_that_fails_late_takes_nothing_from_the_others(
    broker: BrokerThread, client: WireClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_topic("shifted", 4)
    for number in range(4):
        client.produce("shifted", batch_of([b"%d" % number] * (number + 1)), partition=number)
    stable = vars(LogBounds)["last_stable_offset"].fget

    def failing_once(bounds: LogBounds) -> int:
        if bounds._local.key.partition == 1:
            raise RuntimeError("of the test")
        return stable(bounds)

    monkeypatch.setattr(LogBounds, "last_stable_offset", property(failing_once))
    caplog.set_level(logging.CRITICAL)
    wanted = [m.FetchPartition("shifted", number, 0, MAX_BYTES) for number in range(4)]
    found = fetch_as(broker, Peer(), *wanted).fetched
    assert [result.error_code for result, _ in found] == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0, 0]
    assert [values_of(payload) for _, payload in found] == [[b"0"], [], [b"2"] * 3, [b"3"] * 4]


class Watcher:
    """Notes what it is told, as (event, partition, leader epoch)."""

    def __init__(self, broker: BrokerThread) -> None:
        self._broker = broker
        self._told: list[tuple[str, int, int]] = []
        broker.in_loop(lambda it: it.topics.watch("t", self))

    def loaded(self, partition: Partition) -> None:
        self._told.append(("loaded", partition.key.partition, partition.leader_epoch))

    def unloaded(self, partition: Partition) -> None:
        self._told.append(("unloaded", partition.key.partition, partition.leader_epoch))

    def told(self) -> list[tuple[str, int, int]]:
        """What it was told since the last call."""

        def take(_: Broker) -> list[tuple[str, int, int]]:
            told, self._told = self._told, []
            return told

        return self._broker.in_loop(take)


async def move(broker: Broker, to: Path) -> None:
    await broker.services.moves.request("t", 0, to)
    directory = broker.services.directories.get(to)
    assert directory is not None
    await asyncio.wait([under_way.task for under_way in broker.services.moves.into(directory)])
    assert broker.topics.partition("t", 0) in directory.partitions


def test_a_watcher_is_told_of_what_this_broker_leads_all_its_life(tmp_path: Path) -> None:
    paths = tmp_path / "first", tmp_path / "second"
    with BrokerThread(*paths) as broker, WireClient(broker.address) as client:
        watcher = Watcher(broker)
        assert watcher.told() == []
        client.create_topic("t", 2)
        assert watcher.told() == [("loaded", 0, 0), ("loaded", 1, 0)]
        client.produce("t", batch_of([b"a"]))
        broker.run(move(broker.broker, paths[1]))
        assert watcher.told() == [], "it leads the partition before, during and after the move"
        broker.in_loop(lambda it: it.topics.partition("t", 1).take_offline("its disk has failed"))
        assert watcher.told() == [("unloaded", 1, 0)]
    with BrokerThread(*paths) as broker, WireClient(broker.address) as client:
        watcher = Watcher(broker)
        assert watcher.told() == [("loaded", 0, 0), ("loaded", 1, 1)], "the stop could not close the log of 1"
        broker.in_loop(lambda it: it.topics.partition("t", 1).take_offline("its disk has failed"))
        assert watcher.told() == [("unloaded", 1, 1)]
        (deleted,) = cast("DeleteTopicsResponse", client.call(DeleteTopicsRequest(["t"]))).topics
        assert deleted.error_code == 0
        assert watcher.told() == [("unloaded", 0, 0)]


def test_a_watcher_hears_nothing_of_a_partition_that_the_start_could_not_open(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("t", 2)
    (tmp_path / "t-0").rename(tmp_path / "away")
    with BrokerThread(tmp_path) as broker:
        watcher = Watcher(broker)
        assert watcher.told() == [("loaded", 1, 0)]


def test_a_directory_that_fails_takes_its_partitions_from_the_watcher(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "first", tmp_path / "second") as broker, WireClient(broker.address) as client:
        client.create_topic("t", 4)
        watcher = Watcher(broker)
        lost = broker.in_loop(lambda it: [each.key.partition for each in it.services.directories.served[1].partitions])
        watcher.told()
        broker.in_loop(lambda it: it.services.directories.served[1].fail("its disk is gone"))
        assert watcher.told() == [("unloaded", number, 0) for number in lost]
        broker.in_loop(lambda it: it.services.directories.served[0].fail("read-only", is_read_only=True))
        assert sorted(watcher.told()) == [("unloaded", number, 0) for number in range(4) if number not in lost]
