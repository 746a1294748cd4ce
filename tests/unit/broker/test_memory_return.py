"""When memory is given back to the system."""

from warmlog_broker.memory_return import GONE_BEFORE_TRIM, TRIM_INTERVAL_S, MemoryReturn, trim


def test_it_is_due_when_enough_have_gone_and_not_too_often() -> None:
    memory = MemoryReturn()
    assert not memory.is_due(GONE_BEFORE_TRIM - 1, 100.0)
    assert memory.is_due(GONE_BEFORE_TRIM, 100.2)
    assert not memory.is_due(GONE_BEFORE_TRIM, 200.0)
    assert not memory.is_due(3 * GONE_BEFORE_TRIM, 100.3)
    assert memory.is_due(3 * GONE_BEFORE_TRIM, 100.2 + TRIM_INTERVAL_S)


def test_trimming_does_no_harm() -> None:
    trim()
