"""`warmlog quota set` and `delete`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.commands.quota.options import LIMITS, OfClientId, OfUser, required, text_of
from warmlog.cli.commands.user.change import DataDir
from warmlog.cli.terminal.exits import checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, parse_setting, run_admin
from warmlog.cli.terminal.output import json_line, note

if TYPE_CHECKING:
    from warmlog import Admin, QuotaDescription

Entity = tuple[str | None, str | None]
"""User and client id."""


@ends_cleanly
def set_quota(
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="LIMIT=VALUE",
            help=f"{LIMITS}: bytes a second (also 10MiB), requests a second, connections.",
            show_default=False,
        ),
    ],
    user: OfUser = None,
    client_id: OfClientId = None,
    data_dir: DataDir = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Set limits of a user, a client id, or a client id of a user; the others stay as they are."""
    entity = required(user, client_id)
    values = dict(checked("LIMIT=VALUE", _limit, text) for text in limits)
    _tell(_changed(entity, values, data_dir, broker), as_json)


@ends_cleanly
def delete(
    limits: Annotated[
        list[str] | None,
        typer.Argument(metavar="LIMIT", help=f"{LIMITS}; all of them if none is named.", show_default=False),
    ] = None,
    user: OfUser = None,
    client_id: OfClientId = None,
    data_dir: DataDir = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Remove limits of a user, a client id, or a client id of a user."""
    entity = required(user, client_id)
    _tell(_changed(entity, None if not limits else dict.fromkeys(limits), data_dir, broker), as_json)


def _limit(text: str) -> tuple[str, int]:
    """Return name and value of LIMIT=VALUE; ValueError for anything else."""
    from warmlog.errors import InvalidConfig
    from warmlog_broker.storage.config import Setting

    name, value = parse_setting(text)
    setting = Setting(name, "integer", 0, "", unit="bytes/s" if name.endswith("byte_rate") else "", minimum=1)
    try:
        return name, int(setting.parse(value))
    except InvalidConfig as error:
        raise ValueError(str(error)) from None


def _changed(
    entity: Entity, limits: Mapping[str, int | None] | None, data_dir: Path | None, broker: str
) -> "QuotaDescription":
    """Return the quota after the change; `limits` None: all that it has are removed."""
    from warmlog.admin.access.quotas import quota_descriptions, quota_of, wanted_quota

    async def ask(admin: "Admin") -> "QuotaDescription":
        removed = dict.fromkeys(quota_of(entity, await admin.describe_quotas()).limits)
        if wanted := removed if limits is None else limits:
            await admin.alter_quotas(wanted, user=entity[0], client_id=entity[1])
        return quota_of(entity, await admin.describe_quotas())

    if data_dir is None:
        return run_admin(broker, ask)
    from warmlog_broker.tools.quotas import change_quota, quotas_in

    removed = {} if limits is not None else quota_of(entity, quota_descriptions(quotas_in(data_dir))).limits
    if wanted := dict.fromkeys(removed) if limits is None else limits:
        change_quota(data_dir, wanted_quota(wanted, *entity))
    return quota_of(entity, quota_descriptions(quotas_in(data_dir)))


def _tell(quota: "QuotaDescription", as_json: bool) -> None:
    if as_json:
        json_line(quota)
    else:
        note(text_of(quota))
