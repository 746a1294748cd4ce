"""Messages: what is written is read back, older and newer peers understand each other, the table is complete."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.protocol.message_strategies import message_types, messages_of
from warmlog_protocol import messages
from warmlog_protocol import messages as m

packed = msgspec.msgpack.encode


def required_fields(message_type: type[m.Message]) -> int:
    return sum(field.required for field in msgspec.structs.fields(message_type))


def fields_of(message: m.Message) -> list[object]:
    """The message as the plain msgpack array that lies on the wire."""
    fields: list[object] = msgspec.msgpack.decode(packed(message))
    return fields


@pytest.mark.parametrize("message_type", [*message_types, m.ErrorResponse], ids=lambda cls: cls.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_message_comes_back_as_it_was_sent(message_type: type[m.Message], data: st.DataObject) -> None:
    message = data.draw(messages_of(message_type))
    assert msgspec.msgpack.decode(packed(message), type=message_type) == message


@pytest.mark.parametrize("message_type", [*message_types, m.ErrorResponse], ids=lambda cls: cls.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_fields_that_a_newer_peer_added_at_the_end_are_ignored(
    message_type: type[m.Message], data: st.DataObject
) -> None:
    message = data.draw(messages_of(message_type))
    newer = packed([*fields_of(message), "a field of tomorrow", {"nested": [1, None]}])
    assert msgspec.msgpack.decode(newer, type=message_type) == message


@pytest.mark.parametrize("message_type", [*message_types, m.ErrorResponse], ids=lambda cls: cls.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_fields_that_an_older_peer_did_not_send_take_their_defaults(
    message_type: type[m.Message], data: st.DataObject
) -> None:
    fields = msgspec.structs.fields(message_type)
    message = data.draw(messages_of(message_type))
    kept = data.draw(st.integers(required_fields(message_type), len(fields)))

    received = msgspec.msgpack.decode(packed(fields_of(message)[:kept]), type=message_type)

    defaults = message_type(*(getattr(message, field.name) for field in fields[:kept]))
    assert received == defaults


@pytest.mark.parametrize("message_type", [*filter(required_fields, message_types)], ids=lambda cls: cls.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_a_message_without_one_of_its_required_fields_is_refused(
    message_type: type[m.Message], data: st.DataObject
) -> None:
    message = data.draw(messages_of(message_type))
    kept = data.draw(st.integers(0, required_fields(message_type) - 1))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(packed(fields_of(message)[:kept]), type=message_type)


def test_a_message_is_a_positional_array_on_the_wire() -> None:
    partition = m.FetchPartition("flights", 3, 17, 1024)
    assert fields_of(partition) == ["flights", 3, 17, 1024, None, -1, -1, -1, -1]


def test_defaults_are_not_shared_between_messages() -> None:
    first, second = m.NewTopic("a"), m.NewTopic("b")
    first.configs["retention.ms"] = "1"
    assert second.configs == {}


def test_asking_for_all_topics_differs_from_asking_for_none() -> None:
    assert fields_of(m.MetadataRequest()) == [None, False]
    assert fields_of(m.MetadataRequest([])) == [[], False]


def test_a_partition_that_failed_says_so_without_offsets() -> None:
    failed = m.ProducedPartition("flights", 0, 2, "wrong CRC")
    assert (failed.base_offset, failed.log_append_time_ms, failed.log_start_offset) == (-1, -1, -1)


def test_the_table_has_a_row_for_every_api_key_and_finds_it_by_its_request() -> None:
    assert set(m.APIS) == set(m.ApiKey)
    assert all(m.API_OF_REQUEST[api.request] is api for api in m.APIS.values())
    assert all(0 <= api.min_version <= api.max_version for api in m.APIS.values())


def test_every_request_and_response_of_the_module_is_in_the_table() -> None:
    named = {found for name, found in vars(messages).items() if name.endswith(("Request", "Response"))}
    written = {message_type.__name__ for message_type in named} - {"ErrorResponse"}
    assert written == {message_type.__name__ for message_type in message_types}
