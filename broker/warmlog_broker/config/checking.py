"""The mistakes in settings, for `warmlog config`; a start reports the first one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warmlog_broker.config.broker_config import RETIRED, SETTINGS, BrokerConfig, parse_setting
from warmlog_broker.config.given import Given, shown
from warmlog_broker.config.sources import read_file
from warmlog_protocol.errors import InvalidConfig, nearest_name


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with one setting, or with several together: then only the message says with which."""

    message: str
    name: str = ""
    value: str = ""
    allowed: str = ""
    nearest: str = ""
    """For an unknown name: the known one that is most like it."""


def mistakes_of_file(path: Path) -> list[Mistake]:
    """Return the mistakes of a TOML file. It need not say where the data is. InvalidConfig if it is no TOML."""
    return mistakes_of(read_file(path))


def mistakes_of(given: Mapping[str, Given]) -> list[Mistake]:
    """Return the mistakes of single settings; if there are none, the first contradiction between several."""
    found: list[Mistake] = []
    for name, each in given.items():
        try:
            if name not in RETIRED:
                parse_setting(name, each.text)
        except InvalidConfig as error:
            known = SETTINGS.get(name)
            allowed, nearest = (known.allowed, "") if known else ("", nearest_name(name, SETTINGS))
            found.append(Mistake(str(error), name, shown(name, each.text), allowed, nearest))
    if not found:
        settings = {name: each.text for name, each in given.items()}
        if not settings.keys() & {"data.dir", "data.dirs"}:
            settings["data.dir"] = "data"
        try:
            BrokerConfig.from_settings(settings)
        except InvalidConfig as error:
            found.append(Mistake(str(error)))
    return found
