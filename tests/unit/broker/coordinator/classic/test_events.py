"""The rules of the classic protocol, one by one."""

from typing import Any

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.classic import events, phases
from warmlog_broker.coordinator.classic import messages as m
from warmlog_broker.coordinator.classic.state import NEVER_MS, Phase, Rebalance, loaded
from warmlog_protocol import errors
from warmlog_protocol.messages import Message

CONFIG = BrokerConfig(
    group_min_session_timeout_ms=1000,
    group_max_session_timeout_ms=60_000,
    group_max_size=4,
    group_initial_rebalance_delay_ms=100,
)
RANGE = (("range", b"topics"),)


class Coordinator:
    """A group, the time, and the responses: by the number of the request."""

    def __init__(self) -> None:
        self.rebalance = Rebalance()
        self.now_ms = 1000
        self.requests = 0
        self.responses: dict[int, Message | errors.ApiError] = {}
        self.reasons: list[str] = []

    @property
    def phase(self) -> Phase:
        return self.rebalance.phase

    def join(self, member_id: str = "", protocols: Any = RANGE, **fields: Any) -> int:
        """Send a JoinGroup; a new member is named `mN` after the number of its request."""
        fields = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 5000, "protocol_type": "consumer", **fields}
        request = m.JoinGroupRequest("g", member_id, protocols=list(protocols), **fields)
        return self._take(events.join, request, new_id=f"m{self.requests + 1}", config=CONFIG)

    def sync(self, member_id: str, assignments: Any = (), *, generation: int | None = None, **fields: Any) -> int:
        generation = self.rebalance.generation if generation is None else generation
        return self._take(
            events.sync, m.SyncGroupRequest("g", member_id, generation, assignments=list(assignments), **fields)
        )

    def heartbeat(self, member_id: str, *, generation: int | None = None, instance_id: str = "") -> int:
        generation = self.rebalance.generation if generation is None else generation
        return self._take(events.heartbeat, m.HeartbeatRequest("g", member_id, generation, instance_id))

    def leave(self, *members: m.LeavingMember) -> list[int]:
        response = self.responses[self._take(events.leave, m.LeaveGroupRequest("g", list(members)))]
        assert isinstance(response, m.LeaveGroupResponse)
        return response.error_codes

    def let_go(self, number: int) -> None:
        """Let the connection of a request end."""
        self._happened(events.let_go(self.rebalance, number, now_ms=self.now_ms))

    def pass_time(self, by_ms: int) -> None:
        """Let the timer ring as often as it is due."""
        end_ms = self.now_ms + by_ms
        while (due_ms := self.rebalance.next_due_ms()) <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._happened(events.expire(self.rebalance, now_ms=self.now_ms))
        self.now_ms = end_ms

    def stable(self, count: int, **fields: Any) -> list[str]:
        """Let so many members join and sync; the first leads. Return their ids."""
        requests = [self.join(**fields) for _ in range(count)]
        self.pass_time(100)
        ids = [self.joined(number).member_id for number in requests]
        for member_id in reversed(ids):
            self.sync(member_id, [(each, each.encode()) for each in ids] if member_id == ids[0] else ())
        assert self.phase is Phase.STABLE
        return ids

    def joined(self, number: int) -> m.JoinGroupResponse:
        response = self.responses[number]
        assert isinstance(response, m.JoinGroupResponse), response
        return response

    def assignment(self, number: int) -> bytes:
        response = self.responses[number]
        assert isinstance(response, m.SyncGroupResponse), response
        return response.assignment

    def _take(self, event: Any, request: Any, **more: Any) -> int:
        self.requests += 1
        self._happened(event(self.rebalance, request, self.requests, now_ms=self.now_ms, **more))
        return self.requests

    def _happened(self, step: phases.Step) -> None:
        self.rebalance = step.after
        if step.reason:
            self.reasons.append(step.reason)
        for number, response in step.answers:
            assert number not in self.responses
            self.responses[number] = response


@pytest.fixture
def group() -> Coordinator:
    return Coordinator()


def test_the_first_member_waits_for_others_and_each_of_them_for_more(group: Coordinator) -> None:
    first = group.join()
    group.pass_time(60)
    second = group.join()
    group.pass_time(60)
    assert not group.responses
    group.pass_time(60)
    leader, follower = group.joined(first), group.joined(second)
    assert leader.generation == follower.generation == 1
    assert leader.leader == follower.leader == leader.member_id == "m1"
    assert [(each.member_id, each.metadata) for each in leader.members] == [("m1", b"topics"), ("m2", b"topics")]
    assert follower.members == []


