"""Users, rights and quotas in the metadata log of a stopped broker, or before its first start.

They can be listed while a broker runs; that raises StorageError, or FileNotFoundError without a metadata log. A change
is durable on return, and prepares a directory that is new for a broker; it raises DirectoryLocked if a broker is
running, another DataDirectoryError, or StorageError.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import commit, lock_and_read, refuse_if_locked
from warmlog_broker.metadata.metadata_log import FILE_NAME, MetadataLog, read_state
from warmlog_broker.security.authorizer import acl_entry, selected
from warmlog_broker.security.quota_rules import list_of_quotas
from warmlog_broker.security.quotas import quota_entry
from warmlog_broker.security.users import list_of_users, user_entries
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_protocol.messages import AclBinding, AclFilter, AlteredUser, ClientQuota, ListedUser


def users_in(data_dir: Path) -> list[ListedUser]:
    """Return the users, by name."""
    return list_of_users(read_state(data_dir / FILE_NAME), _now_ms())


def change_user(data_dir: Path, change: Callable[[list[ListedUser]], AlteredUser]) -> None:
    """Make the change that `change` returns for the present users. Also raises the errors of `user_entries`."""
    with _metadata_log(data_dir) as log:
        wanted = change(list_of_users(log.state, _now_ms()))
        commit(log, user_entries(log.state, wanted, _now_ms()))


def acls_in(data_dir: Path, wanted: AclFilter) -> list[AclBinding]:
    """Return the rules that the filter fits."""
    return selected(read_state(data_dir / FILE_NAME).acls, [wanted])


def create_acls(data_dir: Path, wanted: Sequence[AclBinding]) -> None:
    """Add rules. InvalidRequest for one that cannot be a rule: then none is added."""
    with _metadata_log(data_dir) as log:
        entry, errors = acl_entry(log.state, wanted)
        for error in errors:
            if error is not None:
                raise error
        if entry is not None:
            commit(log, [entry])


def quotas_in(data_dir: Path) -> list[ClientQuota]:
    """Return the quotas, by user and client id."""
    return list_of_quotas(read_state(data_dir / FILE_NAME).quotas)


def change_quota(data_dir: Path, wanted: ClientQuota) -> None:
    """Change one quota. InvalidRequest."""
    with _metadata_log(data_dir) as log:
        commit(log, [quota_entry(log.state, wanted)])


@contextmanager
def _metadata_log(data_dir: Path) -> Iterator[MetadataLog]:
    """Yield the metadata log of a directory that is locked meanwhile: the first one, if a broker has several."""
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
