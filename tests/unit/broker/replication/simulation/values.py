"""What a simulated broker keeps about requests, says besides the messages of replicas, and reads from the store."""

from typing import NamedTuple

from unit.broker.replication.simulation.disk import Entry
from unit.broker.replication.simulation.etcd import Item
from warmlog_broker.replication import events as ev


class Registration(NamedTuple):
    """The value of a broker's key."""

    life: int
    is_ready: bool
    was_clean: bool


class Waiting(NamedTuple):
    """A produce request that waits for its batch to be committed."""

    offset: int
    producer: int
    sequence: int


class Question(NamedTuple):
    """A read that must not go back: when it came, and what had been seen before."""

    asked_ms: int
    floor: int


class Poll(NamedTuple):
    """A follower's fetch with this number is under way, and it has got the leader's `Polled` of this time."""

    node: int
    number: int
    echo_ms: int


class Polled(NamedTuple):
    """The leader has that fetch."""

    number: int
    sent_ms: int


def session_of(item: Item) -> ev.Session:
    value: Registration = item.value
    return ev.Session(item.created, value.is_ready, value.was_clean)


def epochs_of(entries: list[Entry | None], offset: int) -> tuple[tuple[int, int], ...]:
    """Return the epochs that begin within these entries."""
    found: list[tuple[int, int]] = []
    for at, entry in enumerate(entries, offset):
        if entry is not None and entry.epoch >= 0 and (not found or found[-1][0] < entry.epoch):
            found.append((entry.epoch, at))
    return tuple(found)
