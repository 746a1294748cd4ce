"""FindCoordinator: who coordinates a group or the transactions of an id."""

from typing import Any

from msgspec.structs import replace

from warmlog_broker.gate.asker import Asker
from warmlog_broker.kafka.cluster import address_of
from warmlog_broker.kafka.responses import Result, answered, refused
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import InvalidRequest

RESOURCE_OF_KEY_TYPE = {0: m.ResourceType.GROUP, 1: m.ResourceType.TRANSACTIONAL_ID}
MANY_KEYS_FROM = 4


def find_coordinator(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Return the address of the coordinator of each key that the principal may describe."""
    resource_type = RESOURCE_OF_KEY_TYPE.get(request.key_type)
    if resource_type is None:
        raise InvalidRequest(f"a key of type {request.key_type}: expected 0 (group) or 1 (transactional id)")
    right = m.Operation.DESCRIBE, resource_type
    keys = request.coordinator_keys if request.api_version >= MANY_KEYS_FROM else [request.key]
    asker = Asker(kafka.services, context, "FindCoordinator")
    refusals = {key: refused(asker.refusal(*right, key)) for key in keys if not asker.may(*right, key)}

    def back(response: Any) -> Ready:
        found = iter(response.coordinators)
        results = [refusals.get(key) or _result(context, next(found)) for key in keys]
        return answered("FindCoordinator", request, results)

    wanted = [key for key in keys if key not in refusals]
    return then(kafka.call(context, m.FindCoordinatorRequest(request.key_type, wanted)), back)


def _result(context: RequestContext, found: m.FoundCoordinator) -> Any:
    if found.error_code:
        return Result(found.error_code, found.error_message)
    host, port = address_of(context, found)
    return replace(found, host=host, port=port)
