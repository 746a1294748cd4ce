"""Guards for transactions that the coordinator is being asked about."""

from warmlog_broker.storage.producer.verification import NO_GUARD, Verifications


def test_whoever_asks_while_a_guard_is_pending_gets_the_same_one() -> None:
    verifications = Verifications()
    assert verifications.guard_of(1) is NO_GUARD
    guard = verifications.start(1, 0)
    assert guard is not NO_GUARD
    assert verifications.start(1, 5) is verifications.guard_of(1) is guard
    other = verifications.start(2, 0)
    assert other is not guard
    assert guard.verifies(guard)
    assert not guard.verifies(other)


def test_what_needs_no_guard_verifies_nothing() -> None:
    assert not NO_GUARD.verifies(NO_GUARD)
    assert not Verifications().start(1, 0).verifies(NO_GUARD)


def test_a_decided_verification_is_followed_by_another_guard() -> None:
    verifications = Verifications()
    guard = verifications.start(1, 0)
    verifications.clear(1)
    assert not verifications.guard_of(1).verifies(guard)
    assert not verifications.start(1, 0).verifies(guard)
