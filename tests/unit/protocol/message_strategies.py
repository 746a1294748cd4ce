"""Hypothesis strategies for the messages of the wire protocol, made from the field types of their classes."""

import types
from functools import cache
from typing import Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from warmlog_protocol.messages import APIS, Api, Message
from warmlog_protocol.messages.base import Int32, Int64

INT64 = st.integers(-(2**63), 2**63 - 1)
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-2, 200) | INT64,
    Int32: st.integers(-2, 200) | st.integers(-(2**31), 2**31 - 1),
    Int64: st.integers(-2, 200) | INT64,
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
    type(None): st.none(),
}


def values_of(field_type: Any) -> st.SearchStrategy[Any]:
    """Any value of a field that is annotated with `field_type`."""
    if field_type in _SCALARS:
        return _SCALARS[field_type]
    origin, arguments = get_origin(field_type), get_args(field_type)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    return messages_of(field_type)


@cache
def messages_of(message_type: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of one class."""
    fields = msgspec.structs.fields(message_type)
    return st.builds(message_type, **{field.name: values_of(field.type) for field in fields})


apis: st.SearchStrategy[Api] = st.sampled_from(sorted(APIS.values(), key=lambda api: api.key))
message_types: list[type[Message]] = [side for api in APIS.values() for side in (api.request, api.response)]
requests: st.SearchStrategy[Message] = apis.flatmap(lambda api: messages_of(api.request))
