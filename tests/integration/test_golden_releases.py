"""What a release has written to disk is read, and what its clients send is answered as its own broker did.

`data/golden/make_release.py` and `make_wire.py` have recorded both, with the code of the release.
"""

import asyncio
import base64
import gzip
import json
import socket
import struct
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker_process import BrokerProcess
from warmlog import Admin, Consumer, Producer
from warmlog_protocol.messages import ApiKey

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
RELEASES = sorted(path.stem.removeprefix("release-") for path in GOLDEN.glob("release-*.json"))
HEAD = struct.Struct(">II")
PREFIX_OF_A_RESPONSE = 2
"""Correlation id and error code."""
APIS_OF_A_HANDSHAKE = 6


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def broker(release: str, tmp_path: Path) -> Iterator[BrokerProcess]:
    with tarfile.open(GOLDEN / f"release-{release}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    with BrokerProcess(tmp_path / "a", tmp_path / "b") as broker:
        yield broker


def test_the_directories_of_a_release_hold_what_they_held(broker: BrokerProcess, release: str) -> None:
    expected = json.loads((GOLDEN / f"release-{release}.json").read_text())
    found = asyncio.run(read(broker.address))
    assert {name: entry["records"] for name, entry in found.items()} == {
        name: entry["records"] for name, entry in expected.items()
    }
    for name, entry in expected.items():
        assert found[name]["leader_epoch"] == entry["leader_epoch"] + 1, "the broker was killed: each epoch rises once"
    topics = sorted({name.rpartition("-")[0] for name in expected})
    assert asyncio.run(append(broker.address, topics)) == [
        found[f"{topic}-0"]["records"][-1][0] + 1 for topic in topics
    ]
    broker.restart()
    after = asyncio.run(read(broker.address))
    assert [len(after[f"{topic}-0"]["records"]) - len(found[f"{topic}-0"]["records"]) for topic in topics] == [1] * 5


async def read(address: str) -> dict[str, dict[str, Any]]:
    rows: dict[str, list[list[object]]] = {}
    async with Admin(address) as admin:
        described = await admin.list_topics()
    async with Consumer(address, topics=[topic.name for topic in described]) as consumer:
        async for record in consumer.records(until="latest"):
            key = None if record.key is None else record.key.decode()
            value = None if record.value is None else record.value.decode()
            row = [record.offset, record.timestamp_ms, key, value]
            rows.setdefault(f"{record.topic}-{record.partition}", []).append(row)
    partitions = [(f"{topic.name}-{part.partition}", part) for topic in described for part in topic.partitions]
    return {name: {"leader_epoch": part.leader_epoch, "records": rows.get(name, [])} for name, part in partitions}


async def append(address: str, topics: list[str]) -> list[int]:
    async with Producer(address) as producer:
        return [(await producer.send(topic, b"more", key=b"more", partition=0)).offset for topic in topics]


def test_what_a_client_of_a_release_sends_is_answered_as_its_broker_did(broker: BrokerProcess, release: str) -> None:
    exchanges = json.loads(gzip.decompress((GOLDEN / f"wire-{release}.json.gz").read_bytes()))
    asked, offered = set(), set()
    with ExitStack() as stack:
        connections: dict[int, socket.socket] = {}
        for number, *frames in exchanges:
            request, recorded = (base64.b64decode(frame) for frame in frames)
            if number not in connections:
                connections[number] = stack.enter_context(socket.create_connection((broker.host, broker.port), 10))
            connections[number].sendall(request)
            response = receive_frame(connections[number])
            api = ApiKey(fields(request)[0])
            asked.add(api)
            if api is ApiKey.HANDSHAKE:
                offered.update(ApiKey(key) for key, *_ in fields(recorded)[APIS_OF_A_HANDSHAKE])
            assert fields(response)[:PREFIX_OF_A_RESPONSE] == fields(recorded)[:PREFIX_OF_A_RESPONSE], api.name
            assert_same_shape(fields(response), fields(recorded), api.name)
    assert asked == offered, "the APIs of that release"


def receive_frame(connection: socket.socket) -> bytes:
    head = receive(connection, 4)
    return head + receive(connection, int.from_bytes(head, "big"))


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece, "the broker has closed the connection"
        data += piece
    return data


def fields(frame: bytes) -> list[Any]:
    _, header_bytes = HEAD.unpack_from(frame)
    decoded: list[Any] = msgspec.msgpack.decode(frame[HEAD.size : HEAD.size + header_bytes])
    return decoded


def assert_same_shape(found: object, recorded: object, where: str) -> None:
    """The types in `recorded` are those in `found`, which may have more fields, settings or APIs."""
    if recorded is None or found is None:
        return
    assert type(found) is type(recorded), where
    if isinstance(recorded, list) and isinstance(found, list):
        assert len(found) >= len(recorded), where
        for index, (one, other) in enumerate(zip(found, recorded, strict=False)):
            assert_same_shape(one, other, f"{where}[{index}]")
