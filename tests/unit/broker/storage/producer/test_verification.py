"""Guards for transactions that the coordinator is being asked about."""

from unit.broker.storage.log_room import make_batch
from warmlog_broker.storage.producer.verification import NO_GUARD, Verifications
from warmlog_protocol.batch import BatchHeader, read_header
from warmlog_protocol.errors import OutOfOrderSequence


def header(sequence: int) -> BatchHeader:
    return read_header(make_batch(producer=(1, 0, sequence)))


def is_allowed(verifications: Verifications, sequence: int) -> bool:
    try:
        verifications.check_sequence(header(sequence))
    except OutOfOrderSequence:
        return False
    return True


def test_whoever_asks_while_a_guard_is_pending_gets_the_same_one() -> None:
    verifications = Verifications()
    assert verifications.guard_of(1) is NO_GUARD
    guard = verifications.start(1, 0, 0, 0)
    assert guard is not NO_GUARD
    assert verifications.start(1, 0, 0, 5) is verifications.guard_of(1) is guard
    other = verifications.start(2, 0, 0, 0)
    assert other is not guard
    assert guard.verifies(guard)
    assert not guard.verifies(other)
    assert len(verifications) == 2


def test_what_needs_no_guard_verifies_nothing() -> None:
    assert not NO_GUARD.verifies(NO_GUARD)
    assert not Verifications().start(1, 0, 0, 0).verifies(NO_GUARD)


def test_a_decided_verification_is_followed_by_another_guard() -> None:
    verifications = Verifications()
    guard = verifications.start(1, 0, 0, 0)
    verifications.clear(1)
    assert not verifications.guard_of(1).verifies(guard)
    assert not verifications.start(1, 0, 0, 0).verifies(guard)


def test_the_lowest_sequence_of_the_highest_epoch_goes_first() -> None:
    verifications = Verifications()
    guard = verifications.start(1, 5, 0, 0)
    assert (is_allowed(verifications, 5), is_allowed(verifications, 6)) == (True, False)
    verifications.start(1, 3, 0, 0)
    verifications.start(1, 4, 0, 0)
    assert (is_allowed(verifications, 3), is_allowed(verifications, 4)) == (True, False)
    assert verifications.start(1, 7, 1, 0) is guard
    assert (is_allowed(verifications, 7), is_allowed(verifications, 8)) == (True, False)
    verifications.start(1, 1, 0, 0)
    assert is_allowed(verifications, 7)
