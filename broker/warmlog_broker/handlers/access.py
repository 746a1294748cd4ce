"""Users, rules and quotas: Authenticate, and what is altered and described by those who may."""

import logging
from functools import partial

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_name, handle_all
from warmlog_broker.network.request import Deferred, RequestContext, Response
from warmlog_broker.security.authentication import FAILED, Authentication, AuthenticationFailed
from warmlog_broker.security.quota_rules import QuotaEntity
from warmlog_broker.security.users import MAX_CHANGES, check_altered_users
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, IllegalSaslState, InvalidRequest, SaslAuthenticationFailed
from warmlog_protocol.sasl.credential import PLAIN


def authenticate(services: Services, context: RequestContext, request: m.AuthenticateRequest) -> Response:
    if context.authentication is None:
        raise IllegalSaslState("this listener does not authenticate: leave out `username` and `password`")
    if request.mechanism == PLAIN:
        return _by_password(services, context, context.authentication, request)
    try:
        return context.authentication.step(request)
    except AuthenticationFailed as failure:
        return _refused(services, context, request, failure)


async def _by_password(
    services: Services, context: RequestContext, authentication: Authentication, request: m.AuthenticateRequest
) -> Response:
    try:
        in_thread = partial(services.loop.run_in_executor, services.cold_readers)
        return await authentication.show_password(request.data, in_thread)
    except AuthenticationFailed as failure:
        return _refused(services, context, request, failure)


def _refused(
    services: Services, context: RequestContext, request: m.AuthenticateRequest, failure: AuthenticationFailed
) -> Response:
    """Log why, and refuse after a while."""
    who = f" as user {failure.user!r}" if failure.user else ""
    now_s = services.loop.time()
    text = f"authentication of {context.peer}{who} by {request.mechanism} failed: {failure}"
    services.lines.write(logging.WARNING, "failed authentications", text, now_s)
    return _Refusal(now_s + services.config.sasl_failure_delay_ms / 1000)


class _Refusal(Deferred):
    """The response to a failed authentication, at its deadline."""

    __slots__ = ()

    def expire(self) -> None:
        self.fail(SaslAuthenticationFailed(FAILED))

    def drop(self) -> bool:
        return True


def list_users(services: Services, _context: RequestContext, _request: m.ListUsersRequest) -> m.ListUsersResponse:
    return m.ListUsersResponse(services.users.listed())


async def alter_users(services: Services, context: RequestContext, request: m.AlterUsersRequest) -> Response:
    """Change each user independently."""
    check_altered_users(request.users)
    by_name = {user.name: user for user in request.users}

    async def alter(name: str) -> m.NamedResult:
        await services.users.alter(by_name[name], context.principal)
        return m.NamedResult(ErrorCode.NONE, "", name)

    return m.AlterUsersResponse(await handle_all(services, by_name, alter, failed_name(m.NamedResult)))


async def create_acls(services: Services, context: RequestContext, request: m.CreateAclsRequest) -> Response:
    """Add those of the rules that are valid, at once."""
    errors = await services.authorizer.create(request.acls, context.principal)
    return m.CreateAclsResponse(
        [
            m.ItemResult(ErrorCode.NONE, "") if error is None else m.ItemResult(error.code, str(error))
            for error in errors
        ]
    )


async def delete_acls(services: Services, context: RequestContext, request: m.DeleteAclsRequest) -> Response:
    """Remove rules, at once."""
    return m.DeleteAclsResponse(await services.authorizer.delete(request.filters, context.principal))


def describe_acls(services: Services, _context: RequestContext, request: m.DescribeAclsRequest) -> Response:
    return m.DescribeAclsResponse(services.authorizer.described(request.filter))


def check_acl(services: Services, _context: RequestContext, request: m.CheckAclRequest) -> m.CheckAclResponse:
    return services.authorizer.check(request)


def describe_client_quotas(
    services: Services, _context: RequestContext, _request: m.DescribeClientQuotasRequest
) -> m.DescribeClientQuotasResponse:
    return m.DescribeClientQuotasResponse(services.quotas.listed())


async def alter_client_quotas(
    services: Services, context: RequestContext, request: m.AlterClientQuotasRequest
) -> m.AlterClientQuotasResponse:
    """Change each quota independently, in the order of the request."""
    if len(request.quotas) > MAX_CHANGES:
        raise InvalidRequest(f"{len(request.quotas)} quotas to change in one request, {MAX_CHANGES} are allowed")
    by_name = {
        f"{number}, {QuotaEntity(quota.user, quota.client_id)}": quota for number, quota in enumerate(request.quotas)
    }

    async def alter(name: str) -> m.ItemResult:
        await services.quotas.alter(by_name[name], context.principal)
        return m.ItemResult(ErrorCode.NONE, "")

    def failed(_name: str, error: ApiError) -> m.ItemResult:
        return m.ItemResult(error.code, str(error))

    return m.AlterClientQuotasResponse(await handle_all(services, by_name, alter, failed))
