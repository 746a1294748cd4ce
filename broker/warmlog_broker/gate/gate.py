"""The gate between the connections and the handlers: requests are checked here if `authorization` is set."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from warmlog_broker.gate.asker import Asker
from warmlog_broker.gate.rules import Revise, Rule
from warmlog_broker.gate.table import RIGHTS
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import BatchSource, Endpoint, RequestContext, Response, then
from warmlog_protocol.messages import Message, ProduceRequest
from warmlog_protocol.wire.connection import ReceivedBatch


def guarded(services: Services, endpoints: Mapping[type[Message], Endpoint]) -> dict[type[Message], Endpoint]:
    """Return the endpoints as connections use them. KeyError for one that the table of rights does not have."""
    return {request: _guarded(services, endpoint, RIGHTS[request]) for request, endpoint in endpoints.items()}


def _guarded(services: Services, endpoint: Endpoint, rules: tuple[Rule, ...]) -> Endpoint:
    def handle(context: RequestContext, request: Message, *batches: BatchSource) -> Response:
        asker = Asker(services, context, endpoint.name)
        message: Any = request
        revisions: list[Revise] = []
        for rule in rules:
            message, revise = rule(asker, message)
            if revise is not None:
                revisions.insert(0, revise)
            if message is None:
                break
        response: Response = None
        if message is not None:
            if endpoint.takes_batches and message is not request:
                batches = (partial(_left, message, *batches),)
            response = endpoint.handle(context, message, *batches)
        for revise in revisions:
            response = then(response, revise)
        return response

    return replace(endpoint, handle=handle) if rules else endpoint


def _left(message: ProduceRequest, batches: BatchSource) -> list[ReceivedBatch]:
    """Return the batches of the topics that are left: all of a topic, or none."""
    topics = {part.topic for part in message.partitions}
    return [batch for batch in batches() if batch.topic in topics]
