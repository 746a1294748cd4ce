"""Requests and responses of the classic protocol, as the machine sees them: warmlog's own protocol has none of these.

Subscriptions ("metadata") and assignments are opaque bytes of the clients.
"""

from typing import NamedTuple

from msgspec import field

from warmlog_protocol.messages import Message


class JoinGroupRequest(Message, frozen=True):
    """Join a group, or join again. The response comes once all members have joined, or are no longer waited for."""

    group: str
    member_id: str
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    """What the member can do, what it prefers first: names, each with its metadata."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str = ""
    """Not empty for a static member, whose next process takes its place."""
    client_id: str = ""
    needs_member_id: bool = False
    """Whether a new dynamic member is told its id first (MEMBER_ID_REQUIRED), and joins again with that."""
    may_skip_assignment: bool = False
    """Whether a leader understands `skip_assignment`."""


class JoinedMember(Message, frozen=True):
    member_id: str
    instance_id: str
    metadata: bytes


class JoinGroupResponse(Message, frozen=True):
    """`members` is given to the leader only, which assigns, unless it is to `skip_assignment`."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: list[JoinedMember]
    skip_assignment: bool = False


class SyncGroupRequest(Message, frozen=True):
    """Ask for the own assignment. The leader brings the assignments of all."""

    group: str
    member_id: str
    generation: int
    instance_id: str = ""
    assignments: list[tuple[str, bytes]] = field(default_factory=list)
    """By member id; empty unless the leader sends it."""
    protocol_type: str = ""
    protocol: str = ""
    """Empty, or what the member was told."""


class SyncGroupResponse(Message, frozen=True):
    protocol_type: str
    protocol: str
    assignment: bytes


class HeartbeatRequest(Message, frozen=True):
    """Say that the member is alive. REBALANCE_IN_PROGRESS: it is to join again."""

    group: str
    member_id: str
    generation: int
    instance_id: str = ""


class HeartbeatResponse(Message, frozen=True):
    """Nothing has happened."""


class LeavingMember(NamedTuple):
    """A static member may be named by its instance id alone."""

    member_id: str
    instance_id: str = ""


class LeaveGroupRequest(Message, frozen=True):
    group: str
    members: list[LeavingMember]


class LeaveGroupResponse(Message, frozen=True):
    """An error code for each member, in the order of the request."""

    error_codes: list[int]
