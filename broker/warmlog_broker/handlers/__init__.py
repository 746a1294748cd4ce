"""Request handlers: one file for each family of requests, and the table of endpoints, which no wire protocol numbers.

A family is imported by the first request for it, so that a broker starts without those that nothing asks for.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import BatchSource, Endpoint, RequestContext, Response
from warmlog_protocol import messages
from warmlog_protocol.messages import API_OF_REQUEST, Message

FAMILIES: dict[str, tuple[type[Message], ...]] = {
    "metadata": (messages.HandshakeRequest, messages.MetadataRequest),
    "access": (
        messages.AuthenticateRequest,
        messages.ListUsersRequest,
        messages.AlterUsersRequest,
        messages.CreateAclsRequest,
        messages.DeleteAclsRequest,
        messages.DescribeAclsRequest,
        messages.CheckAclRequest,
        messages.DescribeClientQuotasRequest,
        messages.AlterClientQuotasRequest,
    ),
    "topics": (
        messages.CreateTopicsRequest,
        messages.DeleteTopicsRequest,
        messages.AlterTopicsRequest,
        messages.CreatePartitionsRequest,
        messages.DescribeConfigsRequest,
        messages.AlterBrokerConfigRequest,
    ),
    "log_dirs": (messages.AlterReplicaLogDirsRequest, messages.DescribeLogDirsRequest),
    "produce": (messages.InitProducerIdRequest, messages.ProduceRequest),
    "fetch": (messages.FetchRequest,),
    "offsets": (messages.ListOffsetsRequest, messages.DeleteRecordsRequest, messages.OffsetForLeaderEpochRequest),
    "groups": (
        messages.OffsetCommitRequest,
        messages.OffsetFetchRequest,
        messages.GroupHeartbeatRequest,
        messages.ListGroupsRequest,
        messages.DescribeGroupsRequest,
        messages.DeleteGroupsRequest,
        messages.DeleteOffsetsRequest,
    ),
    "transactions": (
        messages.EndTransactionRequest,
        messages.TxnOffsetCommitRequest,
        messages.ListTransactionsRequest,
        messages.AbortTransactionRequest,
        messages.JoinJobRequest,
        messages.JobHeartbeatRequest,
        messages.CommitJobRequest,
        messages.AbortJobMembersRequest,
    ),
    "splits": (messages.FindSplitsRequest,),
}
"""The module of each handler, which has the name of its API: `handler(services, context, request)`. Produce has the
source of its batches as a further argument."""
TRAITS: Mapping[type[Message], Mapping[str, bool]] = {
    messages.HandshakeRequest: {"comes_first": True},
    messages.AuthenticateRequest: {"comes_first": True},
    messages.ProduceRequest: {"is_pipelined": True, "finishes_first": True},
    messages.FetchRequest: {"is_pipelined": True},
    messages.GroupHeartbeatRequest: {"is_pipelined": True, "is_heartbeat": True},
}
"""The fields of `Endpoint` that are set."""


def handler_of(request: type[Message], family: str) -> Callable[..., Response]:
    """Import a family, and return its handler for a kind of request."""
    name = API_OF_REQUEST[request].key.name.lower()
    handler: Callable[..., Response] = getattr(import_module(f"{__name__}.{family}"), name)
    return handler


def bind_endpoints(services: Services) -> dict[type[Message], Endpoint]:
    """Return the endpoints of one broker, by the type of the request."""
    return {request: _bound(services, request, family) for family, kinds in FAMILIES.items() for request in kinds}


def _bound(services: Services, request: type[Message], family: str) -> Endpoint:
    handler: Callable[..., Response] | None = None
    takes_batches = request is messages.ProduceRequest

    def handle(context: RequestContext, message: Any, batches: BatchSource) -> Response:
        nonlocal handler
        if handler is None:
            handler = handler_of(request, family)
        if takes_batches:
            return handler(services, context, message, batches)
        return handler(services, context, message)

    return Endpoint(API_OF_REQUEST[request].name, handle, **TRAITS.get(request, {}))
