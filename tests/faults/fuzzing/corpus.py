"""Valid requests of every API: what mutations begin with."""

from struct import Struct
from typing import NamedTuple

import msgspec

from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch, read_batch, to_rows
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages.coordinators.groups import JOINING, LEAVING, LEAVING_FOR_A_WHILE
from warmlog_protocol.sasl.credential import Credential

TOPIC = "fuzzed"
COMPACTED_TOPIC = "compacted"
PACKED_TOPIC = "packed"
TOPICS: dict[str, dict[str, str]] = {
    TOPIC: {},
    COMPACTED_TOPIC: {"cleanup_policy": "compact,delete"},
    PACKED_TOPIC: {"compression_type": "zstd"},
}
"""With settings. On the last two the broker opens every batch."""
GROUP = "fuzzers"
USER = PASSWORD = "peer"
MEMBER = "member"
TRANSACTIONAL_ID = "fuzzing"
JOB = "fuzzing-job"
PRODUCER_ID, MEMBER_ID = 0, 1
"""What a new broker gives to whom initialises TRANSACTIONAL_ID and then joins version 0 of JOB: see `openings`."""
TRANSACTION_TIMEOUT_MS = 500
HEAD = Struct(">II")

_FILLINGS: dict[str, object] = {
    "topic": TOPIC,
    "topics": [TOPIC],
    "names": ["nowhere"],
    "name": "nowhere",
    "partition": 0,
    "max_bytes": 65_536,
    "max_wait_ms": 1,
    "acks": -1,
    "timeout_ms": 100,
    "timestamp_ms": -1,
    "fetch_offset": 0,
    "group": GROUP,
    "groups": [GROUP],
    "member_id": MEMBER,
    "instance_id": "",
    "pattern": "fuz.*",
    "assignor": "uniform",
    "session_timeout_ms": 2_000,
    "rebalance_timeout_ms": 1_000,
}


class Parts(NamedTuple):
    """A request frame before it is packed: the fields of its header, and its payload."""

    fields: list[object]
    payload: bytes


def pack(parts: Parts) -> bytes:
    """The frame, with sizes that are right."""
    header = msgspec.msgpack.encode(parts.fields)
    return HEAD.pack(HEAD.size - 4 + len(header) + len(parts.payload), len(header)) + header + parts.payload


def request(message: m.Message, payload: bytes = b"", correlation_id: int = 1) -> Parts:
    """`message` as a client would send it."""
    api = m.API_OF_REQUEST[type(message)]
    body = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return Parts([int(api.key), api.max_version, correlation_id, *body], payload)


def corpus() -> list[Parts]:
    """One request of each API at least; those with batches in their payload with each codec and magic."""
    requests = [request(_filled(api.request)) for api in m.APIS.values() if not _has_payload(api.request)]
    for codec in Codec:
        for keys in ([b"key", None, b"key", None, b""], [b"key", b"other", b"key", b"", b"k"]):
            columns = encode_batch([b"value"] * 5, keys=keys, timestamps_ms=1_700_000_000_000, codec=codec)
            for batch in (columns, to_rows(read_batch(columns))):
                kinds = [api.request for api in m.APIS.values() if _has_payload(api.request)]
                requests += [request(_with_batch(kind, topic, len(batch)), batch) for kind in kinds for topic in TOPICS]
    others = (*_of_members(), *_of_users(), *openings(), *_of_transactions())
    return requests + [request(message) for message in others] + _transactional_batches()


def _of_members() -> list[m.Message]:
    """What members send in the course of their lives, with and without an instance id, and commits from outside."""
    requests: list[m.Message] = []
    for member_id, instance_id in ((MEMBER, ""), ("static", "instance")):
        for epoch in (JOINING, 1, 2, LEAVING_FOR_A_WHILE, LEAVING):
            requests.append(
                m.GroupHeartbeatRequest(GROUP, member_id, epoch, instance_id, [TOPIC], owned=[], max_wait_ms=1)
            )
            commit = m.OffsetCommitPartition(b"", TOPIC, 0, 0, metadata="text")
            requests.append(m.OffsetCommitRequest(GROUP, [commit], member_id, epoch, instance_id, 1))
    requests.append(m.OffsetCommitRequest("empty group", [m.OffsetCommitPartition(b"", TOPIC, 0, 0)]))
    requests.append(m.OffsetFetchRequest("empty group"))
    return requests


def openings() -> list[m.Message]:
    """What gives the transactional id to a producer, and the first slot of the job to a member."""
    return [m.InitProducerIdRequest(TRANSACTIONAL_ID, TRANSACTION_TIMEOUT_MS), m.JoinJobRequest(JOB, 0, 60_000)]


