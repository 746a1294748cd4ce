"""The assignors: pure functions from members and topics to the partitions of each member.

Every partition of a topic that a member subscribes to is assigned to one of its subscribers. Each assignor is a
generator that returns its result and yields after each small step, so that the caller may do other things in between.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from warmlog_broker.coordinator.framework.decision import PartitionId

UNIFORM = "uniform"
RANGE = "range"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    rank: tuple[str, str]
    """Decides where all else is equal: the instance id and the member id."""
    current: AbstractSet[PartitionId] = frozenset()
    """What the last target gave to it."""


@dataclass(frozen=True, slots=True)
class TopicClass:
    """The topics that have the same subscribers."""

    subscribers: Sequence[str]
    """Their member ids, by rank."""
    topics: Mapping[bytes, int]
    """The number of partitions by topic id, in the order of the ids."""

    def partitions(self) -> Iterator[PartitionId]:
        return (PartitionId(topic_id, number) for topic_id, count in self.topics.items() for number in range(count))


Members = Mapping[str, Subscriber]
Classes = Sequence[TopicClass]
Targets = dict[str, set[PartitionId]]
Assignor = Callable[[Members, Classes], Generator[None, None, Targets]]


def uniform(members: Members, classes: Classes) -> Generator[None, None, Targets]:
    """Assign the partitions of all topics evenly, and move as few as possible.

    Members that subscribe to the same topics get numbers of partitions that differ by one at most. With mixed
    subscriptions, no move of one partition to another of its subscribers would make these two more equal.
    """
    targets: Targets = {member_id: set() for member_id in members}
    taken: set[PartitionId] = set()
    places = {topic_id: (each, frozenset(each.subscribers)) for each in classes for topic_id in each.topics}
    for member_id in sorted(members, key=lambda member_id: members[member_id].rank):
        for partition in members[member_id].current:
            topics, subscribers = places.get(partition.topic_id, (None, frozenset()))
            is_kept = topics is not None and partition.number < topics.topics[partition.topic_id]
            if is_kept and member_id in subscribers and partition not in taken:
                targets[member_id].add(partition)
                taken.add(partition)
        yield
    shared = sorted(classes, key=lambda each: (len(each.subscribers), each.subscribers))
    for each in shared:
        yield from _fill(targets, each.subscribers, [p for p in each.partitions() if p not in taken])
    is_moved = True
    while is_moved:
        is_moved = False
        for each in shared:
            if len(each.subscribers) > 1:
                is_moved |= yield from _level(targets, each)
    return targets


def range_(members: Members, classes: Classes) -> Generator[None, None, Targets]:
    """Assign each topic by itself, to each subscriber a run of its partitions.

    Topics with the same number of partitions and the same subscribers are assigned alike, so that a member has the same
    numbers of each.
    """
    targets: Targets = {member_id: set() for member_id in members}
    for each in classes:
        for topic_id, count in each.topics.items():
            size, larger = divmod(count, len(each.subscribers))
            start = 0
            for position, member_id in enumerate(each.subscribers):
                end = start + size + (position < larger)
                targets[member_id].update(PartitionId(topic_id, number) for number in range(start, end))
                start = end
            yield
    return targets


ASSIGNORS: dict[str, Assignor] = {UNIFORM: uniform, RANGE: range_}


def _fill(targets: Targets, subscribers: Sequence[str], free: Sequence[PartitionId]) -> Generator[None, None, None]:
    """Give each of `free` to the subscriber that has the fewest."""
    loads = [(len(targets[member_id]), place, member_id) for place, member_id in enumerate(subscribers)]
    heapify(loads)
    yield
    for partition in free:
        load, place, member_id = heappop(loads)
        targets[member_id].add(partition)
        heappush(loads, (load + 1, place, member_id))
        yield


def _level(targets: Targets, shared: TopicClass) -> Generator[None, None, bool]:
    """Move partitions of these topics from the subscriber with most to that with fewest, until they differ by one.

    Returns whether any was moved.
    """
    movable: dict[str, list[PartitionId]] = {}
    for member_id in shared.subscribers:
        movable[member_id] = sorted(p for p in targets[member_id] if p.topic_id in shared.topics)
        yield
    fewest = [(len(targets[m]), place, m) for place, m in enumerate(shared.subscribers)]
    most = [(-load, place, m) for load, place, m in fewest]
    heapify(fewest)
    heapify(most)
    is_moved = False
    while most:
        yield
        load, place, donor = most[0]
        if -load != len(targets[donor]) or not movable[donor]:
            heappop(most)
            continue
        least, receiver_place, receiver = fewest[0]
        if least != len(targets[receiver]):
            heappop(fewest)
            continue
        if -load - least < 2:
            break
        partition = movable[donor].pop()
        targets[donor].discard(partition)
        targets[receiver].add(partition)
        movable[receiver].append(partition)
        for member_id, at in ((donor, place), (receiver, receiver_place)):
            heappush(most, (-len(targets[member_id]), at, member_id))
            heappush(fewest, (len(targets[member_id]), at, member_id))
        is_moved = True
    return is_moved
