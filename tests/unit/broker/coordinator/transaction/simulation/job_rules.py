"""Rules of jobs that `test_simulation` takes out, each by a function."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.transaction.decisions import jobs, state
from warmlog_broker.coordinator.transaction.decisions.records import (
    NO_VERSION,
    JobKey,
    JobValue,
    MemberStatus,
    MemberValue,
    Status,
    put,
    read,
)
from warmlog_broker.coordinator.transaction.decisions.state import Given, Incarnation, Job, Outcome, Slot, Transactions


def a_committed_version_is_written_again(patch: pytest.MonkeyPatch) -> None:
    join = jobs.join

    def unaware(transactions: Transactions, given: Given, name: str, version: int, *rest: Any) -> Any:
        return join(_with_committed(transactions, name, version - 1), given, name, version, *rest)

    patch.setattr(jobs, "join", unaware)


def _with_committed(transactions: Transactions, name: str, most: int) -> Transactions:
    """Return transactions in which the job has committed at most version `most`."""
    found = transactions.get(name)
    if not isinstance(found, Job):
        return transactions
    other = Transactions()
    value = replace(found.value, committed_version=min(most, found.value.committed_version))
    other._found[name] = Job(name, value, found.members, found.slots, found.free)
    return other


def a_repeated_commit_decides_again(patch: pytest.MonkeyPatch) -> None:
    commit = jobs.commit

    def again(transactions: Transactions, given: Given, name: str, version: int, *rest: Any) -> Any:
        return commit(_with_committed(transactions, name, version - 1), given, name, version, *rest)

    patch.setattr(jobs, "commit", again)


def older_versions_are_accepted(patch: pytest.MonkeyPatch) -> None:
    found = jobs._job

    def lenient(transactions: Transactions, name: str, version: int) -> Any:
        return found(_with_committed(transactions, name, version), name, version)

    patch.setattr(jobs, "_job", lenient)


def two_versions_are_open(patch: pytest.MonkeyPatch) -> None:
    opened = jobs._open

    def lenient(job: Job | None, version: int, owner: str) -> JobValue:
        if job is not None and job.value.status is Status.ONGOING:
            return job.value
        return opened(job, version, owner)

    patch.setattr(jobs, "_open", lenient)


def a_version_begins_before_the_last_one_has_ended(patch: pytest.MonkeyPatch) -> None:
    opened = jobs._open

    def lenient(job: Job | None, version: int, owner: str) -> JobValue:
        if job is not None and job.is_ending:
            return replace(job.value, status=Status.EMPTY)
        return opened(job, version, owner)

    patch.setattr(jobs, "_open", lenient)


def slots_are_given_twice(patch: pytest.MonkeyPatch) -> None:
    free_slot = jobs._free_slot

    def shared(job: Job | None, given: Given) -> tuple[int, Incarnation]:
        for slot, member in (job.members if job is not None else {}).items():
            if member.value.status is MemberStatus.WRITING:
                return slot, member.producer
        return free_slot(job, given)

    patch.setattr(jobs, "_free_slot", shared)


def slots_keep_their_epoch(patch: pytest.MonkeyPatch) -> None:
    complete_members = jobs.complete_members

    def kept(job: Job, outcomes: Sequence[Outcome], now_ms: int) -> list[Record]:
        records = []
        for record in complete_members(job, outcomes, now_ms):
            key, value = read(record)  # type: ignore[misc]
            is_member = isinstance(value, MemberValue)
            records.append(put(key, replace(value, epoch=value.epoch - 1)) if is_member else record)
        return records

    patch.setattr(jobs, "complete_members", kept)


def slots_are_used_beyond_the_last_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "LAST_PRODUCER_EPOCH", 1 << 40)


def losers_are_committed(patch: pytest.MonkeyPatch) -> None:
    outcomes = Job.outcomes.fget  # type: ignore[attr-defined]

    def all_win(self: Job) -> list[Outcome]:
        is_committing = self.value.status is Status.COMMITTING
        return [each._replace(commits=True) if is_committing else each for each in outcomes(self)]

    patch.setattr(state.Job, "outcomes", property(all_win))


def winners_need_not_be_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        jobs, "_winner", lambda job, _, __, producer: job.slots.get(producer.producer_id, -1) if job is not None else -1
    )


def unknown_winners_are_left_out(patch: pytest.MonkeyPatch) -> None:
    commit = jobs.commit

    def lenient(transactions: Transactions, given: Given, name: str, version: int, winners: Any, *rest: Any) -> Any:
        found = transactions.get(name)
        known = [each for each in winners if isinstance(found, Job) and jobs._writing(found, each) is not None]
        return commit(transactions, given, name, version, known, *rest)

    patch.setattr(jobs, "commit", lenient)


def losers_may_enrol(patch: pytest.MonkeyPatch) -> None:
    def lenient(job: Job, producer: Incarnation) -> Slot | None:
        return job.members.get(job.slots.get(producer.producer_id, -1))

    patch.setattr(jobs, "_writing", lenient)


def members_are_aborted_after_the_decision(patch: pytest.MonkeyPatch) -> None:
    def late(
        transactions: Transactions, _given: Given, name: str, version: int, producers: Sequence[Incarnation]
    ) -> Any:
        found = transactions.get(name)
        if not isinstance(found, Job) or found.value.status is Status.EMPTY:
            return Decision((), None)
        slots = {found.slots[each.producer_id] for each in producers if each.producer_id in found.slots}
        winners = tuple(slot for slot in found.value.winners if slot not in slots)
        return Decision([put(JobKey(name), replace(found.value, winners=winners))], None)

    patch.setattr(jobs, "abort_members", late)


def other_members_are_aborted_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "abort_members", _aborted_by_producer_id)


def _aborted_by_producer_id(
    transactions: Transactions, _given: Given, name: str, _: int, producers: Sequence[Incarnation]
) -> Any:
    """Abort without a look at the epoch: also the next member with the slot."""
    found = transactions.get(name)
    if not isinstance(found, Job) or found.value.status is not Status.ONGOING:
        return Decision((), None)
    slots = {found.slots[each.producer_id] for each in producers if each.producer_id in found.slots}
    return Decision(
        [
            put(jobs.MemberKey(name, slot), replace(found.members[slot].value, status=MemberStatus.ABORTING))
            for slot in slots
            if found.members[slot].value.status is MemberStatus.WRITING
        ],
        None,
    )


def a_commit_without_members_records_no_version(patch: pytest.MonkeyPatch) -> None:
    commit = jobs.commit

    def forgetful(transactions: Transactions, given: Given, name: str, version: int, winners: Any, *rest: Any) -> Any:
        decision = commit(transactions, given, name, version, winners, *rest)
        return decision if winners else Decision((), decision.result)

    patch.setattr(jobs, "commit", forgetful)


def the_version_is_recorded_when_it_is_complete(patch: pytest.MonkeyPatch) -> None:
    commit = jobs.commit

    def later(transactions: Transactions, given: Given, name: str, version: int, winners: Any, *rest: Any) -> Any:
        decision = commit(transactions, given, name, version, winners, *rest)
        records = []
        for record in decision.records:
            key, value = read(record)  # type: ignore[misc]
            records.append(put(key, replace(value, committed_version=NO_VERSION)))
        return Decision(records, decision.result)

    patch.setattr(jobs, "commit", later)
