"""The client profile: a broker's address and options of connections that are not typed each time.

The file is `~/.config/warmlog/config.toml`, in `$XDG_CONFIG_HOME` if that is set; WARMLOG_CONFIG names another::

    broker = "127.0.0.1:7400"         # for every profile
    client_name = "laptop"

    [production]                      # warmlog --profile production, or WARMLOG_PROFILE=production
    broker = "logs.example.org:7400"
    request_timeout_ms = 60000

The keys are `broker`, `password_file` and the fields of ConnectionOptions. A table's keys take precedence over those
outside of tables. The environment takes precedence over the file: WARMLOG_SSL, WARMLOG_SSL_CAFILE and so on,
WARMLOG_USERNAME, WARMLOG_PASSWORD_FILE or WARMLOG_PASSWORD, and WARMLOG_SASL_MECHANISM. A password is never an argument
of a command, which other users of the machine see in the list of processes.
"""

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import click

from warmlog.cli.terminal.exits import CommandFailed

CONFIG_VARIABLE = "WARMLOG_CONFIG"
PROFILE_VARIABLE = "WARMLOG_PROFILE"
BROKER_KEY = "broker"
PASSWORD_FILE_KEY = "password_file"  # noqa: S105
STDIN = "-"


class ConnectionSetting(NamedTuple):
    """An option of connections that the environment can set, and an option before the command if it has a `flag`."""

    name: str
    """A field of ConnectionOptions, or PASSWORD_FILE_KEY."""
    flag: str = ""
    metavar: str | None = None
    """None for a switch."""
    help: str = ""

    @property
    def variable(self) -> str:
        return f"WARMLOG_{self.name.upper()}"

    @property
    def is_switch(self) -> bool:
        return "/" in self.flag


CONNECTION_SETTINGS = (
    ConnectionSetting("username", "--username", "NAME", "The user to connect as"),
    ConnectionSetting(PASSWORD_FILE_KEY, "--password-file", "FILE", "A file with that user's password"),
    ConnectionSetting("password"),
    ConnectionSetting("sasl_mechanism"),
    ConnectionSetting("ssl", "--ssl/--no-ssl", None, "Connect by TLS"),
    ConnectionSetting("ssl_cafile", "--ssl-cafile", "FILE", "The issuers of brokers' certificates, as PEM"),
    ConnectionSetting("ssl_certfile", "--ssl-certfile", "FILE", "The client's certificate, as PEM"),
    ConnectionSetting(
        "ssl_keyfile",
        "--ssl-keyfile",
        "FILE",
        "Its key, if not in the same file; the key's password: WARMLOG_SSL_KEYPASSWORD",
    ),
    ConnectionSetting("ssl_keypassword"),
    ConnectionSetting(
        "ssl_check_hostname",
        "--ssl-check-hostname/--ssl-no-check-hostname",
        None,
        "Whether the broker's certificate must be for its host",
    ),
)

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class ProfileError(click.BadParameter):
    """The file cannot be used; the message names it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param_hint="profile")


class Profile(NamedTuple):
    """What the file says for one profile. `name` is "" if none is selected."""

    path: str
    name: str
    settings: Mapping[str, str | int | bool]
    origins: Mapping[str, str]
    """Where each setting comes from: an environment variable, or the file and its table."""

    @property
    def broker(self) -> str | None:
        """The broker's address, if the file has one."""
        address = self.settings.get(BROKER_KEY)
        return None if address is None else str(address)

    @property
    def connection(self) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if name != BROKER_KEY}


def chosen_profile() -> Profile:
    """Return the profile in force. ProfileError, a usage error, if its file or the environment cannot be used."""
    profile, given = profile_named(os.environ.get(PROFILE_VARIABLE, "")), _from_environment()
    settings = {**profile.settings, **given}
    if "password" in given and PASSWORD_FILE_KEY not in given:
        settings.pop(PASSWORD_FILE_KEY, None)
    if PASSWORD_FILE_KEY in settings:  # takes precedence over a password in the same place
        settings.pop("password", None)
    variables = {each.name: each.variable for each in CONNECTION_SETTINGS if each.name in given}
    return profile._replace(settings=settings, origins={**profile.origins, **variables})


