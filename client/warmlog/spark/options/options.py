"""The options of one load(), stream or write, in any case: Spark may change it.

An unknown option is an error that suggests the nearest one, unlike in Spark's Kafka connector. As there, a batch
ignores options for streams with a warning; any other misplaced option is an error. Every error is one line, as it
reaches the user through Spark.
"""

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from warmlog.points import parse_duration_ms
from warmlog.spark.options.option_table import EXPLAINED, OPTIONS, REFUSED_IN_A_BATCH, SPARKS_OWN, Option, Use
from warmlog_protocol.errors import InvalidConfig
from warmlog_transport.address import parse_addresses
from warmlog_transport.options import ConnectionOptions, override

T = TypeVar("T")

_BY_LOWER_CASE = {name.lower(): option for option in OPTIONS.values() for name in (option.name, *option.aliases)}
_SPELLING = {name.lower(): name for option in OPTIONS.values() for name in (option.name, *option.aliases)}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?")
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LARGEST_NUMBER = 2**63 - 1
_LONGEST_DURATION_MS = 36_500 * 86_400_000
"""A hundred years: time.sleep does not accept three hundred."""
_TEXTS = ("rack", "username", "password", "sasl.mechanism")
_TLS_TEXTS = ("ssl.cafile", "ssl.certfile", "ssl.keyfile", "ssl.keypassword")
"""Options of connections that are texts."""
_USE_NAMES = {Use.BATCH: "a batch", Use.STREAM: "a stream", Use.WRITE: "writing"}

_log = logging.getLogger("warmlog.spark")


