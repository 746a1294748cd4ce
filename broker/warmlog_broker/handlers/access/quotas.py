"""DescribeClientQuotas and AlterClientQuotas."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.security.quota_rules import QuotaEntity
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest
from warmlog_protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredClientQuota,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

MAX_CHANGES = 100
"""In one request: each is a flush of the metadata log."""


def describe_client_quotas(
    services: Services, _context: RequestContext, _request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(services.quotas.listed())


async def alter_client_quotas(
    services: Services, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Change each quota independently, in the order of the request."""
    if len(request.quotas) > MAX_CHANGES:
        raise InvalidRequest(f"{len(request.quotas)} quotas to change in one request, {MAX_CHANGES} are allowed")
    by_name = {
        f"{number}, {QuotaEntity(quota.user, quota.client_id)}": quota for number, quota in enumerate(request.quotas)
    }

    async def alter(name: str) -> AlteredClientQuota:
        await services.quotas.alter(by_name[name], context.principal)
        return AlteredClientQuota(ErrorCode.NONE, "")

    def failed(_name: str, error: ApiError) -> AlteredClientQuota:
        return AlteredClientQuota(error.code, str(error))

    items = Items(services, context, "AlterClientQuotas")
    return AlterClientQuotasResponse(await items.handle_all(by_name, alter, failed))
