"""Where settings come from: a TOML file, the environment and the command line.

A variable WARMLOG_… that is no setting is an error if it looks like a misspelled one. Others belong to other programs:
Kubernetes sets WARMLOG_SERVICE_HOST, WARMLOG_PORT_7400_TCP_ADDR and more in each pod of a namespace with a service
called warmlog or warmlog-…. They are ignored, and `BrokerConfig.ignored_variables` names them.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from warmlog_broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from warmlog_broker.storage.config import TOPIC_SETTINGS
from warmlog_protocol.errors import InvalidConfig

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

_NAMES = [setting.name for setting in (*BROKER_SETTINGS, *TOPIC_SETTINGS)]


def load_settings(
    given: Mapping[str, str], *, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> BrokerConfig:
    """Return the configuration: `given` takes precedence over the `environment`, and that over the TOML `file`."""
    settings = _from_file(file) if file is not None else {}
    found, ignored = _from_environment(environment)
    settings.update(found)
    settings.update(given)
    return replace(BrokerConfig.from_settings(settings), ignored_variables=ignored)


def _from_file(path: Path) -> dict[str, str]:
    import tomllib  # imported here because most brokers have no such file

    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except (OSError, ValueError) as error:  # not TOML, not UTF-8, or a zero byte in the path
        raise InvalidConfig(f"cannot read the configuration {path}: {error}") from None
    settings: dict[str, str] = {}
    _flatten("", tables, settings)
    return settings


def _flatten(prefix: str, table: Mapping[str, Any], settings: dict[str, str]) -> None:
    for name, value in table.items():
        if isinstance(value, Mapping):
            _flatten(f"{prefix}{name}.", value, settings)
        elif isinstance(value, bool):
            settings[prefix + name] = "true" if value else "false"
        elif isinstance(value, str | int):
            settings[prefix + name] = str(value)
        else:
            raise InvalidConfig(
                f"{prefix}{name}: {value!r} is not allowed, it must be text, a whole number or a boolean"
            )


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings, and the variables that are ignored; InvalidConfig for one that looks like a setting's."""
    names = {_variable(name): name for name in _NAMES}
    settings, ignored = {}, []
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable.startswith(NOT_SETTINGS_PREFIX):
            continue
        name = names.get(variable)
        if name is not None:
            settings[name] = value
        elif (meant := _misspelled(variable)) and not _KUBERNETES.fullmatch(variable):
            raise InvalidConfig(f"the environment variable {variable} is not a setting; did you mean {meant}?")
        else:
            ignored.append(variable)
    return settings, tuple(sorted(ignored))


def _misspelled(variable: str) -> str:
    """Return the setting's variable that `variable` is nearly; empty if there is none."""
    known = [_variable(name).removeprefix(ENVIRONMENT_PREFIX) for name in _NAMES]
    given = variable.removeprefix(ENVIRONMENT_PREFIX).upper()
    nearest = get_close_matches(given, known, n=1, cutoff=MISSPELLED_RATIO)
    return ENVIRONMENT_PREFIX + nearest[0] if nearest else ""


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")
