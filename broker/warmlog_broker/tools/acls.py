"""Adds and lists rules about rights in the metadata log of a stopped broker, or before its first start."""

from collections.abc import Sequence
from pathlib import Path

from warmlog_broker.data_dirs.directory_set import commit
from warmlog_broker.metadata.metadata_log import FILE_NAME, read_state
from warmlog_broker.security.authorizer import acl_entry, selected
from warmlog_broker.tools.users import metadata_log
from warmlog_protocol.messages import AclBinding, AclFilter


def acls_in(data_dir: Path, wanted: AclFilter) -> list[AclBinding]:
    """Return the rules that the filter fits; a broker may be running. StorageError, or FileNotFoundError without a
    metadata log."""
    return selected(read_state(data_dir / FILE_NAME).acls, [wanted])


def create_acls(data_dir: Path, wanted: Sequence[AclBinding]) -> None:
    """Add rules, durably on return. InvalidRequest for one that cannot be a rule: then none is added.

    A directory that is new is prepared for a broker. Raises DirectoryLocked if one is running, another
    DataDirectoryError, or StorageError.
    """
    with metadata_log(data_dir) as log:
        entry, errors = acl_entry(log.state, wanted)
        for error in errors:
            if error is not None:
                raise error
        if entry is not None:
            commit(log, [entry])
