"""Request handlers: one file per API family, and the table that joins API and handler."""

from collections.abc import Callable
from typing import Any

from warmlog_broker.handlers.access.acls import check_acl, create_acls, delete_acls, describe_acls
from warmlog_broker.handlers.access.quotas import alter_client_quotas, describe_client_quotas
from warmlog_broker.handlers.access.users import alter_users, authenticate, list_users
from warmlog_broker.handlers.broker_config import alter_broker_config
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.fetch import fetch
from warmlog_broker.handlers.groups import (
    delete_groups,
    delete_offsets,
    describe_groups,
    group_heartbeat,
    list_groups,
    offset_commit,
    offset_fetch,
)
from warmlog_broker.handlers.log_dirs import alter_replica_log_dirs, describe_log_dirs
from warmlog_broker.handlers.metadata import handshake, metadata
from warmlog_broker.handlers.offsets import delete_records, list_offsets, offset_for_leader_epoch
from warmlog_broker.handlers.produce import init_producer_id, produce
from warmlog_broker.handlers.splits import find_splits
from warmlog_broker.handlers.topics import (
    alter_topics,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
)
from warmlog_broker.handlers.transactions import (
    abort_job_members,
    abort_transaction,
    commit_job,
    end_transaction,
    job_heartbeat,
    join_job,
    list_transactions,
    txn_offset_commit,
)
from warmlog_broker.network.codec import ReceivedRequest
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.network.request_runner import Handler
from warmlog_broker.network.response import Response
from warmlog_protocol.messages import APIS, ApiKey

HANDLERS: dict[int, Callable[..., Response]] = {
    ApiKey.HANDSHAKE: handshake,
    ApiKey.AUTHENTICATE: authenticate,
    ApiKey.METADATA: metadata,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.ALTER_TOPICS: alter_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.GROUP_HEARTBEAT: group_heartbeat,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.DELETE_OFFSETS: delete_offsets,
    ApiKey.LIST_USERS: list_users,
    ApiKey.ALTER_USERS: alter_users,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CHECK_ACL: check_acl,
    ApiKey.END_TRANSACTION: end_transaction,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.ABORT_TRANSACTION: abort_transaction,
    ApiKey.JOIN_JOB: join_job,
    ApiKey.JOB_HEARTBEAT: job_heartbeat,
    ApiKey.COMMIT_JOB: commit_job,
    ApiKey.ABORT_JOB_MEMBERS: abort_job_members,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.ALTER_BROKER_CONFIG: alter_broker_config,
    ApiKey.FIND_SPLITS: find_splits,
}
"""`handler(services, context, request)` by API key; Produce has the batches of the request as a further argument. For
results and exceptions see network/response. While a Produce is a coroutine, the next request of its connection waits,
so that batches keep their order."""

assert HANDLERS.keys() == APIS.keys()


def bind_handlers(services: Services) -> dict[int, Handler]:
    """Return the handlers of one broker, by API key."""

    def bind(handler: Callable[[Services, RequestContext, Any], Response]) -> Handler:
        return lambda context, request: handler(services, context, request.message)

    def bound_produce(context: RequestContext, request: ReceivedRequest) -> Response:
        message: Any = request.message
        return produce(services, context, message, request.batches())

    return {key: bind(handler) for key, handler in HANDLERS.items()} | {ApiKey.PRODUCE: bound_produce}
