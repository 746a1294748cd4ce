r"""The formats of `warmlog consume`: raw values, JSON (see `json_records`), or a template such as `'%k %v'`.

`raw` is each value as it is stored, and a newline; a null value is an empty line. Of templates:

=====  ==========================  =====  =====================================
 %t    topic                        %T    timestamp, ISO 8601, local
 %p    partition                    %s    timestamp, milliseconds since 1970
 %o    offset                       %h    headers: name=value,name=value
 %k    key                          %%    a percent sign
 %v    value
=====  ==========================  =====  =====================================

Backslash escapes: \n newline, \t tab, \r carriage return, \0 zero byte, \\ backslash. A record ends with a newline
unless the template itself ends with an escaped one or a zero byte. Keys and values are written as they are stored; null
writes nothing.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from warmlog.cli.terminal.json_records import write_json
from warmlog.cli.terminal.times import format_ms

if TYPE_CHECKING:
    from warmlog import Batch

BatchWriter = Callable[["Batch", int], bytes]
"""Formats the first records of a batch, as many as its second argument says."""

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TERMINATORS = (b"\n", b"\0")


def batch_writer(name: str) -> BatchWriter:
    """Return the writer for `raw`, `json` or a template; ValueError for anything else."""
    if name == "raw":
        return write_raw
    if name == "json":
        return write_json
    if "%" in name:
        return compile_template(name)
    raise ValueError(f"{name!r} is neither raw, nor json, nor a template with tokens such as '%k %v'")


def write_raw(batch: "Batch", count: int) -> bytes:
    """Return the first `count` values, each followed by a newline."""
    values: Sequence[bytes | None] = batch.values if count == len(batch) else batch.values[:count]
    try:
        return b"\n".join(values) + b"\n"  # type: ignore[arg-type]  # nulls are rare: checking for them costs more
    except TypeError:
        return b"\n".join([value or b"" for value in values]) + b"\n"


def compile_template(template: str) -> BatchWriter:
    """Return a writer for `template`; ValueError for an unknown token or escape."""
    pattern = bytearray()
    columns: list[Callable[[Batch], Sequence[Any]]] = []
    last = b""
    rest = iter(template)
    for character in rest:
        last = b""
        if character == "%":
            letter = next(rest, "")
            if letter == "%":
                pattern += b"%%"
            else:
                if letter not in _TOKENS:
                    known = " ".join("%" + token for token in _TOKENS)
                    raise ValueError(f"%{letter} is not a token: use {known} or %%")
                placeholder, column = _TOKENS[letter]
                pattern += placeholder
                columns.append(column)
        elif character == "\\":
            last = unescape_one(next(rest, ""))
            pattern += last
        else:
            pattern += character.encode("utf-8", errors="surrogateescape")
    if last not in _TERMINATORS:
        pattern += b"\n"
    return _writer(bytes(pattern), columns)


def unescape(text: str) -> bytes:
    """Return the bytes of `text` with its backslash escapes replaced; ValueError for an unknown escape."""
    rest = iter(text)
    return b"".join(
        unescape_one(next(rest, "")) if character == "\\" else character.encode("utf-8", errors="surrogateescape")
        for character in rest
    )


def unescape_one(letter: str) -> bytes:
    """Return what a backslash followed by `letter` stands for."""
    try:
        return _ESCAPES[letter]
    except KeyError:
        raise ValueError(rf"\{letter} is not an escape: use \n \t \r \0 or \\") from None


def _writer(pattern: bytes, columns: Sequence[Callable[["Batch"], Sequence[Any]]]) -> BatchWriter:
    def write(batch: "Batch", count: int) -> bytes:
        if not columns:
            return (pattern % ()) * count
        rows = zip(*(column(batch) for column in columns), strict=True)
        return b"".join([pattern % row for row, _ in zip(rows, range(count), strict=False)])

    return write


def _filled(cells: Sequence[bytes | None]) -> Sequence[bytes]:
    return [b"" if cell is None else cell for cell in cells]


def _header_line(headers: Sequence[tuple[str, bytes | None]] | None) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in headers or ())


_TOKENS: dict[str, tuple[bytes, Callable[["Batch"], Sequence[Any]]]] = {
    "t": (b"%b", lambda batch: [batch.topic.encode()] * len(batch)),
    "p": (b"%d", lambda batch: [batch.partition] * len(batch)),
    "o": (b"%d", lambda batch: batch.offsets),
    "k": (b"%b", lambda batch: _filled(batch.keys)),
    "v": (b"%b", lambda batch: _filled(batch.values)),
    "T": (b"%b", lambda batch: [format_ms(timestamp_ms).encode() for timestamp_ms in batch.timestamps_ms]),
    "s": (b"%d", lambda batch: batch.timestamps_ms),
    "h": (b"%b", lambda batch: [_header_line(headers) for headers in batch.headers]),
}
"""The place of each token in a bytes pattern, and the column that it takes from a batch."""
