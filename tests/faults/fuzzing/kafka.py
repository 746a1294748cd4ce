"""The same for the listener of Kafka's clients: valid requests, what can be wrong with them, and who sends them."""

import socket
import struct
from random import Random
from typing import Any

from msgspec.structs import replace

from faults.fuzzing.corpus import GROUP, MEMBER, PRODUCER_ID, TOPIC, TOPICS, TRANSACTIONAL_ID
from faults.fuzzing.peers import Peer, Reader
from kafka_transactions import NEWEST
from warmlog_broker.kafka.translators import TRANSLATORS
from warmlog_protocol.batch import encode_batch, read_batch, to_rows
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.kafka.compiled import writer
from warmlog_protocol.kafka.schema import API, Api

CLIENT_ID = b"fuzzer"
SENTINEL_ID = 0x5EED
_FILLINGS = {
    "group_id": GROUP,
    "member_id": MEMBER,
    "transactional_id": TRANSACTIONAL_ID,
    "mechanism": "SCRAM-SHA-256",
    "auth_bytes": b"n,,n=peer,r=nonce",
    "acks": -1,
    "session_id": 0,
    "session_epoch": -1,
    "max_wait_ms": 1,
    "max_bytes": 65_536,
    "partition_max_bytes": 65_536,
    "timestamp": -1,
    "timeout_ms": 100,
    "session_timeout_ms": 6_000,
    "rebalance_timeout_ms": 100,
    "transaction_timeout_ms": 500,
    "protocol_type": "consumer",
    "producer_id": -1,
    "producer_epoch": -1,
    "replica_id": -1,
}
"""Of fields with these names; of others by their types."""
_VALUES = {"string": TOPIC, "bool": False, "uuid": bytes(16), "bytes": b"\0\0\0\1", "float64": 1.0}


def frame(name: str, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    """A request with a size that is right."""
    head = struct.pack(">hhih", API[name].key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    if version in API[name].flexible:
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def corpus() -> list[bytes]:
    """One request of each API in each version; Produce with each codec, in rows and in columns, to each topic."""
    frames = []
    for name in TRANSLATORS:
        api = API[name]
        for version in range(api.versions.first, api.versions.last + 1):
            for topic, records in _record_sets() if name == "Produce" else [(TOPIC, b"")]:
                request = _filled(api, version, "request", topic, len(records))
                frames.append(_framed(name, version, request, records))
    return frames + _transactions()


def _framed(name: str, version: int, request: Any, records: bytes) -> bytes:
    head, *rest = writer(name, "request", version)(request)
    return frame(name, version, head + (records if rest else b"") + b"".join(rest))


def _transactions() -> list[bytes]:
    """What the producer of TRANSACTIONAL_ID sends in version 1 of transactions, also with epochs over or to come."""
    frames = []
    for epoch in range(3):
        owner = {"producer_id": PRODUCER_ID, "producer_epoch": epoch}
        owner |= {f"v3_and_below_{name}": value for name, value in owner.items()}
        owner |= {"v3_and_below_transactional_id": TRANSACTIONAL_ID, "transactional_id": TRANSACTIONAL_ID}
        batch = encode_batch(
            [b"value"] * 3,
            timestamps_ms=1_700_000_000_000,
            producer_id=PRODUCER_ID,
            producer_epoch=epoch,
            base_sequence=0,
            is_transactional=True,
        )
        records = to_rows(read_batch(batch))
        for name, version in NEWEST.items():
            filled = _filled(API[name], version, "request", TOPIC, len(records))
            names = filled.__struct_fields__
            sent = replace(filled, **{field: value for field, value in owner.items() if field in names})
            frames.append(_framed(name, version, sent, records))
    return frames


def _record_sets() -> list[tuple[str, bytes]]:
    values, keys, now_ms = [b"value"] * 5, [b"k"] * 5, 1_700_000_000_000
    columns = [encode_batch(values, keys=keys, timestamps_ms=now_ms, codec=codec) for codec in Codec]
    return [(topic, each) for topic in TOPICS for batch in columns for each in (batch, to_rows(read_batch(batch)))]


def _filled(api: Api, version: int, struct_name: str, topic: str, records_bytes: int) -> Any:
    """A struct whose fields all have some sensible value, optional ones included."""
    values: dict[str, Any] = {}
    for field in api.structs["request"][struct_name]:
        if version not in field.versions or field.tag is not None:
            continue
        value: Any
        if field.kind in api.structs["request"]:
            value = _filled(api, version, field.kind, topic, records_bytes)
        elif field.kind == "records":
            value = records_bytes
        else:
            value = topic if field.name in ("name", "topic") else _VALUES.get(field.kind, 0)
            filling = _FILLINGS.get(field.name)
            if type(filling) is type(value):
                value = filling
        values[field.name] = [value] if field.is_array else value
    return (api.request if struct_name == "request" else getattr(api.request, struct_name))(**values)


def mutated(sent: bytes, luck: Random) -> bytes:
    """A request with one thing wrong."""
    data = bytearray(sent)
    kind = luck.randrange(8)
    if kind == 0:  # the size lies
        sizes = (-1, 0, 3, 8, len(data) - 5, len(data), 2 * len(data), 2**20, 2**31 - 1)
        data[:4] = struct.pack(">i", luck.choice(sizes))
    elif kind == 1:  # it ends too soon, and says so or not
        del data[luck.randrange(4, len(data)) :]
        if luck.random() < 0.5:
            data[:4] = struct.pack(">i", len(data) - 4)
    elif kind == 2:  # an API or a version that there is not
        data[luck.choice((4, 6)) :][:2] = b""
        struct.pack_into(">h", data, luck.choice((4, 6)), luck.choice((-1, 0, 1, 2, 13, 18, 77, 2**15 - 1)))
    elif kind == 3:  # something announces billions
        position = luck.randrange(12, len(data))
        data[position : position + 4] = luck.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0"))
    elif kind == 4:  # more bytes than it needs
        data += luck.randbytes(luck.choice((1, 61, 5000)))
        data[:4] = struct.pack(">i", len(data) - 4)
    elif kind == 5:  # nothing of a request
        return luck.choice((b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", luck.randbytes(64)))
    else:  # a few bytes are others
        for _ in range(luck.randint(1, 8)):
            data[luck.randrange(8, len(data))] = luck.choice((0, 1, 0x7F, 0x80, 0xFF, luck.randrange(256)))
    return bytes(data)


class KafkaPeer(Peer):
    """A peer of the listener of Kafka's clients."""

    def __init__(self, address: tuple[str, int], frames: int, seed: int) -> None:
        super().__init__(address, frames, seed)
        self.corpus = corpus()
        self.handshake = frame("ApiVersions", 0, b"", 0)
        self.sentinel = frame("ApiVersions", 0, b"", SENTINEL_ID)

    def mutated(self) -> tuple[str, bytes]:
        return "kafka", mutated(self.luck.choice(self.corpus), self.luck)

    def reader(self, connection: socket.socket) -> Reader:
        return Reader(connection, 4, lambda header: int.from_bytes(header[:4], "big"))
