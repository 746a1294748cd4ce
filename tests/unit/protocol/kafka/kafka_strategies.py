"""Messages of Kafka's protocol by chance, from the table of its messages."""

import re
from functools import cache
from typing import Any

from hypothesis import strategies as st

from warmlog_protocol.kafka.schema import API, Api, Field

MANY_BYTES = 300
"""Longer than what a length of one byte in a flexible version can say."""
LAST_TIME_MS = 2**41
"""Other implementations have times that begin with 1970 and durations, which are not all numbers."""
_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


@cache
def messages(name: str, role: str, version: int) -> st.SearchStrategy[Any]:
    """Return a strategy for the request or response of an API with the fields of a version."""
    api = API[name]
    message = api.request if role == "request" else api.response
    return _structs(api, role, version, message, role)


def _structs(api: Api, role: str, version: int, message: Any, name: str) -> st.SearchStrategy[Any]:
    fields = [each for each in api.structs[role][name] if version in each.versions]
    made = message if name == role else getattr(message, name)
    values = {each.name: _values(api, role, version, message, each) for each in fields}
    if name == "request":
        values["api_version"] = st.just(version)
    return st.builds(made, **values)


def _values(api: Api, role: str, version: int, message: Any, field: Field) -> st.SearchStrategy[Any]:
    one: st.SearchStrategy[Any]
    if field.kind in api.structs[role]:
        one = _structs(api, role, version, message, field.kind)
    elif field.name.endswith("error_code"):
        one = st.sampled_from([0, 3, 16, 87, 100])
    elif field.kind in _RANGES:
        low, high = _RANGES[field.kind]
        if re.search("time|_ms$|duration", field.name):
            low, high = 0, min(high, LAST_TIME_MS)
        one = st.sampled_from([low, high, 0, 1]) | st.integers(low, high)
    else:
        text = st.text(max_size=20) | st.just("x" * MANY_BYTES)
        one = {
            "string": text,
            "bool": st.booleans(),
            "uuid": st.binary(min_size=16, max_size=16),
            "bytes": st.binary(max_size=20) | st.just(bytes(MANY_BYTES)),
            "float64": st.floats(allow_nan=False),
            "records": st.just(0),
        }[field.kind]
    if field.is_array:
        one = st.lists(one, max_size=3)
    if version in field.nullable and field.kind != "records":
        one = st.none() | one
    if field.tag is not None and field.kind in api.structs[role] and not field.is_array:
        one = st.none() | one  # it is not sent then
    return one
