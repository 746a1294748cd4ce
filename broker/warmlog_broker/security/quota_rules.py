"""Which quota applies to a client, and which changes of quotas are allowed. Pure.

Quotas are Kafka's (KIP-55, KIP-257): of a user, of a client id, or of a client id of a user. The most specific one that
has the limit applies, each limit by itself. A quota of EVERY_OTHER applies to each user or client id separately.
"""

from collections.abc import Mapping
from typing import NamedTuple

from warmlog_broker.metadata.topic_names import shown
from warmlog_protocol.errors import InvalidRequest
from warmlog_protocol.messages import EVERY_OTHER, ClientQuota, QuotaKey, QuotaLimit

MAX_QUOTAS = 10_000
"""Each takes less than a KiB of memory and of the metadata log."""
MAX_USER_CHARACTERS = 255
MAX_CLIENT_ID_CHARACTERS = 100
"""The rest of what a client calls itself is cut off."""
_MOST = MAX_USER_CHARACTERS, MAX_CLIENT_ID_CHARACTERS


class QuotaEntity(NamedTuple):
    """What a quota is of; None: of any."""

    user: str | None
    client_id: str | None

    def __str__(self) -> str:
        parts = [("user", self.user), ("client id", self.client_id)]
        return " and ".join(f"{kind} {shown(name)}" for kind, name in parts if name is not None)


QuotasByEntity = Mapping[tuple[str | None, str | None], Mapping[str, int]]
"""The limits of each QuotaEntity by their keys."""


class AppliedLimit(NamedTuple):
    """A limit that applies to a client, and the entity whose clients share it: with names in place of EVERY_OTHER."""

    value: int
    shared_by: QuotaEntity
    quota: QuotaEntity
    """The entity that it was set for."""


def applied_limit(quotas: QuotasByEntity, key: QuotaKey, user: str, client_id: str) -> AppliedLimit | None:
    """Return the limit of a client, by the most specific quota in Kafka's order; None if there is none."""
    of_user = [QuotaEntity(name, each) for name in (user, EVERY_OTHER) for each in (client_id, EVERY_OTHER, None)]
    for quota in (*of_user, QuotaEntity(None, client_id), QuotaEntity(None, EVERY_OTHER)):
        if (limits := quotas.get(quota)) is not None and key in limits:
            shared_by = QuotaEntity(
                None if quota.user is None else user, None if quota.client_id is None else client_id
            )
            return AppliedLimit(limits[key], shared_by, quota)
    return None


def list_of_quotas(quotas: QuotasByEntity) -> list[ClientQuota]:
    """Return all quotas, by user and client id."""
    in_order = sorted(quotas.items(), key=lambda item: [name or "" for name in item[0]])
    return [
        ClientQuota(user, client_id, [QuotaLimit(key, value) for key, value in sorted(limits.items())])
        for (user, client_id), limits in in_order
    ]


def changed_limits(quotas: QuotasByEntity, wanted: ClientQuota) -> dict[str, int]:
    """Return all limits of the entity of `wanted` after its change, none to remove the quota. InvalidRequest."""
    entity = QuotaEntity(wanted.user, wanted.client_id)
    if entity == (None, None):
        raise InvalidRequest(f"a quota is of a user, a client id or both: name one, or {EVERY_OTHER!r} for every other")
    for name, kind, most in zip(entity, ("user", "client id"), _MOST, strict=True):
        if name is not None and not (0 < len(name) <= most and name.isprintable()):
            raise InvalidRequest(
                f"the {kind} {shown(name)} of a quota: 1 to {most} printable characters were expected, or "
                f"{EVERY_OTHER!r} for every other"
            )
    keys = [limit.key for limit in wanted.limits]
    if not wanted.limits or len(set(keys)) != len(keys):
        raise InvalidRequest(f"the quota of {entity}: at least one limit was expected, and none of them twice")
    for limit in wanted.limits:
        if limit.key not in set(QuotaKey):
            raise InvalidRequest(f"there is no limit {shown(limit.key)}: {', '.join(QuotaKey)} were expected")
        if limit.value < 0:
            raise InvalidRequest(
                f"{limit.key}: {limit.value} is not allowed, it must be at least 1; 0 removes the limit"
            )
        if limit.key == QuotaKey.CONNECTIONS and entity.client_id is not None:
            raise InvalidRequest("connections is a limit of users: leave out the client id")
    changed = {**quotas.get(entity, {}), **{limit.key: limit.value for limit in wanted.limits}}
    limits = {key: value for key, value in changed.items() if value}
    if limits and entity not in quotas and len(quotas) >= MAX_QUOTAS:
        raise InvalidRequest(f"there are {MAX_QUOTAS} quotas, as many as a broker holds; remove some")
    return limits
