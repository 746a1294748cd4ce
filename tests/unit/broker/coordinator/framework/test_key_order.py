"""Fair turns by key, against a model that keeps every arrival in a list."""

import random

import pytest

from warmlog_broker.coordinator.framework.key_order import KeyOrder


class Model:
    """All arrivals of one key that have not left, in order; the first `entered` of them have entered."""

    def __init__(self) -> None:
        self.present: list[tuple[bool, int]] = []
        self.entered: set[int] = set()

    def may_enter(self) -> list[int]:
        """The numbers of those that may be inside: the first if it is exclusive, else the shared ones before one."""
        if not self.present:
            return []
        if not self.present[0][0]:
            return [self.present[0][1]]
        allowed = []
        for is_shared, number in self.present:
            if not is_shared:
                break
            allowed.append(number)
        return allowed


@pytest.mark.parametrize("seed", range(50))
def test_turns_are_those_of_a_model_in_any_sequence(seed: int) -> None:
    rng = random.Random(seed)
    order: KeyOrder[int] = KeyOrder()
    models = {key: Model() for key in "abc"}
    inside: dict[str, set[int]] = {key: set() for key in models}
    for number in range(600):
        key = rng.choice("abc")
        model = models[key]
        if inside[key] and rng.random() < 0.55:
            leaving = rng.choice(sorted(inside[key]))
            inside[key].remove(leaving)
            model.present = [each for each in model.present if each[1] != leaving]
            entered = order.leave(key)
            assert entered == sorted(entered)
            inside[key].update(entered)
        else:
            is_shared = rng.random() < 0.6
            model.present.append((is_shared, number))
            is_free = order.is_free(key, is_shared=is_shared)
            assert is_free == (number in model.may_enter())
            if is_free:
                order.enter(key, is_shared=is_shared)
                inside[key].add(number)
            else:
                order.wait(key, number, is_shared=is_shared)
        assert inside[key] == set(model.may_enter())
        waiting = sum(len(each.present) for each in models.values()) - sum(map(len, inside.values()))
        assert order.waiting_count == waiting


def test_a_key_at_rest_takes_no_memory_and_a_cleared_order_returns_what_waited() -> None:
    order: KeyOrder[str] = KeyOrder()
    order.enter("a", is_shared=False)
    assert order.leave("a") == []
    assert order._turns == {}
    order.enter("a", is_shared=True)
    order.wait("a", "x", is_shared=False)
    order.wait("a", "y", is_shared=True)
    assert order.clear() == ["x", "y"]
    assert (order.waiting_count, order._turns) == (0, {})
