"""The client without an event loop, against a broker in memory that runs in another thread."""

import socket
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from broker_in_thread import broker_in_thread
from fake_broker import FakeBroker
from warmlog.errors import BrokerUnavailable, ClientClosed, UnknownTopicOrPartition
from warmlog.sockets.cluster import BlockingCluster
from warmlog.sockets.connection import MOST_PARTS, BlockingConnection
from warmlog_protocol.batch import encode_batch, iter_batches
from warmlog_protocol.messages import (
    ACKS_ALL,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    MetadataRequest,
    MetadataResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from warmlog_transport.options import ConnectionOptions

OPTIONS = ConnectionOptions(connect_timeout_ms=1000, request_timeout_ms=1000)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with broker_in_thread(t=2) as fake:
        yield fake


@pytest.mark.parametrize("value_bytes", [10, 600 * 1024])
def test_requests_can_be_sent_ahead_and_their_payloads_kept(broker: FakeBroker, value_bytes: int) -> None:
    for n in range(5):
        broker.add_batch("t", 0, encode_batch([bytes([n]) * value_bytes], timestamps_ms=1))
    with BlockingConnection("127.0.0.1", broker.port, OPTIONS) as connection:
        asked = [connection.request(FetchRequest(0, 1, 1, [FetchPartition("t", 0, n, 1)])) for n in range(5)]
        answers = {n: connection.wait(asked[n]) for n in (4, 0, 3, 1, 2)}
    for n, answer in answers.items():
        assert next(iter_batches(answer.payload)).values() == [bytes([n]) * value_bytes]


def test_a_cluster_tells_topics_leaders_and_offsets(broker: FakeBroker) -> None:
    broker.add_batch("t", 1, encode_batch([b"a", b"b"], timestamps_ms=[100, 200]))
    with BlockingCluster(f"127.0.0.1:1,{broker.address}", OPTIONS) as cluster:
        assert len(cluster.topics(["t"])["t"].partitions) == 2
        assert cluster.leader_address("t", 1).port == broker.port
        assert cluster.leader("t", 0) is cluster.leader("t", 1)
        asked = {("t", 0): LATEST_TIMESTAMP, ("t", 1): 150}
        found = cluster.list_offsets(asked)
        assert {place: listed.offset for place, listed in found.items()} == {("t", 0): 0, ("t", 1): 1}
        assert cluster.list_offsets({("t", 1): EARLIEST_TIMESTAMP})["t", 1].offset == 0
        with pytest.raises(UnknownTopicOrPartition):
            cluster.topics(["nowhere"])


def test_a_broken_connection_is_closed_and_a_cluster_opens_another(broker: FakeBroker) -> None:
    with BlockingCluster(broker.address, OPTIONS) as cluster:
        first = cluster.leader("t", 0)
        broker.is_silent = True
        with pytest.raises(BrokerUnavailable, match="no response"):
            first.wait(first.request(MetadataRequest()), timeout_ms=50)
        assert not first.is_open
        with pytest.raises(ClientClosed):
            first.call(MetadataRequest(), MetadataResponse)
        broker.is_silent = False
        assert cluster.leader("t", 0) is not first
        assert "t" in cluster.topics()


def test_nobody_listening_is_named() -> None:
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1: "):
        BlockingConnection("127.0.0.1", 1, OPTIONS)
    with (
        BlockingCluster("127.0.0.1:1,127.0.0.1:2", OPTIONS) as cluster,
        pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "),
    ):
        cluster.topics()


def test_a_payload_of_more_pieces_than_one_call_takes_arrives_as_it_is(broker: FakeBroker) -> None:
    """And larger than what the socket takes at once."""
    batch = encode_batch([bytes([number % 251]) * 1000 for number in range(3000)], timestamps_ms=1)
    pieces = [batch[start : start + 900] for start in range(0, len(batch), 900)]
    assert len(pieces) > 2 * MOST_PARTS
    produce = ProduceRequest(ACKS_ALL, 1000, [ProducePartition("t", 0, len(batch))])
    with BlockingConnection("127.0.0.1", broker.port, OPTIONS) as connection:
        (produced,) = connection.call(produce, ProduceResponse, [b"", *pieces]).partitions
    assert produced.error_code == 0
    assert broker.topics["t"][0].values() == [bytes([number % 251]) * 1000 for number in range(3000)]


def test_a_server_that_accepts_and_says_nothing_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        expected = rf"^connected to 127\.0\.0\.1:{port}, but no response within 0\.2 s: is it a warmlog broker\?$"
        with pytest.raises(BrokerUnavailable, match=expected):
            BlockingConnection("127.0.0.1", port, ConnectionOptions(request_timeout_ms=200))


def test_a_port_at_which_nothing_listens_is_named_without_numbers_of_errors() -> None:
    with pytest.raises(BrokerUnavailable, match=r"^no connection to broker 127\.0\.0\.1:1: connection refused: is the"):
        BlockingConnection("127.0.0.1", 1)


def test_nothing_is_sent_before_the_delay_that_a_response_tells_is_over(broker: FakeBroker) -> None:
    arrivals_s: list[float] = []

    def respond(_: MetadataRequest) -> MetadataResponse:
        arrivals_s.append(time.monotonic())
        return MetadataResponse("cluster", 0, [], [], 300)

    broker.further_handlers[MetadataRequest] = respond
    options = ConnectionOptions(request_timeout_ms=200)
    with BlockingConnection("127.0.0.1", broker.port, options) as connection:
        for _ in range(3):
            connection.call(MetadataRequest(), MetadataResponse)
    assert [later - earlier > 0.29 for earlier, later in pairwise(arrivals_s)] == [True, True]


def test_a_request_in_flight_may_take_as_much_longer_as_the_broker_does_not_read(broker: FakeBroker) -> None:
    broker.further_handlers[MetadataRequest] = lambda _: MetadataResponse("cluster", 0, [], [], 400)
    fetch = FetchRequest(350, 1, 1, [FetchPartition("t", 0, 0, 1)])
    options = ConnectionOptions(request_timeout_ms=200)
    with BlockingConnection("127.0.0.1", broker.port, options) as connection:
        fetching = connection.request(fetch)
        connection.call(MetadataRequest(), MetadataResponse)
        connection.wait(fetching)
        fetching = connection.request(fetch)
        with pytest.raises(BrokerUnavailable, match="no response"):
            connection.wait(fetching)
