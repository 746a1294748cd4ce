"""The checker notices when a history of transactions is not as promised."""

from collections.abc import Sequence

import pytest

from faults.history.transactional.checking import COMMITTED, UNCOMMITTED, check_transactions, check_views_again
from faults.history.transactional.jobs import check_jobs, rows_of
from faults.history.transactional.notes import Outcome, Record, Transaction, TransactionNotes, Views

DONE, UNDONE, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN
TWO = [(0, b"a"), (1, b"b")]
LATER = [(0, b"c")]


def view(*values: tuple[int, bytes]) -> list[Record]:
    """Return records, each at the next offset of its partition."""
    found: list[Record] = []
    for partition, value in values:
        found.append(Record(partition, sum(record.partition == partition for record in found), value))
    return found


def kinds(
    outcome: Outcome,
    committed: Sequence[Record],
    *,
    seen: Sequence[Record] | None = None,
    copies: Sequence[Record] | None = None,
    uncommitted: Sequence[Record] = (),
) -> list[str]:
    """Return what is noticed of one transaction with the records TWO, and a later one that is committed."""
    notes = TransactionNotes({"w": [Transaction(list(TWO), outcome), Transaction(list(LATER), UNKNOWN)]})
    notes.seen[COMMITTED] = list(committed if seen is None else seen)
    views = {COMMITTED: committed, UNCOMMITTED: [*committed, *uncommitted]}
    copied = committed if copies is None else copies
    return [kind for kind, _ in check_transactions(notes, views, {"copies": {COMMITTED: copied, UNCOMMITTED: copied}})]


def test_what_is_as_promised_is_no_finding() -> None:
    assert kinds(DONE, view(*TWO, *LATER)) == []
    assert kinds(UNDONE, view(*LATER), uncommitted=[Record(0, 7, b"a"), Record(1, 0, b"b")]) == []
    assert kinds(UNKNOWN, view(*LATER)) == kinds(UNKNOWN, view(*TWO, *LATER)) == []


@pytest.mark.parametrize(
    ("outcome", "committed", "kind"),
    [
        pytest.param(DONE, view(*LATER), "lost commit", id="nothing of a committed one is there"),
        pytest.param(DONE, view((0, b"a"), *LATER), "lost commit", id="a part of a committed one is there"),
        pytest.param(DONE, view(*TWO, (1, b"b")), "doubled", id="a record is there twice"),
        pytest.param(UNDONE, view(*TWO), "aborted", id="an aborted one is there"),
        pytest.param(UNKNOWN, view((1, b"b")), "torn", id="a part of an unknown one is there"),
        pytest.param(DONE, view(*LATER, *TWO), "order", id="the later one is first"),
        pytest.param(DONE, view(*TWO, (2, b"x")), "stranger", id="a record that was not sent"),
    ],
)
def test_a_topic_gone_wrong_is_noticed(outcome: Outcome, committed: list[Record], kind: str) -> None:
    assert kinds(outcome, committed) == [kind]


def test_an_aborted_record_that_was_delivered_is_noticed_although_it_is_not_there_later() -> None:
    assert kinds(UNDONE, view(*LATER), seen=[*view(*LATER), Record(0, 7, b"a")]) == ["delivered"]


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        pytest.param(view(*TWO), "missing", id="a record was not delivered"),
        pytest.param([*view(*TWO, *LATER), Record(0, 1, b"c")], "doubled", id="one was delivered twice"),
        pytest.param([Record(0, 1, b"c"), *view(*TWO)], "order", id="out of order"),
    ],
)
def test_a_reader_that_got_something_else_is_noticed(seen: list[Record], kind: str) -> None:
    assert kinds(DONE, view(*TWO, *LATER), seen=seen) == [kind]


@pytest.mark.parametrize("copies", [view(*TWO), view(*TWO, *LATER, *LATER), view(*TWO, *LATER, (2, b"x"))])
def test_copies_that_do_not_agree_with_the_offsets_are_noticed(copies: list[Record]) -> None:
    assert kinds(DONE, view(*TWO, *LATER), copies=copies) == ["copies"]


def test_a_committed_record_that_only_committed_readers_get_is_noticed() -> None:
    views: Views = {COMMITTED: view(*TWO), UNCOMMITTED: view(TWO[0])}
    notes = TransactionNotes({"w": [Transaction(list(TWO), DONE)]})
    assert [kind for kind, _ in check_transactions(notes, views, {"copies": views})] == ["isolation"] * 2


def test_other_records_after_a_restart_are_noticed() -> None:
    before: Views = {COMMITTED: view(*TWO), UNCOMMITTED: view(*TWO)}
    after: Views = {COMMITTED: view(TWO[0]), UNCOMMITTED: view(*TWO)}
    assert [kind for kind, _ in check_views_again("t", before, after)] == ["reread"]
    assert list(check_views_again("t", before, before)) == []


JOB = "load"
LOGGED = [row for version in range(3) for row in rows_of(JOB, version)]
BEHIND = rows_of(JOB, 3)


def kinds_of_jobs(committed: Sequence[Record], *, seen: Sequence[Record] | None = None) -> list[str]:
    """Return what is noticed of a job whose log has three versions."""
    views: Views = {COMMITTED: committed, UNCOMMITTED: committed}
    return [kind for kind, _ in check_jobs({JOB: 3}, views, committed if seen is None else seen)]


def test_jobs_as_promised_are_no_finding() -> None:
    assert len(BEHIND) > 1
    assert kinds_of_jobs(view(*LOGGED)) == []
    assert kinds_of_jobs(view(*LOGGED, *BEHIND)) == []


@pytest.mark.parametrize(
    ("committed", "kind"),
    [
        pytest.param(view(*LOGGED[1:]), "lost commit", id="a row of a version in the log is not there"),
        pytest.param(view(*LOGGED, LOGGED[0]), "doubled or torn", id="a row is there twice"),
        pytest.param(view(*LOGGED, *BEHIND[1:]), "doubled or torn", id="a part of the version behind is there"),
        pytest.param(view(*LOGGED, *rows_of(JOB, 4)), "doubled or torn", id="a version too many is there"),
    ],
)
def test_jobs_gone_wrong_are_noticed(committed: list[Record], kind: str) -> None:
    assert kinds_of_jobs(committed) == [kind]


def test_a_row_that_a_committed_reader_of_a_job_got_and_that_is_not_there_is_noticed() -> None:
    assert kinds_of_jobs(view(*LOGGED), seen=[*view(*LOGGED), Record(0, 999, b"x")]) == ["delivered"]
