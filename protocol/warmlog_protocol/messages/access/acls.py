"""The rights of principals: CreateAcls, DeleteAcls, DescribeAcls and CheckAcl. Numbers and names are Kafka's."""

from enum import IntEnum

from warmlog_protocol.messages.base import Int32, ItemResult, Message

ANY_NAME = "*"
"""The name in a rule for all resources of its type."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
USER_PREFIX = "User:"
"""Before the name of a user: with it, the name is a principal."""
ANY_PRINCIPAL = f"{USER_PREFIX}*"
"""The principal in a rule for all principals, those of clients that do not authenticate included."""


class ResourceType(IntEnum):
    """What a rule is about."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(IntEnum):
    """What is done to a resource. ALL, in a rule, is all of them."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class AclBinding(Message, frozen=True):
    """A rule: it allows `principal` an operation on a resource, or denies it if not `is_allowed`.

    `principal` is User:NAME, or User:* for all. `operation` and `resource_type` are numbers of Operation and
    ResourceType. `name` is that of the resource, * for all of its type, or with `is_prefix` how their names begin; the
    cluster is called kafka-cluster.
    """

    principal: str
    operation: Int32
    resource_type: Int32
    name: str
    is_prefix: bool = False
    is_allowed: bool = True


class AclFilter(Message, frozen=True):
    """Rules that have these values; None fits all.

    With `is_matching` all rules that concern the resource called `name`: also those for prefixes of it, and for *.
    """

    principal: str | None = None
    operation: Int32 | None = None
    resource_type: Int32 | None = None
    name: str | None = None
    is_prefix: bool | None = None
    is_allowed: bool | None = None
    is_matching: bool = False


class CreateAclsRequest(Message, frozen=True):
    """Add rules, durably; one that exists is left as it is. They are in force at once, also for open connections."""

    acls: list[AclBinding]


class CreateAclsResponse(Message, frozen=True):
    """One result for each rule, in the order of the request."""

    results: list[ItemResult]


class DeleteAclsRequest(Message, frozen=True):
    """Remove the rules that any of the filters fits, durably."""

    filters: list[AclFilter]


class DeleteAclsResponse(Message, frozen=True):
    """The rules that were removed."""

    acls: list[AclBinding]


class DescribeAclsRequest(Message, frozen=True):
    """Which rules fit the filter?"""

    filter: AclFilter


class DescribeAclsResponse(Message, frozen=True):
    """The rules, by type and name of the resource, and principal."""

    acls: list[AclBinding]


class CheckAclRequest(Message, frozen=True):
    """May `principal` do this? The connection's own principal does not count."""

    principal: str
    operation: Int32
    resource_type: Int32
    name: str


class CheckAclResponse(Message, frozen=True):
    """The decision as a request would meet it, why, and the rules that it follows from; none if no rule fits."""

    is_allowed: bool
    reason: str
    acls: list[AclBinding]