def test_members_that_come_all_the_time_do_not_delay_the_first_for_longer_than_its_rebalance_timeout(
    group: Coordinator,
) -> None:
    first = group.join(rebalance_timeout_ms=150)
    group.pass_time(90)
    group.join()
    group.pass_time(70)
    assert group.joined(first).generation == 1


def test_followers_get_their_assignment_once_the_leader_has_brought_it(group: Coordinator) -> None:
    numbers = [group.join(), group.join()]
    group.pass_time(100)
    follower = group.sync("m2")
    assert follower not in group.responses
    leader = group.sync("m1", [("m1", b"one"), ("m2", b"two"), ("stranger", b"three")])
    assert (group.assignment(leader), group.assignment(follower)) == (b"one", b"two")
    assert group.rebalance.saved == group.rebalance.to_save()
    assert group.rebalance.due_ms == NEVER_MS
    assert group.assignment(group.sync("m2")) == b"two"
    assert [group.joined(each).generation for each in numbers] == [1, 1]


def test_a_new_dynamic_member_is_told_its_id_first_and_a_rebalance_waits_for_it(group: Coordinator) -> None:
    (leader,) = group.stable(1)
    told = group.join(needs_member_id=True)
    response = group.responses[told]
    assert isinstance(response, errors.MemberIdRequired)
    assert group.phase is Phase.STABLE
    group.join()
    again = group.join(leader)
    assert again not in group.responses, "the member with the new id is still to come"
    group.join(str(response), needs_member_id=True)
    assert len(group.joined(again).members) == 3


def test_an_id_that_was_never_used_is_waited_for_for_its_session_only(group: Coordinator) -> None:
    (leader,) = group.stable(1)
    group.join(needs_member_id=True, session_timeout_ms=2000)
    again = group.join(leader)
    group.pass_time(1999)
    assert again not in group.responses
    group.pass_time(1)
    assert group.joined(again).generation == 2


def test_a_join_that_waits_is_ended_by_the_next_of_the_member(group: Coordinator) -> None:
    leader, _ = group.stable(2)
    first = group.join(leader)
    second = group.join(leader)
    assert isinstance(group.responses[first], errors.RebalanceInProgress)
    assert second not in group.responses


def test_14_a_group_that_prepares_goes_on_when_the_member_that_it_waits_for_leaves_or_expires(
    group: Coordinator,
) -> None:
    ids = group.stable(3)
    waiting = group.join(ids[0])
    group.leave(m.LeavingMember(ids[1]))
    assert waiting not in group.responses
    group.heartbeat(ids[0])
    group.now_ms += 4000
    group.rebalance.due_ms = NEVER_MS  # not the timeout of the rebalance
    group.pass_time(6000)
    assert [each.member_id for each in group.joined(waiting).members] == ids[:1]


def test_who_does_not_join_in_time_is_left_behind(group: Coordinator) -> None:
    leader, follower = group.stable(2)
    group.join()
    waiting = group.join(follower)
    for _ in range(5):
        assert isinstance(group.responses[group.heartbeat(leader)], errors.RebalanceInProgress)
        group.pass_time(1000)
    assert group.joined(waiting).leader == follower
    with pytest.raises(errors.UnknownMemberId):
        group.heartbeat(leader)


def test_who_does_not_sync_in_time_is_removed_and_the_others_join_again(group: Coordinator) -> None:
    group.join()
    group.join()
    group.pass_time(100)
    waiting = group.sync("m2")
    for _ in range(5):
        group.heartbeat("m1")
        group.pass_time(1000)
    assert isinstance(group.responses[waiting], errors.RebalanceInProgress)
    assert list(group.rebalance.members) == ["m2"]
    assert group.joined(group.join("m2")).leader == "m2"


def test_a_follower_that_joins_again_unchanged_gets_the_same_response_and_the_leader_begins_a_rebalance(
    group: Coordinator,
) -> None:
    leader, follower = group.stable(2)
    assert group.joined(group.join(follower)).generation == 1
    assert group.phase is Phase.STABLE
    group.join(leader)
    assert (group.phase, group.reasons[-1]) == (Phase.PREPARING, "leader")


def test_other_metadata_begins_a_rebalance(group: Coordinator) -> None:
    _, follower = group.stable(2)
    group.join(follower, [("range", b"other topics")])
    assert (group.phase, group.reasons[-1]) == (Phase.PREPARING, "metadata")


