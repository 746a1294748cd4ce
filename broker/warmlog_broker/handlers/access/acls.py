"""CreateAcls, DeleteAcls, DescribeAcls and CheckAcl: rules about rights. See `security/authorizer`."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request_context import RequestContext
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.messages import (
    CheckAclRequest,
    CheckAclResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)


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
