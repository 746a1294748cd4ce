"""What a member of a group sends, and what it concludes from the responses. No I/O, no clock, no threads.

::

    OUT ──join──► JOINING ──response──► MEMBER ──leave──► LEAVING ──response──► OUT
     ▲               │ refused             │ refused: UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID …
     └───────────────┴─────────────────────┘

Only the response to the last heartbeat counts. A heartbeat without a response is sent again: the coordinator accepts
repeated and late ones. What the member owns is sent until a response with the same epoch confirms it, and again if the
coordinator does not seem to know it. FENCED_INSTANCE_ID is final; after any other refusal `join` starts over.
"""

from collections.abc import Iterable
from enum import Enum, auto
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from warmlog.errors import ApiError, FencedInstanceId, WarmlogError
from warmlog_protocol import messages as m
from warmlog_transport.responses import TopicPartition


class Owned(NamedTuple):
    """A partition of a group. Of two topics with one name, one deleted, the ids tell them apart."""

    topic_id: bytes
    topic: str
    partition: int

    @property
    def tp(self) -> TopicPartition:
        return self.topic, self.partition


Partitions = frozenset[Owned]
NOTHING: Partitions = frozenset()


class Phase(Enum):
    """See the module."""

    OUT = auto()
    JOINING = auto()
    MEMBER = auto()
    LEAVING = auto()


class Assignment(NamedTuple):
    """What the consumer may read, and as which member: `incarnation` counts how often it has joined."""

    incarnation: int
    phase: Phase
    epoch: int
    partitions: Partitions
    """What the member may own now, by the coordinator's last response."""
    reason: WarmlogError | None
    """Why it is out, if it was refused or had to leave."""
    is_settled: bool
    """Whether the member is to get nothing more, unless the group changes."""


