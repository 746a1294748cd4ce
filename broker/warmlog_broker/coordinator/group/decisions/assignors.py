"""The assignors: pure functions from members and topics to the partitions of each member.

Every partition of a topic that a member subscribes to is assigned to one of its subscribers.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from warmlog_broker.coordinator.group.decisions.records import Partition

UNIFORM = "uniform"
RANGE = "range"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    rank: tuple[str, str]
    """Decides where all else is equal: the instance id and the member id."""
    topic_ids: AbstractSet[bytes]
    current: AbstractSet[Partition] = frozenset()
    """What the last target gave to it."""


Members = Mapping[str, Subscriber]
Targets = dict[str, set[Partition]]
Assignor = Callable[[Members, Mapping[bytes, int]], Targets]


def uniform(members: Members, topics: Mapping[bytes, int]) -> Targets:
    """Assign the partitions of all topics evenly, and move as few as possible.

    Members that subscribe to the same topics get numbers of partitions that differ by one at most. With mixed
    subscriptions, no move of one partition to another of its subscribers would make these two more equal. `topics` has
    the number of partitions by topic id.
    """
    classes = _subscriber_classes(members, topics)
    targets: Targets = {member_id: set() for member_id in members}
    taken: set[Partition] = set()
    for member_id in _by_rank(members):
        member = members[member_id]
        kept = {p for p in member.current if p.topic_id in member.topic_ids and p.number < topics.get(p.topic_id, 0)}
        targets[member_id] = kept - taken
        taken |= kept
    for subscribers, topic_ids in sorted(classes.items(), key=lambda item: (len(item[0]), item[0])):
        free = [p for topic_id in topic_ids for p in _partitions(topic_id, topics) if p not in taken]
        _fill(targets, subscribers, free)
    while any(_level(targets, subscribers, set(topic_ids)) for subscribers, topic_ids in classes.items()):
        pass
    return targets


def range_(members: Members, topics: Mapping[bytes, int]) -> Targets:
    """Assign each topic by itself, to each subscriber a run of its partitions.

    Topics with the same number of partitions and the same subscribers are assigned alike, so that a member has the same
    numbers of each.
    """
    targets: Targets = {member_id: set() for member_id in members}
    for subscribers, topic_ids in _subscriber_classes(members, topics).items():
        for topic_id in topic_ids:
            partitions = _partitions(topic_id, topics)
            size, larger = divmod(len(partitions), len(subscribers))
            start = 0
            for position, member_id in enumerate(subscribers):
                end = start + size + (position < larger)
                targets[member_id].update(partitions[start:end])
                start = end
    return targets


ASSIGNORS: dict[str, Assignor] = {UNIFORM: uniform, RANGE: range_}


def _by_rank(members: Members) -> list[str]:
    return sorted(members, key=lambda member_id: members[member_id].rank)


def _partitions(topic_id: bytes, topics: Mapping[bytes, int]) -> list[Partition]:
    return [Partition(topic_id, number) for number in range(topics[topic_id])]


def _subscriber_classes(members: Members, topics: Mapping[bytes, int]) -> dict[tuple[str, ...], list[bytes]]:
    """Return the topics that have the same subscribers, by these subscribers; topics without any are left out."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in _by_rank(members):
        for topic_id in members[member_id].topic_ids:
            subscribers.setdefault(topic_id, []).append(member_id)
    classes: dict[tuple[str, ...], list[bytes]] = {}
    for topic_id in sorted(topics):
        if topic_id in subscribers:
            classes.setdefault(tuple(subscribers[topic_id]), []).append(topic_id)
    return classes


def _fill(targets: Targets, subscribers: Sequence[str], free: Sequence[Partition]) -> None:
    """Give each of `free` to the subscriber that has the fewest."""
    loads = [(len(targets[member_id]), place, member_id) for place, member_id in enumerate(subscribers)]
    heapify(loads)
    for partition in free:
        load, place, member_id = heappop(loads)
        targets[member_id].add(partition)
        heappush(loads, (load + 1, place, member_id))


def _level(targets: Targets, subscribers: Sequence[str], topic_ids: AbstractSet[bytes]) -> bool:
    """Move partitions of these topics from the subscriber with most to that with fewest, until they differ by one.

    Returns whether any was moved.
    """
    movable = {m: sorted(p for p in targets[m] if p.topic_id in topic_ids) for m in subscribers}
    fewest = [(len(targets[m]), place, m) for place, m in enumerate(subscribers)]
    most = [(-load, place, m) for load, place, m in fewest]
    heapify(fewest)
    heapify(most)
    is_moved = False
    while most:
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
