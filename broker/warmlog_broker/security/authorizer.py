"""The rights of a running broker: who may do what, and the rules about that, facts of the cluster.

A decision is remembered until a rule changes. `acl_entry`, `selected` and `check` are also for a stopped broker.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.broker_settings import Authorization
from warmlog_broker.metadata.metadata_log import AclsCreated, AclsDeleted, ClusterState
from warmlog_broker.metadata.store import ClusterStore, Version, retried
from warmlog_broker.security import rights
from warmlog_protocol.errors import ApiError, InvalidRequest
from warmlog_protocol.messages import AclBinding, AclFilter, CheckAclRequest, CheckAclResponse, Operation, ResourceType

MAX_ACLS = 10_000
"""Each takes some 300 bytes of memory, and of the metadata log."""
MAX_NEW_ACLS = 1000
"""In one request: they are one entry of the metadata log."""
MAX_FILTERS = 20
"""In one request: each is compared with all rules, in up to 5 ms."""
MAX_DECISIONS = 20_000
"""Some 5 MB; a client that names more resources has them decided again."""
MAX_REMEMBERED_NAME = 255

_log = logging.getLogger(__name__)


def acl_entry(state: ClusterState, wanted: Sequence[AclBinding]) -> tuple[AclsCreated | None, list[ApiError | None]]:
    """Return the entry that adds the rules that are not there, None if all are, and why each is refused, if it is.

    InvalidRequest if they are too many.
    """
    _check_count(wanted, "rules", MAX_NEW_ACLS)
    errors: list[ApiError | None] = []
    added: dict[AclBinding, None] = {}
    for rule in wanted:
        reason = rights.why_unacceptable(rule)
        if not reason and rule not in state.acls:
            if len(state.acls) + len(added) < MAX_ACLS:
                added[rule] = None
            else:
                reason = f"there are {MAX_ACLS} rules, as many as a broker holds: use prefixes, or * for all"
        errors.append(InvalidRequest(reason) if reason else None)
    return AclsCreated(list(added)) if added else None, errors


def selected(rules: Iterable[AclBinding], wanted: Sequence[AclFilter]) -> list[AclBinding]:
    """Return the rules that any of the filters fits, in order. InvalidRequest if there are too many filters."""
    _check_count(wanted, "filters", MAX_FILTERS)
    found = [rule for rule in rules if any(rights.fits(rule, each) for each in wanted)]
    return sorted(found, key=lambda r: (r.resource_type, r.name, r.is_prefix, r.principal, r.operation))


def _check_count(wanted: Sequence[object], what: str, limit: int) -> None:
    if len(wanted) > limit:
        raise InvalidRequest(f"{len(wanted)} {what} in one request, {limit} are allowed")


class Authorizer:
    """The rights in a cluster."""

    def __init__(self, store: ClusterStore, config: BrokerConfig) -> None:
        self.is_on = config.authorization == Authorization.ACL
        """Whether requests are checked at all."""
        self.on_changed: list[Callable[[], None]] = []
        """Called after rules have changed."""
        self._store = store
        self._super_users: Collection[str] = frozenset(config.super_user_principals)
        self._allows_without_rules = config.allow_everyone_if_no_acl_found
        self._rights = rights.Rights(store.state.acls, allows_without_rules=self._allows_without_rules)
        self._decisions: dict[tuple[str, int, str | None], rights.Operations] = {}
        if self.is_on:
            rules = self._store.state.acls
            _log.info("requests are checked by %d rules and %d super users", len(rules), len(self._super_users))
            altering = {Operation.ALTER, Operation.ALL}
            if not self._super_users and not any(
                rule.is_allowed and rule.resource_type == ResourceType.CLUSTER and rule.operation in altering
                for rule in rules
            ):
                _log.warning(
                    "no principal may change rights: stop the broker, and give one the right with "
                    "`warmlog acl add User:NAME all --cluster --data-dir DIR`, or set super.users"
                )

    def may(self, principal: str, operation: Operation, resource_type: ResourceType, name: str | None) -> bool:
        """Return whether the principal may do this to the resource; to any of its type, if `name` is None.

        Everything is allowed if requests are not checked.
        """
        if not self.is_on:
            return True
        operations = self._decisions.get((principal, resource_type, name))
        if operations is None:
            operations = self._decide(principal, resource_type, name)
        return operations >> operation & 1 != 0

    def _decide(self, principal: str, resource_type: int, name: str | None) -> rights.Operations:
        if principal in self._super_users:
            operations = rights.EVERY_OPERATION
        elif name is None:
            operations = self._rights.operations_on_any(principal, resource_type)
        else:
            operations = self._rights.operations(principal, resource_type, name)
        if name is None or len(name) <= MAX_REMEMBERED_NAME:
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[principal, resource_type, name] = operations
        return operations

    def is_denied_by_rule(
        self, principal: str, operation: Operation, resource_type: ResourceType, name: str | None
    ) -> bool:
        """Return whether what is refused is denied by a rule, rather than that none allows it."""
        return name is not None and self._rights.is_denied(principal, operation, resource_type, name)

    def check(self, asked: CheckAclRequest) -> CheckAclResponse:
        """Return the decision about a hypothetical request, and why. InvalidRequest."""
        rule = AclBinding(asked.principal, asked.operation, asked.resource_type, asked.name)
        if reason := rights.why_unacceptable(rule):
            raise InvalidRequest(reason)
        if asked.operation == Operation.ALL:
            raise InvalidRequest("ask for one operation at a time, not for ALL")
        kind, operation = ResourceType(asked.resource_type), Operation(asked.operation)
        concerned = [rule for rule in self._store.state.acls if rights.concerns(rule, kind, asked.name)]
        deciding = rights.decided_by(concerned, asked.principal, operation)
        is_allowed = self._decide(asked.principal, kind, asked.name) >> operation & 1 != 0
        if asked.principal in self._super_users:
            deciding, reason = [], "it is one of super.users"
        elif deciding:
            reason = "a rule allows it" if is_allowed else "a rule denies it"
        elif is_allowed:
            reason = "no rule concerns the resource, and allow.everyone.if.no.acl.found is set"
        else:
            reason = "no rule allows it"
        if not self.is_on:
            outcome = "allowed" if is_allowed else "refused"
            is_allowed, reason = True, f"authorization=none allows everything; with acl it is {outcome}: {reason}"
        return CheckAclResponse(is_allowed, reason, deciding)

    def described(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the rules that the filter fits."""
        return selected(self._store.state.acls, [wanted])

    async def create(self, wanted: Sequence[AclBinding], by: str) -> list[ApiError | None]:
        """Add rules durably; return why each is refused, if it is. `by` is the principal, for the log."""

        async def attempt(version: Version) -> list[ApiError | None]:
            entry, errors = acl_entry(self._store.state, wanted)
            if entry is not None:
                await self._store.commit([entry], expected=version)
                for rule in entry.rules:
                    _log.info("%s has added the rule: %s", by, text_of(rule))
                self.rules_changed()
            return errors

        return await retried(self._store, attempt)

    async def delete(self, wanted: Sequence[AclFilter], by: str) -> list[AclBinding]:
        """Remove the rules that any of the filters fits, durably, and return them."""

        async def attempt(version: Version) -> list[AclBinding]:
            rules = selected(self._store.state.acls, wanted)
            if rules:
                await self._store.commit([AclsDeleted(rules)], expected=version)
                for rule in rules:
                    _log.info("%s has removed the rule: %s", by, text_of(rule))
                self.rules_changed()
            return rules

        return await retried(self._store, attempt)

    def rules_changed(self) -> None:
        """Decide by the rules that the store has now, which another broker may have changed."""
        self._rights = rights.Rights(self._store.state.acls, allows_without_rules=self._allows_without_rules)
        self._decisions.clear()
        for on_changed in self.on_changed:
            on_changed()


def text_of(rule: AclBinding) -> str:
    """Return the rule in words: "allow User:alice READ on topic 'orders'"."""
    verb = "allow" if rule.is_allowed else "deny"
    what = f"{Operation(rule.operation).name} on {resource_text(rule.resource_type, rule.name)}"
    return f"{verb} {rule.principal} {what}{' as a prefix' if rule.is_prefix else ''}"


def resource_text(resource_type: int, name: str | None) -> str:
    """Return the resource in words: "topic 'orders'", "the cluster", "any topic"."""
    kind = ResourceType(resource_type).name.lower().replace("_", " ")
    if resource_type == ResourceType.CLUSTER:
        return "the cluster"
    return f"any {kind}" if name is None else f"{kind} {name!r}"
