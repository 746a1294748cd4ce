"""The membership machine, alone and against a coordinator over a network that loses, doubles and delays."""

from random import Random

import pytest

import warmlog
from warmlog.consumer.group.membership import NOTHING, Membership, Owned, Partitions, Phase, messages_of, partitions_of
from warmlog_protocol.messages import GroupHeartbeatRequest, GroupHeartbeatResponse, TopicPartitions

FIRST = GroupHeartbeatRequest("g", "m", 0, "", ["t"], "", "uniform", 1000, 2000, [], "c")
ORDERS = frozenset(Owned(b"o" * 16, "orders", number) for number in range(4))
CLICKS = frozenset(Owned(b"c" * 16, "clicks", number) for number in range(2))


def response(epoch: int, assignment: Partitions | None = None) -> GroupHeartbeatResponse:
    return GroupHeartbeatResponse(epoch, 500, 2000, None if assignment is None else messages_of(assignment))


def joined(assignment: Partitions = ORDERS) -> Membership:
    """A member in epoch 1, of which the coordinator knows that it owns nothing yet."""
    member = Membership(FIRST)
    member.join()
    exchange(member, response(1, assignment))
    exchange(member, response(1, assignment))
    return member


def exchange(member: Membership, result: GroupHeartbeatResponse | warmlog.ApiError) -> GroupHeartbeatRequest:
    """One heartbeat, which it returns."""
    request = member.request()
    assert request is not None
    if isinstance(result, warmlog.ApiError):
        member.failed(request, result)
    else:
        member.responded(request, result)
    return request


def test_partitions_are_sorted_in_messages_and_come_back() -> None:
    sent = messages_of(ORDERS | CLICKS)
    assert sent == [
        TopicPartitions(b"c" * 16, "clicks", [0, 1]),
        TopicPartitions(b"o" * 16, "orders", [0, 1, 2, 3]),
    ]
    assert partitions_of(sent) == ORDERS | CLICKS
    assert messages_of(NOTHING) == []


def test_it_sends_nothing_before_it_joins() -> None:
    member = Membership(FIRST)
    assert member.request() is None
    member.own(0, ORDERS)
    member.leave()
    assert member.request() is None
    assert member.assignment.phase is Phase.OUT


def test_a_join_gives_everything_and_later_heartbeats_only_the_epoch() -> None:
    member = Membership(FIRST)
    member.join()
    assert member.is_urgent
    assert exchange(member, response(1, ORDERS)) == FIRST
    assert member.assignment == (1, Phase.MEMBER, 1, ORDERS, None, True)
    assert member.interval_ms == 500
    assert member.is_urgent  # the coordinator takes what is owned only with the epoch
    assert exchange(member, response(1, ORDERS)) == GroupHeartbeatRequest("g", "m", 1, owned=[])
    assert not member.is_urgent
    assert member.request(400) == GroupHeartbeatRequest("g", "m", 1, max_wait_ms=400)
    assert member.assignment.partitions == ORDERS


def test_it_claims_what_is_assigned_before_it_is_read() -> None:
    member = joined()
    assert member.claim(1, ORDERS)
    assert exchange(member, response(1)).owned == messages_of(ORDERS)
    exchange(member, response(2, NOTHING))
    assert exchange(member, response(2, NOTHING)).owned == messages_of(ORDERS)
    assert exchange(member, response(2, NOTHING)).owned is None
    member.own(1, NOTHING)
    assert exchange(member, response(2)).owned == []


def test_it_claims_nothing_that_was_assigned_to_it_before() -> None:
    member = joined()
    exchange(member, response(2, NOTHING))
    assert not member.claim(1, ORDERS)
    exchange(member, response(3, CLICKS))
    assert not member.claim(1, ORDERS | CLICKS)
    assert not member.claim(0, CLICKS)
    member.leave()
    assert not member.claim(1, CLICKS)
    request = member.request()
    assert request is not None
    assert request.owned is None


def test_what_it_had_not_taken_yet_is_given_up_with_the_next_heartbeat() -> None:
    member = joined(ORDERS | CLICKS)
    assert exchange(member, response(2, CLICKS)).owned is None
    assert member.is_urgent
    assert exchange(member, response(2)).owned == []
    assert not member.is_urgent


