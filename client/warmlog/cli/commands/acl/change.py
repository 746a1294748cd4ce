"""`warmlog acl add` and `delete`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.commands.acl.options import (
    OPERATIONS,
    GroupNames,
    IsCluster,
    OfOperation,
    OfPrincipal,
    Principal,
    TopicNames,
    TransactionalIds,
    chosen,
    optional,
    required,
    resources_of,
)
from warmlog.cli.commands.acl.show import rule_table, text_of
from warmlog.cli.commands.user.change import DataDir
from warmlog.cli.terminal.exits import CommandFailed, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, IsCertain, run_admin
from warmlog.cli.terminal.output import confirmed, counted, json_line, note

if TYPE_CHECKING:
    from warmlog.admin.access.acls import AclFields


@ends_cleanly
def add(
    principal: Principal,
    operations: Annotated[
        list[str],
        typer.Argument(metavar="OPERATION", help=f"What it may do: {', '.join(OPERATIONS)}.", show_default=False),
    ],
    topics: TopicNames = None,
    groups: GroupNames = None,
    transactional_ids: TransactionalIds = None,
    is_cluster: IsCluster = False,
    is_prefix: Annotated[bool, typer.Option("--prefix", help="The names are how names begin.")] = False,
    is_denied: Annotated[bool, typer.Option("--deny", help="Deny it; that wins over rules that allow it.")] = False,
    data_dir: DataDir = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Allow a principal operations on topics, groups or the cluster: a rule for each operation and resource."""
    from warmlog.admin.access.acls import Acl, binding_of

    for operation in operations:
        if operation not in OPERATIONS:
            raise typer.BadParameter(f"{operation!r}: one of {', '.join(OPERATIONS)}", param_hint="OPERATION")
    resources = required(resources_of(topics, groups, transactional_ids, is_cluster))
    acls = [
        Acl(principal, operation, *resource, is_prefix=is_prefix, is_allowed=not is_denied)
        for resource in resources
        for operation in operations
    ]
    if data_dir is None:
        run_admin(broker, lambda admin: admin.create_acls(acls))
    else:
        from warmlog_broker.tools.acls import create_acls

        create_acls(data_dir, [binding_of(acl) for acl in acls])
    for _, name in resources:
        if name[1:].endswith("*") and not is_prefix:
            note(f"{name} is one name: for all that begin so give {name[:-1]} and --prefix")
    if as_json:
        json_line(acls)
        return
    for acl in acls:
        note(f"added: {text_of(acl)}")


@ends_cleanly
def delete(
    principal: OfPrincipal = None,
    operation: OfOperation = None,
    topics: TopicNames = None,
    groups: GroupNames = None,
    transactional_ids: TransactionalIds = None,
    is_cluster: IsCluster = False,
    is_prefix: Annotated[
        bool | None, typer.Option("--prefix/--no-prefix", help="Only rules for prefixes, or only others.")
    ] = None,
    is_denied: Annotated[
        bool | None, typer.Option("--deny/--allow", help="Only rules that deny, or only those that allow.")
    ] = None,
    is_certain: IsCertain = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Remove the rules that all these options fit. Shows them, and asks for confirmation on a terminal."""
    resource = optional(resources_of(topics, groups, transactional_ids, is_cluster))
    wanted: AclFields = {
        **chosen(principal, operation, resource),
        "is_prefix": is_prefix,
        "is_allowed": None if is_denied is None else not is_denied,
    }
    if all(value is None for value in wanted.values()):
        raise typer.BadParameter("say which rules to remove, for example --principal or --topic")
    if not is_certain and sys.stdin.isatty():
        found = run_admin(broker, lambda admin: admin.describe_acls(**wanted))
        rule_table(found)
        if found and not confirmed(f"Delete {counted(len(found), 'rule')}?"):
            raise CommandFailed("the rules were not deleted")
    acls = run_admin(broker, lambda admin: admin.delete_acls(**wanted))
    if as_json:
        json_line(acls)
        return
    for acl in acls:
        note(f"deleted: {text_of(acl)}")
    if not acls:
        note("no rule fits")
