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
from warmlog_protocol.messages import API_OF_REQUEST, APIS, ApiKey, Message

_HANDLERS = {
    "metadata": "handshake metadata find_coordinator",
    "access": "authenticate list_users alter_users create_acls delete_acls describe_acls check_acl "
    "describe_client_quotas alter_client_quotas",
    "topics": "create_topics delete_topics alter_topics create_partitions describe_configs alter_broker_config",
    "log_dirs": "alter_replica_log_dirs describe_log_dirs",
    "replicas": "alter_partition_reassignments list_partition_reassignments elect_leaders",
    "produce": "init_producer_id produce",
    "fetch": "fetch",
    "offsets": "list_offsets delete_records offset_for_leader_epoch",
    "groups": "offset_commit offset_fetch group_heartbeat list_groups describe_groups delete_groups delete_offsets",
    "transactions": "end_transaction txn_offset_commit list_transactions abort_transaction join_job job_heartbeat "
    "commit_job abort_job_members",
    "splits": "find_splits",
    "inspection": "describe_status describe_partitions trace_index",
    "brokers": "peer_hello replica_fetch replica_flushed write_marker enrol_partition add_pending_offsets "
    "end_pending_offsets commit_offsets_elsewhere",
}
"""The handlers of each module, named after their APIs: `handler(services, context, request)`. Produce has the source of
its batches as a further argument."""
FAMILIES = {
    family: [APIS[ApiKey[name.upper()]].request for name in names.split()] for family, names in _HANDLERS.items()
}
"""The requests of each module."""
_PIPELINED: list[type[Message]] = [m.FetchRequest, *FAMILIES["brokers"]]
TRAITS: Mapping[type[Message], Mapping[str, bool]] = {
    **{request: {"is_pipelined": True} for request in _PIPELINED},
    **{request: {"comes_first": True} for request in (m.HandshakeRequest, m.AuthenticateRequest, m.PeerHelloRequest)},
    m.ProduceRequest: {"takes_batches": True, "is_pipelined": True, "finishes_first": True},
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
