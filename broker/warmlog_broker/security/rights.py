"""The decision about rights: principal, operation and resource in, allowed or not out. Pure.

A rule (`AclBinding`) concerns a resource by its name, by a prefix of it, or as `*`. Of those that concern resource and
principal, a rule that denies the operation wins over all that allow it; without one that allows it, it is refused. As
in Kafka, READ, WRITE, DELETE and ALTER allow DESCRIBE as well, and ALTER_CONFIGS allows DESCRIBE_CONFIGS; to deny them
denies nothing else.

The rules are indexed by the resource that they name, and within that by principal, each as two sets of operations. A
decision looks up the name, `*`, and the prefixes of the name that have a length for which there is a rule.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from warmlog_broker.metadata.topic_names import check_topic_name
from warmlog_protocol import messages as m
from warmlog_protocol.errors import InvalidTopic

Operations = int
"""A set of operations: the sum of 1 << operation."""
MAX_NAME_CHARACTERS = 255
MAX_PRINCIPAL_CHARACTERS = 1024
"""A distinguished name is long."""

NO_OPERATIONS: Operations = 0
EVERY_OPERATION: Operations = sum(1 << operation for operation in m.Operation if operation is not m.Operation.ALL)
_CONCERNED = {
    m.ResourceType.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    m.ResourceType.GROUP: "READ DELETE DESCRIBE",
    m.ResourceType.CLUSTER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE",
    m.ResourceType.TRANSACTIONAL_ID: "WRITE DESCRIBE",
}
OPERATIONS_ON = {
    kind: (m.Operation.ALL, *(m.Operation[name] for name in names.split())) for kind, names in _CONCERNED.items()
}
"""The operations that rules for each type of resource may name."""

Resource = tuple[int, bool, str]
"""What a rule names: the type, whether the name is a prefix, the name."""


def _set_of(*operations: m.Operation) -> Operations:
    return sum(1 << operation for operation in operations)


_ALL = _set_of(m.Operation.ALL)
_DESCRIBING = _set_of(m.Operation.READ, m.Operation.WRITE, m.Operation.DELETE, m.Operation.ALTER)
_DESCRIBE = _set_of(m.Operation.DESCRIBE)
_ALTER_CONFIGS = _set_of(m.Operation.ALTER_CONFIGS)
_DESCRIBE_CONFIGS = _set_of(m.Operation.DESCRIBE_CONFIGS)


def _effective(allowed: Operations, denied: Operations) -> Operations:
    """Return what rules that allow and deny these operations permit in the end."""
    if denied & _ALL:
        return NO_OPERATIONS
    if allowed & _ALL:
        allowed = EVERY_OPERATION
    if allowed & _DESCRIBING:
        allowed |= _DESCRIBE
    if allowed & _ALTER_CONFIGS:
        allowed |= _DESCRIBE_CONFIGS
    return allowed & ~denied & ~_ALL


class _OnResource(Struct):
    """The operations that are allowed and denied on a resource, by principal."""

    allowed: dict[str, Operations] = field(default_factory=dict)
    denied: dict[str, Operations] = field(default_factory=dict)


class Rights:
    """The rules, indexed: some 20 ms for 10,000."""

    def __init__(self, rules: Iterable[m.AclBinding] = (), *, allows_without_rules: bool = False) -> None:
        """`allows_without_rules`: everything is allowed on a resource that no rule of any principal concerns, but not
        on the cluster: a principal that may alter it can give itself all other rights."""
        self._allows_without_rules = allows_without_rules
        self._index: dict[Resource, _OnResource] = {}
        self._prefix_lengths: dict[int, set[int]] = {}
        """The lengths of the prefixes, by type."""
        for rule in rules:
            resource = rule.resource_type, rule.is_prefix, rule.name
            found = self._index.get(resource)
            if found is None:
                found = self._index[resource] = _OnResource()
                if rule.is_prefix:
                    self._prefix_lengths.setdefault(rule.resource_type, set()).add(len(rule.name))
            operations = found.allowed if rule.is_allowed else found.denied
            operations[rule.principal] = operations.get(rule.principal, NO_OPERATIONS) | 1 << rule.operation

    def operations(self, principal: str, resource_type: int, name: str) -> Operations:
        """Return what the principal may do with the resource."""
        return self._operations(principal, (resource_type, False, name))

    def is_denied(self, principal: str, operation: m.Operation, resource_type: int, name: str) -> bool:
        """Return whether a rule denies this, rather than that none allows it."""
        covering = self._covering((resource_type, False, name))
        return any(_of_principal(each.denied, principal) & (1 << operation | _ALL) for each in covering)

    def operations_on_any(self, principal: str, resource_type: int) -> Operations:
        """Return what the principal may do with at least one name of this type, whether or not it exists."""
        found = self._operations(principal, (resource_type, False, m.ANY_NAME))
        for resource, on_resource in self._index.items():
            if resource[0] == resource_type and _of_principal(on_resource.allowed, principal):
                found |= self._operations(principal, resource)
        return found

    def _operations(self, principal: str, resource: Resource) -> Operations:
        """Return what the principal may do with all names that `resource` stands for."""
        covering = list(self._covering(resource))
        if not covering and self._allows_without_rules and resource[0] != m.ResourceType.CLUSTER:
            return EVERY_OPERATION
        allowed = denied = NO_OPERATIONS
        for each in covering:
            allowed |= _of_principal(each.allowed, principal)
            denied |= _of_principal(each.denied, principal)
        return _effective(allowed, denied)

    def _covering(self, resource: Resource) -> Iterator[_OnResource]:
        """Yield the entries that concern all names that `resource` stands for."""
        resource_type, is_prefix, name = resource
        index = self._index
        if not is_prefix and (exact := index.get(resource)) is not None:
            yield exact
        if (is_prefix or name != m.ANY_NAME) and (every := index.get((resource_type, False, m.ANY_NAME))) is not None:
            yield every
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name) and (prefix := index.get((resource_type, True, name[:length]))) is not None:
                yield prefix


def _of_principal(operations: dict[str, Operations], principal: str) -> Operations:
    return operations.get(principal, NO_OPERATIONS) | operations.get(m.ANY_PRINCIPAL, NO_OPERATIONS)


def concerns(rule: m.AclBinding, resource_type: int, name: str) -> bool:
    if rule.resource_type != resource_type:
        return False
    return name.startswith(rule.name) if rule.is_prefix else rule.name in (name, m.ANY_NAME)


def fits(rule: m.AclBinding, wanted: m.AclFilter) -> bool:
    if wanted.is_matching and wanted.name is not None:
        has_name = concerns(rule, rule.resource_type, wanted.name)
    else:
        has_name = wanted.name in (None, rule.name)
    return (
        has_name
        and wanted.principal in (None, rule.principal)
        and wanted.operation in (None, rule.operation)
        and wanted.resource_type in (None, rule.resource_type)
        and wanted.is_prefix in (None, rule.is_prefix)
        and wanted.is_allowed in (None, rule.is_allowed)
    )


def decided_by(rules: Iterable[m.AclBinding], principal: str, operation: int) -> list[m.AclBinding]:
    """Return those of the rules about one resource that decide: those that deny, else those that allow."""
    own = [rule for rule in rules if rule.principal in (principal, m.ANY_PRINCIPAL)]
    wanted = 1 << operation
    denying = [rule for rule in own if not rule.is_allowed and rule.operation in (operation, m.Operation.ALL)]
    return denying or [rule for rule in own if rule.is_allowed and _effective(1 << rule.operation, 0) & wanted]


def why_unacceptable(rule: m.AclBinding) -> str:
    """Return why this cannot be a rule; empty if it can."""
    kind, name = rule.resource_type, rule.name
    if not is_principal(rule.principal):
        expected = f"{m.USER_PREFIX} and the name of a user was expected, or {m.ANY_PRINCIPAL}"
        return f"principal {rule.principal[:80]!r}: {expected}"
    if kind not in OPERATIONS_ON:
        return f"resource type {kind}: {', '.join(f'{each.value} ({each.name})' for each in OPERATIONS_ON)} exist"
    if rule.operation not in OPERATIONS_ON[m.ResourceType(kind)]:
        allowed = ", ".join(each.name for each in OPERATIONS_ON[m.ResourceType(kind)])
        shown = m.Operation(rule.operation).name if rule.operation in set(m.Operation) else rule.operation
        return f"operation {shown} on a {m.ResourceType(kind).name}: {allowed} exist"
    if kind == m.ResourceType.CLUSTER and (rule.is_prefix or name != m.CLUSTER_NAME):
        return f"the cluster is called {m.CLUSTER_NAME!r}, not {name[:80]!r}"
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        return f"a name of {len(name)} characters: 1 to {MAX_NAME_CHARACTERS} are allowed"
    if rule.is_prefix and name == m.ANY_NAME:
        return "* stands for all names: it is not a prefix"
    if kind == m.ResourceType.TOPIC and name != m.ANY_NAME:
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            return f"{error}; for all names that begin alike, give the beginning as a prefix"
    return ""


def is_principal(text: str) -> bool:
    return text.startswith(m.USER_PREFIX) and len(m.USER_PREFIX) < len(text) <= MAX_PRINCIPAL_CHARACTERS
