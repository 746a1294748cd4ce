"""`warmlog acl list` and `check`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.commands.acl.options import (
    GroupNames,
    IsCluster,
    OfOperation,
    OfPrincipal,
    OperationName,
    Principal,
    TopicNames,
    TransactionalIds,
    chosen,
    optional,
    required,
    resources_of,
)
from warmlog.cli.commands.user.change import DataDir
from warmlog.cli.terminal.exits import FAILED, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, run_admin
from warmlog.cli.terminal.output import json_line, line, table

if TYPE_CHECKING:
    from warmlog.admin.access.acls import Acl


@ends_cleanly
def list_acls(
    principal: OfPrincipal = None,
    operation: OfOperation = None,
    topics: TopicNames = None,
    groups: GroupNames = None,
    transactional_ids: TransactionalIds = None,
    is_cluster: IsCluster = False,
    is_matching: Annotated[
        bool, typer.Option("--matching", help="Also rules for prefixes of the name, and for all names.")
    ] = False,
    data_dir: DataDir = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """List the rules, or those that all these options fit."""
    from warmlog.admin.access.acls import acls_of, filter_of

    resource = optional(resources_of(topics, groups, transactional_ids, is_cluster))
    wanted = chosen(principal, operation, resource)
    if data_dir is None:
        acls = run_admin(broker, lambda admin: admin.describe_acls(is_matching=is_matching, **wanted))
    else:
        from warmlog_broker.tools.acls import acls_in

        acls = acls_of(acls_in(data_dir, filter_of(is_matching=is_matching, **wanted)))
    if as_json:
        json_line(acls)
    else:
        rule_table(acls)


@ends_cleanly
def check(
    principal: Principal,
    operation: Annotated[OperationName, typer.Argument(metavar="OPERATION", show_default=False)],
    topics: TopicNames = None,
    groups: GroupNames = None,
    transactional_ids: TransactionalIds = None,
    is_cluster: IsCluster = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Tell whether a principal may do something, and why. The exit code is 1 if it may not."""
    resource = optional(required(resources_of(topics, groups, transactional_ids, is_cluster)))
    assert resource is not None
    decision = run_admin(broker, lambda admin: admin.check_acl(principal, operation, *resource))
    if as_json:
        json_line(decision)
    else:
        line(f"{'allowed' if decision.is_allowed else 'refused'}: {decision.reason}")
        for acl in decision.acls:
            line(f"  {text_of(acl)}")
    if not decision.is_allowed:
        raise typer.Exit(FAILED)


def rule_table(acls: "Sequence[Acl]") -> None:
    """Print the rules."""
    rows = [
        (acl.resource_type, f"{acl.name}…" if acl.is_prefix else acl.name, acl.principal, _verb(acl), acl.operation)
        for acl in acls
    ]
    table(("resource", "name", "principal", "rule", "operation"), rows)


def text_of(acl: "Acl") -> str:
    """Return the rule in words: "allow User:alice read on topic orders"."""
    named = f"{acl.resource_type} {acl.name}{'…' if acl.is_prefix else ''}"
    return f"{_verb(acl)} {acl.principal} {acl.operation} on {named.strip()}"


def _verb(acl: "Acl") -> str:
    return "allow" if acl.is_allowed else "deny"
