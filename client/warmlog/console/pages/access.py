"""Users, rights and quotas: shown and changed, for those who may."""

from collections.abc import Sequence
from typing import cast

from msgspec.structs import asdict
from nicegui import ui

from warmlog.admin.access.acls import Acl, AclFields
from warmlog.cli.commands.access import acl, quota, user
from warmlog.console.page import Page, page_at
from warmlog.console.widgets import Values

RULE = {"Principal": "User:", "Operation": "read", "topic, group, transactional_id or cluster": "topic"}
RULE |= {"Name; * at its end: all that begin so": "", "allow or deny": "allow"}


@page_at("/access", every_s=10)
async def access(page: Page) -> None:
    admin = page.admin

    async def users() -> Sequence[Values]:
        return list(map(user.user_row, await admin.list_users()))

    async def rules() -> Sequence[Values]:
        return list(map(acl.rule_row, await admin.describe_acls()))

    async def quotas() -> Sequence[Values]:
        return list(map(quota.quota_row, await admin.describe_quotas()))

    async def rules_lost(*given: str) -> str:
        found = await admin.describe_acls(**filter_of(*given))
        if not found:
            raise ValueError("no rule fits")
        return f"These are gone: {'; '.join(map(acl.text_of, found))}."

    page.table("Users", user.HEADINGS, users)
    login = {"Name": "", "Password": ""}
    with ui.row():
        page.change("Add user", login, lambda name, _: ["user", "add", name], admin.create_user)
        page.change(
            "New password",
            login,
            lambda name, _: ["user", "rotate", name],
            admin.rotate_user,
            lambda name, _: f"The present password of {name} is valid for one more day.",
        )
        page.change(
            "Delete user",
            {"Name": ""},
            lambda name: ["user", "delete", name],
            admin.delete_user,
            lambda name: f"The connections of {name} end, and it cannot log in any more.",
        )
    page.table("Rights", acl.HEADINGS, rules)
    with ui.row():
        page.change(
            "Add right", RULE, lambda *given: command("add", *given), lambda *given: admin.create_acls([rule(*given)])
        )
        page.change(
            "Delete right",
            RULE,
            lambda *given: command("delete", *given),
            lambda *given: admin.delete_acls(**filter_of(*given)),
            rules_lost,
        )
    page.table("Quotas", quota.HEADINGS, quotas)
    page.change(
        "Set quota",
        {"User": "", "Client id": "", "Limit": "producer_byte_rate", "Value, none if empty": ""},
        quota_command,
        lambda name, client_id, limit, value: admin.alter_quotas(
            {limit: int(value) if value else None}, user=name or None, client_id=client_id or None
        ),
    )


def rule(principal: str, operation: str, resource: str, name: str, kind: str) -> Acl:
    """Return the rule that was typed; ValueError if it does not say which one."""
    if kind not in ("allow", "deny"):
        raise ValueError(f"{kind!r} is neither allow nor deny")
    if not name and resource != "cluster":
        raise ValueError(f"name the {resource}; * stands for all")
    is_prefix = name.endswith("*") and name != "*"
    name = name.removesuffix("*") if is_prefix else name
    return Acl(principal, operation, resource, name, is_prefix=is_prefix, is_allowed=kind == "allow")


def filter_of(*given: str) -> AclFields:
    """Return the fields of the rule that was typed, which no other has."""
    fields = asdict(rule(*given))
    return cast("AclFields", {**fields, "name": fields["name"] or None})


def command(verb: str, *given: str) -> list[str]:
    """Return the words of `warmlog acl add` or `delete`."""
    meant = rule(*given)
    if verb == "add":
        words = [meant.principal, meant.operation]
        flags = [*["--prefix"] * meant.is_prefix, *["--deny"] * (not meant.is_allowed)]
    else:
        words = ["--principal", meant.principal, "--operation", meant.operation]
        flags = [f"--{'' if meant.is_prefix else 'no-'}prefix", f"--{'allow' if meant.is_allowed else 'deny'}"]
    names = [] if meant.resource_type == "cluster" else [meant.name]
    return ["acl", verb, *words, f"--{meant.resource_type.replace('_', '-')}", *names, *flags]


def quota_command(name: str, client_id: str, limit: str, value: str) -> list[str]:
    """Return the words of `warmlog quota set` or `delete`."""
    whose = [*(["--user", name] if name else []), *(["--client-id", client_id] if client_id else [])]
    return ["quota", *(["set", f"{limit}={value}"] if value else ["delete", limit]), *whose]
