"""The machine of the classic protocol under seeded faults, and the proof that the simulation finds a missing rule."""

from collections.abc import Callable, Iterable
from dataclasses import replace as replace_dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from unit.broker.coordinator.classic.simulation.world import simulate
from unit.broker.coordinator.group.simulation.checks import Violation
from warmlog_broker.coordinator.classic import events, phases
from warmlog_broker.coordinator.classic.state import NEVER_MS, Member, Phase, Rebalance
from warmlog_broker.coordinator.framework.decision import Record
from warmlog_broker.coordinator.group.decisions import classic_members, offsets
from warmlog_broker.coordinator.group.decisions.state import Group
from warmlog_protocol.errors import UnknownMemberId

EVENTS = 10_000
SEEDS_TO_FIND_A_MISSING_RULE = 200

Patch = Callable[[pytest.MonkeyPatch], None]


def test_the_invariants_hold_under_every_sequence_of_faults() -> None:
    simulate_seeds(range(1, 11))


def generations_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        events,
        "valid_member",
        lambda rebalance, group, member_id, _, instance_id="": events._member(rebalance, group, member_id, instance_id),
    )


def replaced_static_members_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    def replace_nothing(step: phases.Step, old: Member, member: Member, *, may_skip: bool) -> None:
        phases.join_first(step, member, step.after.protocol_type, 0)

    patch.setattr(phases, "take_place", replace_nothing)


def a_replaced_static_member_is_not_saved(patch: pytest.MonkeyPatch) -> None:
    replace_member = phases.take_place

    def without_saving(step: phases.Step, *args: Any, **kwargs: Any) -> None:
        saved = step.after.saved
        replace_member(step, *args, **kwargs)
        step.after.saved = saved

    patch.setattr(phases, "take_place", without_saving)


def an_assignment_is_given_out_before_it_is_saved(patch: pytest.MonkeyPatch) -> None:
    assign = phases.assign

    def without_saving(step: phases.Step, assignments: dict[str, bytes]) -> None:
        saved = step.after.saved
        assign(step, assignments)
        step.after.saved = saved

    patch.setattr(phases, "assign", without_saving)


def an_empty_group_is_not_saved(patch: pytest.MonkeyPatch) -> None:
    records = classic_members._records

    def without_tombstones(
        group: Group | None, name: str, before: Rebalance, after: Rebalance, now: int
    ) -> list[Record]:
        return [] if before.members and not after.members else records(group, name, before, after, now)

    patch.setattr(classic_members, "_records", without_tombstones)


def a_group_begins_again_with_generation_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic_members, "rebalance_of", lambda group: (group and group.rebalance) or Rebalance())


def a_group_takes_members_of_both_kinds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "is_classic", False)


def members_commit_without_an_assignment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offsets, "check_committer", events.valid_member)


def former_members_commit(patch: pytest.MonkeyPatch) -> None:
    def check(rebalance: Rebalance, group: str, member_id: str, generation: int, instance_id: str) -> None:
        try:
            events.check_committer(rebalance, group, member_id, generation, instance_id)
        except UnknownMemberId:
            if generation != rebalance.generation:
                raise

    patch.setattr(offsets, "check_committer", check)


def live_groups_take_commits_from_outside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "member_count", 0)


def a_group_without_offsets_is_out_of_use(patch: pytest.MonkeyPatch) -> None:
    closed = offsets._closed
    patch.setattr(offsets, "_closed", lambda group, *counts: closed(replace_dataclass(group, rebalance=None), *counts))


def the_group_is_not_looked_at_again_when_a_member_is_gone(patch: pytest.MonkeyPatch) -> None:
    look_again = phases.look_again

    def only_if_it_joins(step: phases.Step, reason: str = "") -> None:
        if (
            step.after.phase is not Phase.PREPARING
            or not step.after.members
            or any(each.deadline_ms == step.now_ms + each.session_timeout_ms for each in step.after.members.values())
        ):
            look_again(step, reason)

    patch.setattr(phases, "look_again", only_if_it_joins)


def a_second_join_forgets_the_first(patch: pytest.MonkeyPatch) -> None:
    join_again = phases.join_again
    patch.setattr(phases, "join_again", lambda step, old, member: join_again(step, replace(old, joining=None), member))


