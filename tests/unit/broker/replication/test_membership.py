"""What a broker decides when it starts."""

import pytest
from msgspec.structs import replace

from warmlog_broker.replication import membership as mem
from warmlog_broker.replication.membership import Comparison, FoundLog, Mark, NodeMarks
from warmlog_broker.replication.record import Exclude, PartitionRecord, Restart

RECORD = PartitionRecord(leader=1, leader_epoch=4, replicas=(1, 2, 3), isr=(1, 2), elr=(), min_isr=2)
FOUND = FoundLog("d", 20)
MARKS = NodeMarks(Mark(3, 8), Mark(3, 7), 100)


@pytest.mark.parametrize(
    ("stored", "revision", "expected"),
    [
        (Mark(3, 7), 100, Comparison.AGREES),
        (Mark(3, 8), 120, Comparison.AGREES),
        (Mark(3, 9), 120, Comparison.DISKS_ARE_OLD),
        (Mark(4, 0), 120, Comparison.DISKS_ARE_OLD),
        (Mark(3, 6), 120, Comparison.STORE_HAS_GONE_BACK),
        (Mark(3, 7), 99, Comparison.STORE_HAS_GONE_BACK),
    ],
)
def test_marks_tell_old_disks_and_an_old_store(stored: Mark, revision: int, expected: Comparison) -> None:
    assert mem.compare(MARKS, stored, revision) is expected


def test_a_store_that_was_rebuilt_may_lack_what_was_confirmed() -> None:
    marks = replace(MARKS, generation=2)
    assert mem.compare(marks, Mark(), 5, 3) is Comparison.AGREES
    assert mem.compare(marks, Mark(3, 9), 5, 3) is Comparison.DISKS_ARE_OLD
    assert mem.compare(marks, Mark(), 5, 2) is Comparison.STORE_HAS_GONE_BACK
    assert mem.compare(marks, Mark(3, 8), 120, 1) is Comparison.STORE_HAS_GONE_BACK, "a backup of before"


def test_an_incarnation_is_above_all_that_were() -> None:
    assert mem.next_incarnation(MARKS, Mark(5, 2)) == Mark(6, 0)
    assert mem.next_incarnation(MARKS, Mark(2, 2)) == Mark(4, 0)


def test_a_log_that_lacks_what_it_answered_for_is_lost() -> None:
    assert mem.lost(FOUND, "d", 20) is None
    assert mem.lost(None, None, 0) is None, "it never had a log"
    assert mem.lost(None, "d", 0) is not None
    for found in (
        replace(FOUND, directory="another"),
        replace(FOUND, has_damage=True),
        replace(FOUND, may_lack_flushed=True),
        replace(FOUND, end=19),
    ):
        assert mem.lost(found, "d", 20) is not None


def test_a_start_excludes_what_is_lost_and_gives_up_leadership() -> None:
    def change(node: int, *, is_lost: bool) -> object:
        return mem.start_change(RECORD, node, is_lost=is_lost, was_closed=False)

    assert change(1, is_lost=True) == change(2, is_lost=True) == Exclude()
    assert change(1, is_lost=False) == Restart()
    assert change(2, is_lost=False) is None, "it stays in sync: all that counted was flushed"
    assert change(3, is_lost=True) is None
