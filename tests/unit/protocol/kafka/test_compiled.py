"""Kafka's messages: what is written is read, as two other implementations read it; what is no message is refused."""

import io
import re
from contextlib import suppress
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kio.serial import entity_reader, entity_writer

from unit.protocol.kafka.kafka_strategies import messages
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.compiled import KAFKA_CODES, MalformedMessage, reader, writer
from warmlog_protocol.kafka.schema import API, Api

MANY_ITEMS = 1000
KINDS = [(name, role) for name in API for role in ("request", "response")]
each_message = pytest.mark.parametrize(("name", "role"), KINDS, ids=[f"{name}-{role}" for name, role in KINDS])
OTHER_NAMES: dict[Any, str] = {
    "throttle_ms": "throttle_time_ms",
    ("TxnOffsetCommit", "generation_id_or_member_epoch"): "generation_id",
}
NOT_READ = {"authorized_operations", "cluster_authorized_operations", "topic_authorized_operations"}
"""kafka-python has a set of operations in their place."""
OF_KAFKA_PYTHON = {
    name: kind for module in (admin, consumer, metadata, producer, sasl) for name, kind in vars(module).items()
}
del OF_KAFKA_PYTHON["ApiVersionsResponse"]  # an error code decides for it which version that is


@each_message
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_written_is_read_here_by_kio_and_by_kafka_python(name: str, role: str, data: st.DataObject) -> None:
    api = API[name]
    version = data.draw(st.integers(api.versions.first, api.versions.last), label="version")
    message = data.draw(messages(name, role, version), label="message")
    written = b"".join(writer(name, role, version)(message))
    for received in (written, memoryview(bytearray(written))):
        assert _shown(reader(name, role, version)(received, MANY_ITEMS)) == _shown(message)

    of_kio = getattr(import_module(f"kio.schema.{_snake(name)}.v{version}.{role}"), name + role.title())
    read, _ = entity_reader(of_kio)(written, 0)
    again = io.BytesIO()
    entity_writer(of_kio)(again, read)
    assert again.getvalue() == written

    of_kafka_python = OF_KAFKA_PYTHON.get(name + role.title())
    if of_kafka_python is not None and version <= of_kafka_python.max_version:
        _assert_same(of_kafka_python.decode(written, version=version), message, api, role, role, version)


def _shown(message: Any) -> str:
    """Return a message as text in which records without bytes are the same, whether they are read or written."""
    return re.sub(r"records=(slice\([^)]*\)|0|None)", "records", repr(message))


def _assert_same(theirs: Any, ours: Any, api: Api, role: str, struct: str, version: int) -> None:
    for field in api.structs[role][struct]:
        if version not in field.versions or field.tag is not None or field.name in NOT_READ or field.kind == "records":
            continue
        value = getattr(ours, field.name)
        other = getattr(theirs, OTHER_NAMES.get((api.name, field.name)) or OTHER_NAMES.get(field.name) or field.name)
        if field.kind in api.structs[role] and value is not None:
            for their_item, our_item in zip(other, value, strict=True) if field.is_array else [(other, value)]:
                _assert_same(their_item, our_item, api, role, field.kind, version)
        else:
            assert (other.bytes if isinstance(other, UUID) else other) == value, field.name


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@each_message
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_bytes_that_are_no_message_are_refused_or_read_and_nothing_else(
    name: str, role: str, data: st.DataObject
) -> None:
    api = API[name]
    version = data.draw(st.integers(api.versions.first, api.versions.last), label="version")
    written = bytearray(b"".join(writer(name, role, version)(data.draw(messages(name, role, version)))))
    for _ in range(data.draw(st.integers(0, 3))):
        if written:
            written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(written[: data.draw(st.integers(0, len(written)))])
    with suppress(MalformedMessage):
        reader(name, role, version)(cut, MANY_ITEMS)


def test_unknown_tagged_fields_are_skipped() -> None:
    request = API["Metadata"].request
    written = b"".join(writer("Metadata", "request", 9)(request([request.MetadataRequestTopic(name="flights")])))
    unknown = b"\x02\x05\x03abc\x89\x01\x00"  # two: number 5 with three bytes, and 137 with none
    assert written.endswith(b"\x00")
    assert reader("Metadata", "request", 9)(written[:-1] + unknown, 10) == reader("Metadata", "request", 9)(written, 10)


@pytest.mark.parametrize(
    "body",
    [
        b"\x7f\xff\xff\xff",  # a count of two billion topics
        b"\xff\xff\xff\xfe",  # a negative count
        b"\x00\x00\x00\x01\x00\x09abc",  # a name that ends after the message
        b"\x00\x00\x00\x01\xff\xff",  # a name that is null
        b"\x00\x00\x00\x01\x00\x02\xc3\x28",  # a name that is not UTF-8
        b"\x00\x00",
        b"",
    ],
)
def test_a_body_that_lies_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        reader("Metadata", "request", 1)(body, MANY_ITEMS)


def test_a_request_of_too_many_items_is_refused_before_they_are_read() -> None:
    request = API["Metadata"].request
    many = request([request.MetadataRequestTopic(name="t") for _ in range(11)])
    written = b"".join(writer("Metadata", "request", 12)(many))
    assert len(reader("Metadata", "request", 12)(written, 11).topics) == 11
    with pytest.raises(MalformedMessage, match="too many items"):
        reader("Metadata", "request", 12)(written, 10)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code >= 1000])
def test_codes_of_warmlogs_own_are_written_as_codes_of_kafkas(code: ErrorCode) -> None:
    written = b"".join(writer("Heartbeat", "response", 1)(API["Heartbeat"].response(0, code)))
    assert reader("Heartbeat", "response", 1)(written, 0).error_code == KAFKA_CODES[code] < 1000
