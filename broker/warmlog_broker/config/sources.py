"""Where settings come from: a TOML file, the environment and the command line; and the mistakes in them.

A variable WARMLOG_… that is no setting is an error if it looks like a misspelled one. Others belong to other programs:
Kubernetes sets WARMLOG_SERVICE_HOST, WARMLOG_PORT_7400_TCP_ADDR and more in each pod of a namespace with a service
called warmlog or warmlog-…. They are ignored, and `BrokerConfig.ignored_variables` names them.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from warmlog_broker.config.broker_config import RETIRED, SETTINGS, BrokerConfig, Given, Origin, parse_setting, shown
from warmlog_protocol.errors import InvalidConfig, nearest_name

ENVIRONMENT_PREFIX = "WARMLOG_"
NOT_SETTINGS = frozenset(
    {
        "WARMLOG_BROKER",
        "WARMLOG_CONFIG",
        "WARMLOG_DEBUG",
        "WARMLOG_PASSWORD",
        "WARMLOG_PASSWORD_FILE",
        "WARMLOG_PROFILE",
        "WARMLOG_SASL_MECHANISM",
        "WARMLOG_USERNAME",
    }
)
NOT_SETTINGS_PREFIX = "WARMLOG_SSL"
"""Environment variables with these names are for the command line: broker, profile, tracebacks, logins, TLS."""
MISSPELLED_RATIO = 0.75
"""How much a name, without the prefix, must be like a setting's to be a misspelling of it: FLUSH_THREAD is 0.96 like
FLUSH_THREADS, DATADIR 0.93 like DATA_DIR, HOME 0.55 like NODE_ID."""

_KUBERNETES = re.compile(
    r"WARMLOG_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)"
)
"""https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables"""


def load_settings(
    given: Mapping[str, str], *, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> BrokerConfig:
    """Return the configuration: `given` takes precedence over the `environment`, and that over the TOML `file`."""
    found, ignored = gather(given, file=file, environment=environment)
    for _, each, error in _wrong(found):
        raise InvalidConfig(f"{each.place}: {error}" if each.place else str(error))
    config = BrokerConfig.from_settings({name: each.text for name, each in found.items()})
    given_places = {name: each for name, each in found.items() if name not in RETIRED}
    return replace(config, given=given_places, ignored_variables=ignored)


def _wrong(given: Mapping[str, Given]) -> Iterator[tuple[str, Given, InvalidConfig]]:
    """Yield the settings that are wrong by themselves, and why."""
    for name, each in given.items():
        try:
            if name not in RETIRED:
                parse_setting(name, each.text)
        except InvalidConfig as error:
            yield name, each, error


def gather(
    given: Mapping[str, str], *, file: Path | None, environment: Mapping[str, str]
) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Return the settings in force and where each comes from, unchecked, and the variables that are ignored."""
    settings = {} if file is None else read_file(file)
    found, ignored = _from_environment(environment)
    settings |= {name: Given(text, Origin.ENVIRONMENT, _variable(name)) for name, text in found.items()}
    settings |= {name: Given(text, Origin.FLAG) for name, text in given.items()}
    return settings, ignored


def read_file(path: Path) -> dict[str, Given]:
    """Return the settings in a TOML file; a table is the beginning of its settings' names. InvalidConfig."""
    import tomllib  # imported here because most brokers have no such file

    try:
        tables = tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError) as error:  # not TOML or UTF-8, or a zero byte in the path
        raise InvalidConfig(
            f"cannot read the configuration {path}: {error}. A setting is NAME = VALUE, with text in quotes"
        ) from None
    try:
        return {name: Given(text, Origin.FILE, str(path)) for name, text in _flattened("", tables)}
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}: {error}") from None


class Mistake(Struct, frozen=True):
    """What is wrong with one setting, or with several together: then only the message says with which."""

    message: str
    name: str = ""
    value: str = ""
    allowed: str = ""
    nearest: str = ""
    """For an unknown name: the known one that is most like it."""


def mistakes_of(given: Mapping[str, Given]) -> list[Mistake]:
    """Return the mistakes of single settings; if there are none, the first contradiction between several.

    They need not say where the data is. A start reports the first mistake only.
    """
    found: list[Mistake] = []
    for name, each, error in _wrong(given):
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


def _flattened(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flattened(f"{prefix}{name}.", value)
        elif isinstance(value, str | int):
            yield prefix + name, str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise InvalidConfig(
                f"{prefix}{name}: {value!r} is not allowed, it must be text, a whole number or a boolean"
            )


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings, and the variables that are ignored; InvalidConfig for one that looks like a setting's."""
    names = {_variable(name): name for name in (*SETTINGS, *RETIRED)}
    settings, ignored = {}, []
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable.startswith(NOT_SETTINGS_PREFIX):
            continue
        name = names.get(variable)
        if name is not None:
            settings[name] = value
            continue
        from difflib import get_close_matches  # slow to import

        bare = variable.removeprefix(ENVIRONMENT_PREFIX).upper()
        known = [each.removeprefix(ENVIRONMENT_PREFIX) for each in names]
        nearest = get_close_matches(bare, known, n=1, cutoff=MISSPELLED_RATIO)
        if nearest and not _KUBERNETES.fullmatch(variable):
            meant = ENVIRONMENT_PREFIX + nearest[0]
            raise InvalidConfig(f"the environment variable {variable} is not a setting; did you mean {meant}?")
        ignored.append(variable)
    return settings, tuple(sorted(ignored))


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")
