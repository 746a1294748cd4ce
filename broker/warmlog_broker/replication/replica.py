"""The state of one replica of a partition, and one turn of it: the state while an event is handled.

::

    IDLE        not one of the replicas
    ALIGNING    a new epoch: not known yet to agree with the leader's log. Nothing is appended, nothing committed
    FOLLOWING   agrees with the leader's log up to its own end, and appends what the leader answers
    STANDING    its election is written, and the outcome not known; it has stopped fetching before
    LEADING     takes produce requests (unless it hands over) and answers the fetches of the others
    REFUSED     its log cannot be trusted, or contradicts the cluster: it takes no part
"""

from enum import Enum

import msgspec

from warmlog_broker.replication import events
from warmlog_broker.replication.alignment import Log
from warmlog_broker.replication.followers import Follower
from warmlog_broker.replication.record import NO_LEADER, Author, Change, Nodes, PartitionRecord, changed
from warmlog_protocol.errors import ApiError

NO_RECORD = PartitionRecord(leader=NO_LEADER, leader_epoch=-1, replicas=(), isr=())


class Role(Enum):
    """What a replica does: see the module."""

    IDLE = "idle"
    ALIGNING = "aligning"
    FOLLOWING = "following"
    STANDING = "standing"
    LEADING = "leading"
    REFUSED = "refused"


class Proposal(msgspec.Struct, frozen=True):
    """A change of the record that is under way: one at a time."""

    write: events.Write
    began_ms: int
    again_ms: int | None = None
    """When it is written again, since the outcome is not known; None while it is under way."""
    is_unknown: bool = False
    """Whether a copy of it may still be applied later."""


class Leading(msgspec.Struct, frozen=True):
    """What a leader knows in its epoch."""

    epoch_start: int
    """What the leaders before it have committed ends at or before this offset: until its high watermark has reached it,
    it does not know what is committed."""
    began_ms: int
    own: Follower
    """The progress of its own flushes."""
    followers: dict[int, Follower] = {}
    read_ms: int = events.NEVER
    """When the last linearizable read began that has shown it to lead."""
    asked_read_ms: int = events.NEVER
    hand_over_ms: int | None = None
    """Since when it hands over: it takes no produce requests."""
    hand_over_to: int | None = None


class Replica(msgspec.Struct):
    """What one broker knows and does about one partition. Events change copies of it."""

    node: int
    incarnation: int
    log: Log
    times: events.Times = events.Times()
    obeyed: str = ""
    """The last recovery that it has obeyed."""

    role: Role = Role.IDLE
    epoch: int = -1
    """Of the role."""
    record: PartitionRecord = NO_RECORD
    revision: int = 0
    sessions: events.Sessions = {}
    broker_epoch: int = 0
    """Of this broker's registration; 0 while it has none."""
    proposal: Proposal | None = None
    number: int = 0
    """Of the last fetch or write."""

    is_cutting: bool = False
    """A cut is under way: the bounds of the log are not known."""
    is_repairing: bool = False
    """What is cut is a damaged log: a sound one begins then."""
    vacant_since_ms: int | None = None
    """Since when the leader is missing."""
    fetch: events.Fetch | None = None
    """The request that is under way."""
    fetch_again_ms: int = events.NEVER
    heard_ms: int = events.NEVER
    """When the last answer came."""
    echo_ms: int = events.NEVER
    leader_high_watermark: int = 0
    leader_start: int = 0
    refilled_below: int = 0
    removed_below: int = 0
    """Compaction may have removed tombstones and markers below this offset."""
    raising_start: int = 0

    leading: Leading | None = None
    wanted_min_isr: int | None = None
    wanted_replicas: Nodes | None = None

    failed_in: int | None = None
    """The broker epoch in which the log turned out to be damaged; None if it is not."""


def accepts_appends(replica: Replica) -> bool:
    """Return whether producers may append: if not, they ask for the leader again."""
    return replica.leading is not None and replica.leading.hand_over_ms is None


class Turn:
    """One event for a replica: the copy that it changes, and the actions so far."""

    __slots__ = ("actions", "now_ms", "replica")

    def __init__(self, replica: Replica, now_ms: int) -> None:
        self.replica = replica
        self.now_ms = now_ms
        self.actions: list[events.Action] = []

    def do(self, action: events.Action) -> None:
        self.actions.append(action)

    def change(self, **fields: object) -> None:
        """Change what it knows as the leader."""
        assert self.replica.leading is not None
        self.replica.leading = msgspec.structs.replace(self.replica.leading, **fields)

    def move(self, **fields: object) -> None:
        """Change what it knows of the log."""
        self.replica.log = msgspec.structs.replace(self.replica.log, **fields)

    def next_number(self) -> int:
        self.replica.number += 1
        return self.replica.number

    def refuse(self, reason: str) -> None:
        """Take no part any more, and tell the operator."""
        self.replica.leading = None
        self.replica.role = Role.REFUSED
        self.do(events.Alarm(reason))

    def propose(self, change: Change, sessions: dict[int, int] | None = None) -> bool:
        """Write the record after a change, if `sessions` hold, and this broker's own; return whether that is valid."""
        replica = self.replica
        number = self.next_number()
        after = changed(replica.record, change, Author(replica.node, replica.incarnation, number))
        if isinstance(after, ApiError):
            return False
        conditions = {replica.node: replica.broker_epoch, **(sessions or {})}
        write = events.Write(number, after, replica.revision, conditions)
        replica.proposal = Proposal(write, self.now_ms)
        self.do(write)
        return True