def _of_transactions() -> list[m.Message]:
    """What producers, members and drivers of jobs, and operators send, also with epochs that are over or to come."""
    requests: list[m.Message] = [m.AbortTransactionRequest(name) for name in (TRANSACTIONAL_ID, JOB)]
    for epoch in range(3):
        owner = (TRANSACTIONAL_ID, PRODUCER_ID, epoch)
        requests.append(m.InitProducerIdRequest(TRANSACTIONAL_ID, TRANSACTION_TIMEOUT_MS, PRODUCER_ID, epoch))
        requests += [m.EndTransactionRequest(*owner, commits=commits) for commits in (True, False)]
        requests.append(m.TxnOffsetCommitRequest(*owner, "empty group", [m.OffsetCommitPartition(b"", TOPIC, 0, 0)]))
        member, version = m.JobMember(MEMBER_ID, epoch), epoch
        requests += [
            m.JoinJobRequest(JOB, version, TRANSACTION_TIMEOUT_MS),
            m.JobHeartbeatRequest(JOB, version, member),
            m.CommitJobRequest(JOB, version, [member], 5),
            m.CommitJobRequest(JOB, version, [], 0),
            m.AbortJobMembersRequest(JOB, version, [member]),
        ]
    return requests


def _transactional_batches() -> list[Parts]:
    """A Produce of the producer and of the member in each epoch."""
    requests = []
    for name, producer_id in ((TRANSACTIONAL_ID, PRODUCER_ID), (JOB, MEMBER_ID)):
        for epoch in range(3):
            batch = encode_batch(
                [b"value"] * 3,
                timestamps_ms=1_700_000_000_000,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=0,
                is_transactional=True,
            )
            produce = m.ProduceRequest(m.ACKS_ALL, 100, [m.ProducePartition(TOPIC, 0, len(batch))], name)
            requests.append(request(produce, batch))
    return requests


def _of_users() -> list[m.Message]:
    """The messages of an authentication, and changes of users."""
    stored = [Credential("SCRAM-SHA-256", b"salt of a user", 4096, b"k" * 32, b"k" * 32)]
    return [
        m.AuthenticateRequest("SCRAM-SHA-256", f"n,,n={USER},r=nonce".encode()),
        m.AuthenticateRequest("SCRAM-SHA-512", b"n,,n=nobody,r=nonce"),
        m.AuthenticateRequest("SCRAM-SHA-256", b"c=biws,r=nonce,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        m.AlterUsersRequest([m.AlteredUser("fuzzed", m.UserChange.CREATE, stored)]),
        m.AlterUsersRequest([m.AlteredUser("fuzzed", m.UserChange.ROTATE, stored, grace_ms=1000)]),
        m.AlterUsersRequest([m.AlteredUser("fuzzed", m.UserChange.DELETE)]),
    ]


def with_batch(parts: Parts, batch: bytes) -> Parts:
    """A Produce with another batch in the place of its own."""
    fields = [_with_size(field, len(batch)) if isinstance(field, list) else field for field in parts.fields]
    return Parts(fields, batch)


def _with_size(partitions: list[object], size_bytes: int) -> list[object]:
    """The partitions of a Produce: the first has the only batch, and its size is the last field."""
    first = partitions[0]
    assert isinstance(first, list)
    return [[*first[:-1], size_bytes]]


def handshake() -> bytes:
    return pack(request(m.HandshakeRequest("fuzzer", "1"), correlation_id=0))


def sentinel(correlation_id: int) -> bytes:
    """A request that is always answered, to see whether the connection still is."""
    return pack(request(m.MetadataRequest([]), correlation_id=correlation_id))


def _has_payload(kind: type[m.Message]) -> bool:
    """Whether requests of this kind carry batches: their partitions have a size."""
    partitions = next((f for f in msgspec.structs.fields(kind) if f.name == "partitions"), None)
    if partitions is None:
        return False
    part = _item_type(partitions.type)
    return isinstance(part, type) and any(f.name == "size_bytes" for f in msgspec.structs.fields(part))


def _with_batch(kind: type[m.Message], topic: str, size_bytes: int) -> m.Message:
    values = {field.name: _value(field.name, field.type) for field in msgspec.structs.fields(kind)}
    partitions = values["partitions"]
    assert isinstance(partitions, list)
    values["partitions"] = [msgspec.structs.replace(partitions[0], topic=topic, size_bytes=size_bytes)]
    return kind(**values)


def _filled(kind: type[m.Message]) -> m.Message:
    """A message whose fields all have some sensible value, optional ones included."""
    return kind(**{field.name: _value(field.name, field.type) for field in msgspec.structs.fields(kind)})


def _value(name: str, kind: object) -> object:
    """Something for a field of this name and type."""
    item = _item_type(kind)
    if isinstance(item, type) and issubclass(item, m.Message):
        return [_filled(item)]
    if isinstance(kind, type) and issubclass(kind, m.Message):
        return _filled(kind)
    if name in _FILLINGS:
        return _FILLINGS[name]
    for candidate in (0, "text", b"0123456789abcdef", False, [], {}, None):
        try:
            return msgspec.convert(candidate, kind)
        except msgspec.ValidationError:
            continue
    raise AssertionError(f"no value for {name}: {kind}")


def _item_type(kind: object) -> object:
    """What a list of this type holds; None for other types."""
    return kind.__args__[0] if getattr(kind, "__origin__", None) is list else None  # type: ignore[attr-defined]
