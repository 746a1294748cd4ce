"""The two sides of a connection run against each other, and each against bytes that nobody should send."""

import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.protocol.message_strategies import messages_of
from warmlog_protocol import errors
from warmlog_protocol import messages as m
from warmlog_protocol.wire.connection import (
    MAX_REFUSALS_IN_A_ROW,
    ClientConnection,
    RefusedRequest,
    ResponseTooLarge,
    ServerConnection,
)
from warmlog_protocol.wire.frames import pack_frame

MAX_FRAME_BYTES = 1024 * 1024
ALL_VERSIONS = [m.ApiVersions(api.key, api.min_version, api.max_version) for api in m.APIS.values()]
HELLO = m.HandshakeRequest("test", "1")
NO_TOPICS = m.MetadataResponse("cluster", 0, [], [])


def new_server(buffer_bytes: int = 4096) -> ServerConnection:
    return ServerConnection(max_frame_bytes=MAX_FRAME_BYTES, buffer_bytes=buffer_bytes)


def handshake_response(versions: Sequence[m.ApiVersions] = ALL_VERSIONS) -> m.HandshakeResponse:
    return m.HandshakeResponse("1.0", "cluster", 0, MAX_FRAME_BYTES, list(versions))


def pour(connection: ServerConnection | ClientConnection, data: bytes) -> list[Any]:
    """Feed `data` as a socket would. Only the last requests' payloads still hold when the buffer was filled twice."""
    out: list[Any] = []
    rest = memoryview(data)
    while rest:
        room = connection.get_buffer()
        count = min(len(room), len(rest))
        room[:count] = rest[:count]
        rest = rest[count:]
        out += connection.received(count)
    return out


def connected(versions: Sequence[m.ApiVersions] = ALL_VERSIONS) -> tuple[ClientConnection, ServerConnection]:
    """A client and a broker that have shaken hands."""
    client, server = ClientConnection(), new_server()
    (hello,) = pour(server, client.request(HELLO)[1])
    (answer,) = pour(client, server.respond(hello.correlation_id, handshake_response(versions)))
    assert isinstance(answer.result, m.HandshakeResponse)
    return client, server


def raw_request(header: object, payload: bytes = b"") -> bytes:
    packed = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    return struct.pack(">II", 4 + len(packed) + len(payload), len(packed)) + packed + payload


# --- two sides --------------------------------------------------------------------------------------------------------


def test_the_handshake_tells_each_side_who_the_other_is() -> None:
    client, server = ClientConnection(), new_server()
    (hello,) = pour(server, client.request(m.HandshakeRequest("notebook", "1.2"))[1])
    assert hello.message == m.HandshakeRequest("notebook", "1.2")
    assert server.is_open
    pour(client, server.respond(hello.correlation_id, handshake_response()))
    assert client.broker == handshake_response()


@pytest.mark.parametrize("api", m.APIS.values(), ids=lambda api: api.key.name.lower())
@settings(max_examples=25)
@given(data=st.data(), payload=st.binary(max_size=5000), answer_payload=st.binary(max_size=5000))
def test_any_request_and_its_answer_arrive_as_they_were_sent(
    api: m.Api, data: st.DataObject, payload: bytes, answer_payload: bytes
) -> None:
    message, response = data.draw(messages_of(api.request)), data.draw(messages_of(api.response))
    client, server = connected()

    correlation_id, head = client.request(message, len(payload))
    (request,) = pour(server, head + payload)
    assert (request.api, request.correlation_id, request.message) == (api, correlation_id, message)
    assert request.payload == payload

    head = server.respond(correlation_id, response, len(answer_payload))
    (answer,) = pour(client, head + answer_payload)
    assert (answer.correlation_id, answer.result) == (correlation_id, response)
    assert answer.payload == answer_payload


def test_answers_may_come_in_any_order() -> None:
    client, server = connected()
    first, first_head = client.request(m.MetadataRequest())
    second, second_head = client.request(m.ProduceRequest(-1, 1000, []))
    pour(server, first_head + second_head)

    answers = pour(client, server.respond(second, m.ProduceResponse([])) + server.respond(first, NO_TOPICS))

    assert [answer.correlation_id for answer in answers] == [second, first]
    assert [answer.result for answer in answers] == [m.ProduceResponse([]), NO_TOPICS]


