"""Which open transactions no transactional id has."""

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.transaction.decisions.records import (
    End,
    GroupKey,
    GroupValue,
    IdKey,
    IdValue,
    JobKey,
    JobValue,
    MemberKey,
    MemberStatus,
    MemberValue,
    PartitionKey,
    PartitionValue,
    Status,
    put,
)
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation, Outcome, Transactions, hanging

PLACE, OTHER = PartitionId(b"t" * 16, 0), PartitionId(b"t" * 16, 1)


def transactions(status: Status) -> Transactions:
    """A producer with epoch 5, and a job with a member; both write to the first partition."""
    found = Transactions()
    for record in (
        put(IdKey("id"), IdValue(1, 5, status, End.COMMITTED)),
        put(PartitionKey("id", *PLACE), PartitionValue("t")),
        put(GroupKey("id", "g"), GroupValue()),
        put(JobKey("job"), JobValue(0, Status.ONGOING)),
        put(MemberKey("job", 0), MemberValue(2, 7, MemberStatus.WRITING)),
        put(PartitionKey("job", *PLACE, 0), PartitionValue("t")),
    ):
        found.replay(record)
    return found


def test_what_a_transactional_id_has_is_none() -> None:
    opened = [(PLACE, Incarnation(1, 5)), ("g", Incarnation(1, 5)), (PLACE, Incarnation(2, 7))]
    assert list(hanging(transactions(Status.ONGOING), opened)) == []
    before = [(PLACE, Incarnation(1, 4)), ("g", Incarnation(1, 4))]
    assert list(hanging(transactions(Status.COMMITTING), [*opened, *before])) == []


def test_what_is_open_elsewhere_or_in_another_epoch_is_aborted() -> None:
    opened = [
        (OTHER, Incarnation(1, 5)),
        (PLACE, Incarnation(1, 4)),
        (PLACE, Incarnation(2, 6)),
        ("h", Incarnation(1, 5)),
    ]
    assert list(hanging(transactions(Status.ONGOING), opened)) == [
        Outcome(Incarnation(1, 6), False, (OTHER,)),
        Outcome(Incarnation(1, 5), False, (PLACE,)),
        Outcome(Incarnation(2, 7), False, (PLACE,)),
        Outcome(Incarnation(1, 6), False, (), ("h",)),
    ]
