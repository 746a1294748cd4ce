"""A process with a consumer of the classic protocol, as the simulation has it: what Kafka's clients do."""

from dataclasses import dataclass, field

from warmlog_broker.coordinator.classic import messages as m
from warmlog_protocol import errors

NO_GENERATION = -1
PARTITIONS = 6
Assignment = tuple[int, frozenset[int]]
"""The number of the SyncGroup that brought it, and the partitions."""


@dataclass(slots=True, eq=False)
class Process:
    """Joins, syncs, sends heartbeats, and joins again when it is told to."""

    group: str
    name: str
    instance_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    needs_member_id: bool
    protocols: list[tuple[str, bytes]]
    never_syncs: bool = False
    never_joins_again: bool = False

    member_id: str = ""
    generation: int = NO_GENERATION
    must_join: bool = True
    must_sync: bool = False
    others: list[m.JoinedMember] = field(default_factory=list)
    """Whom it is to assign partitions to."""
    owned: frozenset[int] = frozenset()
    owned_generation: int = 0
    """In which it was assigned that."""
    is_running: bool = True
    is_final: bool = False
    """Another process has its instance id, as it was told."""
    request_number: int = 0
    waits_since_ms: int | None = None

    def join(self) -> m.JoinGroupRequest:
        return m.JoinGroupRequest(
            self.group,
            self.member_id,
            "consumer",
            self.protocols,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.instance_id,
            needs_member_id=self.needs_member_id,
            may_skip_assignment=self.needs_member_id,
        )

    def sync(self, number: int) -> m.SyncGroupRequest:
        """Return the SyncGroup; `number` is in all assignments that it brings."""
        count = len(self.others)
        assignments = [
            (other.member_id, pack(number, range(rank, PARTITIONS, count))) for rank, other in enumerate(self.others)
        ]
        return m.SyncGroupRequest(self.group, self.member_id, self.generation, self.instance_id, assignments)

    def lose_all(self) -> None:
        """Own nothing, and join again."""
        self.owned, self.must_join, self.must_sync, self.waits_since_ms = frozenset(), True, False, None

    def joined(self, response: m.JoinGroupResponse) -> None:
        self.member_id, self.generation = response.member_id, response.generation
        self.others = [] if response.skip_assignment else response.members
        self.must_join, self.must_sync = False, True

    def synced(self, response: m.SyncGroupResponse) -> None:
        self.must_sync = False
        self.owned, self.owned_generation = unpack(response.assignment)[1], self.generation

    def failed(self, error: errors.ApiError) -> None:
        """Do what clients do about an error."""
        match error:
            case errors.MemberIdRequired():
                self.member_id = str(error)
            case errors.UnknownMemberId() | errors.IllegalGeneration():
                self.member_id, self.generation = "", NO_GENERATION
                self.lose_all()
            case errors.FencedInstanceId():
                self.is_final = True
                self.lose_all()
            case errors.RebalanceInProgress():
                self.must_join = not self.never_joins_again or not self.member_id
            case _:
                pass


def pack(number: int, partitions: "range") -> bytes:
    """Return an assignment."""
    return ",".join(map(str, (number, *partitions))).encode()


def unpack(assignment: bytes) -> Assignment:
    """Return what was given to `pack`; nothing for an empty assignment."""
    number, *partitions = map(int, assignment.split(b",")) if assignment else (0,)
    return number, frozenset(partitions)
