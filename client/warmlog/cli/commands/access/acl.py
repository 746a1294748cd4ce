"""`warmlog acl add`, `list`, `delete` and `check`: what principals may do."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.exceptions import Exit

from warmlog.cli.commands.access import USER_PREFIX, data_dir_option, run_access
from warmlog.cli.terminal.exits import FAILED, confirm, must_ask
from warmlog.cli.terminal.options import certain_option, client_options, print_result, run_admin
from warmlog.cli.terminal.output import counted, line, note, table

if TYPE_CHECKING:
    from warmlog.admin.access.acls import Acl, AclFields

HEADINGS = ("resource", "name", "principal", "rule", "operation")
OPERATIONS = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "describe_configs",
    "alter_configs",
    "cluster_action",
    "idempotent_write",
)


def principal_of(text: str) -> str:
    """Return the principal that an argument means: "alice" is User:alice."""
    return text if text.startswith(USER_PREFIX) else USER_PREFIX + text


principal_argument = click.argument(
    "principal",
    metavar="PRINCIPAL",
    help="User:NAME, or NAME alone; User:ANONYMOUS is a client that has not authenticated, '*' is everyone.",
)
of_principal_option = click.option("--principal", metavar="PRINCIPAL", help="Only rules for this one.")
of_operation_option = click.option(
    "--operation", type=click.Choice(OPERATIONS), metavar="OPERATION", help="Only rules about this operation."
)


def resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name resources. The command gets them as `resources`."""
    options = (
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic, or '*' for all of them."),
        click.option("--group", "groups", multiple=True, metavar="NAME", help="A consumer group, or '*'."),
        click.option("--transactional-id", "ids", multiple=True, metavar="ID", help="A transactional id, or '*'."),
        click.option("--cluster", "is_cluster", is_flag=True, help="The cluster: its users, rights, and settings."),
    )

    @functools.wraps(command)
    def run(
        topics: tuple[str, ...], groups: tuple[str, ...], ids: tuple[str, ...], is_cluster: bool, **others: Any
    ) -> None:
        kinds = {"topic": topics, "group": groups, "transactional_id": ids, "cluster": [""] if is_cluster else []}
        command(resources=[Resource(kind, name) for kind, names in kinds.items() for name in names], **others)

    return functools.reduce(lambda inner, add: add(inner), reversed(options), run)


class Resource(NamedTuple):
    """A resource that an option names; `name` is "" for the cluster."""

    resource_type: str
    name: str


def required(resources: list[Resource]) -> list[Resource]:
    """Return the resources; a usage error if there are none."""
    if not resources:
        raise click.BadParameter("name what the rule is about: --topic, --group, --transactional-id or --cluster")
    return resources


def chosen(principal: str | None, operation: str | None, resources: list[Resource]) -> "AclFields":
    """Return what rules must have to be those that the options mean; a usage error for several resources."""
    resource_type, name = optional(resources) or (None, None)
    return {
        "principal": None if principal is None else principal_of(principal),
        "operation": operation,
        "resource_type": resource_type,
        "name": name or None,
    }


def optional(resources: list[Resource]) -> Resource | None:
    """Return the only resource, if there is one; a usage error if there are several."""
    if len(resources) > 1:
        raise click.BadParameter("name one of --topic, --group, --transactional-id and --cluster, once")
    return resources[0] if resources else None


@click.command()
@of_principal_option
@of_operation_option
@resource_options
@click.option("--matching", "is_matching", is_flag=True, help="Also rules for prefixes of the name, and for all names.")
@data_dir_option
@client_options
def list_acls(
    principal: str | None, operation: str | None, resources: list[Resource], is_matching: bool, data_dir: Path | None
) -> None:
    """List the rules, or those that all these options fit."""
    wanted = chosen(principal, operation, resources)
    acls = run_access(data_dir, lambda admin: admin.describe_acls(is_matching=is_matching, **wanted))
    print_result(acls, lambda: table(HEADINGS, list(map(rule_row, acls))))


