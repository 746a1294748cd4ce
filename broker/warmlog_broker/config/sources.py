"""Where settings come from: a TOML file, the environment and the command line."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warmlog_broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from warmlog_broker.storage.config import TOPIC_SETTINGS, did_you_mean
from warmlog_protocol.errors import InvalidConfig

ENVIRONMENT_PREFIX = "WARMLOG_"
NOT_SETTINGS = frozenset({"WARMLOG_BROKER", "WARMLOG_CONFIG", "WARMLOG_DEBUG", "WARMLOG_PROFILE"})
"""Environment variables with the prefix that are for the command line: broker, profile, tracebacks."""

_NAMES = [setting.name for setting in (*BROKER_SETTINGS, *TOPIC_SETTINGS)]


def load_settings(
    given: Mapping[str, str], *, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> BrokerConfig:
    """Return the configuration: `given` takes precedence over the `environment`, and that over the TOML `file`."""
    settings = _from_file(file) if file is not None else {}
    settings.update(_from_environment(environment))
    settings.update(given)
    return BrokerConfig.from_settings(settings)


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


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    names = {_variable(name): name for name in _NAMES}
    settings = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        name = names.get(variable)
        if name is None:
            hint = did_you_mean(variable, names)
            raise InvalidConfig(f"the environment variable {variable} is not a setting{hint}")
        settings[name] = value
    return settings


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")
