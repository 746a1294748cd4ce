"""Changes and lists quotas in the metadata log of a stopped broker, or before its first start."""

from pathlib import Path

from warmlog_broker.data_dirs.directory_set import commit
from warmlog_broker.metadata.metadata_log import FILE_NAME, read_state
from warmlog_broker.security.quota_rules import list_of_quotas
from warmlog_broker.security.quotas import quota_entry
from warmlog_broker.tools.users import metadata_log
from warmlog_protocol.messages import ClientQuota


def quotas_in(data_dir: Path) -> list[ClientQuota]:
    """Return the quotas, by user and client id; a broker may be running. StorageError, or FileNotFoundError without a
    metadata log."""
    return list_of_quotas(read_state(data_dir / FILE_NAME).quotas)


def change_quota(data_dir: Path, wanted: ClientQuota) -> None:
    """Change one quota, durably on return. InvalidRequest.

    A directory that is new is prepared for a broker. Raises DirectoryLocked if one is running, another
    DataDirectoryError, or StorageError.
    """
    with metadata_log(data_dir) as log:
        commit(log, [quota_entry(log.state, wanted)])
