"""ACLs, quotas and SCRAM users. Numbers of types, operations and permissions are those of Kafka's protocol.

Rules here are not about hosts: only the host * can be named. Of Kafka's quotas those of bytes are here.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from warmlog_broker.kafka.responses import answered, refused
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import RequestContext
from warmlog_broker.security.authorizer import MAX_FILTERS
from warmlog_protocol import messages as m
from warmlog_protocol.errors import (
    ApiError,
    DuplicateResource,
    InvalidRequest,
    ResourceNotFound,
    SecurityDisabled,
    UnsupportedSaslMechanism,
)
from warmlog_protocol.kafka.schema import API
from warmlog_protocol.sasl.credential import Credential

ANY = 1
"""Of whatever a filter may leave open."""
MATCH, LITERAL, PREFIXED = 2, 3, 4
DENY, ALLOW = 2, 3
EVERY_HOST = "*"
USER, CLIENT_ID = "user", "client-id"
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
QUOTA_KEYS = (m.QuotaKey.PRODUCER_BYTE_RATE, m.QuotaKey.CONSUMER_BYTE_RATE)
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}

_Acls = API["DescribeAcls"].response
_Deleted = API["DeleteAcls"].response
_Quotas = API["DescribeClientQuotas"].response
_Users = API["DescribeUserScramCredentials"].response
_AlteredUsers = API["AlterUserScramCredentials"].response


# --- rights ---------------------------------------------------------------------------------------------------


async def describe_acls(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Tell the rules that a filter fits."""
    _check_that_rights_are_on(kafka)
    wanted = _filter(request)
    rules = (await kafka.ask(context, m.DescribeAclsRequest(wanted))).acls if wanted is not None else []
    resources: dict[tuple[int, str, int], list[Any]] = {}
    for rule in rules:
        acl = _Acls.AclDescription(rule.principal, EVERY_HOST, rule.operation, ALLOW if rule.is_allowed else DENY)
        resources.setdefault((rule.resource_type, rule.name, _pattern(rule)), []).append(acl)
    return _Acls(
        error_message=None,
        resources=[_Acls.DescribeAclsResource(*resource, acls) for resource, acls in resources.items()],
    )


def _check_that_rights_are_on(kafka: Kafka) -> None:
    if not kafka.services.authorizer.is_on:
        raise SecurityDisabled("rights are not checked here: authorization=acl turns that on")


def _filter(of_kafka: Any) -> m.AclFilter | None:
    """Return the filter as warmlog has it, None if it fits no rule. InvalidRequest for unknown numbers."""
    pattern, permission = of_kafka.pattern_type_filter, of_kafka.permission_type
    if pattern not in (ANY, MATCH, LITERAL, PREFIXED) or permission not in (ANY, DENY, ALLOW):
        raise InvalidRequest(f"pattern type {pattern} and permission {permission}: 1 to 4 and 1 to 3 are known")
    if of_kafka.host_filter not in (None, EVERY_HOST):
        return None
    return m.AclFilter(
        of_kafka.principal_filter,
        None if of_kafka.operation == ANY else of_kafka.operation,
        None if of_kafka.resource_type_filter == ANY else of_kafka.resource_type_filter,
        of_kafka.resource_name_filter,
        None if pattern in (ANY, MATCH) else pattern == PREFIXED,
        None if permission == ANY else permission == ALLOW,
        pattern == MATCH,
    )


def _pattern(rule: m.AclBinding) -> int:
    return PREFIXED if rule.is_prefix else LITERAL


