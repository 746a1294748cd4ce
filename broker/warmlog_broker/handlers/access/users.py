"""Authenticate, ListUsers and AlterUsers.

A failed authentication is told after `sasl.failure.delay.ms`, always with the same text: the log has the reason.
"""

import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.network.request_runner import Deferred, Response
from warmlog_broker.security.authentication import FAILED, AuthenticationFailed
from warmlog_broker.security.users import altered_user_error
from warmlog_protocol.errors import ApiError, ErrorCode, IllegalSaslState, SaslAuthenticationFailed
from warmlog_protocol.messages import (
    AlterUserResult,
    AlterUsersRequest,
    AlterUsersResponse,
    AuthenticateRequest,
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

    def failed(name: str, error: ApiError) -> AlterUserResult:
        return AlterUserResult(error.code, str(error), name)

    items = Items(services, context, "AlterUsers")
    return AlterUsersResponse(await items.handle_all(by_name, alter, failed))
