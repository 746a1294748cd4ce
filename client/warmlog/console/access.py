"""Users, rights and quotas: shown and changed, for those who may."""

from collections.abc import Sequence
from shlex import quote
from typing import cast

from msgspec.structs import asdict

from warmlog.admin.access.acls import Acl, AclFields
from warmlog.cli.commands.access.acl import text_of
from warmlog.cli.commands.access.quota import limits_text
from warmlog.cli.terminal.tables import Instant
from warmlog.console import page as pages
from warmlog.console.page import Change, Page, Values

REFRESH_S = 10.0
RULE = {"Principal": "User:", "Operation": "read", "topic, group, transactional_id or cluster": "topic"}
RULE |= {"Name; * at its end: all that begin so": "", "allow or deny": "allow"}


def add() -> None:
    pages.add("/access", build)


async def build(page: Page) -> None:
    admin = page.admin

    async def users() -> Sequence[Values]:
        return [
            (
                each.name,
                "token" if each.is_token else "password",
                ", ".join(each.mechanisms),
                Instant(each.changed.timestamp() * 1000),
            )
            for each in await admin.list_users()
        ]

    async def rules() -> Sequence[Values]:
        return [
            (
                each.principal,
                "allow" if each.is_allowed else "deny",
                each.operation,
                each.resource_type,
                f"{each.name}{'…' if each.is_prefix else ''}",
            )
            for each in await admin.describe_acls()
        ]

    async def quotas() -> Sequence[Values]:
        return [(each.user, each.client_id, limits_text(each.limits)) for each in await admin.describe_quotas()]

    async def add_rule(*given: str) -> None:
        await admin.create_acls([_rule(*given)])

    async def delete_rule(*given: str) -> None:
        await admin.delete_acls(**_filter(*given))

    async def rules_lost(*given: str) -> str:
        found = await admin.describe_acls(**_filter(*given))
        if not found:
            raise ValueError("no rule fits")
        return f"These are gone: {'; '.join(map(text_of, found))}."

    async def set_quota(user: str, client_id: str, name: str, value: str) -> None:
        await admin.alter_quotas({name: int(value) if value else None}, user=user or None, client_id=client_id or None)

    page.table("Users", "User,Kind,Mechanisms,Changed", users)
    user = {"Name": "", "Password": ""}
    page.changes(
        Change("Add user", user, lambda name, _: f"user add {quote(name)}", admin.create_user),
        Change(
            "New password",
            user,
            lambda name, _: f"user rotate {quote(name)}",
            admin.rotate_user,
            lambda name, _: f"The present password of {name} is valid for one more day.",
        ),
        Change(
            "Delete user",
            {"Name": ""},
            lambda name: f"user delete {quote(name)}",
            admin.delete_user,
            lambda name: f"The connections of {name} end, and it cannot log in any more.",
        ),
    )
    page.table("Rights", "Principal,Rule,Operation,Resource,Name", rules)
    page.changes(
        Change("Add right", RULE, lambda *given: _command("add", *given), add_rule),
        Change("Delete right", RULE, lambda *given: _command("delete", *given), delete_rule, rules_lost),
    )
    page.table("Quotas", "User,Client id,Limits", quotas)
    page.changes(
        Change(
            "Set quota",
            {"User": "", "Client id": "", "Limit": "producer_byte_rate", "Value, none if empty": ""},
            lambda user, client_id, name, value: (
                f"quota {f'set {name}={value}' if value else f'delete {name}'}"
                f"{f' --user {quote(user)}' if user else ''}{f' --client-id {quote(client_id)}' if client_id else ''}"
            ),
            set_quota,
        )
    )
    page.start(REFRESH_S)


def _rule(principal: str, operation: str, resource: str, name: str, kind: str) -> Acl:
    """Return the rule that was typed; ValueError if it does not say which one."""
    if kind not in ("allow", "deny"):
        raise ValueError(f"{kind!r} is neither allow nor deny")
    if not name and resource != "cluster":
        raise ValueError(f"name the {resource}; * stands for all")
    is_prefix = name.endswith("*") and name != "*"
    name = name.removesuffix("*") if is_prefix else name
    return Acl(principal, operation, resource, name, is_prefix=is_prefix, is_allowed=kind == "allow")


def _filter(*given: str) -> AclFields:
    rule = asdict(_rule(*given))
    return cast("AclFields", {**rule, "name": rule["name"] or None})


def _command(verb: str, *given: str) -> str:
    rule = _rule(*given)
    flags = (" --prefix" if rule.is_prefix else "") + ("" if rule.is_allowed else " --deny")
    whom = f"{quote(rule.principal)} {rule.operation}"
    if verb == "delete":
        flags = f" --{'' if rule.is_prefix else 'no-'}prefix --{'allow' if rule.is_allowed else 'deny'}"
        whom = f"--principal {quote(rule.principal)} --operation {rule.operation}"
    resource = f"--{rule.resource_type.replace('_', '-')}"
    if rule.resource_type != "cluster":
        resource += f" {quote(rule.name)}"
    return f"acl {verb} {whom} {resource}{flags}"
