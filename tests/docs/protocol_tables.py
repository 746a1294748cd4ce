"""The parts of docs/reference/protocol.md that are printed from the classes: `python tests/docs/protocol_tables.py`.

Run so, it brings the page up to date; a test fails while it is not.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from warmlog_broker.handlers import TRAITS
from warmlog_protocol import errors
from warmlog_protocol.messages import APIS, ErrorResponse, Message
from warmlog_protocol.messages.base import Int32

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"

_START, _END = "<!-- printed: {} -->", "<!-- end of {} -->"
_PLAIN = {int: "int64", str: "str", bytes: "bytes", bool: "bool"}


def describe_messages() -> str:
    """Every API with its messages, and the messages within those, each with a table of its fields."""
    described: set[type] = set()
    parts = [_table(ErrorResponse)]
    for api in sorted(APIS.values(), key=lambda api: api.key):
        name = api.request.__name__.removesuffix("Request")
        order = ", pipelined" if TRAITS.get(api.request, {}).get("is_pipelined") else ""
        parts.append(f"### {name}\n\nAPI {api.key.value}, versions {api.min_version} to {api.max_version}{order}.\n")
        parts += [_table(message) for message in _with_inner(api.request, api.response) if message not in described]
        described.update(_with_inner(api.request, api.response))
    return "\n".join(parts)


def describe_errors() -> str:
    """The table of error codes. Those without a class are for clients of Kafka only."""
    rows = ["| code | name | retry | meaning |", "|---|---|---|---|", "| 0 | NONE | | no error |"]
    classes = {cls.code: cls for cls in _subclasses(errors.ApiError)}
    for code in errors.ErrorCode:
        cls = classes.get(code)
        if cls is not None:
            rows.append(f"| {code.value} | {code.name} | {'yes' if cls.retriable else 'no'} | {_prose(cls)} |")
    return "\n".join(rows) + "\n"


def printed(text: str) -> str:
    """`text`, a page, with its printed sections as the classes are now."""
    for name, section in (("messages", describe_messages()), ("error codes", describe_errors())):
        start, end = _START.format(name), _END.format(name)
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        assert after, f"the page has no section {name}"
        text = f"{before}{start}\n\n{section}\n{end}{after}"
    return text


def _with_inner(*messages: type[Message]) -> list[type[Message]]:
    """`messages` and those in their fields, each before those that it contains."""
    found: list[type[Message]] = []
    for message in messages:
        inner = [each for field in fields(message) for each in _messages_in(field.type)]
        found += [message, *_with_inner(*inner)]
    return list(dict.fromkeys(found))


def _messages_in(hint: Any) -> Iterator[type[Message]]:
    if inspect.isclass(hint) and issubclass(hint, Struct):
        yield hint
    for inner in get_args(hint):
        yield from _messages_in(inner)


def _table(message: type[Message]) -> str:
    hints = get_type_hints(message, include_extras=True)
    rows = [f"| `{field.name}` | {_type(hints[field.name])} | {_default(field)} |" for field in fields(message)]
    return "\n".join(
        [f"#### {message.__name__}", "", _prose(message), "", "| field | type | default |", "|---|---|---|", *rows, ""]
    )


def _type(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return "int32" if hint is Int32 else "int64"
    if get_origin(hint) is UnionType:
        (inner,) = [each for each in get_args(hint) if each is not NoneType]
        return f"nil or {_type(inner)}"
    if get_origin(hint) is list:
        return f"array of {_type(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"map of {' to '.join(map(_type, get_args(hint)))}"
    return _PLAIN.get(hint, hint.__name__)


def _default(field: FieldInfo) -> str:
    if field.default_factory is not NODEFAULT:
        return "empty"
    if field.default is NODEFAULT:
        return ""
    if field.default is None:
        return "nil"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, bytes):
        return f"{len(field.default)} zeros"
    return "empty" if field.default == "" else str(int(field.default))


def _prose(described: type) -> str:
    """The class's own docstring as one line; tables have no room for more."""
    assert described.__doc__, f"{described.__name__} has no docstring"
    return " ".join(described.__doc__.split())


def _subclasses(cls: type) -> Iterator[type[Any]]:
    yield cls
    for subclass in cls.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield from _subclasses(subclass)


if __name__ == "__main__":
    PAGE.write_text(printed(PAGE.read_text()))
