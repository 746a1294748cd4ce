"""The memory budget for requests: nobody overtakes, nothing is lost."""

from warmlog_broker.request_memory import RequestMemory


def test_what_is_free_can_be_claimed_until_it_is_given_back() -> None:
    memory = RequestMemory(100)
    assert memory.try_claim(60)
    assert not memory.try_claim(41)
    assert memory.try_claim(40)
    memory.give_back(60)
    assert memory.claimed_bytes == 40


def test_who_waits_is_served_in_order_as_soon_as_there_is_enough() -> None:
    memory = RequestMemory(100)
    served = []
    assert memory.try_claim(90)
    memory.wait("large", 50, lambda: served.append("large"))
    memory.wait("small", 5, lambda: served.append("small"))
    assert served == []
    memory.give_back(30)
    assert served == []
    memory.give_back(20)
    assert served == ["large", "small"]
    assert memory.claimed_bytes == 95


def test_nobody_overtakes_who_waits() -> None:
    memory = RequestMemory(100)
    assert memory.try_claim(90)
    memory.wait("first", 50, lambda: None)
    assert not memory.try_claim(1)


def test_who_is_gone_does_not_hold_up_the_others() -> None:
    memory = RequestMemory(100)
    served = []
    assert memory.try_claim(90)
    memory.wait("gone", 100, lambda: served.append("gone"))
    memory.wait("here", 10, lambda: served.append("here"))
    memory.forget("gone")
    assert served == ["here"]
    memory.forget("never waited")
