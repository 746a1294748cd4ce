"""AlterBrokerConfig: settings of the running broker. See `topics/broker_changes`."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request_context import RequestContext
from warmlog_protocol.messages import AlterBrokerConfigRequest, AlterBrokerConfigResponse


async def alter_broker_config(
    services: Services, context: RequestContext, request: AlterBrokerConfigRequest
) -> AlterBrokerConfigResponse:
    own = await services.broker_changes.alter(
        request.set, request.unset, validate_only=request.validate_only, by=context.principal
    )
    return AlterBrokerConfigResponse(own)
