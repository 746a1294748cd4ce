"""What was seen of one group of the classic protocol, and what must be true of it."""

from unit.broker.coordinator.classic.simulation.process import unpack
from unit.broker.coordinator.group.simulation.checks import require
from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic.state import NEVER_MS, Phase, Rebalance, common_protocols, more_bytes
from warmlog_broker.coordinator.group.decisions.state import Group
from warmlog_protocol.messages.coordinators.groups import OffsetCommitRequest

LONGEST_MS = 2500
"""The longest rebalance timeout of a process."""
LATE_MS = 2500
"""How much later a wait may end: while the disk is slow, and once more if a write has failed."""


class Truth:
    """What is remembered of the group, longer than a coordinator; the methods raise Violation."""

    def __init__(self) -> None:
        self.generations: dict[int, int] = {}
        """By the number of a SyncGroup, the generation in which it was sent."""
        self._given: dict[str, int] = {}
        """Ids that are waited for, and since when."""
        self._gone: set[str] = set()
        """Ids of former members."""
        self._fenced: set[str] = set()
        self._saved_members: dict[int, frozenset[str]] = {}
        """By generation, the members that an assignment was saved for: instance ids, or member ids."""
        self._numbers: dict[int, int] = {}
        """By generation, the SyncGroup of which assignments were given out."""
        self._assigners: dict[int, str] = {}
        """By generation, who was told to assign, since the start of the coordinator."""
        self._completing: tuple[int | None, int] = None, 0
        """The generation that waits for its assignments, and since when."""
        self._commit_generations: dict[int, int] = {}
        """By partition, the generation of the last commit."""
        self._highest = 0
        """The highest generation that was assigned, or epoch that a member was told."""

    # What happens.

    def allow(self, more_ms: int) -> None:
        """Let what is waited for take longer: the coordinator stands still."""
        self._completing = self._completing[0], self._completing[1] + more_ms
        self._given = {member_id: since_ms + more_ms for member_id, since_ms in self._given.items()}

    def note_saved(self, group: Group | None) -> None:
        """Take note of the assignment that is in the log."""
        saved = group.saved if group else None
        if saved is not None:
            slots = frozenset(each.instance_id or each.member_id for each in saved.members)
            known = self._saved_members.setdefault(saved.generation, slots)
            require(known == slots, "generation {} comes twice with other members", saved.generation)

    def note_gone(self, before: Rebalance, after: Rebalance) -> None:
        """Take note of the members that a change has removed."""
        for member in before.members.values():
            if member.member_id not in after.members:
                self._gone.add(member.member_id)
                if member.instance_id and after.holder(member.instance_id) is not None:
                    self._fenced.add(member.member_id)

    def restarted(self, rebalance: Rebalance) -> None:
        """Take note of the members that a new coordinator has loaded."""
        members = rebalance.members.keys()
        require(not self._fenced & members, "a fenced member is there again")
        self._gone -= members
        self._assigners.clear()

    def deleted(self, group: Group | None) -> None:
        """Forget the numbers of a group that was deleted: it begins again."""
        for each in (self._saved_members, self._numbers, self._assigners, self._commit_generations):
            each.clear()
        self._highest = 0
        require(group is None, "something is left of a deleted group")

    def has_epoch(self, epoch: int) -> None:
        """Check the epoch that a member of KIP-848 was told."""
        require(epoch > self._highest, "an epoch is not above the generations before it")
        self._highest = epoch

    def commits(self, request: OffsetCommitRequest, group: Group | None) -> None:
        """Check a commit that is accepted, and is not in force yet."""
        member_id, generation = request.member_id, request.member_epoch
        require(member_id not in self._gone, "a commit of a former member is accepted")
        saved = group.saved if group else None
        require(saved is not None and saved.generation == generation, "a commit of another generation is accepted")
        for item in request.partitions:
            last = self._commit_generations.get(item.partition, 0)
            require(generation >= last, "a commit of generation {} came after one of {}", generation, last)
            self._commit_generations[item.partition] = generation

    # What must be true.

    def check_time(self, rebalance: Rebalance, now_ms: int) -> None:
        """Check that the group does not wait for assignments for ever."""
        generation = rebalance.generation if rebalance.phase is Phase.COMPLETING else None
        if generation != self._completing[0]:
            self._completing = generation, now_ms
        if generation is not None:
            require(now_ms - self._completing[1] <= LONGEST_MS + 500, "the group waits for assignments for ever")

    def check(self, group: Group | None, rebalance: Rebalance, now_ms: int) -> None:
        """Check the group as it is after a change."""
        if group is None:
            return
        members, phase = rebalance.members, rebalance.phase
        require(group.soft_bytes == more_bytes(Rebalance(), rebalance), "what members take is not what is counted")
        require(not members or not group.members, "a group has members of both kinds")
        require(bool(members) == (phase is not Phase.EMPTY), "{} with {} members", phase, len(members))
        require(rebalance.saved == group.saved, "what the group takes for saved is not in the log")
        require(not self._fenced & members.keys(), "a fenced member is there again")
        if phase is Phase.PREPARING:
            is_awaited = any(member.joining is None for member in members.values())
            require(
                rebalance.settles_ms is not None or rebalance.given_ids or is_awaited,
                "no member is waited for any more",
            )
            require(not any(member.syncing for member in members.values()), "a SyncGroup waits while members join")
        elif members:
            require(rebalance.leader in members, "the leader is not a member")
            require(rebalance.protocol in common_protocols(members.values()), "a member does not know the protocol")
            require(not any(member.joining for member in members.values()), "a JoinGroup waits in {}", phase)
        if phase is Phase.COMPLETING:
            leader = members[rebalance.leader]
            require(leader.owes_sync, "the leader will not sync")
        is_timed = phase in (Phase.PREPARING, Phase.COMPLETING) or any(each.owes_sync for each in members.values())
        require((rebalance.due_ms != NEVER_MS) == is_timed, "a timer without an owner, or none, in {}", phase)
        self._given = {each: self._given.get(each, now_ms) for each in rebalance.given_ids}
        for since_ms in self._given.values():
            require(now_ms - since_ms <= LONGEST_MS + LATE_MS, "an id is waited for for ever")

    def joins(self, response: m.JoinGroupResponse, rebalance: Rebalance) -> None:
        """Check what a member is told of a generation."""
        generation = response.generation
        require(generation == rebalance.generation, "a member was told generation {}", generation)
        require(response.protocol == rebalance.protocol, "a generation has two protocols")
        if response.leader == response.member_id and not response.skip_assignment:
            member = rebalance.members[response.member_id]
            slot = member.instance_id or response.member_id
            known = self._assigners.setdefault(generation, slot)
            require(known == slot, "generation {} has two leaders", generation)
            told = [each.member_id for each in response.members]
            require(told == list(rebalance.members), "the leader does not know all members")

    def syncs(self, response: m.SyncGroupResponse, group: Group | None) -> None:
        """Check an assignment that is given out."""
        saved = group.saved if group else None
        assert saved is not None, "an assignment is given out, and is not in the log"
        self._highest = max(self._highest, saved.generation)
        require(
            response.assignment in {each.assignment for each in saved.members},
            "an assignment is given out, and is not in the log",
        )
        if response.assignment:
            number, _ = unpack(response.assignment)
            require(self.generations[number] == saved.generation, "a SyncGroup of another generation is accepted")
            known = self._numbers.setdefault(saved.generation, number)
            require(known == number, "generation {} has assignments of two SyncGroups", saved.generation)