def test_an_error_arrives_as_the_error_class_that_was_raised() -> None:
    client, server = connected()
    correlation_id, head = client.request(m.MetadataRequest())
    pour(server, head)
    (answer,) = pour(client, server.refuse(correlation_id, errors.MessageTooLarge("batch of 9 bytes")))
    assert isinstance(answer.result, errors.MessageTooLarge)
    assert str(answer.result) == "batch of 9 bytes"


def test_an_error_code_that_the_client_does_not_know_names_its_number() -> None:
    client, _ = connected()
    correlation_id, _ = client.request(m.MetadataRequest())
    (answer,) = pour(client, raw_request([correlation_id, 4711, "news of tomorrow"]))
    assert isinstance(answer.result, errors.UnknownServerError)
    assert str(answer.result) == "error code 4711: news of tomorrow"


def test_a_request_without_an_answer_is_not_waited_for() -> None:
    client, server = connected()
    correlation_id, head = client.request(m.ProduceRequest(0, 1000, []), has_response=False)
    pour(server, head)
    with pytest.raises(errors.RemoteProtocolError, match="which was never sent"):
        pour(client, server.respond(correlation_id, m.ProduceResponse([])))


def test_correlation_ids_are_not_given_twice_while_an_answer_is_out() -> None:
    client, _ = connected()
    ids = [client.request(m.MetadataRequest())[0] for _ in range(1000)]
    assert len(set(ids)) == len(ids)


def test_a_borrowed_payload_is_told_from_an_owned_one() -> None:
    client, server = connected()
    small, large = b"x" * 100, b"y" * (1024 * 1024)
    ids = [client.request(m.MetadataRequest())[0] for _ in range(2)]
    (borrowed,) = pour(client, server.respond(ids[0], NO_TOPICS, len(small)) + small)
    assert not borrowed.is_payload_owned
    assert borrowed.payload == small
    (owned,) = pour(client, server.respond(ids[1], NO_TOPICS, len(large)) + large)
    pour(client, server.respond(client.request(m.MetadataRequest())[0], NO_TOPICS, len(small)) + small)
    assert owned.is_payload_owned
    assert owned.payload == large


# --- versions ---------------------------------------------------------------------------------------------------------


def test_nothing_but_a_handshake_is_sent_before_the_handshake() -> None:
    with pytest.raises(errors.LocalProtocolError, match="METADATA before the Handshake got its response"):
        ClientConnection().request(m.MetadataRequest())


def test_an_api_that_the_broker_does_not_speak_is_refused_before_it_is_sent() -> None:
    client, _ = connected([m.ApiVersions(m.ApiKey.METADATA, 0, 0)])
    client.request(m.MetadataRequest())
    with pytest.raises(errors.UnsupportedVersion, match=r"broker 1\.0 does not speak LIST_OFFSETS"):
        client.request(m.ListOffsetsRequest([]))


def test_an_api_whose_versions_do_not_meet_ours_is_refused_before_it_is_sent() -> None:
    beyond = m.APIS[m.ApiKey.METADATA].max_version + 1
    client, _ = connected([m.ApiVersions(m.ApiKey.METADATA, beyond, beyond + 3)])
    with pytest.raises(errors.UnsupportedVersion):
        client.request(m.MetadataRequest())


def test_the_highest_version_that_both_know_is_used() -> None:
    ours = m.APIS[m.ApiKey.METADATA].max_version
    client, server = connected([m.ApiVersions(m.ApiKey.METADATA, 0, ours + 7)])
    (request,) = pour(server, client.request(m.MetadataRequest())[1])
    assert request.api_version == ours


def test_apis_that_only_a_newer_broker_knows_are_ignored() -> None:
    client, _ = connected([*ALL_VERSIONS, m.ApiVersions(31_000, 0, 5)])
    client.request(m.MetadataRequest())


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ([4711, 0, 5], "API 4711 version 0: it is not known"),
        ([m.ApiKey.METADATA, 99, 5], "API 3 version 99: it is known in versions 0 to 0"),
        ([m.ApiKey.METADATA, -1, 5], "API 3 version -1"),
    ],
)
def test_an_unknown_api_or_version_is_told_to_the_client_before_the_connection_ends(
    header: list[int], expected: str
) -> None:
    _, server = connected()
    with pytest.raises(errors.RemoteProtocolError, match=expected) as refusal:
        pour(server, raw_request(header))
    client, _ = connected()
    while client.request(m.MetadataRequest())[0] < 5:
        pass
    (answer,) = pour(client, refusal.value.reply)
    assert isinstance(answer.result, errors.UnsupportedVersion)
    assert expected in str(answer.result)