@click.command()
@principal_argument
@click.argument("operation", type=click.Choice(OPERATIONS), metavar="OPERATION")
@resource_options
@client_options
def check(principal: str, operation: str, resources: list[Resource]) -> None:
    """Tell whether a principal may do something, and why. The exit code is 1 if it may not."""
    resource = optional(required(resources))
    assert resource is not None
    decision = run_admin(lambda admin: admin.check_acl(principal_of(principal), operation, *resource))
    said = [f"{'allowed' if decision.is_allowed else 'refused'}: {decision.reason}"]
    said += [f"  {text_of(acl)}" for acl in decision.acls]
    print_result(decision, lambda: line("\n".join(said)))
    if not decision.is_allowed:
        raise Exit(FAILED)


def note_each(done: str, acls: "Sequence[Acl]") -> None:
    for acl in acls:
        note(f"{done}: {text_of(acl)}")


def rule_row(acl: "Acl") -> tuple[str, ...]:
    name = f"{acl.name}{'…' if acl.is_prefix else ''}"
    return acl.resource_type, name, acl.principal, "allow" if acl.is_allowed else "deny", acl.operation


def text_of(acl: "Acl") -> str:
    """Return the rule in words: "allow User:alice read on topic orders"."""
    resource_type, name, principal, verb, operation = rule_row(acl)
    return f"{verb} {principal} {operation} on {resource_type} {name}".strip()


@click.command()
@principal_argument
@click.argument(
    "operations", nargs=-1, required=True, metavar="OPERATION...", help=f"What it may do: {', '.join(OPERATIONS)}."
)
@resource_options
@click.option("--prefix", "is_prefix", is_flag=True, help="The names are how names begin.")
@click.option("--deny", "is_denied", is_flag=True, help="Deny it; that wins over rules that allow it.")
@data_dir_option
@client_options
def add(
    principal: str,
    operations: tuple[str, ...],
    resources: list[Resource],
    is_prefix: bool,
    is_denied: bool,
    data_dir: Path | None,
) -> None:
    """Allow a principal operations on topics, groups or the cluster: a rule for each operation and resource."""
    from warmlog.admin.access.acls import Acl

    for operation in operations:
        if operation not in OPERATIONS:
            raise click.BadParameter(f"{operation!r}: one of {', '.join(OPERATIONS)}", param_hint="OPERATION")
    acls = [
        Acl(principal_of(principal), operation, *resource, is_prefix=is_prefix, is_allowed=not is_denied)
        for resource in required(resources)
        for operation in operations
    ]
    run_access(data_dir, lambda admin: admin.create_acls(acls))
    for _, name in resources:
        if name[1:].endswith("*") and not is_prefix:
            note(f"{name} is one name: for all that begin so give {name[:-1]} and --prefix")
    print_result(acls, lambda: note_each("added", acls))


@click.command()
@of_principal_option
@of_operation_option
@resource_options
@click.option("--prefix/--no-prefix", "is_prefix", default=None, help="Only rules for prefixes, or only others.")
@click.option("--deny/--allow", "is_denied", default=None, help="Only rules that deny, or only those that allow.")
@certain_option
@client_options
def delete(
    principal: str | None,
    operation: str | None,
    resources: list[Resource],
    is_prefix: bool | None,
    is_denied: bool | None,
    is_certain: bool,
) -> None:
    """Remove the rules that all these options fit. Shows them, and asks for confirmation, unless --yes is given."""
    wanted: AclFields = {
        **chosen(principal, operation, resources),
        "is_prefix": is_prefix,
        "is_allowed": None if is_denied is None else not is_denied,
    }
    if all(value is None for value in wanted.values()):
        raise click.BadParameter("say which rules to remove, for example --principal or --topic")
    if must_ask(is_certain=is_certain):
        found = run_admin(lambda admin: admin.describe_acls(**wanted))
        table(HEADINGS, list(map(rule_row, found)))
        confirm(f"Delete {counted(len(found), 'rule')}?", "the rules were not deleted", is_certain=not found)
    acls = run_admin(lambda admin: admin.delete_acls(**wanted))
    print_result(acls, lambda: note_each("deleted", acls) if acls else note("no rule fits"))
