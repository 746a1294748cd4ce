"""Offsets that wait for a transaction, in copies of a log that are older than the coordinator of transactions."""

from warmlog_broker.coordinator.group.pending_offsets import add_pending, end_pending
from warmlog_broker.coordinator.group.records import OffsetValue, Partition
from warmlog_broker.coordinator.group.state import Groups

PRODUCER, EPOCH = 7, 3
FIRST, SECOND = Partition(b"t" * 16, 0), Partition(b"t" * 16, 1)


def added(groups: Groups, epoch: int, *partitions: Partition) -> Groups:
    """Replay a commit of offset 5 for each of `partitions` by the transaction of this epoch."""
    offsets = {partition: OffsetValue(5, -1, "", "t", 0) for partition in partitions}
    for record in add_pending(groups, "g", PRODUCER, epoch, offsets, now_ms=0):
        groups.replay(record)
    return groups


def ended(groups: Groups, epoch: int) -> set[Partition]:
    """Replay the commit of the markers' epoch, and return the partitions with a committed offset."""
    for record in end_pending(groups, "g", PRODUCER, epoch, commits=True, now_ms=0).records:
        groups.replay(record)
    group = groups.get("g")
    assert group is not None
    assert not group.pending[PRODUCER].offsets
    return set(group.offsets)


def test_a_commit_takes_the_offsets_of_its_own_transaction() -> None:
    assert ended(added(added(Groups(), EPOCH, FIRST), EPOCH, SECOND), EPOCH + 1) == {FIRST, SECOND}


def test_offsets_of_an_earlier_transaction_go_into_no_later_one() -> None:
    assert ended(added(Groups(), EPOCH, FIRST), EPOCH + 3) == set()
    assert ended(added(added(Groups(), EPOCH, FIRST), EPOCH + 2, SECOND), EPOCH + 3) == {SECOND}