# --- misuse -----------------------------------------------------------------------------------------------------------


def reply_code(refusal: pytest.ExceptionInfo[errors.RemoteProtocolError]) -> int:
    code: int = msgspec.msgpack.decode(refusal.value.reply[8:])[1]
    return code


def test_a_first_request_that_is_no_handshake_is_refused() -> None:
    client, _ = connected()
    server = new_server()
    with pytest.raises(errors.RemoteProtocolError, match="begins with a Handshake") as refusal:
        pour(server, client.request(m.MetadataRequest())[1])
    assert reply_code(refusal) == errors.ErrorCode.INVALID_REQUEST
    assert not server.is_open


MALFORMED_BODIES = {
    "a string where a list belongs": msgspec.msgpack.encode([3, 0, 7, "flights"]),
    "a number where a name belongs": msgspec.msgpack.encode([3, 0, 7, [1]]),
    "a missing field": msgspec.msgpack.encode([0, 0, 7, -1]),
    "trailing bytes": msgspec.msgpack.encode([3, 0, 7, None]) + b"\xc0",
    "a field that is cut off": b"\x94\x03\x00\x07\x91\xa5fli",
    "a list that claims 4 G entries": b"\x94\x03\x00\x07\xdd\xff\xff\xff\xff\xa1a",
    "a map that claims 4 G entries": b"\x94\x13\x00\x07\x91\x94\xa1a\x01\x01\xdf\xff\xff\xff\xff",
    "a name that claims 4 GiB": b"\x94\x03\x00\x07\x91\xdb\xff\xff\xff\xffab",
    "an array that claims 4 G fields": b"\xdd\xff\xff\xff\xff\x03\x00\x07\xc0",
    "a name that is not UTF-8": b"\x94\x03\x00\x07\x91\xa2\xff\xff",
    "an unknown field nested 100,000 deep": b"\x95\x03\x00\x07\xc0" + b"\x91" * 100_000 + b"\xc0",
    "msgpack's one unused type": b"\x94\x03\x00\x07\xc1",
}


@pytest.mark.parametrize("header", MALFORMED_BODIES.values(), ids=MALFORMED_BODIES.keys())
def test_a_malformed_request_is_refused_with_a_reply_and_little_memory(header: bytes) -> None:
    _, server = connected()
    frame = raw_request(header)
    tracemalloc.start()
    try:
        (refused,) = pour(server, frame)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert isinstance(refused, RefusedRequest)
    assert refused.error.code == errors.ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("header", MALFORMED_BODIES.values(), ids=MALFORMED_BODIES.keys())
def test_a_malformed_answer_ends_the_connection_with_an_error_of_the_peer(header: bytes) -> None:
    client, _ = connected()
    correlation_id, _ = client.request(m.MetadataRequest())
    with pytest.raises(errors.RemoteProtocolError):
        pour(client, raw_request(b"\x93" + bytes((correlation_id, errors.ErrorCode.NONE)) + header[4:]))


@pytest.mark.parametrize(
    "body", [b"\x01", b"\xc0", b"\xa2\xff\xff", b""], ids=["number", "nil", "not UTF-8", "cut off"]
)
def test_an_error_with_a_malformed_message_ends_the_connection_too(body: bytes) -> None:
    client, _ = connected()
    correlation_id, _ = client.request(m.MetadataRequest())
    with pytest.raises(errors.RemoteProtocolError):
        pour(client, raw_request(b"\x93" + bytes((correlation_id, errors.ErrorCode.CORRUPT_MESSAGE)) + body))


