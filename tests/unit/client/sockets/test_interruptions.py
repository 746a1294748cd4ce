"""Blocking calls that are interrupted, by Ctrl-C for one, and made again: nothing is lost, doubled, or waited for
without end."""

import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import warmlog.arrow_write.producer
import warmlog.producer.partition_queue
import warmlog.producer.produce_request
import warmlog.producer.producer_batch
import warmlog.sockets.cluster
import warmlog.sockets.connection
from broker_in_thread import broker_in_thread
from fake_broker import FakeBroker, FakePartition, Fault
from interrupter import interrupt_everywhere
from warmlog.arrow_write.producer import ArrowBatch, BlockingProducer
from warmlog.arrow_write.rows import ArrowRows, PreparedRows
from warmlog.errors import ClientClosed
from warmlog.sockets.cluster import BlockingCluster
from warmlog.sockets.connection import BlockingConnection
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.messages import LATEST_TIMESTAMP, MetadataRequest, MetadataResponse
from warmlog_transport.options import ConnectionOptions

pytestmark = [  # of sockets and generators that an interruption leaves to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODULES = [
    warmlog.sockets.connection,
    warmlog.arrow_write.producer,
    warmlog.producer.partition_queue,
    warmlog.producer.produce_request,
    warmlog.producer.producer_batch,
]
OPTIONS = ConnectionOptions(
    connect_timeout_ms=10_000, request_timeout_ms=10_000, retry_backoff_ms=1, retry_backoff_max_ms=2
)
FAULTS = {
    "none": [],
    "lost answer": [Fault.NONE, Fault.LOSE_ANSWER],
    "failed disk": [Fault.STORAGE_ERROR],
    "unknown producer": [Fault.NONE, Fault.NONE, Fault.NONE, Fault.UNKNOWN_PRODUCER, Fault.UNKNOWN_PRODUCER],
}
Call = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with broker_in_thread() as fake:
        yield fake


def until_done(function: Callable[[], Any]) -> Any:
    """What `function` returns, called again whenever it is interrupted."""
    while True:
        try:
            return function()
        except KeyboardInterrupt:
            continue


def new_topic(broker: FakeBroker) -> str:
    """An empty topic for one run: requests of an earlier run that were never waited for may still arrive."""
    name = f"t{len(broker.topics)}"
    broker.topics[name] = [FakePartition(), FakePartition()]
    return name


def batch_of(topic: str, values: Sequence[bytes], partition: int = 0) -> ArrowBatch:
    return ArrowBatch(topic, partition, [PreparedRows(ArrowRows(pa.array(values))).span()], 100, 5)


def produce(broker: FakeBroker, faults: Sequence[Fault], call: Call) -> None:
    """Send to a new topic, each call through `call`; each record must be there once and in order."""
    topic = new_topic(broker)
    broker.faults = deque(faults)
    sent: list[list[bytes]] = [[], []]
    with BlockingCluster(broker.address, OPTIONS) as cluster, BlockingProducer(cluster, options=OPTIONS) as producer:
        for number in range(8):
            values, partition = [b"%d.%d" % (number, index) for index in range(2)], number % 3 % 2
            sent[partition] += values
            batch = batch_of(topic, values, partition)
            call(lambda batch=batch: producer.send(batch))
            if number in (3, 7):
                call(producer.flush)
        assert producer.records == 16
        assert producer.value_bytes == 800
    assert [partition.values() for partition in broker.topics[topic]] == sent


def ask(broker: FakeBroker, call: Call) -> None:
    """Ask what a cluster can be asked, each question through `call`, of partitions with no record and with two."""
    topic = new_topic(broker)
    broker.add_batch(topic, 1, encode_batch([b"a", b"b"], timestamps_ms=[100, 200]))
    with BlockingCluster(broker.address, OPTIONS) as cluster:
        assert call(lambda: cluster.topics([topic]))[topic].name == topic
        asked = {(topic, 0): LATEST_TIMESTAMP, (topic, 1): 150}
        found = call(lambda: cluster.list_offsets(asked))
        assert {tp: listed.offset for tp, listed in found.items()} == {(topic, 0): 0, (topic, 1): 1}
        assert call(lambda: cluster.max_message_bytes(topic)) == 1 << 20
        assert call(lambda: cluster.leader_address(topic, 1)).port == broker.port
        assert call(lambda: cluster.leader(topic, 1)).is_open
        call(cluster.forget_leaders)
        assert call(lambda: cluster.leader(topic, 0)).is_open


