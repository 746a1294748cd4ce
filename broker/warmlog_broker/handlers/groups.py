"""Consumer groups."""

from typing import Any, Never

from warmlog_protocol.errors import CoordinatorNotAvailable


def _none(*_: Any) -> Never:
    raise CoordinatorNotAvailable("this broker has no coordinator")


group_heartbeat = offset_commit = offset_fetch = list_groups = describe_groups = delete_groups = delete_offsets = _none