def test_answers_to_no_request_and_answers_given_twice_are_refused() -> None:
    client, server = connected()
    correlation_id, head = client.request(m.MetadataRequest())
    pour(server, head)
    pour(client, server.respond(correlation_id, NO_TOPICS))
    with pytest.raises(errors.RemoteProtocolError, match="which was never sent"):
        pour(client, server.respond(correlation_id, NO_TOPICS))


@settings(max_examples=200)
@given(data=st.binary(max_size=300))
def test_a_broker_answers_garbage_with_a_protocol_error_or_not_at_all(data: bytes) -> None:
    server = new_server()
    try:
        requests = pour(server, data)
    except errors.RemoteProtocolError:
        return
    assert requests == []


def valid_conversation() -> bytes:
    client, _ = connected()
    produce = m.ProduceRequest(-1, 1000, [m.ProducePartition("flights", 0, 50), m.ProducePartition("flights", 1, 25)])
    return b"".join(
        (
            pack_frame((m.ApiKey.HANDSHAKE, 0, 0), HELLO),
            client.request(m.MetadataRequest(["flights", "délais"]))[1],
            client.request(produce, 75)[1] + b"p" * 75,
            client.request(m.ListOffsetsRequest([]))[1],
        )
    )


CONVERSATION = valid_conversation()

mutations = st.lists(st.tuples(st.integers(0, len(CONVERSATION) - 1), st.integers(0, 255)), min_size=1, max_size=6)


@settings(max_examples=400)
@given(changes=mutations, cut=st.integers(1, len(CONVERSATION)), extra=st.binary(max_size=20))
def test_a_conversation_with_damaged_bytes_gives_requests_of_their_type_or_a_protocol_error(
    changes: list[tuple[int, int]], cut: int, extra: bytes
) -> None:
    damaged = bytearray(CONVERSATION)
    for position, value in changes:
        damaged[position] = value
    server = new_server()
    tracemalloc.start()
    try:
        for request in pour(server, bytes(damaged[:cut]) + extra):
            if isinstance(request, RefusedRequest):
                continue
            assert type(request.message) is request.api.request
            assert_types_hold(request.message)
        reply = b""
    except errors.RemoteProtocolError as error:
        reply = error.reply
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MAX_FRAME_BYTES + 200_000
    assert not reply or len(reply) == 4 + int.from_bytes(reply[:4], "big")


