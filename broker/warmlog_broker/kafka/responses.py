"""Responses that repeat the structure of their request: its topics with their partitions, its groups, its settings.

The first list of a request belongs to the first list of its response whose elements have error codes, and so do those
within their elements. An element has the keys of its item, and what its result has under the same names; codes of
errors are those that the version of the API knows.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import repeat
from typing import Any

from msgspec import Struct

from warmlog_broker.kafka.codes import code_in
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.kafka.schema import API, Api, Field
from warmlog_protocol.messages import Message

KEYS = {
    "entity",
    "group_id",
    "group_instance_id",
    "index",
    "key",
    "member_id",
    "name",
    "partition",
    "partition_id",
    "partition_index",
    "resource_name",
    "resource_type",
    "topic",
    "topic_id",
    "transactional_id",
    "user",
}
"""Fields that say which item of the request an element is about. An item that has no fields is its own key."""
OTHER_NAMES = {
    "partition_error_code": "error_code",
    "partition_index": "partition",
    "timestamp": "timestamp_ms",
    "user": "name",
}
"""What some fields are called in requests, or in the results of warmlog's handlers."""
MINUS_ONE = {"base_offset", "committed_offset", "high_watermark", "low_watermark", "node_id", "port", "producer_epoch"}
"""Fields of which 0, the default of the table, would say something. Without a result they are -1."""
_CODE = "error_code"


class Result(Struct, frozen=True):
    """What became of one item."""

    error_code: int = ErrorCode.NONE
    error_message: str | None = None


class _List(Struct, frozen=True):
    """A list of a response, and the one of the request to which it belongs."""

    name: str
    asked: str
    element: Callable[..., Any]
    keys: tuple[tuple[str, str, bool], ...]
    """Keys of an element, their names in the item if that has fields, and whether they may be null."""
    others: tuple[str, ...]
    inner: "_List | None"
    """The list within its elements, if it is this one that has the results."""


def by_topic(parts: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Return the parts of each topic, in the order in which they come."""
    topics: dict[str, list[Any]] = {}
    for topic, part in parts:
        topics.setdefault(topic, []).append(part)
    return topics


def refused(error: ApiError) -> Result:
    """Return the result of an item that has failed."""
    return Result(error.code, str(error))


def answered(api_name: str, request: Any, results: Iterable[Any], **fields: Any) -> Message:
    """Return the response with a result for each innermost item of the request, in its order; `fields` are its own.

    In a version without such items the response is the result of one.
    """
    items, remaining = _list(api_name, request.api_version), iter(results)
    code = partial(code_in, api_name, request.api_version)
    response = API[api_name].response
    if items is None:
        return response(**_values(next(remaining), response.__struct_fields__, code), **fields)
    return response(**{items.name: _elements(items, request, remaining, code)}, **fields)


def failed(api: Api, version: int, request: Any, error: ApiError) -> Message:
    """Return the response to a request that failed as a whole. `request` is None if `has_items` says so."""
    result = refused(error)
    fields = _values(result, api.response.__struct_fields__, partial(code_in, api.name, version))
    return answered(api.name, request, repeat(result), **fields) if has_items(api, version) else api.response(**fields)


def has_items(api: Api, version: int) -> bool:
    """Return whether the response has a result for each of several items."""
    return _list(api.name, version) is not None


@cache
def _list(api_name: str, version: int, struct: str = "response", asked: str = "request") -> _List | None:
    """Return the list of results in a struct of the response, if there is one."""
    api = API[api_name]
    items = next((each for each in _fields(api, "request", asked, version) if each.is_array), None)
    found = next((each for each in _fields(api, "response", struct, version) if _has_results(api, each)), None)
    if found is None or items is None:
        return None
    of_item = [each.name for each in _fields(api, "request", items.kind, version)]
    keys, others = [], []
    for field in _fields(api, "response", found.kind, version):
        name = field.name if field.name in of_item else OTHER_NAMES.get(field.name, "")
        if field.name not in KEYS:
            others.append(field.name)
        elif name in of_item or not of_item:
            keys.append((field.name, name, version in field.nullable))
    has_result = any(name.endswith(_CODE) for name in others)
    inner = None if has_result else _list(api_name, version, found.kind, items.kind)
    return _List(found.name, items.name, getattr(api.response, found.kind), tuple(keys), tuple(others), inner)


def _fields(api: Api, role: str, struct: str, version: int) -> list[Field]:
    return [each for each in api.structs[role].get(struct, ()) if version in each.versions]


def _has_results(api: Api, field: Field) -> bool:
    inner = api.structs["response"].get(field.kind, ())
    return field.is_array and any(each.name.endswith(_CODE) or _has_results(api, each) for each in inner)


def _elements(of: _List, asked: Any, results: Iterator[Any], code: Callable[[int], int]) -> list[Any]:
    elements = []
    for item in getattr(asked, of.asked) or ():
        values = {name: _key(item, its_name, may_be_null) for name, its_name, may_be_null in of.keys}
        if of.inner is None:
            values |= _values(next(results), of.others, code)
        else:
            values[of.inner.name] = _elements(of.inner, item, results, code)
        elements.append(of.element(**values))
    return elements


def _key(item: Any, name: str, may_be_null: bool) -> Any:
    value = getattr(item, name) if isinstance(item, Struct) else item
    return "" if value is None and not may_be_null else value


def _values(result: Any, names: Iterable[str], code: Callable[[int], int]) -> dict[str, Any]:
    """Return the fields that a result has, -1 for some of the others, and null for a text that is empty."""
    values = {}
    for name in names:
        own_name = OTHER_NAMES.get(name, name)
        if hasattr(result, own_name):
            value = getattr(result, own_name)
            values[name] = code(value) if own_name == _CODE else value
        elif name in MINUS_ONE:
            values[name] = -1
    if values.get("error_message") == "":
        values["error_message"] = None
    return values
