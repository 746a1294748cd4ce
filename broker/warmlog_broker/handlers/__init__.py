"""Request handlers: one file per API family, and the table that joins API and handler.

A family is imported by the first request for it, so that a broker starts without those that nothing asks for.
"""

from collections.abc import Callable
from importlib import import_module

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.codec import ReceivedRequest
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.network.request_runner import Handler, Response
from warmlog_protocol.messages import APIS, ApiKey

_FAMILIES: dict[str, tuple[ApiKey, ...]] = {
    "metadata": (ApiKey.HANDSHAKE, ApiKey.METADATA),
    "access": (
        ApiKey.AUTHENTICATE,
        ApiKey.LIST_USERS,
        ApiKey.ALTER_USERS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CHECK_ACL,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
    ),
    "topics": (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ALTER_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_BROKER_CONFIG,
    ),
    "log_dirs": (ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.DESCRIBE_LOG_DIRS),
    "produce": (ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE),
    "fetch": (ApiKey.FETCH,),
    "offsets": (ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
    "groups": (
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.GROUP_HEARTBEAT,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.DELETE_OFFSETS,
    ),
    "transactions": (
        ApiKey.END_TRANSACTION,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.ABORT_TRANSACTION,
        ApiKey.JOIN_JOB,
        ApiKey.JOB_HEARTBEAT,
        ApiKey.COMMIT_JOB,
        ApiKey.ABORT_JOB_MEMBERS,
    ),
    "splits": (ApiKey.FIND_SPLITS,),
}
"""The module of each handler, which has the name of its API: `handler(services, context, request)`. Produce has the
batches of the request as a further argument. For results and exceptions see network/request_runner. While a Produce is
a coroutine, the next request of its connection waits, so that batches keep their order."""

assert sorted(key for keys in _FAMILIES.values() for key in keys) == sorted(APIS)


def handler_of(key: ApiKey, family: str) -> Callable[..., Response]:
    """Import a family, and return its handler for the API `key`."""
    handler: Callable[..., Response] = getattr(import_module(f"{__name__}.{family}"), key.name.lower())
    return handler


def bind_handlers(services: Services) -> dict[int, Handler]:
    """Return the handlers of one broker, by API key."""
    return {key: _bound(services, key, family) for family, keys in _FAMILIES.items() for key in keys}


def _bound(services: Services, key: ApiKey, family: str) -> Handler:
    handler: Callable[..., Response] | None = None
    takes_batches = key is ApiKey.PRODUCE

    def handle(context: RequestContext, request: ReceivedRequest) -> Response:
        nonlocal handler
        if handler is None:
            handler = handler_of(key, family)
        if takes_batches:
            return handler(services, context, request.message, request.batches())
        return handler(services, context, request.message)

    return handle
