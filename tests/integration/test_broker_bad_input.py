"""Bad input harms nobody but who sends it; limits hold."""

import os
import random
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker_process import BrokerProcess
from kafka_client import ConnectionEnded, KafkaClient
from waiting import wait_until
from warmlog_protocol import messages as m
from warmlog_protocol.errors import InvalidRequest, TooManyConnections, UnsupportedVersion
from warmlog_protocol.wire.connection import MAX_REFUSALS_IN_A_ROW
from warmlog_protocol.wire.frames import pack_frame
from wire_client import WireClient, batch_of

pytestmark = pytest.mark.usefixtures("bystander")

SETTINGS = {
    "handshake_timeout_ms": 2000,
    "max_connections": 12,
    "max_in_flight_requests": 8,
    "socket_request_max_bytes": 2_000_000,
    "queued_max_request_bytes": 4_000_000,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", **SETTINGS) as process:
        with WireClient(process.address) as client:
            client.create_topic("t", max_message_bytes="1900000")
        yield process


@pytest.fixture
def bystander(broker: BrokerProcess) -> Iterator[WireClient]:
    """A client that must not notice anything."""
    with WireClient(broker.address) as client:
        yield client
        client.produce("t", batch_of([b"still here"]))


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def wait_for_log(broker: BrokerProcess, text: str) -> None:
    wait_until(lambda: text in broker.output)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(100), os.urandom(5000), b"\xff" * 8], ids=range(4)
)
def test_garbage_ends_its_own_connection_alone(broker: BrokerProcess, garbage: bytes) -> None:
    with WireClient(broker.address, handshake=False) as client:
        port = client.socket.getsockname()[1]
        client.socket.sendall(garbage)
        if garbage == bytes(100):
            client.socket.shutdown(socket.SHUT_WR)
        client.wait_for_end()
    wait_for_log(broker, f"127.0.0.1:{port}")


def test_a_frame_that_claims_4_gib_costs_no_memory(broker: BrokerProcess) -> None:
    before_kib = resident_kib(broker.pid)
    for _ in range(20):
        with WireClient(broker.address) as client:
            client.socket.sendall(b"\xff\xff\xff\xff\x00\x00\x00\x10")
            client.wait_for_end()
    assert resident_kib(broker.pid) - before_kib < 4096
    wait_for_log(broker, "a frame of 4294967299 bytes")