def _from_environment() -> dict[str, str | bool]:
    """Return the options of connections that the environment sets. Variables that are empty set nothing."""
    given: dict[str, str | bool] = {}
    for setting in CONNECTION_SETTINGS:
        text = os.environ.get(setting.variable, "")
        if text and not setting.is_switch:
            given[setting.name] = text
        elif text.lower() in _BOOLEANS:
            given[setting.name] = _BOOLEANS[text.lower()]
        elif text:
            raise ProfileError(f"{setting.variable}={text}: true or false expected")
    return given


def profile_named(name: str) -> Profile:
    """Return what the file says for the profile `name`, "" for none, without the environment. ProfileError."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - pathlib is slow to import
    named = os.environ.get(CONFIG_VARIABLE)
    path = named or f"{home}/warmlog/config.toml"
    if not os.access(path, os.F_OK):
        if named:
            raise ProfileError(f"{CONFIG_VARIABLE}={path}: there is no such file")
        if name:
            raise ProfileError(f"there is no profile {name!r}: the file {path} does not exist")
        return Profile(path, "", {}, {})
    import tomllib  # imported here because most users have no such file

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ProfileError(f"cannot read the profile {path}: {error}") from None
    shared = {key: value for key, value in document.items() if not isinstance(value, dict)}
    profiles = {key: value for key, value in document.items() if isinstance(value, dict)}
    if name and name not in profiles:
        from warmlog_protocol.errors import did_you_mean

        raise ProfileError(f"{path} has no profile {name!r}{did_you_mean(name, profiles, 'it has')}")
    for table, settings in (("", shared), *profiles.items()):
        _check(path, table, settings)
    own = profiles.get(name, {})
    origins = {**dict.fromkeys(shared, path), **dict.fromkeys(own, f"[{name}] in {path}")}
    return Profile(path, name, {**shared, **own}, origins)


def _check(path: str, table: str, settings: Mapping[str, Any]) -> None:
    """Raise ProfileError for a key that does not exist or a value that it does not take."""
    from dataclasses import fields

    from warmlog.errors import InvalidConfig
    from warmlog_protocol.errors import did_you_mean
    from warmlog_transport.address import parse_addresses
    from warmlog_transport.options import ConnectionOptions, check_types

    where = f"{path}, [{table}]" if table else path
    known = [BROKER_KEY, PASSWORD_FILE_KEY, *(field.name for field in fields(ConnectionOptions))]
    for name in settings:
        if name not in known:
            raise ProfileError(
                f"{where}: {name!r} is not a setting of a profile{did_you_mean(name, known, 'there are')}"
            )
    try:
        own = (BROKER_KEY, PASSWORD_FILE_KEY)
        check_types({name: value for name, value in settings.items() if name not in own})
        if not isinstance(settings.get(PASSWORD_FILE_KEY, ""), str):
            raise InvalidConfig(f"{PASSWORD_FILE_KEY}: a str expected")
        broker = settings.get(BROKER_KEY, "127.0.0.1:7400")
        if not isinstance(broker, str):
            raise InvalidConfig(f'{BROKER_KEY}={broker!r}: a str expected, as in "127.0.0.1:7400"')
        parse_addresses(broker)
    except (InvalidConfig, ValueError) as error:
        raise ProfileError(f"{where}: {error}") from None


def login_options(profile: Mapping[str, Any], *, asks: bool = True) -> dict[str, Any]:
    """Return `profile`, options of connections, with the password from its file.

    A password that is missing is asked for on a terminal, unless `asks` is false.
    """
    options = dict(profile)
    file = options.pop(PASSWORD_FILE_KEY, None)
    if file is not None:
        options["password"] = read_password(os.path.expanduser(file))  # noqa: PTH111
    if options.get("username") and not options.get("password") and asks and sys.stdin.isatty():
        options["password"] = _asked_password(options["username"])
    return options


@cache  # a command that connects several times asks once
def _asked_password(username: str) -> str:
    return str(click.prompt(f"Password of user {username}", hide_input=True, err=True))


def read_password(path: str) -> str:
    """Return the first line of a file, or of stdin for "-". CommandFailed if it is empty or not text."""
    try:
        if path == STDIN:
            text = sys.stdin.readline()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.readline()
    except UnicodeDecodeError:
        raise CommandFailed(f"the password in {path} is not UTF-8") from None
    password = text.rstrip("\r\n")
    if not password:
        raise CommandFailed(f"there is no password in the first line of {'stdin' if path == STDIN else path}")
    return password
