"""Kafka's messages: what `messages.table` says, as structs, readers and writers that are created at their first use.

`API["Produce"]` is one kind of request. Its `request` and `response` are frozen structs, whose nested structs are their
attributes: `API["Metadata"].response.MetadataResponseBroker`. All fields have defaults, and the first ones are those of
the table in its order. Readers and writers are in `compiled`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.resources import files
from typing import Any, Protocol, cast

import msgspec

from warmlog_protocol.messages import Message

NO_UUID = bytes(16)
_TABLE = "messages.table"
_FIELD = re.compile(
    r"(?P<name>\w+):(?P<array>\[)?(?P<kind>\w+)\]?(?:\?(?P<nullable>[\d-]*))?"
    r"(?:=(?P<default>[^#@]+))?(?:#(?P<tag>\d+))?(?:@(?P<versions>[\d-]+))?"
)
_ZERO: Mapping[str, Any] = {"string": "", "bool": False, "uuid": NO_UUID, "bytes": b"", "records": None, "float64": 0.0}


class MessageType(Protocol):
    """The struct of a request or response."""

    def __call__(self, *values: Any, **fields: Any) -> Message:
        """Create one; fields without a value have their defaults."""
        ...

    def __getattr__(self, name: str) -> Any:
        """A nested struct."""
        ...


class Versions(msgspec.Struct, frozen=True):
    """Versions from the first to the last, both inclusive."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def part(self, text: str) -> "Versions":
        """Read FIRST-LAST, one of which may be missing, or one number; "" and "all" are all of these, "none" none."""
        if text == "none":
            return Versions(0, -1)
        first, dash, last = text.removeprefix("all").partition("-")
        if first and not dash:
            last = first
        return Versions(int(first or self.first), int(last or self.last))


class Field(msgspec.Struct, frozen=True):
    name: str
    kind: str
    """Of the field, or of the elements of an array: a type of Kafka's, or the name of a struct."""
    is_array: bool
    nullable: Versions
    """The versions in which it may be null."""
    versions: Versions
    """Those that have it."""
    tag: int | None
    default: Any
    """None as well for a struct that may not be null: if it is tagged it is not sent, else its fields have defaults."""


class Api:
    """One kind of request."""

    def __init__(self, name: str, versions: str, key: str, flexible: str, lines: list[str]) -> None:
        self.name = name
        self.key = int(key)
        self.versions = Versions(0, 0).part(versions)
        self.flexible = self.versions.part(flexible)
        """Those with compact strings and tagged fields."""
        self._lines = lines

    @cached_property
    def structs(self) -> dict[str, dict[str, list[Field]]]:
        """For "request" and "response": the fields of each struct, those of the message under that word."""
        found: dict[str, dict[str, list[Field]]] = {"request": {}, "response": {}}
        message, fields = found["request"], list[Field]()
        for word in " ".join(self._lines).split():
            if ":" in word:
                fields.append(self._field(word))
            else:
                message, fields = found.get(word, message), []
                message[word] = fields
        return found

    @cached_property
    def request(self) -> MessageType:
        """The struct of the request: its last field is `api_version`, in which it was sent."""
        return self._message("request", [("api_version", int, 0)])

    @cached_property
    def response(self) -> MessageType:
        return self._message("response", [])

    def _field(self, text: str) -> Field:
        match = _FIELD.fullmatch(text)
        assert match is not None, text
        kind, nullable = match["kind"], match["nullable"]
        versions = self.versions.part(match["versions"] or "")
        default: Any = _ZERO.get(kind, None if kind[0].isupper() else 0)
        if match["array"]:
            default = None if match["default"] == "null" else []
        elif match["default"] is not None:
            default = {"null": None, "true": True}.get(match["default"], match["default"])
            if kind.startswith(("int", "uint")):
                default = int(default)
        may_be_null = versions.part("none" if nullable is None else nullable)
        tag = None if match["tag"] is None else int(match["tag"])
        return Field(match["name"], kind, bool(match["array"]), may_be_null, versions, tag, default)

    def _message(self, role: str, more: list[tuple[str, Any, Any]]) -> MessageType:
        structs = self.structs[role]
        made: dict[str, Any] = {}

        def make(name: str) -> Any:
            if name not in made:
                inner = {each.kind: make(each.kind) for each in structs[name] if each.kind in structs}
                fields = [(each.name, Any, _default(each, inner)) for each in structs[name]]
                is_message = name == role
                made[name] = msgspec.defstruct(
                    self.name + role.title() if is_message else name,
                    [*fields, *more] if is_message else fields,
                    bases=(Message,),
                    namespace=dict(made) if is_message else {},
                    module=__name__,
                    frozen=True,
                    gc=False,
                )
            return made[name]

        return cast("MessageType", make(role))


def _default(field: Field, structs: Mapping[str, Any]) -> Any:
    if field.kind in structs and not field.is_array and field.nullable.last < 0 and field.tag is None:
        return msgspec.field(default_factory=structs[field.kind])
    return field.default


def _read_table(text: str) -> Iterator[Api]:
    lines: list[str] = []
    for line in reversed(text.splitlines()):
        if line.startswith(" "):
            lines.insert(0, line)
        elif line and not line.startswith("#"):
            name, versions, _, key, _, flexible = line.split()
            yield Api(name, versions, key, flexible, lines)
            lines = []


API: Mapping[str, Api] = {api.name: api for api in _read_table(files(__package__).joinpath(_TABLE).read_text())}
"""All that is in the table, by name."""
