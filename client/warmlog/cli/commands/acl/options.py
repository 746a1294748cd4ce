"""The options of `warmlog acl` that say which rules are meant."""

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

import typer

if TYPE_CHECKING:
    from warmlog.admin.access.acls import AclFields

USER_PREFIX = "User:"

OperationName = Literal[
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
]

OPERATIONS: tuple[str, ...] = get_args(OperationName)


def principal_of(text: str) -> str:
    """Return the principal that an argument means: "alice" is User:alice."""
    return text if text.startswith(USER_PREFIX) else USER_PREFIX + text


Principal = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL",
        help="User:NAME, or NAME alone; User:ANONYMOUS is a client that has not authenticated, '*' is everyone.",
        show_default=False,
        callback=principal_of,
    ),
]
OfPrincipal = Annotated[
    str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only rules for this one.", show_default=False)
]
OfOperation = Annotated[
    OperationName | None,
    typer.Option("--operation", metavar="OPERATION", help="Only rules about this operation.", show_default=False),
]
TopicNames = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME", help="A topic, or '*' for all of them.", show_default=False),
]
GroupNames = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="NAME", help="A consumer group, or '*'.", show_default=False),
]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="A transactional id, or '*'.", show_default=False),
]
IsCluster = Annotated[bool, typer.Option("--cluster", help="The cluster: its users, rights, and settings.")]


class Resource(NamedTuple):
    """A resource that an option names; `name` is "" for the cluster."""

    resource_type: str
    name: str


def resources_of(
    topics: list[str] | None, groups: list[str] | None, transactional_ids: list[str] | None, is_cluster: bool
) -> list[Resource]:
    """Return what the options name, in their order."""
    return [
        *(Resource("topic", name) for name in topics or ()),
        *(Resource("group", name) for name in groups or ()),
        *(Resource("transactional_id", name) for name in transactional_ids or ()),
        *([Resource("cluster", "")] if is_cluster else []),
    ]


def required(resources: list[Resource]) -> list[Resource]:
    """Return the resources; a usage error if there are none."""
    if not resources:
        raise typer.BadParameter("name what the rule is about: --topic, --group, --transactional-id or --cluster")
    return resources


def chosen(principal: str | None, operation: str | None, resource: Resource | None) -> "AclFields":
    """Return what rules must have to be those that the options mean."""
    return {
        "principal": None if principal is None else principal_of(principal),
        "operation": operation,
        "resource_type": None if resource is None else resource.resource_type,
        "name": (None if resource is None else resource.name) or None,
    }


def optional(resources: list[Resource]) -> Resource | None:
    """Return the only resource, if there is one; a usage error if there are several."""
    if len(resources) > 1:
        raise typer.BadParameter("name one of --topic, --group, --transactional-id and --cluster, once")
    return resources[0] if resources else None
