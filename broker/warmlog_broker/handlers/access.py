"""Users, rules and quotas: Authenticate, and what is altered and described by those who may."""

import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_name, handle_all
from warmlog_broker.network.request import Deferred, RequestContext, Response
from warmlog_broker.security.authentication import FAILED, AuthenticationFailed
from warmlog_broker.security.quota_rules import QuotaEntity
from warmlog_broker.security.users import altered_user_error
from warmlog_protocol.errors import ApiError, ErrorCode, IllegalSaslState, InvalidRequest, SaslAuthenticationFailed
from warmlog_protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredClientQuota,
    AlterUserResult,
    AlterUsersRequest,
    AlterUsersResponse,
    AuthenticateRequest,
    CheckAclRequest,
    CheckAclResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    ListUsersRequest,
    ListUsersResponse,
)


def authenticate(services: Services, context: RequestContext, request: AuthenticateRequest) -> Response:
    if context.authentication is None:
        raise IllegalSaslState("this listener does not authenticate: leave out `username` and `password`")
    try:
        return context.authentication.step(request)
    except AuthenticationFailed as failure:
        who = f" as user {failure.user!r}" if failure.user else ""
        now_s = services.loop.time()
        text = f"authentication of {context.peer}{who} by {request.mechanism} failed: {failure}"
        services.lines.write(logging.WARNING, "failed authentications", text, now_s)
        return _Refusal(now_s + services.config.sasl_failure_delay_ms / 1000)


class _Refusal(Deferred):
    """The response to a failed authentication, at its deadline."""

    __slots__ = ()

    def expire(self) -> None:
        self.run(_refuse)

    def drop(self) -> bool:
        return True


def _refuse() -> Response:
    raise SaslAuthenticationFailed(FAILED)


def list_users(services: Services, _context: RequestContext, _request: ListUsersRequest) -> ListUsersResponse:
    return ListUsersResponse(services.users.listed())


async def alter_users(services: Services, context: RequestContext, request: AlterUsersRequest) -> AlterUsersResponse:
    """Change each user independently."""
    error = altered_user_error(request.users)
    if error is not None:
        raise error
    by_name = {user.name: user for user in request.users}

    async def alter(name: str) -> AlterUserResult:
        await services.users.alter(by_name[name], context.principal)
        return AlterUserResult(ErrorCode.NONE, "", name)

    return AlterUsersResponse(await handle_all(services, by_name, alter, failed_name(AlterUserResult)))


async def create_acls(services: Services, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Add those of the rules that are valid, at once."""
    errors = await services.authorizer.create(request.acls, context.principal)
    return CreateAclsResponse(
        [CreatedAcl(ErrorCode.NONE, "") if error is None else CreatedAcl(error.code, str(error)) for error in errors]
    )


async def delete_acls(services: Services, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Remove rules, at once."""
    return DeleteAclsResponse(await services.authorizer.delete(request.filters, context.principal))


def describe_acls(services: Services, _context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(services.authorizer.described(request.filter))


def check_acl(services: Services, _context: RequestContext, request: CheckAclRequest) -> CheckAclResponse:
    return services.authorizer.check(request)


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

    return AlterClientQuotasResponse(await handle_all(services, by_name, alter, failed))
