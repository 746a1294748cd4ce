"""What clients of all kinds say about consumer groups."""

from collections.abc import Sequence

from warmlog.errors import NonEmptyGroup
from warmlog_protocol.messages import GroupMember

_MOST_NAMED = 5
"""Of the members in an error: enough to find the deployment that they belong to."""


def occupied(group: str, members: Sequence[GroupMember]) -> NonEmptyGroup:
    """Return the error for a change of a group that these members are in."""
    named = [f"{each.instance_id or each.member_id} ({each.client_id} at {each.host})" for each in members]
    more = [f"and {len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    count = "1 member" if len(named) == 1 else f"{len(named)} members"
    return NonEmptyGroup(
        f"group {group!r} has {count}: {', '.join(named[:_MOST_NAMED] + more)}; stop them first: only they may commit "
        "while there are any"
    )
