"""Topic settings of a Kafka, for topics that are taken over from it: those in a file.

The file is JSON, `{"flights": {"retention.ms": "604800000"}}`, or what Kafka's
`kafka-configs.sh --describe --entity-type topics`, with or without `--all`, prints::

    Dynamic configs for topic flights are:
      retention.ms=604800000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=604800000}

With `--all`, a topic gets all its settings, except defaults of Kafka that warmlog does not allow: `flush.ms` is 2^63-1.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warmlog_broker.storage.config import TOPIC_SETTINGS, LogConfig, normalized
from warmlog_protocol.errors import InvalidConfig

_HEADING = re.compile(r"(?:Dynamic|All) configs for topic (\S+) are:")
_ENTRY = re.compile(r"\s+(\S+?)=(.*?) sensitive=(?:true|false) synonyms=\{(.*)\}")
_TIERED = "remote.storage.enable"
_KNOWN = {setting.name: setting for setting in TOPIC_SETTINGS}
_SOURCES_OF_VALUES = ("DYNAMIC_", "STATIC_")
"""How the source of a value begins that was set, on a topic or a broker; others are Kafka's defaults."""


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Settings by topic: those that warmlog has, valid, and the names of the others."""

    known: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unknown: Mapping[str, list[str]] = field(default_factory=dict)
    """Only topics that have such."""
    tiered: frozenset[str] = frozenset()
    """Topics whose older segments Kafka has moved to a remote storage."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """How many partitions each topic has; empty unless a running Kafka was asked."""


def checked_configs(
    found: Mapping[str, Mapping[str, str]], source: object, partitions: Mapping[str, int] | None = None
) -> TopicConfigs:
    """Return Kafka's settings as ours. InvalidConfig names `source`, the topic and a value that is not allowed."""
    known = {topic: {name: given[name] for name in given if name in _KNOWN} for topic, given in found.items()}
    for topic, settings in known.items():
        try:
            LogConfig.from_settings(settings)
            known[topic] = normalized(settings)
        except InvalidConfig as error:
            raise InvalidConfig(f"{source}, topic {topic}: {error}") from None
    others = {topic: sorted(given.keys() - _KNOWN.keys()) for topic, given in found.items()}
    unknown = {topic: names for topic, names in others.items() if names}
    tiered = frozenset(topic for topic, given in found.items() if given.get(_TIERED, "").strip().lower() == "true")
    return TopicConfigs(known, unknown, tiered, partitions or {})


def read_topic_configs(path: Path) -> TopicConfigs:
    """Read the file. InvalidConfig if it cannot be read, is in neither form, or has a value that is not allowed."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"cannot read the topic settings {path}: {error}") from None
    try:
        found = _from_json(text) if text.lstrip().startswith("{") else _from_kafka(text)
    except ValueError as error:
        raise InvalidConfig(f"{path}: {error}") from None
    return checked_configs(found, path)


def _from_json(text: str) -> dict[str, dict[str, str]]:
    found = json.loads(text)
    for topic, settings in found.items():
        if not isinstance(settings, dict):
            raise ValueError(f'topic {topic}: expected {{"name": "value"}}, found {settings!r}')
        for name, value in settings.items():
            if not isinstance(value, str | int | float):
                raise ValueError(f"topic {topic}: {name}={value!r} is not text, a number or a boolean")
    return {topic: {name: _text(value) for name, value in given.items()} for topic, given in found.items()}


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_kafka(text: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    settings: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _HEADING.fullmatch(line.strip()):
            settings = found.setdefault(heading[1], {})
        elif settings is not None and (entry := _ENTRY.fullmatch(line)):
            name, value, sources = entry.groups()
            if sources.startswith(_SOURCES_OF_VALUES) or not _is_beyond_ours(name, value):
                settings[name] = value
        elif line.strip():
            raise ValueError(
                f"line {number} is {line.strip()[:60]!r}: expected JSON, or the output of "
                "kafka-configs.sh --describe --entity-type topics"
            )
    return found


def _is_beyond_ours(name: str, value: str) -> bool:
    """Whether warmlog has the setting, but does not allow the value."""
    try:
        return name in _KNOWN and _KNOWN[name].parse(value) is None
    except InvalidConfig:
        return True
