"""The checker notices when a group's history is not as promised."""

import pytest

from faults.history.group_checking import check_group
from faults.history.members import Event, GroupNotes


def history(text: str) -> list[Event]:
    """Events of partition 0: "a assigned", "a handled 0-5", "a committing 5", "a committed 5", at successive times."""
    events = []
    for at, line in enumerate(text.split(", ")):
        member, kind, *rest = line.split()
        first, _, after = rest[0].rpartition("-") if rest else ("", "", "-1")
        events.append(Event(member, at, kind, 0, int(first or -1), int(after)))
    return events


def kinds(text: str, end: int, committed: list[int] | None = None) -> list[str]:
    notes = GroupNotes(history(text), [{0: offset} for offset in ([end] if committed is None else committed)])
    return [kind for kind, _ in check_group(notes, {0: end})]


TAKEN_OVER = "a assigned, a handled 0-5, a committing 5, a committed 5, b assigned, b handled 5-9"


def test_a_hand_over_and_records_handled_twice_are_no_finding() -> None:
    assert kinds(TAKEN_OVER + ", b committing 9, b committed 9", 9, [0, 5, 9]) == []
    assert kinds("a assigned, a handled 0-5, b assigned, b handled 0-5", 5) == []


def test_a_partition_that_comes_back_is_no_finding() -> None:
    text = "a assigned, b assigned, a assigned, a handled 0-5, a committing 5, a committed 5"
    assert kinds(text, 5) == []


def test_an_assignment_that_was_lost_before_it_was_noted_is_no_finding() -> None:
    text = "a assigned, a handled 0-5, a committing 5, a committed 5, b assigned, a handled 5-9, a committing 9, "
    assert kinds(text + "b handled 0-5, b committing 5, a committed 9, b lost", 9, [0, 5, 9]) == []


@pytest.mark.parametrize(
    ("text", "end", "committed", "kind"),
    [
        pytest.param("a assigned, a handled 0-5", 9, None, "unhandled", id="nobody read to the end"),
        pytest.param("a assigned, a handled 0-5, a handled 6-9", 9, None, "unhandled", id="one was skipped"),
        pytest.param(
            "a assigned, a handled 0-5, b assigned, a committing 5, a committed 5", 5, None, "zombie", id="zombie"
        ),
        pytest.param(
            "a assigned, a handled 0-5, b assigned, b handled 0-5, b committing 5, b committed 5, a committing 5, "
            "a committed 5, b lost",
            5,
            None,
            "zombie",
            id="zombie of an owner that is lost later",
        ),
        pytest.param("a handled 0-5, a committing 5, a committed 5", 5, None, "zombie", id="never assigned"),
        pytest.param(
            "a assigned, a handled 0-5, a committing 5, a committed 5, b assigned, b handled 0-5",
            5,
            None,
            "lost commit",
            id="the next owner begins before the commit",
        ),
        pytest.param("a assigned, a handled 0-5", 5, [5, 3, 5], "went back", id="an offset went back"),
        pytest.param("a assigned, a handled 0-5", 5, [3], "uncommitted", id="the end was not committed"),
        pytest.param("a assigned, a handled 0-5", 5, [], "uncommitted", id="nothing was committed"),
    ],
)
def test_a_history_gone_wrong_is_noticed(text: str, end: int, committed: list[int] | None, kind: str) -> None:
    assert kinds(text, end, committed) == [kind]
