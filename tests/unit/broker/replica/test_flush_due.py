"""Which partitions are due by flush.ms: as a plain list of times would say."""

from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog_broker.replica.flusher import DueFlushes
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition

PARTITIONS = [Partition(TopicPartition("t", number), None, LogConfig(), 0) for number in range(6)]
steps = st.lists(
    st.tuples(st.sampled_from(("add", "discard", "take")), st.sampled_from(PARTITIONS), st.sampled_from((5, 20, 1000))),
    max_size=60,
)


@given(steps)
@settings(max_examples=200)
def test_it_does_as_a_plain_list_of_times_does(steps: list[tuple[str, Partition, int]]) -> None:
    due, model = DueFlushes(), dict[Partition, float]()
    for number, (step, partition, delay_ms) in enumerate(steps):
        now_s = number * 0.003
        if step == "add" and partition not in model:
            model[partition] = now_s + delay_ms / 1000
            assert due.add(partition, delay_ms, now_s) == model[partition]
        elif step == "discard":
            model.pop(partition, None)
            due.discard(partition)
        elif step == "take":
            expected = {each for each, due_s in model.items() if due_s <= now_s}
            taken = due.take(now_s)
            assert len(taken) == len(set(taken))
            assert set(taken) == expected
            model = {each: due_s for each, due_s in model.items() if each not in expected}
        assert due.next_s == min(model.values(), default=None)
        assert bool(due) == bool(model)
        assert all((each in due) == (each in model) for each in PARTITIONS)


def test_all_that_are_left_can_be_taken_at_once() -> None:
    due = DueFlushes()
    for number, partition in enumerate(PARTITIONS):
        due.add(partition, 1000 * number, 0.0)
    assert set(due.take_all()) == set(PARTITIONS)
    assert not due
    assert due.next_s is None
    due.add(PARTITIONS[0], 5, 1.0)
    assert due.take(2.0) == [PARTITIONS[0]]
