"""Request handlers: one file for each family of requests, and the table of endpoints, which no wire protocol numbers.

A family is imported by the first request for it, so that a broker starts without those that nothing asks for.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import Endpoint, Response
from warmlog_protocol import messages as m
from warmlog_protocol.messages import API_OF_REQUEST, Message

FAMILIES: dict[str, tuple[type[Message], ...]] = {
    "metadata": (m.HandshakeRequest, m.MetadataRequest, m.FindCoordinatorRequest),
    "access": (
        m.AuthenticateRequest,
        m.ListUsersRequest,
        m.AlterUsersRequest,
        m.CreateAclsRequest,
        m.DeleteAclsRequest,
        m.DescribeAclsRequest,
        m.CheckAclRequest,
        m.DescribeClientQuotasRequest,
        m.AlterClientQuotasRequest,
    ),
    "topics": (
        m.CreateTopicsRequest,
        m.DeleteTopicsRequest,
        m.AlterTopicsRequest,
        m.CreatePartitionsRequest,
        m.DescribeConfigsRequest,
        m.AlterBrokerConfigRequest,
    ),
    "log_dirs": (m.AlterReplicaLogDirsRequest, m.DescribeLogDirsRequest),
    "produce": (m.InitProducerIdRequest, m.ProduceRequest),
    "fetch": (m.FetchRequest,),
    "offsets": (m.ListOffsetsRequest, m.DeleteRecordsRequest, m.OffsetForLeaderEpochRequest),
    "groups": (
        m.OffsetCommitRequest,
        m.OffsetFetchRequest,
        m.GroupHeartbeatRequest,
        m.ListGroupsRequest,
        m.DescribeGroupsRequest,
        m.DeleteGroupsRequest,
        m.DeleteOffsetsRequest,
    ),
    "transactions": (
        m.EndTransactionRequest,
        m.TxnOffsetCommitRequest,
        m.ListTransactionsRequest,
        m.AbortTransactionRequest,
        m.JoinJobRequest,
        m.JobHeartbeatRequest,
        m.CommitJobRequest,
        m.AbortJobMembersRequest,
    ),
    "splits": (m.FindSplitsRequest,),
    "inspection": (m.DescribeStatusRequest, m.DescribePartitionsRequest, m.TraceIndexRequest),
    "brokers": (
        m.PeerHelloRequest,
        m.ReplicaFetchRequest,
        m.ReplicaFlushedRequest,
        m.WriteMarkerRequest,
        m.EnrolPartitionRequest,
        m.AddPendingOffsetsRequest,
        m.EndPendingOffsetsRequest,
        m.CommitOffsetsElsewhereRequest,
    ),
}
"""The module of each handler, which has the name of its API: `handler(services, context, request)`. Produce has the
source of its batches as a further argument."""
TRAITS: Mapping[type[Message], Mapping[str, bool]] = {
    m.HandshakeRequest: {"comes_first": True},
    m.AuthenticateRequest: {"comes_first": True},
    m.ProduceRequest: {"takes_batches": True, "is_pipelined": True, "finishes_first": True},
    m.FetchRequest: {"is_pipelined": True},
    m.PeerHelloRequest: {"comes_first": True},
    m.ReplicaFetchRequest: {"is_pipelined": True},
    m.ReplicaFlushedRequest: {"is_pipelined": True},
    m.WriteMarkerRequest: {"is_pipelined": True},
    m.EnrolPartitionRequest: {"is_pipelined": True},
    m.AddPendingOffsetsRequest: {"is_pipelined": True},
    m.EndPendingOffsetsRequest: {"is_pipelined": True},
    m.CommitOffsetsElsewhereRequest: {"is_pipelined": True},
    m.GroupHeartbeatRequest: {"is_pipelined": True, "is_heartbeat": True},
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
    def handle_first(*arguments: Any) -> Response:
        endpoint.handle = partial(handler_of(request, family), services)
        return endpoint.handle(*arguments)

    endpoint = Endpoint(API_OF_REQUEST[request].name, handle_first, **TRAITS.get(request, {}))
    return endpoint
