"""A TOML file as settings, each with its line, and everything in it that is not TOML.

`tomllib` tells no lines and stops at the first mistake, so each statement is parsed for itself, below the header of its
table. Valid files mean the same as to `tomllib`: the whole is parsed too.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from warmlog_protocol.errors import InvalidConfig

_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")
_MAY_CONTINUE = re.compile(r"\"\"\"|'''|\[|\{")
_MOST_LINES = 200
"""Of one statement; a value of a setting has one."""


class Assignment(NamedTuple):
    """One setting in a file."""

    name: str
    text: str
    line: int


class WrongLine(NamedTuple):
    """A line that is not TOML, or has a value that no setting has; `name` is empty if it cannot be told."""

    name: str
    message: str
    line: int


def read_toml(path: Path) -> str:
    """Return the text of a file; InvalidConfig if it cannot be read."""
    try:
        return path.read_bytes().decode().replace("\r\n", "\n")
    except (OSError, ValueError) as error:  # not UTF-8, or a zero byte in the path
        raise InvalidConfig(f"cannot read the configuration {path}: {error}") from None


def statements(text: str) -> Iterator[Assignment | WrongLine]:
    """Yield the settings and the mistakes of a file, in order."""
    is_toml = True
    seen: dict[str, int] = {}
    for found in _statements(text.split("\n")):
        if isinstance(found, WrongLine):
            is_toml = is_toml and bool(found.name)
            yield found
        elif found.name in seen:
            is_toml = False
            message = f"{found.name} is set in line {seen[found.name]} already: remove one of them"
            yield WrongLine(found.name, message, found.line)
        else:
            seen[found.name] = found.line
            yield found
    whole = _parsed(text)
    if is_toml and isinstance(whole, WrongLine):
        yield whole


def _statements(lines: list[str]) -> Iterator[Assignment | WrongLine]:
    header, number = "", 0
    while number < len(lines):
        tables, end = _statement(lines, number, header)
        if isinstance(tables, WrongLine):
            yield tables._replace(line=number + 1)
        else:
            if lines[number].lstrip().startswith("["):
                header = lines[number].replace("[[", "[").replace("]]", "]")
            yield from _flattened("", tables, number + 1)
        number = end


def _statement(lines: list[str], start: int, header: str) -> tuple[dict[str, Any] | WrongLine, int]:
    """Return what the statement that begins at `start` assigns, and where the next begins."""
    above = "" if lines[start].lstrip().startswith("[") else header
    may_continue = _MAY_CONTINUE.search(lines[start]) is not None
    first: WrongLine | None = None
    for end in range(start + 1, min(len(lines), start + (_MOST_LINES if may_continue else 1)) + 1):
        found = _parsed("\n".join([above, *lines[start:end]]))
        if not isinstance(found, WrongLine):
            return found, end
        first = first or found
    assert first is not None
    return first, start + 1


def _parsed(text: str) -> dict[str, Any] | WrongLine:
    import tomllib  # imported here because most brokers have no such file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line = int(place["line"]) if place and place["line"] else 0
        reason = _PLACE.sub("", str(error))
        return WrongLine("", f"not TOML: {reason}; a setting is NAME = VALUE, with text in quotes", line)


def _flattened(prefix: str, table: Mapping[str, Any], line: int) -> Iterator[Assignment | WrongLine]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flattened(f"{prefix}{name}.", value, line)
        elif isinstance(value, bool):
            yield Assignment(prefix + name, "true" if value else "false", line)
        elif isinstance(value, str | int):
            yield Assignment(prefix + name, str(value), line)
        else:
            message = f"{prefix}{name}: {value!r} is not allowed, it must be text, a whole number or a boolean"
            yield WrongLine(prefix + name, message, line)
