"""A process with a consumer, as the simulation has it: what the client does, without sockets and threads."""

from dataclasses import dataclass, field

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions.state import as_partitions
from warmlog_protocol.errors import FencedInstanceId, WarmlogError
from warmlog_protocol.messages.coordinators.groups import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    TopicPartitions,
)


@dataclass(slots=True, eq=False)
class Process:
    """`owned` is what it believes to own, `revoking` the part of that which it is giving up."""

    group: str
    member_id: str
    instance_id: str
    assignor: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    never_revokes: bool

    topics: list[str] = field(default_factory=list)
    pattern: str = ""
    epoch: int = JOINING
    owned: set[PartitionId] = field(default_factory=set)
    revoking: set[PartitionId] = field(default_factory=set)
    positions: dict[PartitionId, int] = field(default_factory=dict)
    holdings: dict[PartitionId, int] = field(default_factory=dict)
    """How often each partition had been assigned when it got it, as the simulation counts."""
    is_running: bool = True
    is_final: bool = False
    """Another process has its instance id, as it was told."""
    request_number: int = 0
    is_waiting: bool = False
    waiting_since_ms: int = 0
    confirmed_ms: int = 0
    """When it sent the last heartbeat that was accepted: its membership is good for a session timeout from then on."""
    commit_sequence: int = 0
    is_disowned: bool = False
    """The coordinator has taken its place although its session was good: it was too slow, or another has its id."""

    def lose_all(self) -> None:
        """Forget a membership that is over, with the heartbeat that is on its way."""
        self.epoch = JOINING
        self.is_waiting = False
        self.owned.clear()
        self.revoking.clear()
        self.is_disowned = False

    def check_session(self, now_ms: int) -> None:
        """Give everything up if the coordinator may have ended the session."""
        if self.epoch != JOINING and now_ms - self.confirmed_ms >= self.session_timeout_ms:
            self.lose_all()

    def heartbeat(self, now_ms: int, *, with_owned: bool) -> GroupHeartbeatRequest:
        """Return the next heartbeat, and wait for its response only."""
        self.request_number += 1
        self.is_waiting, self.waiting_since_ms = True, now_ms
        return self._request(self.epoch, with_owned=with_owned or self.epoch == JOINING)

    def leave(self) -> GroupHeartbeatRequest:
        """Give everything up and return the last heartbeat; a static process comes back under another member id."""
        self.request_number += 1
        self.lose_all()
        return self._request(LEAVING_FOR_A_WHILE if self.instance_id else LEAVING, with_owned=False)

    def _request(self, epoch: int, *, with_owned: bool) -> GroupHeartbeatRequest:
        return GroupHeartbeatRequest(
            self.group,
            self.member_id,
            epoch,
            self.instance_id,
            self.topics,
            self.pattern,
            self.assignor,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self._as_message() if with_owned else None,
        )

    def _as_message(self) -> list[TopicPartitions]:
        return [TopicPartitions(topic_id, "", [number]) for topic_id, number in self.owned]

    def respond(self, number: int, response: GroupHeartbeatResponse | WarmlogError, sent_ms: int) -> set[PartitionId]:
        """Take the response to heartbeat `number`, if it is the one that is waited for; return what was gained."""
        if number != self.request_number or not self.is_waiting:
            return set()
        self.is_waiting = False
        if isinstance(response, WarmlogError):
            self.lose_all()
            self.is_final = isinstance(response, FencedInstanceId)
            return set()
        self.confirmed_ms = sent_ms
        self.epoch = response.member_epoch
        if response.assignment is None:
            return set()
        assignment = as_partitions(response.assignment)
        self.revoking = self.owned - assignment
        gained = set(assignment - self.owned)
        self.owned |= gained
        return gained

    def finish_revoking(self) -> None:
        """End `on_revoked`: the partitions are given up."""
        self.owned -= self.revoking
        self.revoking.clear()
