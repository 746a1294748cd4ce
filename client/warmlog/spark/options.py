"""The options of `spark.read.format("warmlog")`: which exist, what they mean, what is refused.

Names and meanings are those of Spark's Kafka connector, so that a Kafka job ports by changing the format's name. Unlike
there, an option that does not exist is an error that names the nearest one. Spark hands options over with their names
in lower case; here case does not matter either.

Offsets are Kafka's: `earliest`, `latest`, or JSON that gives every partition of every topic an offset, of which -2
stands for the earliest and -1 for the latest: `{"orders": {"0": 23, "1": -2}}`. A batch cannot start at the latest
offset or end at the earliest.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from warmlog.address import parse_addresses
from warmlog_protocol.errors import InvalidConfig

EARLIEST = -2
LATEST = -1

Offsets = int | Mapping[str, Mapping[int, int]]
"""EARLIEST or LATEST for every partition, or an offset (EARLIEST and LATEST among them) by topic and partition."""

_ALIASES = {"kafka.bootstrap.servers": "bootstrap.servers"}
OPTIONS = {
    "bootstrap.servers": "host:port of a broker; several, separated by commas, are tried in turn",
    "subscribe": "the topics to read, separated by commas",
    "startingOffsets": "where to start: earliest (default) or JSON by topic and partition",
    "endingOffsets": "where to end, exclusive: latest (default) or JSON by topic and partition",
    "minPartitions": "at least so many Spark partitions, unless there are fewer records",
    "includeHeaders": "true adds the column headers",
}
"""Every option and what it is for; each is known by its name in any case, and Kafka's names for some (aliases) too."""

_EXPLAINED = {
    "path": "load() of format warmlog takes no path: name the topics with the option subscribe",
    "provider": "a table of format warmlog cannot be created, as Spark does not hand its options to the reader: "
    "CREATE TEMPORARY VIEW … USING warmlog OPTIONS (…) instead",
}
"""What Spark itself adds to the options when `load` is given a path and in CREATE TABLE."""

_CANONICAL = {name.lower(): name for name in OPTIONS} | {alias.lower(): name for alias, name in _ALIASES.items()}
_SPELLING = {name.lower(): name for name in (*OPTIONS, *_ALIASES)}


@dataclass(frozen=True)
class ReadOptions:
    """The options of one `load()`, checked."""

    bootstrap: tuple[str, ...]
    topics: tuple[str, ...]
    starting: Offsets = EARLIEST
    ending: Offsets = LATEST
    min_partitions: int | None = None
    include_headers: bool = False


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """The options in `given`. InvalidConfig says in one line what is wrong with the first that cannot be used."""
    options = _by_canonical_name(given)
    topics = tuple(dict.fromkeys(_required_list(options, "subscribe")))
    return ReadOptions(
        bootstrap=_addresses(options, "bootstrap.servers"),
        topics=topics,
        starting=_offsets(options, "startingOffsets", topics, default=EARLIEST, refused=LATEST),
        ending=_offsets(options, "endingOffsets", topics, default=LATEST, refused=EARLIEST),
        min_partitions=_positive_int(options, "minPartitions"),
        include_headers=_bool(options, "includeHeaders"),
    )


def _by_canonical_name(given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in sorted(given.items(), key=lambda item: item[0].lower() not in _EXPLAINED):
        canonical = _CANONICAL.get(name.lower())
        if canonical is None:
            raise InvalidConfig(_unknown(name))
        if options.setdefault(canonical, value) != value:
            raise InvalidConfig(f"option {canonical} is given twice, as {options[canonical]!r} and as {value!r}")
    return options


def _unknown(name: str) -> str:
    if name.lower() in _EXPLAINED:
        return _EXPLAINED[name.lower()]
    nearest = difflib.get_close_matches(name.lower(), _SPELLING, n=1, cutoff=0.6)
    meant = f"did you mean {_SPELLING[nearest[0]]}?" if nearest else f"there are {', '.join(OPTIONS)}"
    return f"format warmlog has no option {name}: {meant}"


def _required_list(options: Mapping[str, str], name: str) -> list[str]:
    items = [item.strip() for item in options.get(name, "").split(",")]
    items = [item for item in items if item]
    if not items:
        raise InvalidConfig(f"option {name} is missing: {OPTIONS[name]}")
    return items


def _addresses(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        return tuple(str(address) for address in parse_addresses(_required_list(options, name)))
    except ValueError as error:
        raise InvalidConfig(f"option {name}: {error}") from None


def _positive_int(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise InvalidConfig(f"option {name} is {text!r}: a whole number of at least 1 is expected")
    return number


def _bool(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise InvalidConfig(f"option {name} is {text!r}: true or false is expected")
    return text.lower() == "true"


def _offsets(options: Mapping[str, str], name: str, topics: tuple[str, ...], *, default: int, refused: int) -> Offsets:
    text = options.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word in (names := {"earliest": EARLIEST, "latest": LATEST}):
        if names[word] == refused:
            raise InvalidConfig(f"option {name} cannot be {word}: a batch {_REFUSAL[refused]}")
        return names[word]
    offsets = _offsets_json(name, text)
    if set(offsets) != set(topics):
        raise InvalidConfig(
            f"option {name} names the topics {_listed(offsets)}, option subscribe {_listed(topics)}: "
            "every topic needs offsets"
        )
    for topic, by_partition in offsets.items():
        for partition, offset in by_partition.items():
            if offset == refused:
                raise InvalidConfig(f"option {name} gives {topic}-{partition} {refused}: a batch {_REFUSAL[refused]}")
    return offsets


_REFUSAL = {LATEST: "cannot start at the latest offset", EARLIEST: "cannot end at the earliest offset"}


def _offsets_json(name: str, text: str) -> dict[str, dict[int, int]]:
    """The JSON of an option by topic and partition; offsets are at least -2, partitions at least 0."""
    example = 'earliest, latest or JSON like {"topic": {"0": 23, "1": -2}} is expected'
    try:
        parsed = json.loads(text, object_pairs_hook=_unique)
        offsets = {topic: {int(number): offset for number, offset in by.items()} for topic, by in parsed.items()}
    except (ValueError, AttributeError) as error:
        raise InvalidConfig(f"option {name} is {text!r} ({error}): {example}") from None
    for topic, by_partition in offsets.items():
        for partition, offset in by_partition.items():
            if type(offset) is not int or offset < EARLIEST or partition < 0:
                raise InvalidConfig(f"option {name} gives {topic}-{partition} the offset {offset!r}: {example}")
    return offsets


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; ValueError for a name that stands in it twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _listed(names: Mapping[str, object] | tuple[str, ...]) -> str:
    return ", ".join(sorted(names)) or "none"