def test_what_it_owns_is_sent_until_a_response_confirms_it() -> None:
    member = joined()
    member.own(1, ORDERS)
    assert member.is_urgent
    assert exchange(member, warmlog.CoordinatorLoadInProgress("loading")).owned == messages_of(ORDERS)
    assert member.failures == 1
    assert exchange(member, response(1)).owned == messages_of(ORDERS)
    assert member.failures == 0
    assert not member.is_urgent
    assert exchange(member, response(1)).owned is None


def test_what_it_owns_is_sent_again_with_a_new_epoch() -> None:
    member = joined()
    member.own(1, ORDERS)
    assert exchange(member, response(2)).owned == messages_of(ORDERS)
    assert member.is_urgent
    assert exchange(member, response(2)) == GroupHeartbeatRequest("g", "m", 2, owned=messages_of(ORDERS))
    assert not member.is_urgent


def test_a_change_of_what_it_owns_during_a_heartbeat_is_sent_with_the_next() -> None:
    member = joined()
    member.own(1, ORDERS)
    request = member.request()
    assert request is not None
    member.own(1, NOTHING)
    member.responded(request, response(1))
    assert member.is_urgent
    assert exchange(member, response(1)).owned == []


def test_a_coordinator_that_no_longer_knows_what_it_owns_is_told_again() -> None:
    member = joined()
    member.own(1, ORDERS)
    exchange(member, response(1))
    exchange(member, response(1, ORDERS))
    assert exchange(member, response(1)).owned == messages_of(ORDERS)
    assert not member.is_urgent


def test_an_assignment_that_is_repeated_while_the_consumer_is_busy_causes_no_further_heartbeats() -> None:
    member = joined()
    member.own(1, ORDERS)
    exchange(member, response(1))
    exchange(member, response(2, CLICKS))
    for _ in range(3):
        exchange(member, response(2, CLICKS))
        assert not member.is_urgent
        assert member.assignment.partitions == CLICKS


@pytest.mark.parametrize(
    "error",
    [warmlog.UnknownMemberId("expired"), warmlog.FencedMemberEpoch("late"), warmlog.GroupMaxSizeReached("full")],
)
def test_a_member_that_was_refused_is_silent_until_it_joins_with_nothing(error: warmlog.ApiError) -> None:
    member = joined()
    member.own(1, ORDERS)
    exchange(member, error)
    assert member.assignment == (1, Phase.OUT, 1, NOTHING, error, False)
    assert member.request() is None
    member.own(1, ORDERS)
    assert member.request() is None
    member.join()
    assert exchange(member, response(7, CLICKS)) == FIRST
    assert member.assignment == (2, Phase.MEMBER, 7, CLICKS, None, True)
    member.own(1, ORDERS)  # of the incarnation before
    assert exchange(member, response(7)).owned == []


def test_a_fenced_instance_never_joins_again() -> None:
    member = joined()
    error = warmlog.FencedInstanceId("another")
    exchange(member, error)
    member.join()
    assert member.request() is None
    assert member.assignment == (1, Phase.OUT, 1, NOTHING, error, False)


def test_a_commit_that_was_refused_ends_the_life_that_it_belongs_to() -> None:
    member = joined()
    member.lost(0, warmlog.UnknownMemberId("of an incarnation before"))
    assert member.assignment.phase is Phase.MEMBER
    request = member.request()
    assert request is not None
    error = warmlog.UnknownMemberId("expired")
    member.lost(1, error)
    assert member.assignment.reason is error
    member.join()
    member.responded(request, response(1, ORDERS))
    assert member.assignment == (2, Phase.JOINING, 0, NOTHING, None, False)


@pytest.mark.parametrize(("for_a_while", "epoch"), [(False, -1), (True, -2)])
def test_leaving_is_repeated_until_there_is_a_response(for_a_while: bool, epoch: int) -> None:
    member = joined()
    late = member.request()
    assert late is not None
    member.leave(for_a_while=for_a_while)
    member.responded(late, response(1, ORDERS))
    assert member.assignment.phase is Phase.LEAVING
    assert exchange(member, warmlog.CoordinatorLoadInProgress("loading")).member_epoch == epoch
    assert exchange(member, response(epoch)) == GroupHeartbeatRequest("g", "m", epoch, left_epoch=1)
    assert member.assignment == (1, Phase.OUT, 1, NOTHING, None, False)


def test_a_member_that_leaves_and_is_unknown_has_left() -> None:
    member = joined()
    reason = warmlog.UnknownMemberId("idle for too long")
    member.leave(reason=reason)
    exchange(member, warmlog.UnknownMemberId("expired"))
    assert member.assignment.phase is Phase.OUT
    assert member.assignment.reason is reason


