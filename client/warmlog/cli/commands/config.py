"""`warmlog config check`, `show`, `set` and `unset`: settings of a broker."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.exceptions import Exit

from warmlog.cli.terminal.exits import FAILED, CommandFailed, checked
from warmlog.cli.terminal.options import client_options, json_option, parse_setting, print_result, run_admin
from warmlog.cli.terminal.output import counted, line, note, remark, table
from warmlog.cli.terminal.paths import ANY_PATH
from warmlog.cli.terminal.tables import setting_text

if TYPE_CHECKING:
    from warmlog import Admin, ConfigValue


@click.command()
@click.argument("file", type=ANY_PATH, metavar="FILE", help="Settings as TOML.")
@json_option
def check(file: Path) -> None:
    """Check a file of settings without a broker, and show the mistakes. The exit code is 1 if there are any.

    The file alone is checked: neither the environment, nor whether paths and addresses can be used.
    """
    from warmlog_broker.config.sources import mistakes_of, read_file
    from warmlog_protocol.errors import InvalidConfig

    try:
        mistakes = mistakes_of(read_file(file))
    except InvalidConfig as error:
        raise CommandFailed(str(error)) from None

    def say() -> None:
        for mistake in mistakes:
            line(f"{file}: {mistake.message}")
        note(f"{file}: {counted(len(mistakes), 'mistake')}" if mistakes else f"{file}: no mistakes")

    print_result(mistakes, say)
    if mistakes:
        raise Exit(FAILED)


_NOT_GIVEN = "default"


class _Shown(NamedTuple):
    value: str
    origin: str
    place: str
    is_dynamic: bool


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", help="Only these settings.")
@click.option("--config", type=ANY_PATH, metavar="FILE", help="Offline: what a broker with this file would use.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Offline: as given to `warmlog serve`. Repeatable."
)
@click.option(
    "--offline", "is_offline", is_flag=True, help="What a broker would use here, without --config from the environment."
)
@click.option("--changed", "is_changed", is_flag=True, help="Leave out settings that have their defaults.")
@client_options
def show(
    names: tuple[str, ...], config: Path | None, settings: tuple[str, ...], is_offline: bool, is_changed: bool
) -> None:
    """Show the settings in force and where each comes from: default, file, environment, flag, or altered.

    Of the running broker; with --config, --set or --offline of one that would be started here.
    """
    if config is not None or settings or is_offline:
        rows = _offline(dict(checked("--set", parse_setting, text) for text in settings), config)
    else:
        rows = {
            # A broker of 0.1.0 does not tell where a setting comes from.
            name: _Shown(
                each.value, each.source or (_NOT_GIVEN if each.is_default else "operator"), each.place, each.is_dynamic
            )
            for name, each in run_admin(lambda admin: admin.describe_broker()).items()
        }
    for name in names:
        if name not in rows:
            from warmlog_protocol.errors import did_you_mean

            raise CommandFailed(f"there is no setting {name!r}{did_you_mean(name, rows)}")
    rows = {
        name: row
        for name, row in rows.items()
        if (not names or name in names) and not (is_changed and row.origin == _NOT_GIVEN)
    }
    cells = [
        (
            name,
            setting_text(name, row.value),
            f"{row.origin}: {row.place}" if row.place else row.origin,
            "yes" if row.is_dynamic else "",
        )
        for name, row in rows.items()
    ]
    document = {name: row._asdict() for name, row in rows.items()}
    print_result(document, lambda: table(("setting", "value", "from", "alterable"), cells))


def _offline(flags: dict[str, str], file: Path | None) -> dict[str, _Shown]:
    """Return what a broker would use here; CommandFailed if it would not start."""
    from warmlog_broker.config.broker_config import SETTINGS, Given, Origin, shown
    from warmlog_broker.config.sources import gather, mistakes_of
    from warmlog_protocol.errors import InvalidConfig

    try:
        given, _ = gather(flags, file=file, environment=os.environ)
    except InvalidConfig as error:
        raise CommandFailed(str(error)) from None
    mistakes = mistakes_of(given)
    for mistake in mistakes:
        place = given.get(mistake.name)
        remark(mistake.message if place is None else f"{place.place or place.origin.value}: {mistake.message}")
    if mistakes:
        raise CommandFailed("a broker would not start with these settings")
    rows = {}
    for name, setting in SETTINGS.items():
        each = given.get(name) or Given(setting.format(setting.default), Origin.DEFAULT)
        is_text = setting.kind == "text"
        value = each.text if is_text else setting.format(setting.parse(each.text))
        rows[name] = _Shown(shown(name, value), each.origin, each.place, setting.is_dynamic)
    return rows


trial_option = click.option(
    "--dry-run", "is_trial", is_flag=True, help="Only check whether the broker would accept it."
)


all_option = click.option(
    "--all-brokers", "of_all", is_flag=True, help="Of a cluster; a broker's own altered settings take precedence."
)


@click.command()
@click.argument("given", nargs=-1, required=True, metavar="NAME=VALUE...", help="New values.")
@trial_option
@all_option
@client_options
def set_settings(given: tuple[str, ...], is_trial: bool, of_all: bool) -> None:
    """Alter settings of the running broker. They are on disk and in force when the command returns.

    They take precedence over the file, the environment and the command line, also after a restart, until they are
    unset. `warmlog config show` tells which are alterable. A topic's setting is the default of all topics.
    """
    _alter(dict(checked("NAME=VALUE", parse_setting, text) for text in given), [], is_trial, of_all)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", help="Names of settings.")
@trial_option
@all_option
@client_options
def unset_settings(names: tuple[str, ...], is_trial: bool, of_all: bool) -> None:
    """Return altered settings to the values that the broker was started with."""
    _alter({}, names, is_trial, of_all)


def _alter(wanted: Mapping[str, str], unset: Sequence[str], is_trial: bool, of_all: bool) -> None:
    async def alter(admin: "Admin") -> "tuple[dict[str, str], dict[str, ConfigValue]]":
        altered = await admin.alter_broker(set=wanted, unset=unset, validate_only=is_trial, all_brokers=of_all)
        return altered, await admin.describe_broker()

    altered, found = run_admin(alter)
    settings = [f"{name}={setting_text(name, found[name].value)}" for name in (*wanted, *unset)]
    done = f"altered {'all brokers' if of_all else 'the broker'}: {', '.join(settings)}"
    print_result(altered, lambda: note("the broker would accept it; nothing is altered" if is_trial else done))