class Given:
    """The given options by their names in the table, and the defaults of the others.

    Each method returns an option's value, or raises InvalidConfig with its name, its text and what is expected.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def text(self, name: str) -> str | None:
        """Return the given text, or the default; None if there is neither."""
        return self._texts.get(name, OPTIONS[name].default) or None

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Return `parse` of the text. Its ValueError says what is expected."""
        text = self.text(name)
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise InvalidConfig(f"option {name} is {text!r}: {error}") from None

    def boolean(self, name: str) -> bool:
        return bool(self.parsed(name, _boolean))

    def number(self, name: str, at_most: int = _LARGEST_NUMBER) -> int | None:
        """Return a whole number from 1 to `at_most`."""
        return self.parsed(name, partial(_whole, at_least=1, at_most=at_most))

    def count(self, name: str, at_most: int = _LARGEST_NUMBER) -> int:
        """Return a whole number from 0 to `at_most`, of an option with a default."""
        return self._required(name, partial(_whole, at_least=0, at_most=at_most))

    def size_bytes(self, name: str, at_most_bytes: int = _LARGEST_NUMBER) -> int:
        """Return a size like `1048576`, `1m` or `1 MiB`, of an option with a default."""
        return self._required(name, partial(parse_size_bytes, at_most_bytes=at_most_bytes))

    def duration_ms(self, name: str) -> int:
        """Return a duration like `200`, `200ms` or `15m`, of an option with a default; a hundred years at most."""
        return self._required(name, _duration_ms)

    def _required(self, name: str, parse: Callable[[str], T]) -> T:
        value = self.parsed(name, parse)
        assert value is not None, name
        return value

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`, which are in lower case."""

        def parse(text: str) -> str:
            if text.strip().lower() not in choices:
                raise ValueError(f"{' or '.join(choices)} is expected")
            return text.strip().lower()

        return self._required(name, parse)

    def names(self, name: str) -> tuple[str, ...]:
        """Return names separated by commas, without duplicates; empty if not given."""
        items = [item.strip() for item in (self.text(name) or "").split(",")]
        return tuple(dict.fromkeys(item for item in items if item))

    def connection(self, base: ConnectionOptions) -> ConnectionOptions:
        """Return `base` with the options of the place, the login and TLS."""
        given: dict[str, object] = {name.replace(".", "_"): self.text(name) for name in (*_TEXTS, *_TLS_TEXTS)}
        given |= {name.replace(".", "_"): self.boolean(name) for name in ("ssl", "ssl.check.hostname")}
        try:
            present = {name: value for name, value in given.items() if value is not None}
            return override(base, present, ConnectionOptions)
        except InvalidConfig as error:
            raise InvalidConfig(
                f"option {str(error).replace('ssl_', 'ssl.').replace('ssl=True', 'ssl=true').replace('sasl_', 'sasl.')}"
            ) from None

    def addresses(self, name: str) -> tuple[str, ...]:
        """Return at least one broker as HOST:PORT."""
        names = self.names(name)
        if not names:
            raise missing(name)
        try:
            return tuple(str(address) for address in parse_addresses(names))
        except ValueError as error:
            raise InvalidConfig(f"option {name}: {error}") from None


def take_options(given: Mapping[str, str], use: Use) -> Given:
    """Return the options in `given`, whose names Spark may have put in lower case.

    InvalidConfig for an option that is unknown, not for `use`, blank, as from an unset variable, or given twice with
    different values under its names.
    """
    texts: dict[str, str] = {}
    for name, value in sorted(given.items(), key=lambda item: item[0].lower() not in EXPLAINED):
        option = _BY_LOWER_CASE.get(name.lower())
        if option is None and use & SPARKS_OWN.get(name.lower(), Use(0)):
            continue
        if option is None:
            raise InvalidConfig(_unknown(name))
        if not option.use & use:
            _misplaced(option, use)
        elif not (value or "").strip():
            raise InvalidConfig(f"option {option.name} is empty: {option.sentence}")
        elif texts.setdefault(option.name, value) != value:
            raise InvalidConfig(f"option {option.name} is given twice, as {texts[option.name]!r} and as {value!r}")
    return Given(texts)


def missing(name: str) -> InvalidConfig:
    """Return the error for a required option."""
    return InvalidConfig(f"option {name} is missing: {OPTIONS[name].sentence}")


def _misplaced(option: Option, use: Use) -> None:
    if use is Use.BATCH and Use.STREAM in option.use and option.name not in REFUSED_IN_A_BATCH:
        _log.warning("option %s is for streams: a batch ignores it", option.name)
        return
    proper = " and ".join(name for one, name in _USE_NAMES.items() if one in option.use)
    actual = " and ".join(name for one, name in _USE_NAMES.items() if one in use)
    raise InvalidConfig(f"option {option.name} is for {proper}, not for {actual}: {option.sentence}")


def _unknown(name: str) -> str:
    lower = name.lower()
    if lower in EXPLAINED:
        return EXPLAINED[lower]
    is_kafkas = lower.startswith("kafka.")  # its client has hundreds, many with names similar to ours
    nearest = difflib.get_close_matches(lower, _SPELLING, n=1, cutoff=0.9 if is_kafkas else 0.6)
    if nearest:
        return f"format warmlog has no option {name}: did you mean {_SPELLING[nearest[0]]}?"
    if is_kafkas:
        return f"format warmlog has no option {name}: it does not use Kafka's client, leave its settings out"
    return f"format warmlog has no option {name}, only {', '.join(OPTIONS)}"


def _boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false is expected")
    return text.strip().lower() == "true"


def _whole(text: str, *, at_least: int, at_most: int) -> int:
    if not text.strip().isdecimal() or int(text) < at_least:
        raise ValueError(f"a whole number of at least {at_least} is expected")
    if int(text) > at_most:
        raise ValueError(f"a whole number of at most {at_most} is expected")
    return int(text)


def _duration_ms(text: str) -> int:
    duration_ms = parse_duration_ms(text)
    if duration_ms > _LONGEST_DURATION_MS:
        raise ValueError(f"at most {_LONGEST_DURATION_MS // 86_400_000}d is expected")
    return duration_ms


def parse_size_bytes(text: str, at_most_bytes: int = _LARGEST_NUMBER) -> int:
    """Return the bytes in `1048576`, `256m` or `4 MiB`; ValueError says what is expected."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or int(found[1]) < 1:
        raise ValueError("a size of at least 1 byte like 1048576, 256m or 4 MiB is expected")
    size_bytes = int(found[1]) * _SIZE_UNITS[found[2]]
    if size_bytes > at_most_bytes:
        raise ValueError(f"a size of at most {at_most_bytes} bytes is expected")
    return size_bytes
