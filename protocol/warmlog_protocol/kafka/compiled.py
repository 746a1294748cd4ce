"""Readers and writers of Kafka's messages: a function for each message and version, compiled at its first use.

The functions are straight: no loop over fields, no branch on a version. Neighbouring fields of fixed sizes are read and
written by one `struct.Struct`. The types and their bytes are in https://kafka.apache.org/protocol#protocol_types.

A reader is `read(data, room) -> message`. It raises MalformedMessage, checks each count and size before anything of
that size is created, and allows `room` elements in all arrays together. Unknown tagged fields are skipped. A field of
the type `records` is read as a slice of `data`.

A writer is `write(message) -> [bytes, …]`. A field of the type `records` has the number of bytes as its value; the
result is cut where they are to be inserted. Error codes of warmlog's own are written as the nearest of Kafka's.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, NoReturn

from msgspec.structs import replace

from warmlog_protocol.errors import ErrorCode, RemoteProtocolError
from warmlog_protocol.kafka.schema import API, Api, Field

Reader = Callable[[bytes | memoryview, int], Any]
Writer = Callable[[Any], list[bytes]]
_FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "uuid": ("16s", 16),
    "float64": ("d", 8),
}
"""The layout of each type of fixed size, and its bytes."""
_LONG_LENGTHS = ("bytes", "records")
"""Types with a length of 32 bits in versions that are not flexible; strings have one of 16."""
FIRST_OWN_CODE = 1000
KAFKA_CODES = {
    ErrorCode.DISK_FULL: ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OUT_OF_RESOURCES: ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.SAFE_MODE: ErrorCode.POLICY_VIOLATION,
    ErrorCode.TOO_MANY_CONNECTIONS: ErrorCode.SASL_AUTHENTICATION_FAILED,
    ErrorCode.TOO_MANY_GROUPS: ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.TOO_MANY_TRANSACTIONAL_IDS: ErrorCode.POLICY_VIOLATION,
    ErrorCode.STALE_JOB_VERSION: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NEEDS_RESTART: ErrorCode.INVALID_CONFIG,
}
"""What clients of Kafka get in the place of warmlog's own codes: the first two are errors to try again after."""
_VARINT_END = 1 << 28
"""Varints of up to four bytes are read: a longer length is longer than any frame."""
_MALFORMED = (IndexError, struct.error, UnicodeDecodeError, OverflowError)
"""What readers raise at the end of the data, and for text that is not UTF-8."""


class MalformedMessage(RemoteProtocolError):
    """The bytes are not what the message in this version should be."""


@cache
def reader(name: str, role: str, version: int) -> Reader:
    """Return the reader of the "request" or "response" of an API in a version."""
    source = _Source(API[name], role, version)
    with source.block("def function(d, room):"):
        source.line("p = 0")
        source.line("end = len(d)")
        with source.block("try:"):
            message = source.read_struct(role)
            source.line("if p > end: refuse('it ends too early')")
            source.line(f"return {message}")
        with source.block("except malformed as error:"):
            source.line(f"raise MalformedMessage(f'{name} {role} version {version}: {{error}}') from None")
    read: Reader = source.compile()
    return read


@cache
def writer(name: str, role: str, version: int) -> Writer:
    """Return the writer of the "request" or "response" of an API in a version."""
    source = _Source(API[name], role, version)
    with source.block("def function(m):"):
        source.line("pieces = []")
        source.line("out = []")
        source.write_struct(role, "m", "out")
        source.line("pieces.append(b''.join(out))")
        source.line("return pieces")
    write: Writer = source.compile()
    return write


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it. Raises MalformedMessage for one of more than four bytes."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if 1 << shift >= _VARINT_END:
            raise MalformedMessage("a length or count of more than 28 bits")


