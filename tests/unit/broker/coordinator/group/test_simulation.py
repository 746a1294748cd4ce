"""The machine of groups under seeded faults, and the proof that the simulation finds a rule that is missing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from unit.broker.coordinator.group.simulation.checks import Violation
from unit.broker.coordinator.group.simulation.world import simulate
from warmlog_broker.coordinator.framework.decision import Decision
from warmlog_broker.coordinator.group.decisions import membership, offsets, state, target
from warmlog_broker.coordinator.group.decisions.membership import Holding
from warmlog_broker.coordinator.group.decisions.records import MemberKey, remove
from warmlog_broker.coordinator.group.decisions.state import Group, Groups, Member
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_protocol.errors import StaleMemberEpoch, UnknownMemberId

EVENTS = 10_000
SEEDS_TO_FIND_A_MISSING_RULE = 40

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(1, 11))
def test_the_invariants_hold_under_every_sequence_of_faults(seed: int) -> None:
    simulate(seed, EVENTS)


def partitions_of_others_are_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "_is_free", lambda *_: True)


def partitions_are_released_before_they_are_revoked(patch: pytest.MonkeyPatch) -> None:
    advanced = membership.advanced
    patch.setattr(membership, "advanced", lambda *args: replace(advanced(*args), revoking={}))


def any_heartbeat_releases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "released", lambda holding, _: replace(holding, revoking={}))


def the_epoch_rises_after_the_revocation_only(patch: pytest.MonkeyPatch) -> None:
    advanced = membership.advanced

    def kept(group: Group, member: Member, holding: Holding) -> Holding:
        result = advanced(group, member, holding)
        if result.revoking and not holding.revoking:
            return replace(result, epoch=holding.epoch, previous_epoch=holding.previous_epoch)
        return result

    patch.setattr(membership, "advanced", kept)


def epochs_of_heartbeats_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    proceed = membership._continue
    patch.setattr(
        membership,
        "_continue",
        lambda group, member, request, principal, limits: proceed(
            group, member, msgspec.structs.replace(request, member_epoch=member.epoch), principal, limits
        ),
    )


def claims_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "_check_claim", lambda *_: None)


def assignments_are_not_sent_again(patch: pytest.MonkeyPatch) -> None:
    respond = membership._response

    def once(group: Group, holding: Holding, *args: Any, is_resent: bool) -> Any:
        is_changed = all(holding.assigned != member.assigned for member in group.members.values())
        return respond(group, holding, *args, is_resent=is_resent and is_changed)

    patch.setattr(membership, "_response", once)


def replaced_static_members_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    def by_member_id(group: Group | None, name: str, member_id: str, instance_id: str) -> Member:
        member = group.members.get(member_id) if group else None
        if member is None:
            raise UnknownMemberId(name)
        return member

    patch.setattr(membership, "valid_member", by_member_id)


def replaced_static_members_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "_tombstones", lambda *_: [])


def an_assignment_outlives_its_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "_tombstones", lambda group, member: [remove(MemberKey(group.name, member.member_id))])


def commits_are_not_checked_for_ownership(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offsets, "_check_ownership", lambda *_: None)


def commits_are_not_checked_for_the_epoch_of_the_assignment(patch: pytest.MonkeyPatch) -> None:
    def holds(member: Member, partition: Any, _: int) -> None:
        if not member.holds(partition):
            raise StaleMemberEpoch("")

    patch.setattr(offsets, "_check_ownership", holds)


def late_commits_are_accepted(patch: pytest.MonkeyPatch) -> None:
    committer = offsets._committer
    patch.setattr(
        offsets,
        "_committer",
        lambda group, request: committer(group, msgspec.structs.replace(request, sequence=0)),
    )


def live_groups_take_commits_from_outside(patch: pytest.MonkeyPatch) -> None:
    committer = offsets._committer
    patch.setattr(
        offsets, "_committer", lambda group, request: committer(group, request) if request.member_id else None
    )


def changed_partitions_need_no_target(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(target, "needs_target", lambda group, _: group.target_epoch < group.epoch)


def a_target_that_was_computed_earlier_counts_for_later_members(patch: pytest.MonkeyPatch) -> None:
    assign = target.assign

    def for_all(groups: Groups, found: target.Target, subscriptions: Subscriptions) -> Decision[bool]:
        return assign(groups, replace(found, epoch=found.group.epoch), subscriptions)

    patch.setattr(target, "assign", for_all)


def a_slow_revocation_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "_watch_revocation", lambda *_: None)


RULES: list[Patch] = [
    each
    for each in list(globals().values())
    if callable(each) and getattr(each, "__annotations__", {}).get("patch") is pytest.MonkeyPatch
]


FOUND_LATE: dict[Patch, int] = {
    the_epoch_rises_after_the_revocation_only: 20,
}
"""The first seed that finds what is missing, of rules that the first few do not find: the search begins there."""


@pytest.mark.parametrize("take_out", RULES, ids=lambda rule: rule.__name__)
def test_a_missing_rule_is_found(take_out: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch)
    with pytest.raises((Violation, AssertionError, KeyError)):
        simulate_seeds(FOUND_LATE.get(take_out, 1))


def simulate_seeds(first: int) -> None:
    for seed in (*range(first, SEEDS_TO_FIND_A_MISSING_RULE + 1), *range(1, first)):
        simulate(seed, EVENTS)