class Membership:
    """One member. `request` is what to send now; `responded` and `failed` take what came of it."""

    def __init__(self, first: m.GroupHeartbeatRequest) -> None:
        """`first` is the heartbeat that joins."""
        self._first = first
        self._phase = Phase.OUT
        self._incarnation = 0
        self._epoch = 0
        self._assigned = NOTHING
        self._owned = NOTHING
        self._is_confirmed = False
        self._is_settled = False
        self._reason: WarmlogError | None = None
        self._sent: m.GroupHeartbeatRequest | None = None
        self._leaving_epoch = m.LEAVING
        self.failures = 0
        """How many heartbeats in a row had no response, or one that asks for a retry."""
        self.interval_ms = 0
        self.session_timeout_ms = 0
        """As the coordinator has set it; 0 before its first response."""

    @property
    def assignment(self) -> Assignment:
        return Assignment(self._incarnation, self._phase, self._epoch, self._assigned, self._reason, self._is_settled)

    @property
    def is_urgent(self) -> bool:
        """Whether to send the next heartbeat at once, and not after `interval_ms`."""
        return self._phase in (Phase.JOINING, Phase.LEAVING) or (self._phase is Phase.MEMBER and not self._is_confirmed)

    # --- what the consumer does -------------------------------------------------------------------------------------

    def join(self) -> None:
        """Become a member, unless it is one or may not be one again."""
        if self._phase is Phase.OUT and not isinstance(self._reason, FencedInstanceId):
            self._incarnation += 1
            self._phase, self._reason = Phase.JOINING, None
            self._epoch, self._assigned = 0, NOTHING
            self._sent = None
            self.failures = 0
            self._own(NOTHING)

    def own(self, incarnation: int, owned: Iterable[Owned]) -> None:
        """Tell the coordinator what it owns now. Without effect if it was lost in the meantime."""
        if self._phase is Phase.MEMBER and incarnation == self._incarnation:
            self._own(frozenset(owned))

    def claim(self, incarnation: int, partitions: Partitions) -> bool:
        """Own these as well, unless the coordinator no longer assigns all of them; return whether it does."""
        if self._phase is not Phase.MEMBER or incarnation != self._incarnation or not partitions <= self._assigned:
            return False
        self._own(self._owned | partitions)
        return True

    def leave(self, *, for_a_while: bool = False, reason: WarmlogError | None = None) -> None:
        """Give up everything. A static member's partitions may wait for its instance id (`for_a_while`)."""
        if self._phase in (Phase.JOINING, Phase.MEMBER):
            self._phase, self._reason = Phase.LEAVING, reason
            self._leaving_epoch = m.LEAVING_FOR_A_WHILE if for_a_while else m.LEAVING
            self._assigned = NOTHING

    def lost(self, incarnation: int, reason: WarmlogError) -> None:
        """A request was refused because this is no longer a member."""
        if incarnation == self._incarnation and self._phase in (Phase.JOINING, Phase.MEMBER):
            self._out(reason)

    # --- heartbeats -------------------------------------------------------------------------------------------------

    def request(self, max_wait_ms: int = 0) -> m.GroupHeartbeatRequest | None:
        """The next heartbeat; None while it is out. One that says nothing new may wait for news at the coordinator."""
        self._sent = self._next(max_wait_ms)
        return self._sent

    def responded(self, request: m.GroupHeartbeatRequest, response: m.GroupHeartbeatResponse) -> None:
        if request is not self._sent or self._phase is Phase.OUT:
            return
        self._sent = None
        self.failures = 0
        self.interval_ms = response.heartbeat_interval_ms
        self.session_timeout_ms = response.session_timeout_ms
        if request.member_epoch < 0:
            self._out(self._reason)
        elif self._phase is not Phase.LEAVING:
            self._phase = Phase.MEMBER
            self._epoch = response.member_epoch
            self._is_settled = response.is_settled
            if request.member_epoch != response.member_epoch:
                self._is_confirmed = False  # what it had not taken yet, and is revoked, waits for its word
            elif request.owned is not None and partitions_of(request.owned) == self._owned:
                self._is_confirmed = True
            if response.assignment is not None:
                self._assigned = partitions_of(response.assignment)
                if self._assigned == self._owned and request.owned is None:  # else it would not have been sent
                    self._is_confirmed = False

    def failed(self, request: m.GroupHeartbeatRequest, error: WarmlogError) -> None:
        """`request` was refused, or had no response."""
        if request is not self._sent or self._phase is Phase.OUT:
            return
        self._sent = None
        if isinstance(error, ApiError) and not error.retriable:
            self._out(self._reason if self._phase is Phase.LEAVING else error)
            return
        self.failures += 1
        self._is_confirmed = False

    # --- within -----------------------------------------------------------------------------------------------------

    def _next(self, max_wait_ms: int) -> m.GroupHeartbeatRequest | None:
        match self._phase:
            case Phase.OUT:
                return None
            case Phase.JOINING:
                return replace(self._first)
            case Phase.LEAVING:
                return replace(self._plain(self._leaving_epoch, None, 0), left_epoch=self._epoch)
            case Phase.MEMBER if self._is_confirmed:
                return self._plain(self._epoch, None, max_wait_ms)
            case Phase.MEMBER:
                return self._plain(self._epoch, messages_of(self._owned), 0)

    def _plain(self, epoch: int, owned: list[m.TopicPartitions] | None, max_wait_ms: int) -> m.GroupHeartbeatRequest:
        first = self._first
        return m.GroupHeartbeatRequest(
            first.group, first.member_id, epoch, first.instance_id, owned=owned, max_wait_ms=max_wait_ms
        )

    def _own(self, owned: Partitions) -> None:
        if owned != self._owned:
            self._is_confirmed = False
        self._owned = owned

    def _out(self, reason: WarmlogError | None) -> None:
        self._phase, self._reason = Phase.OUT, reason
        self._assigned, self._is_settled = NOTHING, False


def partitions_of(parts: Iterable[m.TopicPartitions]) -> Partitions:
    return frozenset(Owned(each.topic_id, each.topic, number) for each in parts for number in each.partitions)


def messages_of(partitions: Iterable[Owned]) -> list[m.TopicPartitions]:
    """Return `partitions` as a message has them, in order."""
    return [
        m.TopicPartitions(*topic, [each.partition for each in parts])
        for topic, parts in groupby(sorted(partitions), lambda each: (each.topic_id, each.topic))
    ]
