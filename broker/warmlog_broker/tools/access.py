"""Users, rights and quotas in the metadata log of a stopped broker, or before its first start."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import commit, lock_and_read, refuse_if_locked
from warmlog_broker.metadata.log_file import FILE_NAME, MetadataLog, read_state
from warmlog_broker.security.authorizer import acl_entry, selected
from warmlog_broker.security.quota_rules import list_of_quotas
from warmlog_broker.security.quotas import quota_entry
from warmlog_broker.security.users import list_of_users, user_entries
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode


def respond(data_dir: Path, request: m.Message) -> m.Message:
    """Return the response of a broker that would serve this directory, the first one if it has several.

    Lists may be read while a broker runs; that raises StorageError, or FileNotFoundError without a metadata log. A
    change is durable on return, and prepares a directory that is new for a broker; it raises the error of the first
    item that is refused, DirectoryLocked if a broker is running, another DataDirectoryError, or StorageError.
    """
    now_ms = time.time_ns() // 1_000_000
    match request:
        case m.ListUsersRequest():
            return m.ListUsersResponse(list_of_users(read_state(data_dir / FILE_NAME), now_ms))
        case m.DescribeAclsRequest():
            return m.DescribeAclsResponse(selected(read_state(data_dir / FILE_NAME).acls, [request.filter]))
        case m.DescribeClientQuotasRequest():
            return m.DescribeClientQuotasResponse(list_of_quotas(read_state(data_dir / FILE_NAME).quotas))
    with _metadata_log(data_dir) as log:
        match request:
            case m.AlterUsersRequest():
                for user in request.users:
                    commit(log, user_entries(log.state, user, now_ms))
                return m.AlterUsersResponse([m.NamedResult(ErrorCode.NONE, "", user.name) for user in request.users])
            case m.CreateAclsRequest():
                entry, errors = acl_entry(log.state, request.acls)
                for error in errors:
                    if error is not None:
                        raise error
                if entry is not None:
                    commit(log, [entry])
                return m.CreateAclsResponse([m.ItemResult(ErrorCode.NONE, "") for _ in errors])
            case m.AlterClientQuotasRequest():
                for quota in request.quotas:
                    commit(log, [quota_entry(log.state, quota)])
                return m.AlterClientQuotasResponse([m.ItemResult(ErrorCode.NONE, "") for _ in request.quotas])
    raise AssertionError(request)


@contextmanager
def _metadata_log(data_dir: Path) -> Iterator[MetadataLog]:
    """Yield the metadata log of a directory that is locked meanwhile."""
    with ExitStack() as stack:
        if (data_dir / FILE_NAME).exists():
            refuse_if_locked([data_dir])
            stack.callback(DataDirectory.lock(data_dir).close)
            log, _ = MetadataLog.open(data_dir)
        else:
            directories, log = lock_and_read(BrokerConfig(data_dir=str(data_dir)))
            stack.callback(directories.close)
        stack.callback(log.close)
        yield log
