"""What was decided, as the durable log of the coordinator says, and what clients were told."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from unit.broker.coordinator.group.simulation.checks import require
from warmlog_broker.coordinator.transaction.decisions.records import NO_VERSION
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation, Job, TransactionalId

Token = tuple[object, ...]
"""A record: whose it is, and its number."""
Turn = tuple[int, ...]
"""What no other transaction has: its producer, and when it began; of a member of a job, its producer."""


def turn_of(found: TransactionalId | Job, producer: Incarnation) -> Turn:
    """Return that of the last transaction of a producer with this id."""
    return producer if isinstance(found, Job) else (*producer, found.value.began_ms)


@dataclass(slots=True, eq=False)
class Note:
    """One transaction of a plain producer, as it knows it."""

    values: dict[Token, int] = field(default_factory=dict)
    """With the numbers of their partitions."""
    is_commit_asked: bool = False
    is_committed: bool | None = None
    """As it was told; None while it knows nothing."""


@dataclass(slots=True)
class Truth:
    """What must be true of everything that is read."""

    outcomes: dict[Turn, bool] = field(default_factory=dict)
    """Whether the transaction was committed. Members have one each: it is that of their producer."""
    latest: dict[Incarnation, bool] = field(default_factory=dict)
    """The same of the last transaction of each producer."""
    versions: dict[str, list[int]] = field(default_factory=dict)
    """The versions of each job that were committed, in their order."""
    members: dict[Incarnation, tuple[str, int]] = field(default_factory=dict)
    """The job and version that each member has joined."""
    may_be_aborted: set[Incarnation] = field(default_factory=set)
    """Members that somebody has asked to abort."""
    owners: dict[str, object] = field(default_factory=dict)
    """The client that each transactional id was given to last."""
    notes: list[Note] = field(default_factory=list)
    rows: dict[tuple[str, int], set[Token]] = field(default_factory=dict)
    """What each version of each job has to write."""

    def look(self, found: TransactionalId | Job) -> None:
        """Note what is decided about a transactional id. Nothing is decided twice, and versions rise."""
        for outcome in found.outcomes:
            producer = Incarnation(outcome.marker.producer_id, outcome.marker.epoch - (not outcome.keeps_epoch))
            turn = turn_of(found, producer)
            known = self.outcomes.setdefault(turn, outcome.commits)
            self.latest[producer] = outcome.commits
            require(known == outcome.commits, "{} was decided twice, first with {}", producer, known)
            is_early = isinstance(found, Job) and not found.is_ending
            require(not is_early or producer in self.may_be_aborted, "{} was aborted, as nobody asked for", producer)
        if isinstance(found, Job):
            name, version = found.transactional_id, found.value.committed_version
            last = self.last_version(name)
            require(version >= last, "{}: version {} after {}", name, version, last)
            if version > last:
                self.versions.setdefault(name, []).append(version)

    def last_version(self, job: str) -> int:
        """Return the version that was committed last."""
        return self.versions.get(job, [NO_VERSION])[-1]

    def look_at_join(self, job: str, version: int, producer: Incarnation | None) -> None:
        """Note a member, or that a job was told that its version is committed."""
        last = self.last_version(job)
        if producer is None:
            require(
                version == last, "{}: version {} is committed as it was told, and {} is the last", job, version, last
            )
            return
        require(version > last, "{}: version {} is written again after {}", job, version, last)
        require(producer not in self.members, "{} has joined twice", producer)
        self.members[producer] = job, version
        for member, (name, other) in self.members.items():
            is_open = name == job and member not in self.outcomes
            require(not is_open or other == version, "{}: versions {} and {} are open", job, version, other)

    def check(self, delivered: dict[Token, int], volatile: Iterable[int]) -> None:
        """Check what was read when all transactions have ended. What `volatile` partitions had may be gone."""
        gone = set(volatile)
        for note in self.notes:
            counts = {delivered.get(value, 0) for value, number in note.values.items() if number not in gone}
            if note.is_committed:
                require(counts <= {1}, "a committed transaction is incomplete: {}", note)
            elif note.is_commit_asked and note.is_committed is None:
                require(len(counts) <= 1, "a transaction is there in part: {}", note)
            else:
                require(counts <= {0}, "an aborted transaction is there: {}", note)
        for (job, version), rows in self.rows.items():
            expected = int(version in self.versions.get(job, ()))
            counts = {delivered.get(row, 0) for row in rows}
            require(counts <= {expected}, "{}, version {}: {} times there, not {}", job, version, counts, expected)