def a_rebalance_forgets_those_who_wait_for_an_assignment(patch: pytest.MonkeyPatch) -> None:
    prepare = phases.prepare

    def without_answers(step: phases.Step, reason: str) -> None:
        count = len(step.answers)
        prepare(step, reason)
        step.answers[count:] = [each for each in step.answers[count:] if not isinstance(each[1], Exception)]

    patch.setattr(phases, "prepare", without_answers)


def what_waits_is_forgotten_with_its_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(phases, "remove", lambda step, member, _: step.after.members.pop(member.member_id))


def _expire_without_due(patch: Any, during: Phase) -> None:
    expire = events.expire

    def without_due(before: Rebalance, *, now_ms: int) -> phases.Step:
        if before.phase is not during or before.settles_ms is not None:
            return expire(before, now_ms=now_ms)
        step = expire(replace(before, due_ms=NEVER_MS), now_ms=now_ms)
        if step.after.due_ms == NEVER_MS and step.after.phase is during:
            step.after.due_ms = before.due_ms
        return step

    patch.setattr(events, "expire", without_due)


def who_does_not_join_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    _expire_without_due(patch, Phase.PREPARING)


def who_does_not_sync_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    _expire_without_due(patch, Phase.COMPLETING)


def who_has_not_joined_may_lead(patch: pytest.MonkeyPatch) -> None:
    end_preparing = phases.end_preparing

    def with_the_first(step: phases.Step) -> None:
        first = next(iter(step.after.members), "")
        end_preparing(step)
        if step.after.phase is Phase.COMPLETING and first in step.after.members:
            step.after.leader = first

    patch.setattr(phases, "end_preparing", with_the_first)


def the_protocol_is_that_of_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(phases, "chosen_protocol", lambda members: next(iter(members.values())).protocols[0][0])


def a_generation_does_not_rise(patch: pytest.MonkeyPatch) -> None:
    end_preparing = phases.end_preparing

    def without_rising(step: phases.Step) -> None:
        generation = step.after.generation
        end_preparing(step)
        step.after.generation = max(generation, 1)

    patch.setattr(phases, "end_preparing", without_rising)


def any_member_assigns(patch: pytest.MonkeyPatch) -> None:
    sync = events.sync

    def for_all(before: Rebalance, request: Any, waiter: Any, *, now_ms: int) -> phases.Step:
        return sync(replace(before, leader=request.member_id), request, waiter, now_ms=now_ms)

    patch.setattr(events, "sync", for_all)


def ids_that_were_given_out_are_waited_for_for_ever(patch: pytest.MonkeyPatch) -> None:
    expire = events.expire

    def with_all(before: Rebalance, *, now_ms: int) -> phases.Step:
        return expire(replace(before, given_ids=dict.fromkeys(before.given_ids, NEVER_MS)), now_ms=now_ms)

    patch.setattr(events, "expire", with_all)


def grace_is_for_sessions_and_rebalances_only(patch: pytest.MonkeyPatch) -> None:
    give_grace = events.give_grace

    def without_ids(before: Rebalance, *, now_ms: int, grace_ms: int) -> phases.Step:
        step = give_grace(before, now_ms=now_ms, grace_ms=grace_ms)
        step.after.given_ids, step.after.settles_ms = before.given_ids, before.settles_ms
        return step

    patch.setattr(events, "give_grace", without_ids)


def a_member_that_waits_for_its_response_is_silent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "is_waiting", False)


def a_request_whose_connection_has_ended_goes_on_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(events, "let_go", lambda before, _, *, now_ms: phases.Step(before.copied(), now_ms))


RULES: list[Patch] = [
    each
    for each in list(globals().values())
    if callable(each) and getattr(each, "__annotations__", {}).get("patch") is pytest.MonkeyPatch
]


FOUND_LATE: dict[Patch, int] = {generations_are_not_checked: 14, who_does_not_sync_is_waited_for: 17}
"""The first seed that finds what is missing, of rules that the first few do not find: the search begins there."""


@pytest.mark.parametrize("take_out", RULES, ids=lambda rule: rule.__name__)
def test_a_missing_rule_is_found(take_out: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch)
    first = FOUND_LATE.get(take_out, 1)
    with pytest.raises((Violation, AssertionError, KeyError)):
        simulate_seeds((*range(first, SEEDS_TO_FIND_A_MISSING_RULE + 1), *range(1, first)))


def simulate_seeds(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(seed, EVENTS)
