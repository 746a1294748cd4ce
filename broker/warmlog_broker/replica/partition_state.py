"""The states of a partition on this broker's disk and the roles of this broker for it: what each allows.

What a partition allows is what both its state and its role allow: `allowed`.

A move to another data directory takes a partition from ONLINE to MOVING, in which a copy catches up, to SWITCHING, in
which the copy is used although a start after a crash would take the original, and back to ONLINE. READ_ONLY and OFFLINE
last until a restart of the broker, DELETED for good; they end a move.
"""

from enum import Enum, auto
from itertools import product
from typing import NamedTuple


class PartitionState(Enum):
    ONLINE = auto()
    MOVING = auto()
    """It is being copied to another data directory."""
    SWITCHING = auto()
    """It has just moved, and a crash would lose new records until the move is durable."""
    READ_ONLY = auto()
    """Its disk refuses writes."""
    OFFLINE = auto()
    """Its disk has failed, or its log could not be opened."""
    DELETED = auto()

    @property
    def allows(self) -> "Allowed":
        return _ALLOWED[self]

    def may_become(self, state: "PartitionState") -> bool:
        return state in _NEXT[self]


class Role(Enum):
    """What this broker does for a partition, in the partition's leader epoch.

    `replication/replica` has finer ones: a replica that aligns its log, stands for election or refuses is IDLE here.
    """

    IDLE = auto()
    """It has not been told yet, or neither copies nor appends now."""
    FOLLOWING = auto()
    """It copies what the leader has."""
    LEADING = auto()
    """It appends what clients send, and answers them."""


class Allowed(NamedTuple):
    """The operations that a state or a role allows."""

    append: bool
    """Append batches and markers of clients and coordinators."""
    commit: bool
    """Raise the high watermark, and so acknowledge what was appended; acks=1 without a wait."""
    read: bool
    flush: bool
    """Sync appended records, and close the log cleanly."""
    trim: bool
    """Roll by `segment.ms`, and delete old records."""
    compact: bool
    move: bool
    """Begin a move to another data directory."""


_State = PartitionState
_ALLOWED = {
    #                          append  commit  read   flush  trim   compact move
    _State.ONLINE: Allowed(    True,   True,   True,  True,  True,  True,   True ),
    _State.MOVING: Allowed(    True,   True,   True,  True,  True,  False,  False),
    _State.SWITCHING: Allowed(  True,   False,  True,  False, False, False,  False),
    _State.READ_ONLY: Allowed( False,  True,   True,  False, False, False,  False),
    _State.OFFLINE: Allowed(   False,  False,  False, False, False, False,  False),
    _State.DELETED: Allowed(   False,  False,  False, False, False, False,  False),
}  # fmt: skip

_BY_ROLE = {
    Role.IDLE: Allowed(        False,  False,  True,  True,  False, False,   False),
    Role.FOLLOWING: Allowed(   False,  True,   True,  True,  True,  True,    True ),
    Role.LEADING: Allowed(     True,   True,   True,  True,  True,  True,    True ),
}  # fmt: skip
"""`read` is about the files: who is not the leader answers no client."""

_BOTH = {
    (state, role): Allowed(*map(min, _ALLOWED[state], _BY_ROLE[role])) for state, role in product(PartitionState, Role)
}


def allowed(state: PartitionState, role: Role) -> Allowed:
    return _BOTH[state, role]


_ENDS = {_State.READ_ONLY, _State.OFFLINE, _State.DELETED}
_NEXT = {
    _State.ONLINE: {_State.MOVING, *_ENDS},
    _State.MOVING: {_State.ONLINE, _State.SWITCHING, *_ENDS},
    _State.SWITCHING: {_State.ONLINE, *_ENDS},
    _State.READ_ONLY: {_State.OFFLINE, _State.DELETED},
    _State.OFFLINE: {_State.DELETED},
    _State.DELETED: set(),
}
