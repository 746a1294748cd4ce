"""The state of one group of the classic protocol: its phase, its members, and what of it is in the log.

What is durable is `SavedRebalance`: the last generation that was assigned, with its members. It changes when an
assignment is given out, when a static member is replaced, and when the last member has gone; requests that cause that
get their response afterwards. All else is *soft*: a restart continues with the saved generation, whose members get
their full session and may go on. A rebalance that was under way is begun again by its members.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from warmlog_broker.coordinator.framework.decision import VERSION, Value

MEMBER_BYTES = 1500
"""What a member takes in memory, about, without what clients can make large."""
GIVEN_ID_BYTES = 300
NEVER_MS = 2**63 - 1


class Phase(Enum):
    """What members do now; the values are what tools show."""

    EMPTY = "empty"
    """Without members."""
    PREPARING = "preparing"
    """Members are to join again."""
    COMPLETING = "completing"
    """All have joined, and the leader is to bring the assignments."""
    STABLE = "stable"


class SavedMember(Struct, frozen=True, array_like=True):
    """A member as the log has it."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""


class SavedRebalance(Value, frozen=True, tag=VERSION, gc=False):
    """The last generation of a group that was assigned."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[SavedMember, ...]


class Member(SavedMember, frozen=True):
    """A member. `joining` and `syncing` are its requests that wait for their responses; the machine only keeps them."""

    deadline_ms: int = 0
    """It is removed if nothing is heard of it until then, unless one of its requests waits."""
    joining: Any = None
    syncing: Any = None
    owes_sync: bool = False
    """It has joined the generation, and has not synced yet."""

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str) -> bytes:
        """Return what it said about a protocol; empty if it does not know that."""
        return dict(self.protocols).get(protocol, b"")

    def saved(self) -> SavedMember:
        """Return it as the log has it."""
        return SavedMember(*astuple(self)[: len(SavedMember.__struct_fields__)])


class Rebalance(Struct):
    """A group. Functions of `events` return a changed copy, never change one that was given to them."""

    generation: int = 0
    """Rises with each set of members that has joined, and when the group becomes empty."""
    phase: Phase = Phase.EMPTY
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = {}
    """By member id, in the order in which they came."""
    given_ids: dict[str, int] = {}
    """Ids that new members were told, until when each is waited for."""
    due_ms: int = NEVER_MS
    """PREPARING: those who have not joined until then are left behind. Later: those who have not synced are removed."""
    settles_ms: int | None = None
    """PREPARING: the group was empty, and waits until then for more members."""
    saved: SavedRebalance | None = None
    """What the log has; None if that has no members."""

    def copied(self) -> "Rebalance":
        """Return a copy to be changed."""
        return replace(self, members=dict(self.members), given_ids=dict(self.given_ids))

    def holder(self, instance_id: str) -> Member | None:
        """Return the static member that has an instance id."""
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def next_due_ms(self) -> int:
        """Return when `events.expire` has something to do, if nothing happens before."""
        sessions = (member.deadline_ms for member in self.members.values() if not member.is_waiting)
        return min([self.due_ms, *sessions, *self.given_ids.values(), self.settles_ms or NEVER_MS])

    def to_save(self) -> SavedRebalance:
        """Return it as the log has it."""
        members = tuple(member.saved() for member in self.members.values())
        return SavedRebalance(self.generation, self.protocol_type, self.protocol, self.leader, members)


def held_bytes(members: Iterable[SavedMember]) -> int:
    """Return what members take in memory, about."""
    return sum(
        MEMBER_BYTES + len(each.assignment) + sum(len(name) + len(data) + 200 for name, data in each.protocols)
        for each in members
    )


def more_bytes(before: Rebalance, after: Rebalance) -> int:
    """Return how much more a group takes in memory than before, about. Members that are the same object count once."""
    changed = [each for name, each in after.members.items() if before.members.get(name) is not each]
    gone = [each for name, each in before.members.items() if after.members.get(name) is not each]
    return held_bytes(changed) - held_bytes(gone) + GIVEN_ID_BYTES * (len(after.given_ids) - len(before.given_ids))


def loaded(saved: SavedRebalance, now_ms: int) -> Rebalance:
    """Return the group that the log has, all of whose members get their full session."""
    members = {
        each.member_id: Member(**asdict(each), deadline_ms=now_ms + each.session_timeout_ms) for each in saved.members
    }
    return Rebalance(
        saved.generation, Phase.STABLE, saved.protocol_type, saved.protocol, saved.leader, members, saved=saved
    )


def common_protocols(members: Iterable[Member]) -> set[str]:
    """Return the protocols that all of some members know."""
    return set.intersection(*({name for name, _ in member.protocols} for member in members))


def chosen_protocol(members: Mapping[str, Member]) -> str:
    """Return the protocol that all members know and most prefer; of several the one that was named first."""
    common = common_protocols(members.values())
    votes = Counter(next(name for name, _ in member.protocols if name in common) for member in members.values())
    return votes.most_common(1)[0][0]
