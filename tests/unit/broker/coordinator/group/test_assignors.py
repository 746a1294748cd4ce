"""Properties of the assignors."""

from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from unit.broker.coordinator.group.topics import run_steps
from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions import assignors

TOPICS = [bytes([number]) * 16 for number in range(4)]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=7)
alike = st.integers(1, 7).map(lambda size: [frozenset(TOPICS)] * size)
Targets = Mapping[str, set[PartitionId]]


class Member(NamedTuple):
    """A member, and the topics that it subscribes to."""

    rank: tuple[str, str]
    topic_ids: frozenset[bytes]
    current: frozenset[PartitionId] = frozenset()


Members = Mapping[str, Member]


def assigned(assign: assignors.Assignor, members: Members, topics: Mapping[bytes, int]) -> Targets:
    """Return what an assignor assigns."""
    by_rank = sorted(members, key=lambda member_id: members[member_id].rank)
    classes: dict[tuple[str, ...], dict[bytes, int]] = {}
    for topic_id, count in sorted(topics.items()):
        subscribers = tuple(member_id for member_id in by_rank if topic_id in members[member_id].topic_ids)
        if subscribers:
            classes.setdefault(subscribers, {})[topic_id] = count
    return run_steps(
        assign(
            {member_id: assignors.Subscriber(member.rank, member.current) for member_id, member in members.items()},
            [assignors.TopicClass(*each) for each in classes.items()],
        )
    )


def members_of(subscribed: list[frozenset[bytes]], current: Targets | None = None) -> dict[str, Member]:
    return {
        f"m{place}": Member(("", f"m{place}"), topics, frozenset((current or {}).get(f"m{place}", ())))
        for place, topics in enumerate(subscribed)
    }


def partitions(topics: Mapping[bytes, int]) -> set[PartitionId]:
    return {PartitionId(topic_id, number) for topic_id, count in topics.items() for number in range(count)}


def is_legal(members: Members, topics: Mapping[bytes, int], targets: Targets) -> bool:
    """Whether each partition with a subscriber has exactly one owner, which subscribes to its topic."""
    owned = [partition for target in targets.values() for partition in target]
    wanted = {topic_id for member in members.values() for topic_id in member.topic_ids}
    return (
        targets.keys() == members.keys()
        and len(owned) == len(set(owned))
        and set(owned) == {partition for partition in partitions(topics) if partition.topic_id in wanted}
        and all(p.topic_id in members[member_id].topic_ids for member_id, target in targets.items() for p in target)
    )


def loads(targets: Targets) -> list[int]:
    return [len(target) for target in targets.values()]


@given(subscriptions, counts)
def test_every_partition_has_one_owner_which_subscribes_to_its_topic(
    subscribed: list[frozenset[bytes]], topics: dict[bytes, int]
) -> None:
    for assign in assignors.ASSIGNORS.values():
        members = members_of(subscribed)
        assert is_legal(members, topics, assigned(assign, members, topics))


@given(alike, counts)
def test_uniform_differs_by_one_at_most(subscribed: list[frozenset[bytes]], topics: dict[bytes, int]) -> None:
    sizes = loads(assigned(assignors.uniform, members_of(subscribed), topics))
    assert max(sizes) - min(sizes) <= 1


@given(subscriptions, counts, subscriptions, counts)
def test_uniform_leaves_no_move_that_would_make_two_members_more_equal(
    before: list[frozenset[bytes]], topics: dict[bytes, int], after: list[frozenset[bytes]], later: dict[bytes, int]
) -> None:
    members = members_of(after, assigned(assignors.uniform, members_of(before), topics))
    targets = assigned(assignors.uniform, members, later)
    assert is_legal(members, later, targets)
    for owner, target in targets.items():
        for partition in target:
            for other, member in members.items():
                if partition.topic_id in member.topic_ids:
                    assert len(targets[owner]) - len(targets[other]) <= 1


@given(alike, counts, alike, counts)
def test_uniform_moves_as_few_as_possible(
    before: list[frozenset[bytes]], topics: dict[bytes, int], after: list[frozenset[bytes]], later: dict[bytes, int]
) -> None:
    current = assigned(assignors.uniform, members_of(before), topics)
    targets = assigned(assignors.uniform, members_of(after, current), later)
    kept = sorted((len(current.get(m, set()) & partitions(later)) for m in targets), reverse=True)
    size, larger = divmod(len(partitions(later)), len(targets))
    best = sum(min(count, size + (place < larger)) for place, count in enumerate(kept))
    assert sum(len(targets[m] & current.get(m, set())) for m in targets) == best


@given(subscriptions, counts)
def test_uniform_changes_nothing_if_nothing_has_changed(
    subscribed: list[frozenset[bytes]], topics: dict[bytes, int]
) -> None:
    targets = assigned(assignors.uniform, members_of(subscribed), topics)
    assert assigned(assignors.uniform, members_of(subscribed, targets), topics) == targets


@given(alike, counts, st.data())
def test_a_static_member_under_a_new_member_id_keeps_its_partitions(
    subscribed: list[frozenset[bytes]], topics: dict[bytes, int], data: st.DataObject
) -> None:
    for assign in assignors.ASSIGNORS.values():
        members = {f"m{n}": Member((f"i{n}", f"m{n}"), topic_ids) for n, topic_ids in enumerate(subscribed)}
        targets = assigned(assign, members, topics)
        place = data.draw(st.integers(0, len(subscribed) - 1))
        again = {
            ("a" if n == place else m): Member(
                (f"i{n}", "a" if n == place else m), member.topic_ids, frozenset(targets[m])
            )
            for n, (m, member) in enumerate(members.items())
        }
        assert assigned(assign, again, topics)["a"] == targets[f"m{place}"]


@given(subscriptions, counts)
def test_range_gives_runs_and_the_first_subscribers_one_more(
    subscribed: list[frozenset[bytes]], topics: dict[bytes, int]
) -> None:
    targets = assigned(assignors.range_, members_of(subscribed), topics)
    for topic_id in topics:
        parts = [
            sorted(p.number for p in targets[f"m{place}"] if p.topic_id == topic_id)
            for place, wanted in enumerate(subscribed)
            if topic_id in wanted
        ]
        assert [number for part in parts for number in part] == list(range(topics[topic_id]) if parts else ())
        sizes = [len(part) for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert not sizes or sizes[0] - sizes[-1] <= 1


def test_range_gives_the_same_numbers_of_topics_that_are_alike() -> None:
    targets = assigned(assignors.range_, members_of([frozenset(TOPICS[:2])] * 3), {TOPICS[0]: 7, TOPICS[1]: 7})
    for target in targets.values():
        assert {p.number for p in target if p.topic_id == TOPICS[0]} == {
            p.number for p in target if p.topic_id == TOPICS[1]
        }


def test_a_thousand_members_share_ten_thousand_partitions_that_one_had() -> None:
    topics = dict.fromkeys(TOPICS, 2500)
    subscribed = [frozenset(TOPICS)] * 1000
    targets = assigned(assignors.uniform, members_of(subscribed, {"m0": partitions(topics)}), topics)
    assert set(loads(targets)) == {10}
