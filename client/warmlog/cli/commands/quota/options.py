"""The options of `warmlog quota` that say whose quota is meant."""

from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.commands.acl.options import USER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warmlog import QuotaDescription

LIMITS = "producer_byte_rate, consumer_byte_rate, request_rate or connections"
OfUser = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        help="A user; ANONYMOUS is a client that has not authenticated, '*' is each user without a quota.",
        show_default=False,
    ),
]
OfClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id", metavar="ID", help="A client id, or '*'; with --user: of that user.", show_default=False
    ),
]


def user_of(text: str | None) -> str | None:
    """Return the user that an option means: "User:alice" is alice."""
    return None if text is None else text.removeprefix(USER_PREFIX)


def required(user: str | None, client_id: str | None) -> tuple[str | None, str | None]:
    """Return whose quota is meant; a usage error if the options do not say."""
    if user is None and client_id is None:
        raise typer.BadParameter("say whose quota: --user, --client-id or both")
    return user_of(user), client_id


def text_of(quota: "QuotaDescription") -> str:
    """Return the quota in words: "user alice: request_rate=100"."""
    parts = [("user", quota.user), ("client id", quota.client_id)]
    named = " and ".join(f"{kind} {name}" for kind, name in parts if name is not None)
    return f"{named}: {limits_text(quota.limits) or 'no quota'}"


def limits_text(limits: "Mapping[str, int]") -> str:
    return ", ".join(f"{key}={value}" for key, value in limits.items())
