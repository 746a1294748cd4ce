"""Offsets that wait in a group for the end of a transaction."""

from collections.abc import Iterable

import pytest

from warmlog_broker.coordinator.framework.decision import PartitionId, Record
from warmlog_broker.coordinator.group.decisions.offsets import add_pending, check_stable, end_pending
from warmlog_broker.coordinator.group.decisions.records import OffsetValue
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits
from warmlog_protocol.errors import InvalidProducerEpoch, OffsetMetadataTooLarge, UnstableOffsetCommit

PART = PartitionId(b"t" * 16, 0)
PRODUCER, EPOCH = 7, 3


@pytest.fixture
def groups() -> Groups:
    return Groups()


def apply(groups: Groups, records: Iterable[Record]) -> None:
    for record in records:
        groups.replay(record)


def add(groups: Groups, epoch: int, offset: int) -> None:
    value = OffsetValue(offset, -1, "", "t", 0)
    apply(groups, add_pending(groups, "g", PRODUCER, epoch, {PART: value}, now_ms=0, limits=Limits()))


@pytest.mark.parametrize("commits", [True, False])
def test_they_count_if_the_transaction_commits_and_the_last_of_a_partition_does(
    groups: Groups, *, commits: bool
) -> None:
    add(groups, EPOCH, 5)
    add(groups, EPOCH, 8)
    group = groups.get("g")
    assert group is not None
    assert PART not in group.offsets
    with pytest.raises(UnstableOffsetCommit):
        check_stable(group, [PART])
    apply(groups, end_pending(groups, "g", PRODUCER, EPOCH + 1, commits=commits, now_ms=0).records)
    check_stable(group, [PART])
    assert {partition: value.offset for partition, value in group.offsets.items()} == ({PART: 8} if commits else {})


def test_late_ones_of_a_transaction_that_has_ended_are_refused_and_the_next_one_adds_its_own(groups: Groups) -> None:
    add(groups, EPOCH, 5)
    ended = EPOCH + 1
    apply(groups, end_pending(groups, "g", PRODUCER, ended, commits=False, now_ms=0).records)
    with pytest.raises(InvalidProducerEpoch, match="epoch 3 is fenced by 4"):
        add(groups, EPOCH, 6)
    assert list(end_pending(groups, "g", PRODUCER, ended, commits=True, now_ms=0).records) == []
    add(groups, ended, 7)
    apply(groups, end_pending(groups, "g", PRODUCER, ended + 1, commits=True, now_ms=0).records)
    group = groups.get("g")
    assert group is not None
    assert group.offsets[PART].offset == 7


def test_what_waits_of_an_earlier_transaction_goes_into_no_later_one(groups: Groups) -> None:
    add(groups, EPOCH, 5)  # an older copy of the log, as a restore may have it, does not know how this has ended
    other = PartitionId(PART.topic_id, 1)
    value = OffsetValue(6, -1, "", "t", 0)
    apply(groups, add_pending(groups, "g", PRODUCER, EPOCH + 2, {other: value}, now_ms=0, limits=Limits()))
    apply(groups, end_pending(groups, "g", PRODUCER, EPOCH + 3, commits=True, now_ms=0).records)
    group = groups.get("g")
    assert group is not None
    assert set(group.offsets) == {other}


def test_a_commit_takes_no_offsets_of_another_epoch_than_the_one_before(groups: Groups) -> None:
    add(groups, EPOCH, 5)
    apply(groups, end_pending(groups, "g", PRODUCER, EPOCH + 3, commits=True, now_ms=0).records)
    group = groups.get("g")
    assert group is not None
    assert not group.offsets


def test_more_than_one_decision_can_make_committed_is_refused(groups: Groups) -> None:
    """Two requests that are small enough, of one transaction whose end would not fit into a segment."""
    name = "g" * 249

    def add_some(first: int) -> None:
        value = OffsetValue(0, -1, "m" * 4096, "t" * 249, 0)
        offsets = {PartitionId(b"t" * 16, number): value for number in range(first, first + 900)}
        apply(groups, add_pending(groups, name, PRODUCER, EPOCH, offsets, now_ms=0, limits=Limits()))

    add_some(0)
    with pytest.raises(OffsetMetadataTooLarge, match="the offsets of one transaction with their metadata take"):
        add_some(900)
    ended = end_pending(groups, name, PRODUCER, EPOCH + 1, commits=True, now_ms=0).records
    assert len(ended) == 901
