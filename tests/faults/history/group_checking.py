"""What must be true of a group, whatever happened. Pure: journals and observed offsets in, findings out."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from faults.history.members import Event, GroupNotes


def check_group(notes: GroupNotes, ends: Mapping[int, int]) -> Iterable[tuple[str, str]]:
    """Yield kind and text of each finding; `ends` are the log ends, which begin at 0, by partition."""
    by_partition: dict[int, list[Event]] = defaultdict(list)
    for event in notes.events:
        by_partition[event.partition].append(event)
    for partition, end in ends.items():
        events = by_partition[partition]
        yield from _check_handled(partition, events, end)
        in_force = _without_outdated(events)
        yield from _check_commits(partition, in_force)
        yield from _check_starts(partition, in_force)
    yield from _check_observed(notes.committed, ends)


def _check_handled(partition: int, events: Sequence[Event], end: int) -> Iterable[tuple[str, str]]:
    """Each record was handled at least once."""
    covered = 0
    for first, after in sorted((event.first, event.next) for event in events if event.kind == "handled"):
        if first > covered:
            yield "unhandled", f"partition {partition}: no member has handled offsets {covered} to {first - 1}"
        covered = max(covered, after)
    if covered < end:
        yield "unhandled", f"partition {partition}: no member has handled offsets {covered} to {end - 1}"


def _without_outdated(events: Sequence[Event]) -> list[Event]:
    """Return `events` without assignments that were lost before anything was committed in them.

    A member that is stopped for longer than its session between the response and the callback notes an assignment that
    another member has had since. It is told of the loss at its next call.
    """
    outdated, begun = set(), {}
    for place, event in enumerate(events):
        if event.kind == "assigned":
            begun[event.member] = place
        elif event.kind == "committed":
            begun.pop(event.member, None)
        elif event.kind == "lost" and event.member in begun:
            outdated.add(begun.pop(event.member))
    return [event for place, event in enumerate(events) if place not in outdated]


def _check_commits(partition: int, events: Sequence[Event]) -> Iterable[tuple[str, str]]:
    """A commit is accepted from the member only that was assigned the partition last."""
    owner, begun = "", {}
    for event in events:
        if event.kind == "assigned":
            owner = event.member
        elif event.kind == "committing":
            begun[event.member] = owner
        elif event.kind == "committed" and begun[event.member] != event.member:
            owned_by = begun[event.member] or "no member"
            yield "zombie", f"partition {partition}: {event.member} committed {event.next}, {owned_by} was the owner"


def _check_starts(partition: int, events: Sequence[Event]) -> Iterable[tuple[str, str]]:
    """An owner begins where the offset that was acknowledged before says, or later, but not before it."""
    acknowledged, least = 0, {}
    for event in events:
        if event.kind == "committed":
            acknowledged = max(acknowledged, event.next)
        elif event.kind == "assigned":
            least[event.member] = acknowledged
        elif event.kind == "handled" and event.next <= least.get(event.member, 0):
            yield (
                "lost commit",
                (
                    f"partition {partition}: {event.member} handled {event.first} to {event.next - 1} although "
                    f"{least[event.member]} was committed before it was assigned the partition"
                ),
            )


def _check_observed(committed: Sequence[Mapping[int, int]], ends: Mapping[int, int]) -> Iterable[tuple[str, str]]:
    """A committed offset never goes back, and in the end everything is committed."""
    for earlier, later in pairwise(committed):
        for partition, offset in earlier.items():
            if later.get(partition, -1) < offset:
                yield "went back", f"partition {partition}: {offset} was committed, then {later.get(partition)}"
    if not committed or dict(committed[-1]) != dict(ends):
        yield "uncommitted", f"committed in the end: {dict(committed[-1]) if committed else {}}, the logs end at {ends}"