def test_the_protocol_is_one_that_all_know_and_most_prefer(group: Coordinator) -> None:
    group.join(protocols=[("range", b""), ("sticky", b"1"), ("other", b"")])
    group.join(protocols=[("sticky", b"2"), ("range", b"")])
    number = group.join(protocols=[("other", b""), ("sticky", b"3"), ("range", b"")])
    group.pass_time(100)
    assert group.joined(number).protocol == "sticky"
    with pytest.raises(errors.InconsistentGroupProtocol, match="know range, sticky"):
        group.join(protocols=[("other", b"")])
    with pytest.raises(errors.InconsistentGroupProtocol, match="'consumer', not 'connect'"):
        group.join(protocol_type="connect")
    with pytest.raises(errors.InconsistentGroupProtocol):
        group.join(protocols=[])


def test_a_member_alone_may_change_its_protocols(group: Coordinator) -> None:
    (member,) = group.stable(1)
    assert group.joined(group.join(member, [("sticky", b"")])).protocol == "sticky"


def test_18_the_next_process_of_a_static_member_takes_its_place_and_the_one_before_is_fenced(
    group: Coordinator,
) -> None:
    leader, follower = group.stable(1)[0], group.join(instance_id="one")
    group.join(leader)
    ids = [leader, group.joined(follower).member_id]
    group.sync(leader, [(each, each.encode()) for each in ids])
    group.sync(ids[1])
    again = group.joined(group.join(instance_id="one"))
    assert (group.phase, again.generation, again.leader) == (Phase.STABLE, 2, leader)
    assert group.assignment(group.sync(again.member_id, instance_id="one")) == ids[1].encode()
    assert group.rebalance.saved is not None
    assert [each.member_id for each in group.rebalance.saved.members] == [leader, again.member_id]
    with pytest.raises(errors.FencedInstanceId):
        group.heartbeat(ids[1], instance_id="one")
    with pytest.raises(errors.UnknownMemberId):
        group.heartbeat(ids[1])


@pytest.mark.parametrize("may_skip", [True, False])
def test_a_static_leader_that_comes_back_does_not_assign_again(group: Coordinator, may_skip: bool) -> None:
    (old,) = group.stable(1, instance_id="one")
    again = group.joined(group.join(instance_id="one", may_skip_assignment=may_skip))
    assert group.rebalance.leader == again.member_id != old
    assert (again.leader, again.skip_assignment) == ((again.member_id, True) if may_skip else (old, False))
    assert len(again.members) == (1 if may_skip else 0)


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends(group: Coordinator) -> None:
    (one,), waiting = group.stable(1, instance_id="one"), group.join()
    group.pass_time(5000)
    assert one in group.rebalance.members
    assert group.joined(waiting).leader == group.joined(waiting).member_id
    group.sync(group.joined(waiting).member_id)
    group.pass_time(5000)
    assert one not in group.rebalance.members


def test_static_members_that_are_all_away_hold_the_rebalance_up(group: Coordinator) -> None:
    (one,), number = group.stable(1, instance_id="one"), group.join()
    group.leave(m.LeavingMember(f"m{number}"))
    group.pass_time(5000)
    assert (group.phase, list(group.rebalance.members)) == (Phase.PREPARING, [one])
    group.pass_time(5000)
    assert group.phase is Phase.EMPTY


def test_several_members_leave_at_once_each_with_its_own_error(group: Coordinator) -> None:
    group.stable(2, instance_id="")
    group.join(instance_id="one")
    codes = group.leave(
        m.LeavingMember("m1"), m.LeavingMember("", "one"), m.LeavingMember("m9"), m.LeavingMember("m2", "")
    )
    unknown = errors.ErrorCode.UNKNOWN_MEMBER_ID
    assert codes == [0, 0, unknown, 0]
    assert (group.phase, group.rebalance.saved, group.rebalance.generation) == (Phase.EMPTY, None, 2)


def test_an_empty_group_counts_on(group: Coordinator) -> None:
    group.stable(1)
    group.leave(m.LeavingMember("m1"))
    number = group.join()
    group.pass_time(100)
    assert group.joined(number).generation == 3


def test_a_member_whose_connection_ends_while_it_joins_is_gone_and_the_others_go_on(group: Coordinator) -> None:
    (member_id,) = group.stable(1)
    lost = group.join(rebalance_timeout_ms=3_600_000)
    assert group.phase is Phase.PREPARING
    group.let_go(lost)
    assert list(group.rebalance.members) == [member_id]
    again = group.join(member_id)
    assert len(group.joined(again).members) == 1
    assert lost not in group.responses
    group.let_go(lost)
    assert group.phase is Phase.COMPLETING, "nothing waits for it any more"


