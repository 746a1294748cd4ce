"""docs/reference/protocol.md is enough to write a client.

Nothing here that reads or writes bytes uses warmlog's own code: the rules of the page, msgpack, and Python's library.
"""

import asyncio
import base64
import gzip
import hashlib
import hmac
import io
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest

import warmlog
from broker_process import BrokerProcess
from docs.protocol_tables import PAGE, printed
from warmlog.admin.access.user_changes import creation
from warmlog_broker.tools.access import respond
from warmlog_protocol.messages import AlterUsersRequest

FIELDS = re.compile(r"^#### (\w+)\n(.*?)(?=^#|\Z)", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
API = re.compile(r"^### (\w+)\n\nAPI (\d+), versions (\d+) to (\d+)", re.MULTILINE)
ERROR = re.compile(r"^\| (-?\d+) \| ([A-Z_]+) \| (yes|no|) ?\|", re.MULTILINE)

Fields = list[tuple[str, str, str]]
TEXT = PAGE.read_text()
MESSAGES: dict[str, Fields] = {name: ROW.findall(body) for name, body in FIELDS.findall(TEXT)}
APIS = {int(key): name for name, key, _, _ in API.findall(TEXT)}
KEYS = {name: key for key, name in APIS.items()}
DEFAULTS: dict[str, Any] = {"nil": None, "true": True, "false": False}
PLAIN: dict[str, type] = {"str": str, "bytes": bytes, "bool": bool}
EMPTY: dict[str, Any] = {"array": [], "map": {}, "str": ""}


def test_the_page_says_what_the_classes_say() -> None:
    assert printed(TEXT) == TEXT, "run: PYTHONPATH=tests python tests/docs/protocol_tables.py"


# --- the rules of the page -----------------------------------------------------------------------------------------


def decode_message(name: str, values: list[Any]) -> dict[str, Any]:
    """A message from its array: unknown fields ignored, defaults for those that are missing."""
    fields = MESSAGES[name]
    missing = [default_of(kind, default) for _, kind, default in fields[len(values) :]]
    message = [decode(kind, value) for (_, kind, _), value in zip(fields, values, strict=False)] + missing
    return dict(zip((field for field, _, _ in fields), message, strict=True))


def decode(kind: str, value: Any) -> Any:
    if kind.startswith("nil or "):
        return None if value is None else decode(kind.removeprefix("nil or "), value)
    if kind.startswith("array of "):
        return [decode(kind.removeprefix("array of "), each) for each in value]
    if kind.startswith("map of "):
        assert isinstance(value, dict)
        return value
    if kind in PLAIN:
        assert type(value) is PLAIN[kind], (kind, value)
        return value
    if kind in {"int32", "int64"}:
        bits = int(kind.removeprefix("int"))
        assert -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        return value
    return decode_message(kind, value)


def default_of(kind: str, default: str) -> Any:
    assert default, f"a {kind} without a default is missing"
    if default == "empty":
        return EMPTY[kind.split()[0]]
    return DEFAULTS[default] if default in DEFAULTS else int(default)


def cut_frames(data: bytes) -> Iterator[tuple[list[Any], bytes]]:
    """The header and payload of each frame in `data`."""
    while data:
        size, header_size = struct.unpack_from(">II", data)
        header = msgpack.unpackb(data[8 : 8 + header_size])
        yield header, data[8 + header_size : 4 + size]
        data = data[4 + size :]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def decode_batches(data: bytes) -> Iterator[dict[str, Any]]:
    """The records of the batches in `data`; the last batch may be cut off."""
    while len(data) >= 61:
        header = struct.unpack_from(">qiibIhiqqqhii", data)
        end = 12 + header[1]
        if len(data) < end:
            return
        assert header[3] == 3
        assert header[4] == crc32c(data[21:end])
        yield from decode_columns(header, data[61:end])
        data = data[end:]


def decode_columns(header: tuple[int, ...], body: bytes) -> Iterator[dict[str, Any]]:
    base_offset, attributes, base_timestamp, count = header[0], header[5], header[7], header[12]
    present, size = struct.unpack_from("<BI", body)
    rest = body[5 + (8 if attributes & 64 else 0) :]
    if attributes & 7:
        assert attributes & 7 == 1, "this test has no library but for gzip"
        rest = gzip.decompress(rest)
    assert len(rest) == size
    data = io.BytesIO(rest)
    deltas = read_column(data, count) if present & 4 else [*range(count)]
    times = read_column(data, count)
    key_lengths = read_column(data, count) if present & 1 else [0] * count
    value_lengths = read_column(data, count)
    header_lengths = read_column(data, count) if present & 2 else [0] * count
    keys = [data.read(length - 1) if length else None for length in key_lengths]
    values = [data.read(length - 1) if length else None for length in value_lengths]
    headers = [msgpack.unpackb(data.read(length)) if length else [] for length in header_lengths]
    assert not data.read()
    for delta, time, key, value, pairs in zip(deltas, times, keys, values, headers, strict=True):
        offset, timestamp = base_offset + delta, base_timestamp + time
        yield {"offset": offset, "timestamp": timestamp, "key": key, "value": value, "headers": pairs}


def read_column(data: io.BytesIO, count: int) -> list[int]:
    width = data.read(1)[0]
    if not width:
        return [int.from_bytes(data.read(8), "little")] * count
    return [int.from_bytes(data.read(width), "little") for _ in range(count)]


def encode_batch(values: list[bytes], timestamp: int, producer_id: int, base_sequence: int) -> bytes:
    """A batch of columns without keys and headers."""
    lengths = b"".join((len(value) + 1).to_bytes(2, "little") for value in values)
    rest = b"\x00" + (0).to_bytes(8, "little") + b"\x02" + lengths + b"".join(values)
    body = struct.pack("<BI", 0, len(rest)) + rest
    covered = struct.pack(
        ">hiqqqhii", 0, len(values) - 1, timestamp, timestamp, producer_id, 0, base_sequence, len(values)
    )
    return struct.pack(">qiibI", 0, 9 + len(covered) + len(body), -1, 3, crc32c(covered + body)) + covered + body


class Client:
    """A client of one connection that knows the page only."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.correlation_id = 0
        self.socket = socket.create_connection((host, int(port)), timeout=40)

    def close(self) -> None:
        self.socket.close()

    def call(self, name: str, *fields: Any, payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        self.correlation_id += 1
        header = msgpack.packb([KEYS[name], 0, self.correlation_id, *fields])
        self.socket.sendall(struct.pack(">II", 4 + len(header) + len(payload), len(header)) + header + payload)
        head = self.receive(4)
        ((answer, received),) = cut_frames(head + self.receive(int.from_bytes(head, "big")))
        assert answer[0] == self.correlation_id
        kind = "ErrorResponse" if answer[1] else f"{name}Response"
        return decode_message(kind, answer[2:]), received

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            received = self.socket.recv(count - len(data))
            assert received, "the broker has closed the connection"
            data += received
        return data


# --- what a real client and broker say -----------------------------------------------------------------------------


@contextmanager
def recorder(address: str) -> Iterator[tuple[str, list[tuple[bytearray, bytearray]]]]:
    """The address of a proxy in front of a broker, and both directions of each connection, as bytes."""
    host, _, port = address.rpartition(":")
    heard: list[tuple[bytearray, bytearray]] = []
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, target: socket.socket, record: bytearray) -> None:
        with source, target:
            while data := source.recv(1 << 16):
                record += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            broker = socket.create_connection((host, int(port)))
            heard.append((bytearray(), bytearray()))
            for source, target, record in ((client, broker, heard[-1][0]), (broker, client, heard[-1][1])):
                threads.append(threading.Thread(target=pump, args=(source.dup(), target.dup(), record)))
                threads[-1].start()
            client.close()
            broker.close()

    listener = socket.create_server(("127.0.0.1", 0))
    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *threads):
            thread.join(40)


async def talk(address: str) -> None:
    """A client that uses most of the APIs."""
    async with warmlog.Admin(address) as admin:
        await admin.create_topic("orders", configs={"retention.ms": "-1"})
        await admin.describe_topic("orders")
        await admin.describe_log_dirs()
        with pytest.raises(warmlog.TopicAlreadyExists):
            await admin.create_topic("orders")
        async with warmlog.Producer(address, compression="gzip") as producer:
            for number in range(100):
                producer.send(
                    "orders", b"%d" % number, key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=number
                )
            await producer.flush()
        async with warmlog.Producer(address, acks=0) as producer:
            producer.send("orders", None)
        await admin.delete_records({("orders", 0): 1})
        async with warmlog.Consumer(address, topics=["orders"]) as consumer:
            assert len([record async for record in consumer.records(until=101)]) == 100
        await admin.delete_topic("orders")


def test_what_a_client_and_a_broker_say_reads_as_the_page_says(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, recorder(broker.address) as (address, heard):
        asyncio.run(asyncio.wait_for(talk(address), 60))
    apis, records = set(), []
    for sent, received in heard:
        answers = {header[0]: (header, payload) for header, payload in cut_frames(bytes(received))}
        for (api, version, correlation_id, *asked), batches in cut_frames(bytes(sent)):
            name = APIS[api]
            apis.add(name)
            assert version == 0
            request = decode_message(f"{name}Request", asked)
            if name == "Produce":
                assert sum(partition["size_bytes"] for partition in request["partitions"]) == len(batches)
                records += decode_batches(batches)
                if request["acks"] == 0:
                    assert correlation_id not in answers
                    continue
            (_, error_code, *said), payload = answers[correlation_id]
            response = decode_message("ErrorResponse" if error_code else f"{name}Response", said)
            if name == "Fetch":
                assert sum(partition["size_bytes"] for partition in response["partitions"]) == len(payload)
    assert apis >= {"Handshake", "Metadata", "CreateTopics", "DescribeConfigs", "InitProducerId", "Produce", "Fetch"}
    assert apis >= {"ListOffsets", "DeleteRecords", "DescribeLogDirs", "DeleteTopics"}
    assert [record["value"] for record in records] == [*(b"%d" % number for number in range(100)), None]
    assert [record["timestamp"] for record in records[:100]] == [*range(100)]
    assert {record["key"] for record in records[:100]} == {b"k"}
    assert records[0]["headers"] == [["h", b"1"], ["n", None]]


def test_a_client_written_by_the_page_writes_and_reads_records(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, closing(Client(broker.address)) as client:
        broker_says, _ = client.call("Handshake", "page", "1")
        assert {api["api_key"] for api in broker_says["apis"]} == set(APIS)
        created, _ = client.call("CreateTopics", [["notes", 3, -1, {}]], False)
        assert created["topics"][0]["error_code"] == 0
        ids, _ = client.call("InitProducerId")
        partition = crc32(b"key") % 3
        for sequence, values in ((0, [b"one", b"two"]), (2, [b"three"]), (2, [b"three"])):  # the last is a repetition
            batch = encode_batch(values, 1_700_000_000_000, ids["producer_id"], sequence)
            produced, _ = client.call("Produce", -1, 10_000, [["notes", partition, len(batch)]], payload=batch)
            assert produced["partitions"][0]["error_code"] == 0
            assert produced["partitions"][0]["base_offset"] == sequence
        listed, _ = client.call("ListOffsets", [["notes", partition, -2]])
        start = listed["partitions"][0]["offset"]
        fetched, payload = client.call("Fetch", 0, 1, 1 << 20, [["notes", partition, start, 1 << 20]])
        assert fetched["partitions"][0]["high_watermark"] == 3
        records = [*decode_batches(payload)]
        assert [(record["offset"], record["value"]) for record in records] == [(0, b"one"), (1, b"two"), (2, b"three")]
        assert {record["timestamp"] for record in records} == {1_700_000_000_000}


def test_the_page_says_which_errors_come(tmp_path: Path) -> None:
    codes = {name: int(code) for code, name, _ in ERROR.findall(TEXT)}
    with BrokerProcess(tmp_path) as broker, closing(Client(broker.address)) as client:
        client.call("Handshake", "page", "1")
        fetched, _ = client.call("Fetch", 0, 1, 1 << 20, [["missing", 0, 0, 1 << 20]])
        assert fetched["partitions"][0]["error_code"] == codes["UNKNOWN_TOPIC_OR_PARTITION"]
    with BrokerProcess(tmp_path) as broker, closing(Client(broker.address)) as client:
        refused, _ = client.call("Metadata")  # before the Handshake
        assert "Handshake" in refused["message"]
        assert client.socket.recv(1) == b""


def test_a_client_written_by_the_page_authenticates(tmp_path: Path) -> None:
    respond(tmp_path, AlterUsersRequest([creation("alice", "pencil")]))
    listeners = "main=sasl_plaintext://127.0.0.1:0"
    with BrokerProcess(tmp_path, listeners=listeners) as broker, closing(Client(broker.address)) as client:
        broker_says, _ = client.call("Handshake", "page", "1")
        assert "SCRAM-SHA-256" in broker_says["mechanisms"]
        first = "n=alice,r=4711"
        answer, _ = client.call("Authenticate", "SCRAM-SHA-256", f"n,,{first}".encode())
        said = answer["data"].decode()
        values = dict(part.split("=", 1) for part in said.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", b"pencil", base64.b64decode(values["s"]), int(values["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        last = f"c=biws,r={values['r']}"
        everything = f"{first},{said},{last}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), everything, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
        assert not answer["done"]
        answer, _ = client.call("Authenticate", "SCRAM-SHA-256", f"{last},p={proof}".encode())
        assert (answer["done"], answer["session_lifetime_ms"]) == (True, 3_600_000)
        expected = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), everything, "sha256")
        assert answer["data"] == b"v=" + base64.b64encode(expected)
        assert client.call("ListUsers")[0]["users"][0]["name"] == "alice"
