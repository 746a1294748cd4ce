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

from warmlog_broker.config.broker_config import SETTINGS, BrokerConfig
from warmlog_broker.config.given import Given, Origin
from warmlog_broker.config.toml_file import WrongLine, read_toml, statements
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

_NAMES = list(SETTINGS)


def load_settings(
    given: Mapping[str, str], *, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> BrokerConfig:
    """Return the configuration: `given` takes precedence over the `environment`, and that over the TOML `file`."""
    found, ignored = gather(given, file=file, environment=environment)
    config = BrokerConfig.from_settings({name: each.text for name, each in found.items()})
    return replace(config, given=found, ignored_variables=ignored)


def gather(
    given: Mapping[str, str], *, file: Path | None, environment: Mapping[str, str]
) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Return the settings in force and where each comes from, unchecked, and the variables that are ignored."""
    settings = {} if file is None else _from_file(file)
    found, ignored = _from_environment(environment)
    settings |= {name: Given(text, Origin.ENVIRONMENT, _variable(name)) for name, text in found.items()}
    settings |= {name: Given(text, Origin.FLAG) for name, text in given.items()}
    return settings, ignored


def _from_file(path: Path) -> dict[str, Given]:
    settings = {}
    for each in statements(read_toml(path)):
        if isinstance(each, WrongLine):
            raise InvalidConfig(
                f"cannot read the configuration {path}: line {each.line}: {each.message}. "
                f"`warmlog config check {path}` shows all mistakes"
            )
        settings[each.name] = Given(each.text, Origin.FILE, f"{path}, line {each.line}", each.line)
    return settings


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