def test_a_static_member_whose_connection_ends_and_one_that_syncs_keep_their_session(group: Coordinator) -> None:
    first, second = group.stable(2, session_timeout_ms=2000)
    static = group.join(instance_id="static", session_timeout_ms=2000, rebalance_timeout_ms=60_000)
    group.let_go(static)
    joins = [group.join(each, session_timeout_ms=60_000, rebalance_timeout_ms=60_000) for each in (first, second)]
    assert group.phase is Phase.PREPARING, "it may come back"
    group.pass_time(2001)
    assert [len(group.joined(each).members) for each in joins] == [2, 0]
    waiting = group.sync(second)
    group.let_go(waiting)
    group.sync(first, [(second, b"later")])
    assert waiting not in group.responses
    assert group.assignment(group.sync(second)) == b"later", "it comes back with its id"


def test_members_that_wait_are_not_silent(group: Coordinator) -> None:
    leader, follower = group.stable(2, session_timeout_ms=1000)
    group.join()
    waiting = group.join(follower, session_timeout_ms=1000)
    for _ in range(5):
        group.heartbeat(leader)
        group.pass_time(900)
    assert follower in group.rebalance.members
    assert waiting not in group.responses


def test_what_members_of_another_generation_send_is_refused(group: Coordinator) -> None:
    (member,) = group.stable(1)
    for generation in (0, 2, -1):
        with pytest.raises(errors.IllegalGeneration):
            group.heartbeat(member, generation=generation)
        with pytest.raises(errors.IllegalGeneration):
            group.sync(member, generation=generation)
    with pytest.raises(errors.InconsistentGroupProtocol):
        group.sync(member, protocol="sticky")


def test_members_commit_in_the_generation_that_they_were_assigned(group: Coordinator) -> None:
    group.join()
    group.pass_time(100)
    with pytest.raises(errors.RebalanceInProgress):
        events.check_committer(group.rebalance, "g", "m1", 1, "")
    group.sync("m1", [("m1", b"")])
    events.check_committer(group.rebalance, "g", "m1", 1, "")
    group.join()
    assert group.phase is Phase.PREPARING
    events.check_committer(group.rebalance, "g", "m1", 1, "")


def test_bounds(group: Coordinator) -> None:
    for session_ms in (999, 60_001, -1):
        with pytest.raises(errors.InvalidSessionTimeout):
            group.join(session_timeout_ms=session_ms)
    for needs_member_id in (True, False, True, False):
        group.join(needs_member_id=needs_member_id)
    for needs_member_id in (True, False):
        with pytest.raises(errors.GroupMaxSizeReached):
            group.join(needs_member_id=needs_member_id)


def test_after_a_load_the_saved_generation_goes_on_and_members_get_their_full_session(group: Coordinator) -> None:
    leader, follower = group.stable(2)
    saved = group.rebalance.saved
    assert saved is not None
    group.join(leader)
    group.now_ms += 60_000
    group.rebalance = loaded(saved, group.now_ms)
    assert group.phase is Phase.STABLE
    assert group.rebalance.to_save() == saved
    group.pass_time(9999)
    assert group.assignment(group.sync(follower)) == follower.encode()
    group.pass_time(1)
    assert list(group.rebalance.members) == [follower]


def test_a_broker_that_stood_still_gives_members_time(group: Coordinator) -> None:
    (member,) = group.stable(1)
    group.now_ms += 20_000
    group.rebalance = events.give_grace(group.rebalance, now_ms=group.now_ms, grace_ms=3000).after
    group.pass_time(2999)
    group.heartbeat(member)
    group.pass_time(3000)
    assert member in group.rebalance.members


def test_after_it_stood_still_whatever_was_due_waits_for_the_same_time(group: Coordinator) -> None:
    first = group.join()
    group.join(needs_member_id=True)
    assert list(group.rebalance.given_ids) == ["m2"]
    group.now_ms += 20_000
    group.rebalance = events.give_grace(group.rebalance, now_ms=group.now_ms, grace_ms=3000).after
    assert group.rebalance.next_due_ms() == group.now_ms + 3000
    group.pass_time(3000)
    assert group.joined(first).generation == 1


def test_nobody_is_waited_for_for_longer_than_an_hour(group: Coordinator) -> None:
    slow, _ = group.stable(2, rebalance_timeout_ms=2**31 - 1)
    waiting = group.join()
    for _ in range(2 * 60 * 60):
        assert waiting not in group.responses
        group.heartbeat(slow)
        group.pass_time(500)
    assert list(group.rebalance.members) == [group.joined(waiting).member_id]


def test_an_event_changes_nothing_that_it_was_given(group: Coordinator) -> None:
    group.stable(2)
    before = group.rebalance
    members, generation = dict(before.members), before.generation
    group.join()
    group.leave(m.LeavingMember("m1"), m.LeavingMember("m2"))
    assert (before.phase, before.members, before.generation) == (Phase.STABLE, members, generation)
