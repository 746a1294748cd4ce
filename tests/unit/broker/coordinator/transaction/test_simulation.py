"""The machine of transactions under seeded faults, and the proof that the simulation finds a rule that is missing."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from unit.broker.coordinator.group.simulation.checks import Violation
from unit.broker.coordinator.transaction.simulation import job_rules
from unit.broker.coordinator.transaction.simulation.coordinator import Coordinator, Shard
from unit.broker.coordinator.transaction.simulation.world import simulate
from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.group.decisions import offsets
from warmlog_broker.coordinator.group.decisions.records import PendingKey, PendingValue
from warmlog_broker.coordinator.group.decisions.records import read as read_of_group
from warmlog_broker.coordinator.group.decisions.records import remove as remove_of_group
from warmlog_broker.coordinator.transaction.decisions import producers as decisions
from warmlog_broker.coordinator.transaction.decisions import state
from warmlog_broker.coordinator.transaction.decisions.records import End, Status, put, read
from warmlog_broker.coordinator.transaction.decisions.state import Given, Incarnation, Job, Outcome, Transactions
from warmlog_broker.storage.producer import producer_state
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.transactions import CompletedTxn
from warmlog_broker.storage.producer.transactions import Transactions as OpenTransactions
from warmlog_broker.storage.producer.verification import VerificationGuard, Verifications
from warmlog_protocol.batch.control import EndTxnMarker
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.errors import InvalidTxnState, WarmlogError

EVENTS = 8_000
SEEDS_TO_FIND_A_MISSING_RULE = 200

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(1, 11))
def test_the_invariants_hold_under_every_sequence_of_faults(seed: int) -> None:
    simulate(seed, EVENTS)


# --- decisions about plain producers ----------------------------------------------------------------------------------


def the_epoch_does_not_rise_with_a_decision(patch: pytest.MonkeyPatch) -> None:
    decided = decisions._decided

    def without(*args: Any, keeps_epoch: bool = False) -> Record:
        key, value = read(decided(*args, keeps_epoch=keeps_epoch))  # type: ignore[misc]
        return put(key, value if keeps_epoch else replace(value, epoch=value.epoch - 1))

    patch.setattr(decisions, "_decided", without)
    patch.setattr(decisions, "_next_after", lambda found, _: found.producer)


def a_producer_keeps_its_id_after_the_last_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "LAST_PRODUCER_EPOCH", 1 << 40)


def a_new_producer_fences_no_other(patch: pytest.MonkeyPatch) -> None:
    initialise = decisions.initialise

    def same(transactions: Transactions, given: Given, name: str, *arguments: Any) -> Any:
        decision = initialise(transactions, given, name, *arguments)
        found = transactions.get(name)
        if found is None or decision.result in (None, found.producer):  # type: ignore[union-attr]
            return decision
        return Decision((), found.producer)  # type: ignore[union-attr]

    patch.setattr(decisions, "initialise", same)


def a_new_producer_aborts_nothing(patch: pytest.MonkeyPatch) -> None:
    initialise = decisions.initialise

    def going_on(transactions: Transactions, given: Given, name: str, *arguments: Any) -> Any:
        decision = initialise(transactions, given, name, *arguments)
        if decision.result is not None:
            return decision
        value = transactions.get(name).value  # type: ignore[union-attr]
        raised = replace(value, epoch=value.epoch + 1, status=Status.EMPTY)  # type: ignore[union-attr, call-arg]
        key, _ = read(decision.records[0])  # type: ignore[misc]
        return Decision([put(key, raised)], Incarnation(raised.producer_id, raised.epoch))  # type: ignore[union-attr]

    patch.setattr(decisions, "initialise", going_on)


def a_replaced_producer_may_continue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "_MAY_CONTINUE", tuple(End))
    _remember_the_previous(patch, keeps_epoch=False)


def _remember_the_previous(monkeypatch: pytest.MonkeyPatch, *, keeps_epoch: bool) -> None:
    """Let each decision that keeps the epoch, or each other one, say whom it was made for."""
    decided = decisions._decided

    def remembered(found: Any, *args: Any, **rest: bool) -> Record:
        record = decided(found, *args, **rest)
        if rest.get("keeps_epoch", False) is not keeps_epoch:
            return record
        key, value = read(record)  # type: ignore[misc]
        previous = {"previous_producer_id": found.value.producer_id, "previous_epoch": found.value.epoch}
        return put(key, replace(value, **previous))

    monkeypatch.setattr(decisions, "_decided", remembered)


def who_asks_for_an_id_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    initialise = decisions.initialise

    def unchecked(
        transactions: Transactions, given: Given, name: str, timeout_ms: int, expected: Any, *rest: Any
    ) -> Any:
        known = _current(transactions, name) if expected != decisions.NOBODY else expected
        return initialise(transactions, given, name, timeout_ms, known, *rest)

    patch.setattr(decisions, "initialise", unchecked)


def _current(transactions: Transactions, name: str) -> Incarnation:
    found = transactions.get(name)
    return decisions.NOBODY if found is None else found.producer  # type: ignore[union-attr]


def epochs_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "_owned", lambda transactions, name, _: decisions._found(transactions, name))


def a_transaction_begins_before_the_last_one_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "_check_at_rest", lambda _: None)


def a_repeated_end_is_refused(patch: pytest.MonkeyPatch) -> None:
    end = decisions.end

    def once(transactions: Transactions, given: Given, name: str, producer: Incarnation, **arguments: Any) -> Any:
        found = transactions.get(name)
        if found is not None and producer == found.previous:  # type: ignore[union-attr]
            raise InvalidTxnState("")
        return end(transactions, given, name, producer, **arguments)

    patch.setattr(decisions, "end", once)


def a_repeated_end_decides_again(patch: pytest.MonkeyPatch) -> None:
    end = decisions.end

    def again(transactions: Transactions, given: Given, name: str, producer: Incarnation, **arguments: Any) -> Any:
        found = transactions.get(name)
        is_repeat = found is not None and producer == found.previous  # type: ignore[union-attr]
        return end(transactions, given, name, found.producer if is_repeat else producer, **arguments)  # type: ignore[union-attr]

    patch.setattr(decisions, "end", again)


def a_timer_ends_any_transaction(patch: pytest.MonkeyPatch) -> None:
    time_out = decisions.time_out

    def any_turn(transactions: Transactions, given: Given, name: str, turn: tuple[int, ...]) -> Any:
        found = transactions.get(name)
        return time_out(transactions, given, name, found.turn if found else turn)

    patch.setattr(decisions, "time_out", any_turn)


def no_timer_ends_a_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "time_out", lambda *_, **__: Decision((), False))


def open_transactions_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        decisions,
        "is_expired",
        lambda found, given: (
            not isinstance(found, Job)
            and given.now_ms - found.value.changed_ms >= given.config.transactional_id_expiration_ms
        ),
    )


def enrolments_are_kept_after_the_end(patch: pytest.MonkeyPatch) -> None:
    complete = decisions.complete
    patch.setattr(
        decisions,
        "complete",
        lambda *args, **rest: Decision(
            [record for record in complete(*args, **rest).records if record.value is not None], None
        ),
    )


def compaction_loses_what_comes_before_its_header(patch: pytest.MonkeyPatch) -> None:
    replay = Transactions.replay

    def forgetful(self: Transactions, record: Record) -> None:
        replay(self, record)
        self._early.clear()

    patch.setattr(Transactions, "replay", forgetful)


# --- the order of writes, as the service has it -----------------------------------------------------------------------


def decisions_count_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    """Batches before their enrolment, markers before the decision: a crash takes the record back."""
    run = Shard.run

    def at_once(self: Shard[Any], key: str, decide: Any, then: Any) -> None:
        pending = len(self._pending)
        run(self, key, decide, then)
        if len(self._pending) > pending and isinstance(self.state, Transactions):
            key, records, told, result = self._pending.pop()
            self._pending.append((key, records, lambda _: None, None))
            told(result)

    patch.setattr(Shard, "run", at_once)


def a_transaction_is_complete_before_its_markers_are_durable(patch: pytest.MonkeyPatch) -> None:
    mark = Coordinator._mark

    def unsafe(partition: Any, outcome: Outcome, coordinator_epoch: int, then: Any) -> None:
        then(None)
        mark(partition, outcome, coordinator_epoch, lambda _: None)

    patch.setattr(Coordinator, "_mark", staticmethod(unsafe))


def a_new_coordinator_does_not_finish_what_was_decided(patch: pytest.MonkeyPatch) -> None:
    fail_over = Coordinator.fail_over

    def forgetful(self: Coordinator) -> None:
        fail_over(self)
        self._endings.clear()

    patch.setattr(Coordinator, "fail_over", forgetful)


def a_new_coordinator_starts_no_timers(patch: pytest.MonkeyPatch) -> None:
    fail_over = Coordinator.fail_over

    def forgetful(self: Coordinator) -> None:
        fail_over(self)
        self.timers.clear()

    patch.setattr(Coordinator, "fail_over", forgetful)


# --- the partition ----------------------------------------------------------------------------------------------------


def a_marker_of_the_same_epoch_ends_a_transaction(patch: pytest.MonkeyPatch) -> None:
    check_marker = ProducerStates.check_marker

    def lenient(self: ProducerStates, header: BatchHeader, marker: EndTxnMarker, **rest: bool) -> bool:
        entry = self.get(header.producer_id)
        is_open = entry is not None and header.producer_id in self.transactions.open
        if entry is not None and is_open and entry.epoch == header.producer_epoch:
            return True
        return check_marker(self, header, marker, **rest)

    patch.setattr(ProducerStates, "check_marker", lenient)


def a_repeated_marker_is_refused(patch: pytest.MonkeyPatch) -> None:
    check_marker = ProducerStates.check_marker

    def strict(self: ProducerStates, header: BatchHeader, marker: EndTxnMarker, **rest: bool) -> bool:
        if not check_marker(self, header, marker, **rest):
            raise InvalidTxnState("")
        return True

    patch.setattr(ProducerStates, "check_marker", strict)


def markers_of_older_epochs_are_appended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "check_marker", lambda *_, **__: True)


def a_batch_needs_no_enrolment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "_check_verified", lambda *_: None)


def any_guard_verifies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VerificationGuard, "verifies", lambda *_: True)


def a_marker_leaves_the_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Verifications, "clear", lambda *_: None)


def older_epochs_are_appended(patch: pytest.MonkeyPatch) -> None:
    check = ProducerStates.check

    def lenient(self: ProducerStates, header: BatchHeader, *args: Any) -> Any:
        entry = self.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            return None
        return check(self, header, *args)

    patch.setattr(ProducerStates, "check", lenient)


def repeated_batches_are_appended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producer_state.ProducerEntry, "find", lambda *_: None)
    patch.setattr(producer_state, "_check_sequence", lambda *_: None)


def a_marker_counts_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: OpenTransactions, completed: CompletedTxn) -> None:
        del self.open[completed.producer_id]

    patch.setattr(OpenTransactions, "complete", at_once)


# --- offsets that are committed with a transaction --------------------------------------------------------------------


def offsets_count_before_the_transaction_commits(patch: pytest.MonkeyPatch) -> None:
    add_pending = offsets.add_pending

    def at_once(groups: Any, group: str, producer_id: int, epoch: int, values: Any, **rest: Any) -> list[Record]:
        records = add_pending(groups, group, producer_id, epoch, values, **rest)
        return records + [offsets.put(offsets.OffsetKey(group, *each), value) for each, value in values.items()]

    patch.setattr(offsets, "add_pending", at_once)


def offsets_of_aborted_transactions_count(patch: pytest.MonkeyPatch) -> None:
    end_pending = offsets.end_pending
    patch.setattr(offsets, "end_pending", lambda *args, commits, **rest: end_pending(*args, commits=True, **rest))


def waiting_offsets_are_fetched_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offsets, "check_stable", lambda *_: None)


def an_end_leaves_no_fence_in_the_group(patch: pytest.MonkeyPatch) -> None:
    """Neither check is there: the one of the coordinator, and that of the group."""
    patch.setattr(decisions, "check_open", lambda *_: ())
    end_pending = offsets.end_pending

    def unfenced(groups: Any, group: str, producer_id: int, epoch: int, **rest: Any) -> Any:
        decision = end_pending(groups, group, producer_id, epoch, **rest)
        return Decision(
            [
                remove_of_group(PendingKey(group, producer_id)) if _is_pending(record) else record
                for record in decision.records
            ],
            None,
        )

    patch.setattr(offsets, "end_pending", unfenced)


def _is_pending(record: Record) -> bool:
    entry = read_of_group(record)
    return entry is not None and isinstance(entry[1], PendingValue)


def zombies_of_the_group_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offsets, "_committer", lambda *_: None)


# --- transactions that keep the epoch (version 1) ---------------------------------------------------------------------


def a_marker_of_the_epoch_before_ends_no_transaction_that_keeps_it(patch: pytest.MonkeyPatch) -> None:
    check_marker = ProducerStates.check_marker
    patch.setattr(ProducerStates, "check_marker", lambda self, header, marker, **_: check_marker(self, header, marker))


def a_repeated_end_that_keeps_the_epoch_is_refused(patch: pytest.MonkeyPatch) -> None:
    end = decisions.end

    def once(transactions: Transactions, given: Given, name: str, *arguments: Any, **named: Any) -> Any:
        found = transactions.get(name)
        if found is not None and found.value.status is Status.EMPTY and named["keeps_epoch"]:
            raise InvalidTxnState("")
        return end(transactions, given, name, *arguments, **named)

    patch.setattr(decisions, "end", once)


def a_marker_of_a_kept_epoch_is_written_only_where_a_transaction_is_open(patch: pytest.MonkeyPatch) -> None:
    """Nothing revokes the guard of a batch that comes after the decision."""
    check_marker = ProducerStates.check_marker

    def lenient(self: ProducerStates, header: BatchHeader, marker: EndTxnMarker, *, keeps_epoch: bool) -> bool:
        is_open = header.producer_id in self.transactions.open
        return check_marker(self, header, marker, keeps_epoch=keeps_epoch) and (is_open or not keeps_epoch)

    patch.setattr(ProducerStates, "check_marker", lenient)


def offsets_of_a_kept_epoch_are_taken_for_those_of_another(patch: pytest.MonkeyPatch) -> None:
    end_pending = offsets.end_pending
    patch.setattr(offsets, "end_pending", lambda *args, **rest: end_pending(*args, **rest | {"keeps_epoch": False}))


def an_end_that_keeps_the_epoch_is_remembered_as_one_of_an_epoch_before(patch: pytest.MonkeyPatch) -> None:
    """The next end with that epoch is taken for a repetition."""
    _remember_the_previous(patch, keeps_epoch=True)


def transactions_of_one_epoch_are_not_told_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state.TransactionalId, "turn", state.TransactionalId.producer)


def batches_and_offsets_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "check_open", lambda *_: ())


def a_timeout_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    decided = decisions._decided
    patch.setattr(decisions, "_decided", lambda *args, **_: decided(*args, keeps_epoch=True))


RULES: list[Patch] = [
    each
    for each in [*globals().values(), *vars(job_rules).values()]
    if callable(each) and getattr(each, "__annotations__", {}).get("patch") is pytest.MonkeyPatch
]


FOUND_LATE: dict[Patch, int] = {
    zombies_of_the_group_commit: 25,
    waiting_offsets_are_fetched_over: 8,
    a_marker_of_the_same_epoch_ends_a_transaction: 8,
    job_rules.a_version_begins_before_the_last_one_has_ended: 6,
    batches_and_offsets_are_not_verified: 6,
}
"""The first seed that finds what is missing, of rules that the first few do not find: the search begins there."""


@pytest.mark.parametrize("take_out", RULES, ids=lambda rule: rule.__name__)
def test_a_missing_rule_is_found(take_out: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch)
    with pytest.raises((Violation, AssertionError, KeyError, WarmlogError)):
        simulate_seeds(FOUND_LATE.get(take_out, 1))


def simulate_seeds(first: int) -> None:
    for seed in (*range(first, SEEDS_TO_FIND_A_MISSING_RULE + 1), *range(1, first)):
        simulate(seed, EVENTS)
