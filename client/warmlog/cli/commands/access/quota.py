"""`warmlog quota set`, `list` and `delete`: limits of users and clients."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.commands.access import USER_PREFIX, data_dir_option, run_access
from warmlog.cli.terminal.exits import checked
from warmlog.cli.terminal.options import client_options, parse_setting, print_result
from warmlog.cli.terminal.output import note, table

if TYPE_CHECKING:
    from warmlog import Admin, QuotaDescription

HEADINGS = ("user", "client id", "limits")
LIMITS = "producer_byte_rate, consumer_byte_rate, request_rate or connections"

Entity = tuple[str | None, str | None]
"""User and client id."""

of_user_option = click.option(
    "--user",
    metavar="NAME",
    help="A user; ANONYMOUS is a client that has not authenticated, '*' is each user without a quota.",
)
of_client_id_option = click.option("--client-id", metavar="ID", help="A client id, or '*'; with --user: of that user.")


def user_of(text: str | None) -> str | None:
    """Return the user that an option means: "User:alice" is alice."""
    return None if text is None else text.removeprefix(USER_PREFIX)


def required(user: str | None, client_id: str | None) -> tuple[str | None, str | None]:
    """Return whose quota is meant; a usage error if the options do not say."""
    if user is None and client_id is None:
        raise click.BadParameter("say whose quota: --user, --client-id or both")
    return user_of(user), client_id


def text_of(quota: "QuotaDescription") -> str:
    """Return the quota in words: "user alice: request_rate=100"."""
    parts = [("user", quota.user), ("client id", quota.client_id)]
    named = " and ".join(f"{kind} {name}" for kind, name in parts if name is not None)
    return f"{named}: {limits_text(quota.limits) or 'no quota'}"


def limits_text(limits: "Mapping[str, int]") -> str:
    return ", ".join(f"{key}={value}" for key, value in limits.items())


@click.command()
@of_user_option
@of_client_id_option
@data_dir_option
@client_options
def list_quotas(user: str | None, client_id: str | None, data_dir: Path | None) -> None:
    """List the quotas, or those of a user or a client id."""
    quotas = run_access(data_dir, lambda admin: admin.describe_quotas())
    found = [quota for quota in quotas if user_of(user) in (None, quota.user) and client_id in (None, quota.client_id)]
    print_result(found, lambda: table(HEADINGS, list(map(quota_row, found))))


def quota_row(quota: "QuotaDescription") -> tuple[str, str, str]:
    return quota.user or "", quota.client_id or "", limits_text(quota.limits)


@click.command()
@click.argument(
    "limits",
    nargs=-1,
    required=True,
    metavar="LIMIT=VALUE...",
    help=f"{LIMITS}: bytes a second (also 10MiB), requests a second, connections.",
)
@of_user_option
@of_client_id_option
@data_dir_option
@client_options
def set_quota(limits: tuple[str, ...], user: str | None, client_id: str | None, data_dir: Path | None) -> None:
    """Set limits of a user, a client id, or a client id of a user; the others stay as they are."""
    entity = required(user, client_id)
    values = dict(checked("LIMIT=VALUE", _limit, text) for text in limits)
    _change(entity, values, data_dir)


@click.command()
@click.argument("limits", nargs=-1, metavar="[LIMIT]...", help=f"{LIMITS}; all of them if none is named.")
@of_user_option
@of_client_id_option
@data_dir_option
@client_options
def delete(limits: tuple[str, ...], user: str | None, client_id: str | None, data_dir: Path | None) -> None:
    """Remove limits of a user, a client id, or a client id of a user."""
    entity = required(user, client_id)
    _change(entity, None if not limits else dict.fromkeys(limits), data_dir)


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


def _change(entity: Entity, limits: Mapping[str, int | None] | None, data_dir: Path | None) -> None:
    """Change a quota, and say what it is then; `limits` None: all that it has are removed."""
    from warmlog.admin.access.quotas import quota_of

    async def change(admin: "Admin") -> "QuotaDescription":
        removed = dict.fromkeys(quota_of(entity, await admin.describe_quotas()).limits) if limits is None else {}
        if wanted := removed if limits is None else limits:
            await admin.alter_quotas(wanted, user=entity[0], client_id=entity[1])
        return quota_of(entity, await admin.describe_quotas())

    quota = run_access(data_dir, change)
    print_result(quota, lambda: note(text_of(quota)))
