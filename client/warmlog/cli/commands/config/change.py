"""`warmlog config set` and `unset`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, parse_setting, run_admin
from warmlog.cli.terminal.output import json_line, note
from warmlog.cli.terminal.tables import setting_text

if TYPE_CHECKING:
    from warmlog import Admin, ConfigValue

IsTrial = Annotated[bool, typer.Option("--dry-run", help="Only check whether the broker would accept it.")]


@ends_cleanly
def set_settings(
    given: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="New values.", show_default=False)],
    is_trial: IsTrial = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Alter settings of the running broker. They are on disk and in force when the command returns.

    They take precedence over the file, the environment and the command line, also after a restart, until they are
    unset. `warmlog config show` tells which are alterable. A topic's setting is the default of all topics.
    """
    _alter(broker, dict(checked("NAME=VALUE", parse_setting, text) for text in given), [], is_trial, as_json)


@ends_cleanly
def unset_settings(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of settings.", show_default=False)],
    is_trial: IsTrial = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Return altered settings to the values that the broker was started with."""
    _alter(broker, {}, names, is_trial, as_json)


def _alter(broker: str, wanted: Mapping[str, str], unset: Sequence[str], is_trial: bool, as_json: bool) -> None:
    async def alter(admin: "Admin") -> "tuple[dict[str, str], dict[str, ConfigValue]]":
        altered = await admin.alter_broker(set=wanted, unset=unset, validate_only=is_trial)
        return altered, await admin.describe_broker()

    altered, found = run_admin(broker, alter)
    if as_json:
        json_line(altered)
    elif is_trial:
        note("the broker would accept it; nothing is altered")
    else:
        settings = [f"{name}={setting_text(name, found[name].value)}" for name in (*wanted, *unset)]
        note(f"altered the broker: {', '.join(settings)}")