# --- at each step of the code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", FAULTS)
def test_a_producer_interrupted_at_any_step_loses_and_doubles_nothing(broker: FakeBroker, faults: str) -> None:
    interrupt_everywhere(lambda call: produce(broker, FAULTS[faults], call), MODULES, 30)


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS)
def test_a_producer_interrupted_at_thousands_of_steps_loses_and_doubles_nothing(
    broker: FakeBroker, faults: str
) -> None:
    interrupt_everywhere(lambda call: produce(broker, FAULTS[faults], call), MODULES, 2_000, seed=1)


def test_a_cluster_interrupted_at_any_step_answers_the_next_time(broker: FakeBroker) -> None:
    interrupt_everywhere(lambda call: ask(broker, call), MODULES, 60)


# --- at each call to the system -------------------------------------------------------------------------------------


class InterruptedSocket(socket.socket):
    """Interrupts the call with the number `interrupted_at`, counted over all sockets."""

    interrupted_at = 0
    calls = 0
    how = "before"

    @classmethod
    def reset(cls, interrupted_at: int, how: str) -> None:
        cls.interrupted_at, cls.calls, cls.how = interrupted_at, 0, how

    @classmethod
    def step(cls) -> bool:
        cls.calls += 1
        if cls.calls == cls.interrupted_at and cls.how == "before":
            raise KeyboardInterrupt
        return cls.calls == cls.interrupted_at

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        if not self.step():
            return super().sendmsg(buffers, *more)
        data = b"".join(buffers)
        self.sendall(data if self.how == "after" else data[: len(data) // 2])
        raise KeyboardInterrupt

    def recv_into(self, buffer: Any, *more: Any) -> int:
        if not self.step():
            return super().recv_into(buffer, *more)
        super().recv_into(buffer if self.how == "after" else buffer[:3], *more)
        raise KeyboardInterrupt


@pytest.fixture
def interrupted_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets of clients are InterruptedSockets; connecting and pausing count as calls, too."""
    connect, sleep = socket.create_connection, time.sleep
    InterruptedSocket.reset(0, "")

    def connect_or_not(*arguments: Any) -> socket.socket:
        InterruptedSocket.step()
        return InterruptedSocket(fileno=connect(*arguments).detach())

    def sleep_or_not(seconds: float) -> None:
        if InterruptedSocket.step():
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr("warmlog.sockets.connection.socket.create_connection", connect_or_not)
    monkeypatch.setattr("warmlog.arrow_write.producer.time.sleep", sleep_or_not)


@pytest.mark.parametrize("how", ["before", "within", "after"])
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.usefixtures("interrupted_sockets")
def test_a_producer_interrupted_at_any_call_to_the_system_loses_and_doubles_nothing(
    broker: FakeBroker, faults: str, how: str
) -> None:
    InterruptedSocket.reset(0, how)
    produce(broker, FAULTS[faults], until_done)
    for number in range(1, InterruptedSocket.calls + 1):
        InterruptedSocket.reset(number, how)
        produce(broker, FAULTS[faults], until_done)


@pytest.mark.parametrize("how", ["before", "within", "after"])
@pytest.mark.usefixtures("interrupted_sockets")
def test_a_cluster_interrupted_at_any_call_to_the_system_answers_the_next_time(broker: FakeBroker, how: str) -> None:
    ask(broker, until_done)
    for number in range(1, InterruptedSocket.calls + 1):
        InterruptedSocket.reset(number, how)
        ask(broker, until_done)


@pytest.mark.parametrize("how", ["before", "within", "after"])
@pytest.mark.usefixtures("interrupted_sockets")
def test_a_connection_that_was_interrupted_is_closed_and_its_cluster_opens_another(
    broker: FakeBroker, how: str
) -> None:
    topic = new_topic(broker)
    with BlockingCluster(broker.address, OPTIONS) as cluster:
        connection = cluster.leader(topic, 0)
        for number in (1, 2):  # sending and receiving
            InterruptedSocket.reset(number, how)
            with pytest.raises(KeyboardInterrupt):
                connection.call(MetadataRequest(), MetadataResponse)
            assert not connection.is_open
            with pytest.raises(ClientClosed, match="is closed"):
                connection.call(MetadataRequest(), MetadataResponse)
            assert cluster.leader(topic, 0) is not connection
            connection = cluster.leader(topic, 0)
            assert connection.call(MetadataRequest(), MetadataResponse).topics


@pytest.mark.usefixtures("interrupted_sockets")
def test_what_was_asked_for_on_a_connection_that_was_interrupted_is_not_waited_for(broker: FakeBroker) -> None:
    with BlockingConnection("127.0.0.1", broker.port, OPTIONS) as connection:
        first, second = (connection.request(MetadataRequest()) for _ in range(2))
        InterruptedSocket.reset(1, "after")
        with pytest.raises(KeyboardInterrupt):
            connection.wait(first)
        for correlation_id in (first, second):
            with pytest.raises(ClientClosed):
                connection.wait(correlation_id)


# --- what a producer makes of it ------------------------------------------------------------------------------------


def test_a_batch_is_lined_up_once_however_often_its_send_is_repeated(broker: FakeBroker) -> None:
    topic = new_topic(broker)
    with BlockingCluster(broker.address, OPTIONS) as cluster, BlockingProducer(cluster, options=OPTIONS) as producer:
        batch = batch_of(topic, [b"a"])
        producer.send(batch)
        producer.send(batch)
        producer.flush()
        producer.send(batch)
        producer.flush()
        assert producer.records == 1
    assert broker.topics[topic][0].values() == [b"a"]


def test_an_exception_of_a_signal_handler_interrupts_as_well(broker: FakeBroker) -> None:
    class TooLong(Exception):
        pass

    def ring(*_: object) -> None:
        raise TooLong

    topic = new_topic(broker)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with (
            BlockingCluster(broker.address, OPTIONS) as cluster,
            BlockingProducer(cluster, options=OPTIONS) as producer,
        ):
            producer.send(batch_of(topic, [b"a"]))
            producer.flush()
            broker.faults.append(Fault.HOLD)
            producer.send(batch_of(topic, [b"b"]))
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(TooLong):
                producer.flush()
            producer.flush()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert broker.topics[topic][0].values() == [b"a", b"b"]


def test_a_producer_goes_on_after_its_cluster_was_closed_or_interrupted_between_two_calls(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(broker)
    with BlockingCluster(broker.address, OPTIONS) as cluster, BlockingProducer(cluster, options=OPTIONS) as producer:
        producer.send(batch_of(topic, [b"a"]))
        cluster.close()
        producer.flush()
        producer.send(batch_of(topic, [b"b"]))
        with monkeypatch.context() as patch:
            patch.setattr("warmlog.sockets.connection._send_all", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                cluster.topics()
        producer.flush()
    assert broker.topics[topic][0].values() == [b"a", b"b"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_producer_that_is_closed_says_so(broker: FakeBroker) -> None:
    topic = new_topic(broker)
    with BlockingCluster(broker.address, OPTIONS) as cluster:
        producer = BlockingProducer(cluster, options=OPTIONS)
        producer.send(batch_of(topic, [b"a"]))
        producer.close()
        for call in (producer.flush, lambda: producer.send(batch_of(topic, [b"b"]))):
            with pytest.raises(ClientClosed, match="the producer is closed"):
                call()


# --- real signals ---------------------------------------------------------------------------------------------------

CHILD = Path(__file__).parent / "interrupted_child.py"


@pytest.mark.parametrize("seed", range(2))
def test_a_process_that_gets_sigint_all_the_time_sends_and_reads_everything_once(broker: FakeBroker, seed: int) -> None:
    topic = new_topic(broker)
    command = [sys.executable, str(CHILD), broker.address, topic, str(seed)]
    done = subprocess.run(command, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    batches = int(done.stdout)
    expected = [[b"%d.%d" % (number, partition) for number in range(batches)] for partition in range(2)]
    assert [partition.values() for partition in broker.topics[topic]] == expected