def test_an_unknown_api_is_answered_with_an_error_before_the_connection_closes(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        correlation_id, _ = client.connection.request(m.MetadataRequest())
        client.socket.sendall(pack_frame((999, 0, correlation_id), m.MetadataRequest()))
        with pytest.raises(UnsupportedVersion, match="999"):
            client.receive(correlation_id)
        client.wait_for_end()


def test_a_request_before_the_handshake_is_answered_with_an_error(broker: BrokerProcess) -> None:
    with WireClient(broker.address, handshake=False) as client:
        correlation_id, _ = client.connection.request(m.HandshakeRequest("x", "1"))
        client.socket.sendall(pack_frame((3, 0, correlation_id), m.MetadataRequest()))
        with pytest.raises(InvalidRequest, match="Handshake"):
            client.receive(correlation_id)
        client.wait_for_end()


def test_a_large_frame_before_the_handshake_is_refused(broker: BrokerProcess) -> None:
    with WireClient(broker.address, handshake=False) as client:
        client.socket.sendall((1_000_000).to_bytes(4, "big") + (100).to_bytes(4, "big"))
        client.wait_for_end()
    wait_for_log(broker, "before the Handshake")


def ask_as_kafka(address: str, times: int) -> None:
    for _ in range(times):
        with KafkaClient(address) as client, pytest.raises(ConnectionEnded):
            client.call("ApiVersions", 3, client_software_name="librdkafka", client_software_version="2")


def test_a_client_of_kafka_is_named_once_with_what_to_set(broker: BrokerProcess) -> None:
    ask_as_kafka(broker.address, 3)
    told = "the peer speaks Kafka's protocol, not warmlog's; kafka.listen sets an address for clients of Kafka"
    wait_for_log(broker, told)
    assert broker.output.count(told) == 1


def test_a_client_of_kafka_at_the_wrong_listener_is_told_the_right_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", kafka_listen="127.0.0.1:0") as broker:
        ask_as_kafka(broker.address, 1)
        (address,) = re.findall(r"(127\.0\.0\.1:\d+) \(clients of Kafka", broker.output)
        wait_for_log(broker, f"not warmlog's; clients of Kafka are served at {address}\n")


def test_a_request_that_cannot_be_decoded_gets_an_error_and_the_connection_goes_on(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        correlation_id, _ = client.connection.request(m.MetadataRequest())
        header = msgspec.msgpack.encode([3, 0, correlation_id, "not a list"])
        client.socket.sendall((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        with pytest.raises(InvalidRequest, match="MetadataRequest"):
            client.receive(correlation_id)
        client.call(m.MetadataRequest(["t"]))


def test_nothing_but_malformed_requests_ends_the_connection(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        for _ in range(MAX_REFUSALS_IN_A_ROW):
            correlation_id, _ = client.connection.request(m.MetadataRequest())
            header = msgspec.msgpack.encode([3, 0, correlation_id, "not a list"])
            client.socket.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        client.wait_for_end()
    wait_for_log(broker, "MetadataRequest: Expected")


def test_a_wrong_type_in_a_setting_leaves_the_connection_to_the_next_request(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        wrong: dict[str, Any] = {"retention.ms": 1000}
        with pytest.raises(InvalidRequest, match="Expected `str`, got `int`"):
            client.call(m.CreateTopicsRequest([m.NewTopic("typed", 1, 1, wrong)]))
        client.create_topic("typed", retention_ms="1000")


def test_mutated_requests_never_meet_an_error_of_our_own(broker: BrokerProcess, bystander: WireClient) -> None:
    """Every request with bytes changed at random, many of them in one connection until that is closed."""
    randomness = random.Random(11)
    batch = batch_of([b"x" * 50] * 3)
    requests: list[tuple[m.Message, bytes]] = [
        (m.MetadataRequest(["t"]), b""),
        (m.CreateTopicsRequest([m.NewTopic("mutated", 1, 1, {"flush.ms": "5"})], validate_only=True), b""),
        (m.DeleteTopicsRequest(["no-such-topic"]), b""),
        (m.DescribeConfigsRequest(["t"]), b""),
        (m.ListOffsetsRequest([m.ListOffsetsPartition("t", 0, 1_700_000_000_000)]), b""),
        (m.InitProducerIdRequest(), b""),
        (m.FetchRequest(0, 1, 1000, [m.FetchPartition("t", 0, 0, 1000, bytes(16))]), b""),
        (m.ProduceRequest(-1, 1000, [m.ProducePartition("t", 0, len(batch))]), batch),
    ]
    for _ in range(150):
        with WireClient(broker.address, timeout_s=40) as client:
            try:
                for _ in range(20):
                    message, payload = randomness.choice(requests)
                    _, frame = client.connection.request(message, len(payload))
                    data = bytearray(frame + payload)
                    for _ in range(randomness.randint(1, 4)):
                        data[randomness.randrange(8, len(data))] = randomness.randrange(256)
                    client.socket.sendall(data)
            except ConnectionError:
                continue
    bystander.call(m.MetadataRequest(["t"]))
    assert "a bug" not in broker.output
    assert "Traceback" not in broker.output


def test_a_connection_without_a_handshake_is_closed(broker: BrokerProcess) -> None:
    begin_s = time.monotonic()
    with WireClient(broker.address, handshake=False) as client:
        client.wait_for_end()
    assert time.monotonic() - begin_s > 1.5
    wait_for_log(broker, "no handshake within 2000 ms")


def test_one_connection_too_many_is_refused_and_room_comes_back(broker: BrokerProcess) -> None:
    held: list[WireClient] = []
    while len(held) < SETTINGS["max_connections"] - 1:  # and the bystander
        with suppress(TooManyConnections):  # those of the tests before may not have ended yet
            held.append(WireClient(broker.address))
    with pytest.raises(TooManyConnections, match=r"12 connections are open, as many as max\.connections allows"):
        WireClient(broker.address)
    for client in held:
        client.call(m.MetadataRequest())
        client.close()
    wait_for_log(broker, "max.connections")
    deadline_s = time.monotonic() + 40
    while True:
        try:
            with WireClient(broker.address) as client:
                client.call(m.MetadataRequest())
            return
        except TooManyConnections:
            assert time.monotonic() < deadline_s


def test_beyond_the_requests_in_flight_a_connection_is_not_read(broker: BrokerProcess) -> None:
    limit = SETTINGS["max_in_flight_requests"]
    with WireClient(broker.address) as client:
        client.create_topic("empty")
        wanted = [m.FetchPartition("empty", 0, 0, 1000)]
        begin_s = time.monotonic()
        ids = [client.send(m.FetchRequest(700, 1, 1000, wanted)) for _ in range(3 * limit)]
        for correlation_id in ids:
            client.fetched(correlation_id)
        assert time.monotonic() - begin_s > 2.5 * 0.7


def test_who_finds_no_memory_left_waits_and_is_served(broker: BrokerProcess, bystander: WireClient) -> None:
    """Five frames of 1.8 MB are begun, two fit into the budget: the others are read when these are done."""
    batch = batch_of([b"x" * 1_800_000])
    clients = [WireClient(broker.address) for _ in range(5)]
    frames = []
    for client in clients:
        message = m.ProduceRequest(-1, 20_000, [m.ProducePartition("t", 0, len(batch))])
        correlation_id, frame = client.connection.request(message, len(batch))
        frames.append((correlation_id, frame + batch))
        client.socket.sendall((frame + batch)[:200_000])
    bystander.produce("t", batch_of([b"a"]))
    for client, (_, data) in zip(clients, frames, strict=True):
        client.socket.settimeout(0.5)
        try:
            sent = client.socket.send(data[200_000:])
            rest = data[200_000 + sent :]
        except TimeoutError:
            rest = data[200_000:]
        frames[clients.index(client)] = (frames[clients.index(client)][0], rest)
    for client, (correlation_id, rest) in zip(clients, frames, strict=True):
        client.socket.settimeout(40)
        client.socket.sendall(rest)
        client.produced(correlation_id)
        client.close()


def test_half_a_request_is_no_request(broker: BrokerProcess, bystander: WireClient) -> None:
    end_offset = bystander.offset_at("t", -1)
    batch = batch_of([b"x" * 1000])
    with WireClient(broker.address) as client:
        message = m.ProduceRequest(-1, 20_000, [m.ProducePartition("t", 0, len(batch))])
        _, frame = client.connection.request(message, len(batch))
        client.socket.sendall(frame + batch[:500])
    assert bystander.offset_at("t", -1) == end_offset


def test_a_peer_that_sends_no_more_still_gets_its_answers(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        ids = [client.send_produce("t", batch_of([b"last words"])) for _ in range(5)]
        client.socket.shutdown(socket.SHUT_WR)
        for correlation_id in ids:
            client.produced(correlation_id)
        client.wait_for_end()


def test_a_request_that_never_becomes_whole_ends_its_connection(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", connections_stall_timeout_ms=500) as broker:
        with WireClient(broker.address) as stalled, WireClient(broker.address) as other:
            stalled.socket.sendall(struct.pack(">II", 90_000_000, 20) + b"x" * 1000)
            stalled.wait_for_end()
            other.create_topic("t")
        wait_for_log(broker, "it sent less than 1024 bytes a second in 0.5 s of a request")


def test_what_lost_connections_had_sent_in_part_is_given_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        before_kib = resident_kib(broker.pid)
        for _ in range(40):
            with WireClient(broker.address) as client:
                client.socket.sendall(struct.pack(">II", 20_000_000, 20) + bytes(8_000_000))
        wait_until(
            lambda: resident_kib(broker.pid) <= before_kib + 100_000
        )  # of 320 MB; some of it may stay with malloc


def test_an_idle_connection_is_closed_and_one_that_waits_is_not(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", connections_max_idle_ms=2000) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
        with WireClient(broker.address) as idle, WireClient(broker.address) as waiting:
            correlation_id = waiting.send(m.FetchRequest(3500, 1, 1000, [m.FetchPartition("t", 0, 0, 1000)]))
            idle.wait_for_end()
            assert waiting.fetched(correlation_id)[0].size_bytes == 0
        wait_for_log(broker, "idle for 2000 ms")
