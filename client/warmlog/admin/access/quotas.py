"""The part of the admin client for quotas."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from warmlog.admin.arguments import checked_count
from warmlog.admin.connected import Connected
from warmlog.texts import checked_text
from warmlog_protocol import messages as m
from warmlog_transport.responses import checked

REMOVED = 0


class QuotaDescription(Struct, frozen=True):
    """A quota: of a user, of a client id, or of a client id of a user. None: of any; "*": each one without its own."""

    user: str | None
    client_id: str | None
    limits: dict[str, int]


class QuotaAdmin(Connected):
    """Manages quotas."""

    async def alter_quotas(
        self, limits: Mapping[str, int | None], *, user: str | None = None, client_id: str | None = None
    ) -> None:
        """Set limits of a user, of a client id, or of a client id of a user; None removes one. Durable and in force on
        return.

        Limits are `producer_byte_rate`, `consumer_byte_rate` and `request_rate`, which are a second, and, for a user,
        `connections`. As `user` or `client_id`, "*" means each one that has no quota of its own. Limits that are not
        named stay as they are. Raises InvalidRequest, TypeError, and ValueError for a limit below 1.
        """
        if user is not None:
            user = checked_text(user, "user").removeprefix(m.USER_PREFIX)
        if client_id is not None:
            checked_text(client_id, "client_id")
        request = m.AlterClientQuotasRequest([m.ClientQuota(user, client_id, _limits(limits))])
        response = await self.cluster.call(request, m.AlterClientQuotasResponse)
        checked(*response.quotas)

    async def describe_quotas(self) -> list[QuotaDescription]:
        """All quotas, sorted by user and client id."""
        response = await self.cluster.call(m.DescribeClientQuotasRequest(), m.DescribeClientQuotasResponse)
        return [
            QuotaDescription(quota.user, quota.client_id, {limit.key: limit.value for limit in quota.limits})
            for quota in response.quotas
        ]


def quota_of(entity: tuple[str | None, str | None], quotas: Sequence[QuotaDescription]) -> QuotaDescription:
    """Return the quota of a user and client id, without limits if there is none."""
    return next((quota for quota in quotas if (quota.user, quota.client_id) == entity), QuotaDescription(*entity, {}))


def _limits(limits: Mapping[str, int | None]) -> list[m.QuotaLimit]:
    if not isinstance(limits, Mapping):
        raise TypeError(f"limits must be a mapping such as {{'producer_byte_rate': 1_000_000}}, not {limits!r}")
    return [
        m.QuotaLimit(checked_text(key, "the name of a limit"), REMOVED if value is None else _value(key, value))
        for key, value in limits.items()
    ]


def _value(key: str, value: int) -> int:
    if checked_count(value, key) < 1:
        raise ValueError(f"{key} must be at least 1, not {value}; None removes the limit")
    return value