def pack_varint(value: int) -> bytes:
    """Return `value`, which is not negative, as an unsigned varint."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def skip_tags(data: bytes | memoryview, position: int) -> int:
    """Return the position after tagged fields."""
    count, position = read_varint(data, position)
    for _ in range(count):
        _, position = read_varint(data, position)
        size, position = read_varint(data, position)
        position += size
        data[position - 1]  # IndexError after the end
    return position


def _refuse(text: str) -> NoReturn:
    raise MalformedMessage(text)


_SHORT_VARINTS = tuple(pack_varint(value) for value in range(1 << 7))


class _Source:
    """The source of one function, as it is put together.

    `_run` has the neighbouring fields of fixed size that are not in it yet: layout, bytes and variable or expression.
    """

    def __init__(self, api: Api, role: str, version: int) -> None:
        self._depth = 0
        self._role = role
        self._version = version
        self._is_flexible = version in api.flexible
        self._message = api.request if role == "request" else api.response
        self._structs = api.structs[role]
        self._lines: list[str] = []
        self._run: list[tuple[str, int, str]] = []
        self._names = 0
        self._globals: dict[str, Any] = {
            "read_varint": read_varint,
            "pack_varint": pack_varint,
            "skip_tags": skip_tags,
            "short_varints": _SHORT_VARINTS,
            "unpack_from": struct.unpack_from,
            "pack": struct.pack,
            "kafka_codes": KAFKA_CODES,
            "refuse": _refuse,
            "malformed": (MalformedMessage, *_MALFORMED),
            "MalformedMessage": MalformedMessage,
        }

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line, and what is added meanwhile as its block."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def compile(self) -> Any:
        exec("\n".join(self._lines), self._globals)  # noqa: S102  (the source comes from the table alone)
        return self._globals["function"]

    def _name(self) -> str:
        self._names += 1
        return f"x{self._names}"

    def _global(self, prefix: str, value: Any) -> str:
        name = f"{prefix}_{len(self._globals)}"
        self._globals[name] = value
        return name

    def _fields(self, struct_name: str) -> tuple[list[Field], list[Field]]:
        """The fields of a struct in this version, and the tagged ones."""
        there = [each for each in self._structs[struct_name] if self._version in each.versions]
        return [each for each in there if each.tag is None], [each for each in there if each.tag is not None]

    def _may_be_null(self, field: Field) -> bool:
        return self._version in field.nullable

    def _element(self, field: Field) -> Field:
        return replace(field, is_array=False, nullable=field.versions.part("none"))

    def _is_packed(self, array: Field) -> bool:
        """Whether its elements are neighbouring numbers."""
        return array.kind in _FIXED and array.kind != "uuid"

    # --- reading ----------------------------------------------------------------------------------------------

    def read_struct(self, name: str) -> str:
        """Add what reads a struct, and return the expression that creates it."""
        plain, tagged = self._fields(name)
        found = {field.name: self._read(field) for field in plain}
        self._end_read_run()
        if self._is_flexible:
            self._read_tags(tagged, found)
        made = self._message if name == self._role else getattr(self._message, name)
        values = [found.get(field.name, repr(field.default)) for field in self._structs[name]]
        if name == "request":
            values.append(f"{self._version}")
        return f"{self._global(name, made)}({', '.join(values)})"

    def _read(self, field: Field) -> str:
        """Add what reads a field, and return the variable that has it then."""
        if field.is_array:
            return self._read_array(field)
        name = self._name()
        if field.kind in _FIXED:
            self._run.append((*_FIXED[field.kind], name))
        elif field.kind[0].isupper():
            self._read_inner(field, name)
        else:
            self._read_long(field, name)
        return name

    def _read_inner(self, field: Field, name: str) -> None:
        if not self._may_be_null(field):
            self.line(f"{name} = {self.read_struct(field.kind)}")
            return
        self._run.append(("b", 1, name))
        self._end_read_run()
        self.line(f"if {name} < 0: {name} = None")
        with self.block("else:"):
            self.line(f"{name} = {self.read_struct(field.kind)}")

    def _read_long(self, field: Field, name: str) -> None:
        length = self._read_length(*(("i", 4) if field.kind in _LONG_LENGTHS else ("h", 2)))
        if field.kind == "records":
            value = f"slice(p, p + {length})"
        elif field.kind == "bytes":
            value = f"bytes(d[p:p + {length}])"
        else:
            value = f"str(d[p:p + {length}], 'utf-8')"
        with self._unless_null(field, name, length):
            self.line(f"{name} = {value}")
            self.line(f"p += {length}")

    def _unless_null(self, field: Field, name: str, length: str) -> AbstractContextManager[None]:
        """Add the case that the length or count is that of null, and begin the block of the other one."""
        with self.block(f"if {length} < 0:"):
            if self._may_be_null(field):
                self.line(f"if {length} != -1: refuse('the length of {field.name} is negative')")
                self.line(f"{name} = None")
            else:
                self.line(f"refuse('{field.name} is null')")
        return self.block("else:")

    def _read_length(self, layout: str, size: int) -> str:
        """Add what reads the length of a text or the count of an array; -1 stands for null."""
        length = self._name()
        if self._is_flexible:
            self._end_read_run()
            self.line(f"{length} = d[p] - 1")
            self.line("p += 1")
            with self.block(f"if {length} > 126:"):
                self.line(f"{length}, p = read_varint(d, p - 1)")
                self.line(f"{length} -= 1")
        else:
            self._run.append((layout, size, length))
            self._end_read_run()
        return length

    def _read_array(self, field: Field) -> str:
        name = self._name()
        count = self._read_length("i", 4)
        size = _FIXED[field.kind][1] if field.kind in _FIXED else 1
        with self._unless_null(field, name, count):
            self.line(f"if {count} * {size} > end - p: refuse('more {field.name} than bytes')")
            self.line(f"room -= {count}")
            self.line("if room < 0: refuse('too many items in one request')")
            if self._is_packed(field):
                self.line(f"{name} = list(unpack_from(f'>{{{count}}}{_FIXED[field.kind][0]}', d, p))")
                self.line(f"p += {count} * {size}")
            else:
                self.line(f"{name} = []")
                with self.block(f"for _ in range({count}):"):
                    item = self._read(self._element(field))
                    self._end_read_run()
                    self.line(f"{name}.append({item})")
        return name

    def _read_tags(self, tagged: list[Field], found: dict[str, str]) -> None:
        if not tagged:
            self.line("p = skip_tags(d, p) if d[p] else p + 1")
            return
        count, tag, size, after = self._name(), self._name(), self._name(), self._name()
        values = {field.name: self._name() for field in tagged}
        for field in tagged:
            self.line(f"{values[field.name]} = {field.default!r}")
        self.line(f"{count}, p = read_varint(d, p)")
        with self.block(f"for _ in range({count}):"):
            self.line(f"{tag}, p = read_varint(d, p)")
            self.line(f"{size}, p = read_varint(d, p)")
            self.line(f"{after} = p + {size}")
            self.line(f"if {after} > end: refuse('a tagged field is longer than the message')")
            for field in tagged:
                with self.block(f"if {tag} == {field.tag}:"):
                    value = self._read(field)
                    self._end_read_run()
                    self.line(f"{values[field.name]} = {value}")
            self.line(f"p = {after}")
        found.update(values)

    def _end_read_run(self) -> None:
        """Add what reads the fields of fixed size up to here."""
        if self._run:
            layout = struct.Struct(">" + "".join(each[0] for each in self._run))
            names = ", ".join(each[2] for each in self._run)
            self.line(f"{names}, = {self._global('unpack', layout.unpack_from)}(d, p)")
            self.line(f"p += {layout.size}")
            self._run.clear()

    # --- writing ----------------------------------------------------------------------------------------------

    def write_struct(self, name: str, value: str, out: str) -> None:
        """Add what appends the struct that is the `value` of an expression to the list `out`."""
        plain, tagged = self._fields(name)
        for field in plain:
            self._write(field, f"{value}.{field.name}", out)
        if self._is_flexible:
            if tagged:
                self._write_tags(tagged, value, out)
            else:
                self._run.append(("x", 1, ""))
        self._end_write_run(out)

    def _write(self, field: Field, value: str, out: str) -> None:
        if field.is_array:
            self._write_array(field, value, out)
        elif field.kind in _FIXED:
            if field.name.endswith("error_code"):
                value = f"{value} if {value} < {FIRST_OWN_CODE} else kafka_codes.get({value}, -1)"
            self._run.append((*_FIXED[field.kind], value))
        elif field.kind[0].isupper():
            self._write_inner(field, value, out)
        else:
            self._write_long(field, value, out)

    def _write_inner(self, field: Field, value: str, out: str) -> None:
        if not self._may_be_null(field):
            self.write_struct(field.kind, value, out)
            return
        self._end_write_run(out)
        self.line(f"if {value} is None: {out}.append(b'\\xff')")
        with self.block("else:"):
            self._run.append(("b", 1, "1"))
            self.write_struct(field.kind, value, out)

    def _write_long(self, field: Field, value: str, out: str) -> None:
        name, length = self._name(), self._name()
        encoded = f"{name}.encode()" if field.kind == "string" else name
        self.line(f"{name} = {value}")
        if field.kind == "records":
            self.line(f"{length} = {name} or 0")
        elif self._may_be_null(field):
            self.line(f"if {name} is None: {name}, {length} = b'', -1")
            with self.block("else:"):
                self.line(f"{name} = {encoded}")
                self.line(f"{length} = len({name})")
        else:
            self.line(f"{name} = {encoded}")
            self.line(f"{length} = len({name})")
        self._write_length(length, *(("i", 4) if field.kind in _LONG_LENGTHS else ("h", 2)), out)
        self._end_write_run(out)
        if field.kind == "records":
            self.line(f"pieces.append(b''.join({out}))")
            self.line(f"{out}.clear()")
        else:
            self.line(f"{out}.append({name})")

    def _write_length(self, length: str, layout: str, size: int, out: str) -> None:
        if self._is_flexible:
            self._end_write_run(out)
            self.line(f"{out}.append(short_varints[{length} + 1] if {length} < 127 else pack_varint({length} + 1))")
        else:
            self._run.append((layout, size, length))

    def _write_array(self, field: Field, value: str, out: str) -> None:
        name, count = self._name(), self._name()
        self.line(f"{name} = {value}")
        if self._may_be_null(field):
            self.line(f"if {name} is None: {name}, {count} = (), -1")
            self.line(f"else: {count} = len({name})")
        else:
            self.line(f"{count} = len({name})")
        self._write_length(count, "i", 4, out)
        self._end_write_run(out)
        if self._is_packed(field):
            self.line(f"{out}.append(pack(f'>{{len({name})}}{_FIXED[field.kind][0]}', *{name}))")
            return
        item = self._name()
        with self.block(f"for {item} in {name}:"):
            self._write(self._element(field), item, out)
            self._end_write_run(out)

    def _write_tags(self, tagged: list[Field], value: str, out: str) -> None:
        """Add what appends the tagged fields that are not the default, most often none."""
        self._end_write_run(out)
        tags = self._name()
        conditions = {
            field.name: f"{value}.{field.name} {'is not' if field.default is None else '!='} {field.default!r}"
            for field in tagged
        }
        self.line(f"if not ({' or '.join(conditions.values())}): {out}.append(b'\\0')")
        with self.block("else:"):
            self.line(f"{tags} = []")
            for field in sorted(tagged, key=lambda each: each.tag or 0):
                inner = self._name()
                with self.block(f"if {conditions[field.name]}:"):
                    self.line(f"{inner} = []")
                    self._write(field, f"{value}.{field.name}", inner)
                    self._end_write_run(inner)
                    self.line(f"{inner} = b''.join({inner})")
                    self.line(f"{tags} += (pack_varint({field.tag}), pack_varint(len({inner})), {inner})")
            self.line(f"{out}.append(pack_varint(len({tags}) // 3))")
            self.line(f"{out}.extend({tags})")

    def _end_write_run(self, out: str) -> None:
        """Add what packs the fields of fixed size up to here."""
        if self._run:
            layout = struct.Struct(">" + "".join(each[0] for each in self._run))
            values = ", ".join(each[2] for each in self._run if each[2])
            if values:
                self.line(f"{out}.append({self._global('pack', layout.pack)}({values}))")
            else:
                self.line(f"{out}.append({bytes(layout.size)!r})")
            self._run.clear()
