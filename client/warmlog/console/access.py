"""Users, rights and quotas: shown and changed, for those who may."""

from collections.abc import Sequence
from shlex import quote

from warmlog.admin.access.acls import Acl
from warmlog.cli.commands.access.quota import limits_text
from warmlog.cli.terminal.tables import Instant
from warmlog.console import page as pages
from warmlog.console.page import Change, Page, Values

REFRESH_S = 10.0
RULE = {"Principal": "User:", "Operation": "read", "topic, group, transactional_id or cluster": "topic"}
RULE |= {"Name; * at its end: all that begin so": ""}


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
        rule = _rule(*given)
        deleted = await admin.delete_acls(
            principal=rule.principal,
            operation=rule.operation,
            resource_type=rule.resource_type,
            name=rule.name or None,
            is_prefix=rule.is_prefix,
        )
        if not deleted:
            raise ValueError("no rule fits")

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
        Change("Delete right", RULE, lambda *given: _command("delete", *given), delete_rule, "The right is gone."),
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


def _rule(principal: str, operation: str, resource: str, name: str) -> Acl:
    is_prefix = name.endswith("*") and name != "*"
    return Acl(principal, operation, resource, name.removesuffix("*") if is_prefix else name, is_prefix=is_prefix)


def _command(verb: str, *given: str) -> str:
    rule = _rule(*given)
    whom = f"{quote(rule.principal)} {rule.operation}"
    if verb == "delete":
        whom = f"--principal {quote(rule.principal)} --operation {rule.operation}"
    resource = f"--{rule.resource_type.replace('_', '-')}"
    if rule.resource_type != "cluster":
        resource += f" {quote(rule.name)}"
    return f"acl {verb} {whom} {resource}{' --prefix' if rule.is_prefix else ''}"
