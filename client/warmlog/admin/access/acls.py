"""The part of the admin client for rights: rules about what principals may do."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypedDict, TypeVar, Unpack

from msgspec import Struct

from warmlog.admin.connected import Connected
from warmlog.texts import checked_text
from warmlog_protocol import messages as m
from warmlog_protocol.errors import did_you_mean
from warmlog_transport.responses import checked

E = TypeVar("E", bound=IntEnum)


class Acl(Struct, frozen=True):
    """A rule: it allows `principal` an operation on a resource, or denies it. One that denies wins.

    `principal` is "User:NAME", or "User:*" for all. `operation` is "read", "write", "create", "delete", "alter",
    "describe", "describe_configs", "alter_configs", "cluster_action", "idempotent_write" or "all"; `resource_type` is
    "topic", "group", "cluster" or "transactional_id". `name` is that of the resource, "*" for all of its type, or with
    `is_prefix` how their names begin; the cluster needs none.
    """

    principal: str
    operation: str
    resource_type: str
    name: str = ""
    is_prefix: bool = False
    is_allowed: bool = True


class AclFields(TypedDict, total=False):
    """The values of rules to look for, as in Acl; None fits all."""

    principal: str | None
    operation: str | None
    resource_type: str | None
    name: str | None
    is_prefix: bool | None
    is_allowed: bool | None


class AclDecision(Struct, frozen=True):
    """Whether a principal may do something, why, and the rules that decide it."""

    is_allowed: bool
    reason: str
    acls: list[Acl]


class AclAdmin(Connected):
    """Manages rights. The broker asks for them if its setting `authorization` is `acl`."""

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add rules; those that exist are left as they are. Durable and in force on return.

        Raises InvalidRequest for the first that cannot be a rule, ValueError for an unknown operation or resource type.
        """
        request = m.CreateAclsRequest([binding_of(acl) for acl in acls])
        response = await self.cluster.call(request, m.CreateAclsResponse)
        for result in response.results:
            checked(result)

    async def delete_acls(self, **fields: Unpack[AclFields]) -> list[Acl]:
        """Remove the rules that have all these values, and return them. Durable and in force on return.

        What is not given, or None, fits all. Raises ValueError if nothing is.
        """
        wanted = filter_of(**fields)
        if wanted == m.AclFilter():
            raise ValueError("say which rules to remove: a principal, an operation, or a resource")
        response = await self.cluster.call(m.DeleteAclsRequest([wanted]), m.DeleteAclsResponse)
        return acls_of(response.acls)

    async def describe_acls(self, *, is_matching: bool = False, **fields: Unpack[AclFields]) -> list[Acl]:
        """The rules that have all these values, sorted by resource; what is not given, or None, fits all.

        With `is_matching`, all rules that concern the resource called `name`: also those for prefixes, and for "*".
        """
        request = m.DescribeAclsRequest(filter_of(is_matching=is_matching, **fields))
        return acls_of((await self.cluster.call(request, m.DescribeAclsResponse)).acls)

    async def check_acl(self, principal: str, operation: str, resource_type: str, name: str = "") -> AclDecision:
        """Whether `principal`, which need not be the client's own, may do this, and why."""
        rule = binding_of(Acl(principal, operation, resource_type, name))
        request = m.CheckAclRequest(rule.principal, rule.operation, rule.resource_type, rule.name)
        response = await self.cluster.call(request, m.CheckAclResponse)
        return AclDecision(response.is_allowed, response.reason, acls_of(response.acls))


def binding_of(acl: Acl) -> m.AclBinding:
    """Return the rule as it is sent. ValueError, TypeError."""
    resource_type = _member(m.ResourceType, acl.resource_type, "resource type")
    name = checked_text(acl.name, "name")
    return m.AclBinding(
        checked_text(acl.principal, "principal"),
        _member(m.Operation, acl.operation, "operation"),
        resource_type,
        name or (m.CLUSTER_NAME if resource_type is m.ResourceType.CLUSTER else ""),
        acl.is_prefix,
        acl.is_allowed,
    )


def filter_of(
    *,
    principal: str | None = None,
    operation: str | None = None,
    resource_type: str | None = None,
    name: str | None = None,
    is_prefix: bool | None = None,
    is_allowed: bool | None = None,
    is_matching: bool = False,
) -> m.AclFilter:
    """Return the filter as it is sent. ValueError, TypeError."""
    return m.AclFilter(
        None if principal is None else checked_text(principal, "principal"),
        None if operation is None else _member(m.Operation, operation, "operation"),
        None if resource_type is None else _member(m.ResourceType, resource_type, "resource type"),
        None if name is None else checked_text(name, "name"),
        is_prefix,
        is_allowed,
        is_matching,
    )


def acls_of(rules: Sequence[m.AclBinding]) -> list[Acl]:
    """Return what the broker, or its metadata log, lists."""
    return [
        Acl(
            rule.principal,
            _text(m.Operation, rule.operation),
            _text(m.ResourceType, rule.resource_type),
            rule.name,
            rule.is_prefix,
            rule.is_allowed,
        )
        for rule in rules
    ]


def _member(kind: type[E], text: str, what: str) -> E:
    names = [each.name.lower() for each in kind]
    if checked_text(text, what) not in names:
        raise ValueError(f"{text!r} is no {what}{did_you_mean(text, names, 'there are')}")
    return kind[text.upper()]


def _text(kind: type[E], number: int) -> str:
    """Return the name of a number; a newer broker may have further ones."""
    return next((each.name.lower() for each in kind if each == number), str(number))
