"""`warmlog config show`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, parse_setting, run_admin
from warmlog.cli.terminal.output import json_line, remark, table
from warmlog.cli.terminal.tables import setting_text

if TYPE_CHECKING:
    from warmlog_broker.config.given import Given

_NOT_GIVEN = "default"


class _Shown(NamedTuple):
    value: str
    origin: str
    place: str
    is_dynamic: bool


@ends_cleanly
def show(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these settings.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Offline: what a broker with this file would use.", show_default=False),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Offline: as given to `warmlog serve`. Repeatable."),
    ] = None,
    is_offline: Annotated[
        bool, typer.Option("--offline", help="What a broker would use here, without --config from the environment.")
    ] = False,
    is_changed: Annotated[bool, typer.Option("--changed", help="Leave out settings that have their defaults.")] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Show the settings in force and where each comes from: default, file, environment, flag, or altered.

    Of the running broker; with --config, --set or --offline of one that would be started here.
    """
    if config is not None or settings or is_offline:
        rows = _offline(dict(checked("--set", parse_setting, text) for text in settings or ()), config)
    else:
        rows = _of_broker(broker)
    for name in names or ():
        if name not in rows:
            from warmlog_protocol.errors import did_you_mean

            raise CommandFailed(f"there is no setting {name!r}{did_you_mean(name, rows)}")
    rows = {
        name: row
        for name, row in rows.items()
        if (not names or name in names) and not (is_changed and row.origin == _NOT_GIVEN)
    }
    if as_json:
        json_line({name: row._asdict() for name, row in rows.items()})
        return
    table(
        ("setting", "value", "from", "alterable"),
        [
            (
                name,
                setting_text(name, row.value),
                f"{row.origin}: {row.place}" if row.place else row.origin,
                "yes" if row.is_dynamic else "",
            )
            for name, row in rows.items()
        ],
    )


def _offline(flags: dict[str, str], file: Path | None) -> dict[str, _Shown]:
    """Return what a broker would use here; CommandFailed if it would not start."""
    from warmlog_broker.config.broker_config import SETTINGS
    from warmlog_broker.config.checking import mistakes_of
    from warmlog_broker.config.given import Given, Origin, shown
    from warmlog_broker.config.sources import gather
    from warmlog_protocol.errors import InvalidConfig

    try:
        given, _ = gather(flags, file=file, environment=os.environ)
    except InvalidConfig as error:
        raise CommandFailed(str(error)) from None
    mistakes = mistakes_of(given)
    for mistake in mistakes:
        remark(f"{_place(given, mistake.name)}{mistake.message}")
    if mistakes:
        raise CommandFailed("a broker would not start with these settings")
    rows = {}
    for name, setting in SETTINGS.items():
        each = given.get(name) or Given(setting.format(setting.default), Origin.DEFAULT)
        is_text = setting.kind == "text"
        value = each.text if is_text else setting.format(setting.parse(each.text))
        rows[name] = _Shown(shown(name, value), each.origin, each.place, setting.is_dynamic)
    return rows


def _place(given: "dict[str, Given]", name: str) -> str:
    each = given.get(name)
    return "" if each is None else f"{each.place or each.origin.value}: "


def _of_broker(broker: str) -> dict[str, _Shown]:
    found = run_admin(broker, lambda admin: admin.describe_broker())
    return {
        name: _Shown(each.value, each.source or _origin_of_old(each.is_default), each.place, each.is_dynamic)
        for name, each in found.items()
    }


def _origin_of_old(is_default: bool) -> str:
    """What a broker that does not tell where a setting comes from says of it."""
    return _NOT_GIVEN if is_default else "operator"
