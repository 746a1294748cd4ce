"""All mistakes of settings at once, for `warmlog config`; a start tells the first one."""

import re
from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from pathlib import Path

from warmlog_broker.config.broker_config import SETTINGS, BrokerConfig, parse_setting
from warmlog_broker.config.consistency import contradictions
from warmlog_broker.config.given import Given, Origin, shown
from warmlog_broker.config.toml_file import WrongLine, read_toml, statements
from warmlog_broker.storage.config import TOPIC_SETTINGS, LogConfig
from warmlog_protocol.errors import InvalidConfig, nearest_name

_TOPIC_NAMES = frozenset(setting.name for setting in TOPIC_SETTINGS)
_SOME_DIRECTORY = {"data.dir": "data"}


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with one setting, or with several together."""

    message: str
    line: int = 0
    """In the file; 0 if the setting is not from a file, or the mistake is that one is missing."""
    name: str = ""
    value: str = ""
    allowed: str = ""
    nearest: str = ""
    """For an unknown name: the known one that is most like it."""


def mistakes_of_file(path: Path) -> list[Mistake]:
    """Return the mistakes of a TOML file, by line. It need not say where the data is. InvalidConfig if it cannot be
    read."""
    given: dict[str, Given] = {}
    found: list[Mistake] = []
    for each in statements(read_toml(path)):
        if isinstance(each, WrongLine):
            found.append(Mistake(each.message, each.line, each.name, allowed=_allowed(each.name)))
        else:
            given[each.name] = Given(each.text, Origin.FILE, line=each.line)
    return sorted([*found, *mistakes_of(given)], key=lambda mistake: mistake.line)


def mistakes_of(given: Mapping[str, Given]) -> list[Mistake]:
    """Return the mistakes of settings, those of single ones first."""
    good: dict[str, str] = {}
    found: list[Mistake] = []
    for name, each in given.items():
        try:
            parse_setting(name, each.text)
        except InvalidConfig as error:
            nearest = "" if name in SETTINGS else nearest_name(name, SETTINGS)
            found.append(Mistake(str(error), each.line, name, shown(name, each.text), _allowed(name), nearest))
        else:
            good[name] = each.text
    for contradiction in _contradictions(good):
        named = _names_in(str(contradiction), given)
        if named <= good.keys():  # others are told already, and their default, which was checked here, is not meant
            name = next(iter(named), "")
            line, text = (given[name].line, given[name].text) if name else (0, "")
            found.append(Mistake(str(contradiction), line, name, shown(name, text), _allowed(name)))
    return found


def _contradictions(settings: Mapping[str, str]) -> Iterator[InvalidConfig]:
    if not settings.keys() & {"data.dir", "data.dirs"}:
        settings = {**settings, **_SOME_DIRECTORY}
    topics = {name: text for name, text in settings.items() if name in _TOPIC_NAMES}
    try:
        LogConfig.from_settings(topics)
    except InvalidConfig as error:
        yield error
    own = {name: text for name, text in settings.items() if name not in topics}
    yield from contradictions(BrokerConfig.unchecked(own), own)


def _allowed(name: str) -> str:
    setting = SETTINGS.get(name)
    return "" if setting is None else setting.allowed


def _names_in(message: str, given: Mapping[str, Given]) -> KeysView[str]:
    """Return the settings that a message is about and that were given, in the order in which it names them."""
    words = re.findall(r"[a-z][a-z.]*[a-z]", message)
    if message.startswith("listener "):
        words = ["listeners", "listen", *words]
    return dict.fromkeys(word for word in words if word in given).keys()