class Coordinator:
    """One group with one member, by the rules of the protocol."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.epoch = 0
        self.previous_epoch = 0
        self.is_member = False
        self.assigned = NOTHING
        self.owned: Partitions | None = None
        self.given: set[Partitions] = {NOTHING}

    def change(self) -> None:
        """A new target."""
        if self.is_member:
            self.previous_epoch, self.epoch = self.epoch, self.epoch + 1
            self.assigned = frozenset(self.rng.sample(sorted(ORDERS | CLICKS), self.rng.randrange(6)))

    def expire(self) -> None:
        self.is_member = False
        self.assigned, self.owned = NOTHING, None

    def forget(self) -> None:
        """Another coordinator loads the group: what the member owns is not in the log."""
        self.owned = None

    def heartbeat(self, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse | warmlog.ApiError:
        if request.member_epoch == 0:
            if not self.is_member:
                self.expire()
                self.is_member = True
                self.change()
            self.owned = None
        elif not self.is_member:
            return warmlog.UnknownMemberId("unknown")
        elif request.member_epoch == -1:
            self.expire()
            return GroupHeartbeatResponse(-1, 500, 2000)
        elif request.member_epoch not in (self.epoch, self.previous_epoch):
            self.expire()
            return warmlog.FencedMemberEpoch("fenced")
        if request.owned is not None and request.member_epoch == self.epoch:
            self.owned = partitions_of(request.owned)
        has_all = self.owned == self.assigned and request.member_epoch == self.epoch
        self.given.add(self.assigned)
        return response(self.epoch, None if has_all else self.assigned)


class BadNetwork:
    """Carries heartbeats to the coordinator, and loses, doubles and delays them and their responses."""

    def __init__(self, rng: Random, coordinator: Coordinator, member: Membership) -> None:
        self.rng, self.coordinator, self.member = rng, coordinator, member
        self.late: list[GroupHeartbeatRequest] = []

    def disturb(self) -> None:
        """Something that is not a heartbeat."""
        assignment = self.member.assignment
        match self.rng.randrange(12):
            case 0:
                self.coordinator.change()
            case 1:
                self.coordinator.expire()
            case 2:
                self.coordinator.forget()
            case 3 if self.late:
                self.coordinator.heartbeat(self.late.pop(self.rng.randrange(len(self.late))))
            case 4 if assignment.phase is Phase.MEMBER:
                self.member.lost(assignment.incarnation, warmlog.UnknownMemberId("as a commit heard"))
            case 5 if assignment.phase is Phase.MEMBER and self.rng.random() < 0.2:
                self.member.leave()

    def carry(self, request: GroupHeartbeatRequest, fate: int) -> None:
        if fate == 0:
            self.member.failed(request, warmlog.CoordinatorLoadInProgress("lost"))
            self.late.append(request)
            return
        result = self.coordinator.heartbeat(request)
        if fate == 1:
            self.coordinator.heartbeat(request)
        if fate == 2:
            self.member.failed(request, warmlog.CoordinatorLoadInProgress("the response was lost"))
        elif isinstance(result, warmlog.ApiError):
            self.member.failed(request, result)
        else:
            self.member.responded(request, result)
            if fate == 3:
                self.member.responded(request, result)


@pytest.mark.parametrize("seed", range(300))
def test_over_a_bad_network_it_owns_in_the_end_what_the_coordinator_assigned(seed: int) -> None:
    rng = Random(seed)
    coordinator, member = Coordinator(rng), Membership(FIRST)
    network = BadNetwork(rng, coordinator, member)
    last = member.assignment
    for step in range(200):
        is_bad = step < 150
        if is_bad:
            network.disturb()
        assignment = member.assignment
        if assignment.phase is Phase.OUT:
            assert member.request() is None
            member.join()
        elif rng.random() < 0.7 or not is_bad:
            member.own(assignment.incarnation, assignment.partitions)
        request = member.request()
        assert request is not None
        network.carry(request, rng.randrange(6) if is_bad else 5)
        assignment = member.assignment
        assert assignment.partitions in coordinator.given
        assert assignment.incarnation > last.incarnation or assignment.epoch >= last.epoch
        last = assignment
    assert member.assignment.phase is Phase.MEMBER
    assert member.assignment.partitions == coordinator.assigned == coordinator.owned
    assert member.assignment.epoch == coordinator.epoch
    assert not member.is_urgent