async def create_acls(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Add rules."""
    _check_that_rights_are_on(kafka)
    results = await kafka.ask_for_each(context, request.creations, _binding, m.CreateAclsRequest)
    return answered("CreateAcls", request, results)


def _binding(rule: Any) -> m.AclBinding:
    """Return the rule as warmlog has it. InvalidRequest for one that there cannot be."""
    if rule.host != EVERY_HOST:
        raise InvalidRequest(f"a rule for the host {rule.host[:100]!r}: rules are for all hosts (*) here")
    if rule.resource_pattern_type not in (LITERAL, PREFIXED) or rule.permission_type not in (DENY, ALLOW):
        raise InvalidRequest("a rule is literal (3) or prefixed (4), and denies (2) or allows (3)")
    is_prefix, is_allowed = rule.resource_pattern_type == PREFIXED, rule.permission_type == ALLOW
    return m.AclBinding(rule.principal, rule.operation, rule.resource_type, rule.resource_name, is_prefix, is_allowed)


async def delete_acls(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Remove the rules that each filter fits."""
    _check_that_rights_are_on(kafka)
    if len(request.filters) > MAX_FILTERS:
        raise InvalidRequest(f"{len(request.filters)} filters in one request, {MAX_FILTERS} are allowed")
    results: list[Any] = []
    for each in request.filters:
        try:
            wanted = _filter(each)
            removed = (await kafka.ask(context, m.DeleteAclsRequest([wanted]))).acls if wanted is not None else []
        except ApiError as error:
            results.append(refused(error))
            continue
        matching = [
            _Deleted.DeleteAclsMatchingAcl(
                0,
                None,
                rule.resource_type,
                rule.name,
                _pattern(rule),
                rule.principal,
                EVERY_HOST,
                rule.operation,
                ALLOW if rule.is_allowed else DENY,
            )
            for rule in removed
        ]
        results.append(_Deleted.DeleteAclsFilterResult(0, None, matching))
    return answered("DeleteAcls", request, results)


# --- quotas ---------------------------------------------------------------------------------------------------


async def describe_client_quotas(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Tell the quotas of bytes of the entities that all components fit."""
    listed = (await kafka.ask(context, m.DescribeClientQuotasRequest())).quotas
    entries = []
    for quota in listed:
        entity = {kind: name for kind, name in ((USER, quota.user), (CLIENT_ID, quota.client_id)) if name is not None}
        values = [_Quotas.ValueData(limit.key, float(limit.value)) for limit in quota.limits if limit.key in QUOTA_KEYS]
        if values and _fits(entity, request.components, is_strict=request.strict):
            entries.append(_Quotas.EntryData([_Quotas.EntityData(*each) for each in _of_kafka(entity)], values))
    return _Quotas(error_message=None, entries=entries)


def _of_kafka(entity: dict[str, str]) -> list[tuple[str, str | None]]:
    """Return the parts of an entity; the name of each other one's default is null."""
    return [(kind, None if name == m.EVERY_OTHER else name) for kind, name in entity.items()]


def _fits(entity: dict[str, str], components: Iterable[Any], *, is_strict: bool) -> bool:
    kinds = set()
    for each in components:
        kinds.add(each.entity_type)
        name = entity.get(each.entity_type)
        if name is None:
            return False
        if each.match_type == EXACT and name != each.match:
            return False
        if each.match_type == DEFAULT and name != m.EVERY_OTHER:
            return False
    return not is_strict or kinds == entity.keys()


async def alter_client_quotas(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Change quotas of bytes, each entity independently."""
    message = None if request.validate_only else m.AlterClientQuotasRequest
    results = await kafka.ask_for_each(context, request.entries, _quota, message)
    return answered("AlterClientQuotas", request, results)


def _quota(entry: Any) -> m.ClientQuota:
    """Return the change as warmlog has it. InvalidRequest for what quotas are not of, and limits that there are not."""
    names: dict[str, str] = {}
    for part in entry.entity:
        if part.entity_type not in (USER, CLIENT_ID) or part.entity_type in names:
            raise InvalidRequest(f"{part.entity_type[:40]!r}: quotas are of a user, a client-id or one of each")
        names[part.entity_type] = m.EVERY_OTHER if part.entity_name is None else part.entity_name
    limits = []
    for op in entry.ops:
        if op.key not in QUOTA_KEYS:
            raise InvalidRequest(f"{op.key[:40]!r}: the limits are {' and '.join(QUOTA_KEYS)}")
        if not op.remove and not 1 <= op.value < 2**63:
            raise InvalidRequest(f"{op.key}: {op.value} is not allowed, it must be at least 1")
        limits.append(m.QuotaLimit(op.key, 0 if op.remove else int(op.value)))
    return m.ClientQuota(names.get(USER), names.get(CLIENT_ID), limits)


# --- users ----------------------------------------------------------------------------------------------------


async def describe_user_scram_credentials(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Tell which mechanisms users have, all or those that are named."""
    numbers = {name: number for number, name in MECHANISMS.items()}
    listed = {user.name: user for user in (await kafka.ask(context, m.ListUsersRequest())).users}
    wanted = list(listed) if request.users is None else [each.name for each in request.users]
    results = []
    for name, times in Counter(wanted).items():
        if times > 1:
            results.append(_user(name, DuplicateResource(f"user {name[:100]!r} is in the request more than once")))
        elif name not in listed:
            results.append(_user(name, ResourceNotFound(f"there is no user {name[:100]!r}")))
        else:
            infos = [
                _Users.CredentialInfo(numbers[each.mechanism], each.iterations) for each in listed[name].credentials
            ]
            results.append(_Users.DescribeUserScramCredentialsResult(name, 0, None, infos))
    return _Users(error_message=None, results=results)


def _user(name: str, error: ApiError) -> Any:
    return _Users.DescribeUserScramCredentialsResult(name, error.code, str(error))


async def alter_user_scram_credentials(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Give users passwords, or take them; a user without any is deleted."""
    present = {user.name: user for user in (await kafka.ask(context, m.ListUsersRequest())).users}
    changes = _changes(request)

    def altered(name: str) -> m.AlteredUser:
        return _altered_user(kafka, name, present.get(name), changes[name])

    return _altered_users(changes, await kafka.ask_for_each(context, changes, altered, m.AlterUsersRequest))


def _changes(request: Any) -> dict[str, list[Any]]:
    """Return what is asked for by user."""
    changes: dict[str, list[Any]] = {}
    for each in (*request.deletions, *request.upsertions):
        changes.setdefault(each.name, []).append(each)
    return changes


def _altered_user(kafka: Kafka, name: str, present: m.ListedUser | None, changes: list[Any]) -> m.AlteredUser:
    """Return the user as it is after the changes. UnsupportedSaslMechanism, DuplicateResource, ResourceNotFound."""
    credentials: dict[str, Credential] = {}
    for listed in () if present is None else present.credentials:
        credentials[listed.mechanism] = kafka.services.users.credentials(name, listed.mechanism)[0]
    if len({each.mechanism for each in changes}) != len(changes):
        raise DuplicateResource(f"a mechanism of user {name[:100]!r} is in the request more than once")
    for each in changes:
        mechanism = MECHANISMS.get(each.mechanism)
        if mechanism is None:
            raise UnsupportedSaslMechanism(f"mechanism {each.mechanism}: 1 (SHA-256) and 2 (SHA-512) are known")
        if hasattr(each, "salted_password"):
            from warmlog_protocol.sasl.derivation import keys_of  # slow to import

            keys = keys_of(mechanism, each.salted_password)
            credentials[mechanism] = Credential(mechanism, each.salt, each.iterations, keys.stored, keys.server)
        elif credentials.pop(mechanism, None) is None:
            raise ResourceNotFound(f"user {name[:100]!r} has no password for {mechanism}")
    if not credentials:
        return m.AlteredUser(name, m.UserChange.DELETE)
    change = m.UserChange.CREATE if present is None else m.UserChange.ROTATE
    return m.AlteredUser(name, change, list(credentials.values()))


def alter_user_scram_credentials_failed(request: Any, error: ApiError) -> m.Message:
    """Every user has the error."""
    return _altered_users(_changes(request), repeat(refused(error)))


def _altered_users(names: Iterable[str], results: Iterable[Any]) -> m.Message:
    result = _AlteredUsers.AlterUserScramCredentialsResult
    return _AlteredUsers(
        results=[
            result(name, each.error_code, each.error_message or None)
            for name, each in zip(names, results, strict=False)
        ]
    )
