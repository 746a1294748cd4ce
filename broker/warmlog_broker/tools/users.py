"""Changes and lists users in the metadata log of a stopped broker, or before its first start."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import commit, lock_and_read, refuse_if_locked
from warmlog_broker.metadata.metadata_log import FILE_NAME, MetadataLog, read_state
from warmlog_broker.security.users import list_of_users, user_entries
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_protocol.messages import AlteredUser, ListedUser


def users_in(data_dir: Path) -> list[ListedUser]:
    """Return the users, by name; a broker may be running. StorageError, or FileNotFoundError without a metadata log."""
    return list_of_users(read_state(data_dir / FILE_NAME), _now_ms())


def change_user(data_dir: Path, change: Callable[[list[ListedUser]], AlteredUser]) -> None:
    """Make the change that `change` returns for the present users; durable on return.

    A directory that is new is prepared for a broker. Raises DirectoryLocked if one is running, another
    DataDirectoryError, StorageError, or the errors of `user_entries`.
    """
    with metadata_log(data_dir) as log:
        wanted = change(list_of_users(log.state, _now_ms()))
        commit(log, user_entries(log.state, wanted, _now_ms()))


@contextmanager
def metadata_log(data_dir: Path) -> Iterator[MetadataLog]:
    """Yield the metadata log of a directory that is locked meanwhile: the first one, if a broker has several."""
    if not (data_dir / FILE_NAME).exists():
        directories, log = lock_and_read(BrokerConfig(data_dir=str(data_dir)))
        close = directories.close
    else:
        refuse_if_locked([data_dir])
        directory = DataDirectory.lock(data_dir)
        close = directory.close
        try:
            log, _ = MetadataLog.open(data_dir)
        except BaseException:
            close()
            raise
    try:
        yield log
    finally:
        log.close()
        close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
