"""FindCoordinator: who coordinates a group or the transactions of an id."""

from typing import Any

from warmlog_broker.gate.asker import Asker
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest
from warmlog_protocol.kafka.schema import API

RESOURCE_OF_KEY_TYPE = {0: m.ResourceType.GROUP, 1: m.ResourceType.TRANSACTIONAL_ID}
MANY_KEYS_FROM = 4
NO_NODE = -1

_Found = API["FindCoordinator"].response


def find_coordinator(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Return the address of the coordinator of each key that the principal may describe."""
    resource_type = RESOURCE_OF_KEY_TYPE.get(request.key_type)
    if resource_type is None:
        raise InvalidRequest(f"a key of type {request.key_type}: expected 0 (group) or 1 (transactional id)")
    keys = request.coordinator_keys if request.api_version >= MANY_KEYS_FROM else [request.key]
    asker = Asker(kafka.services, context, "FindCoordinator")
    is_free = not kafka.services.authorizer.is_on
    refused: dict[str, ApiError] = {}
    for key in keys:
        if not is_free and not asker.may(m.Operation.DESCRIBE, resource_type, key):
            refused[key] = asker.refusal(m.Operation.DESCRIBE, resource_type, key)

    def back(response: Any) -> Ready:
        coordinators = iter(response.coordinators)
        found = [
            _Found.Coordinator(key, NO_NODE, "", -1, refused[key].code, str(refused[key]))
            if key in refused
            else _found(context, next(coordinators))
            for key in keys
        ]
        if request.api_version >= MANY_KEYS_FROM:
            return _Found(coordinators=found)
        (one,) = found
        return _Found(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    wanted = [key for key in keys if key not in refused]
    return then(kafka.call(context, m.FindCoordinatorRequest(request.key_type, wanted)), back)


def _found(context: RequestContext, found: m.FoundCoordinator) -> Any:
    if found.error_code:
        return _Found.Coordinator(found.key, NO_NODE, "", -1, found.error_code, found.error_message)
    host, port = (found.host, found.port) if found.host else context.reached
    return _Found.Coordinator(found.key, found.node_id, host, port, ErrorCode.NONE, None)


def find_coordinator_failed(request: Any, error: ApiError) -> Any:
    """Every key has the error."""
    return _Found(
        error_code=error.code,
        error_message=str(error),
        node_id=NO_NODE,
        port=-1,
        coordinators=[
            _Found.Coordinator(key, NO_NODE, "", -1, error.code, str(error)) for key in request.coordinator_keys
        ],
    )