def assert_types_hold(message: m.Message) -> None:
    """Every field has the type of its annotation: what msgspec let through can be encoded and read again."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


@settings(max_examples=200)
@given(data=st.binary(max_size=300))
def test_a_client_takes_garbage_as_an_error_of_the_peer(data: bytes) -> None:
    client = ClientConnection(max_frame_bytes=MAX_FRAME_BYTES)
    client.request(HELLO)
    try:
        answers = pour(client, data)
    except errors.RemoteProtocolError:
        return
    assert all(isinstance(answer.result, (m.HandshakeResponse, errors.ApiError)) for answer in answers)


def test_requests_before_a_damaged_one_do_not_make_it_valid() -> None:
    client, server = connected()
    good = client.request(m.MetadataRequest())[1]
    with pytest.raises(errors.RemoteProtocolError):
        pour(server, good + raw_request(b"\xc0"))


def test_an_invalid_request_error_is_what_the_client_sees_of_its_own_malformed_request() -> None:
    client, server = connected()
    correlation_id, _ = client.request(m.MetadataRequest())
    (refused,) = pour(server, raw_request([m.ApiKey.METADATA, 0, correlation_id, "not a list"]))
    assert isinstance(refused, RefusedRequest)
    (answer,) = pour(client, server.refuse(refused.correlation_id, refused.error))
    assert isinstance(answer.result, errors.InvalidRequest)
    assert "MetadataRequest" in str(answer.result)


def test_more_items_than_a_request_may_name_are_refused_with_their_number() -> None:
    server = ServerConnection(max_frame_bytes=MAX_FRAME_BYTES, buffer_bytes=4096, max_items=3)
    server.is_open = True
    assert pour(server, pack_frame((m.ApiKey.METADATA, 0, 1), m.MetadataRequest(["t"] * 3)))
    (refused,) = pour(server, pack_frame((m.ApiKey.METADATA, 0, 2), m.MetadataRequest(["t"] * 4)))
    assert isinstance(refused, RefusedRequest)
    assert str(refused.error) == "4 topics in one request, 3 are allowed"
    assert refused.correlation_id == 2


def test_the_partitions_of_all_topics_in_a_request_are_counted() -> None:
    server = ServerConnection(max_frame_bytes=MAX_FRAME_BYTES, buffer_bytes=4096, max_items=3)
    server.is_open = True
    topics = [m.TopicPartitions(b"", "t", [0, 1]), m.TopicPartitions(b"", "u", [0])]
    (read,) = pour(server, pack_frame((m.ApiKey.OFFSET_FETCH, 0, 1), m.OffsetFetchRequest("g", topics)))
    assert read.message == m.OffsetFetchRequest("g", topics)
    (refused,) = pour(
        server, pack_frame((m.ApiKey.OFFSET_FETCH, 0, 2), m.OffsetFetchRequest("g", [*topics, topics[1]]))
    )
    assert isinstance(refused, RefusedRequest)
    assert str(refused.error) == "4 partitions in one request, 3 are allowed"


def test_as_many_members_of_a_job_may_be_named_as_it_has() -> None:
    server = ServerConnection(max_frame_bytes=MAX_FRAME_BYTES, buffer_bytes=4096, max_items=3)
    server.is_open = True
    request = m.CommitJobRequest("job", 1, [m.JobMember(number, 0) for number in range(4)], 0)
    (read,) = pour(server, pack_frame((m.ApiKey.COMMIT_JOB, 0, 1), request))
    assert read.message == request


def test_a_wide_produce_that_expects_no_response_ends_the_connection() -> None:
    server = ServerConnection(max_frame_bytes=MAX_FRAME_BYTES, buffer_bytes=4096, max_items=3)
    server.is_open = True
    wide = [m.ProducePartition("t", index, 0) for index in range(4)]
    (refused,) = pour(server, pack_frame((m.ApiKey.PRODUCE, 0, 1), m.ProduceRequest(1, 1000, wide)))
    assert isinstance(refused, RefusedRequest)
    with pytest.raises(errors.RemoteProtocolError, match="4 partitions in one request, 3 are allowed"):
        pour(server, pack_frame((m.ApiKey.PRODUCE, 0, 2), m.ProduceRequest(0, 1000, wide)))


def test_a_refused_request_is_skipped_with_its_payload_and_the_next_one_is_read() -> None:
    client, server = connected()
    bad = msgspec.msgpack.encode([m.ApiKey.PRODUCE, 0, 7, "not acks"])
    frame = struct.pack(">II", 4 + len(bad) + 5000, len(bad)) + bad + b"\xff" * 5000
    refused, read = pour(server, frame + client.request(m.MetadataRequest(["t"]))[1])
    assert isinstance(refused, RefusedRequest)
    assert read.message == m.MetadataRequest(["t"])
    assert server.pending_bytes == 0


def test_malformed_requests_without_a_valid_one_between_them_end_the_connection() -> None:
    client, server = connected()
    bad = raw_request([m.ApiKey.METADATA, 0, 1, "not a list"])
    for _ in range(3):
        for _ in range(MAX_REFUSALS_IN_A_ROW - 1):
            assert isinstance(pour(server, bad)[0], RefusedRequest)
        pour(server, client.request(m.MetadataRequest())[1])
    for _ in range(MAX_REFUSALS_IN_A_ROW - 1):
        pour(server, bad)
    with pytest.raises(errors.RemoteProtocolError, match="MetadataRequest") as refusal:
        pour(server, bad)
    assert reply_code(refusal) == errors.ErrorCode.INVALID_REQUEST
    assert refusal.value.kind == "requests refused as INVALID_REQUEST"


def test_a_malformed_handshake_ends_the_connection() -> None:
    server = new_server()
    with pytest.raises(errors.RemoteProtocolError, match="HandshakeRequest"):
        pour(server, raw_request([m.ApiKey.HANDSHAKE, 0, 1, 5]))
    assert not server.is_open


def test_an_answer_that_no_client_would_take_is_not_made() -> None:
    server = new_server()
    with pytest.raises(ResponseTooLarge, match="ask for fewer topics or partitions at a time"):
        server.respond(1, m.MetadataResponse("c" * 9_000_000, 0, [], []))
