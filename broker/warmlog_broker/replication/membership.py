"""What a broker decides when it starts, before it takes any role: whether its disks are those that left.

The order, of which nothing may be left out:

1. Read what the store has about this broker, and the records that name it, at one revision; `compare`.
2. Open the logs. Recovery takes a batch of an epoch above that of the record for damage, and cuts it.
3. If a log has `lost` something, or the disks are old: delete the former registration of this broker, since fetches of
   before could bring the log into the in-sync set again.
4. Make the change of each record, if there is one: `start_change`. Only then may anything be changed that shows the
   loss: the log is made, the stored high watermark lowered, the mark moved on. After a crash before that the next start
   must find it again.
5. Write the next mark into the node file (`intended`), then into the store, then into the file again (`confirmed`).
6. Register, and take the roles.

A mark is written again every few seconds while the broker runs, so an old image of its disks is found.
"""

from enum import Enum
from typing import NamedTuple

import msgspec

from warmlog_broker.replication.record import Exclude, PartitionRecord, Restart


class Mark(NamedTuple):
    """A moment in the life of a node: it only rises."""

    incarnation: int = 0
    beat: int = 0


class NodeMarks(msgspec.Struct, frozen=True):
    """What the node file says of marks."""

    intended: Mark = Mark()
    """Durable before it is written to the store."""
    confirmed: Mark = Mark()
    """The store has had it."""
    revision: int = 0
    """The largest revision of the store that was seen, about."""
    generation: int = 0
    """That of the store then: it rises when an operator has rebuilt the store from the brokers."""


class Comparison(Enum):
    """Of a node's disks and the store."""

    AGREES = "agrees"
    DISKS_ARE_OLD = "the disks are older than the cluster: the image of a disk was restored"
    STORE_HAS_GONE_BACK = "the store has lost what it had confirmed: it was restored from a backup"


def compare(marks: NodeMarks, stored: Mark, revision: int, generation: int = 0) -> Comparison:
    """Compare the node file with the mark in the store, as of `revision`; `Mark()` if the store has none.

    A crash while a mark was written leaves the store between the confirmed one and the intended one. What a store of a
    later generation has lost was given up by an operator.
    """
    has_lost = stored < marks.confirmed or revision < marks.revision
    if generation < marks.generation or (has_lost and generation == marks.generation):
        return Comparison.STORE_HAS_GONE_BACK
    if stored > marks.intended:
        return Comparison.DISKS_ARE_OLD
    return Comparison.AGREES


def next_incarnation(marks: NodeMarks, stored: Mark) -> Mark:
    return Mark(max(marks.intended, stored).incarnation + 1, 0)


class FoundLog(msgspec.Struct, frozen=True):
    """A log as a start finds it."""

    directory: str
    """Identity of the data directory."""
    end: int
    has_damage: bool = False
    """Recovery lost something below its recovery point, or damage was found before."""
    may_lack_flushed: bool = False
    """The topic has `write.caching`, and the stop was not clean."""


def lost(found: FoundLog | None, directory: str | None, high_watermark: int) -> str | None:
    """Return why a log may lack what it has answered for, so that its replica is excluded; None if it lacks nothing.

    `found` is None for the log of a deleted topic of the same name, too. `directory` is where the node file has the
    partition, which is noted before its first fetch: None if it never had one, so it has answered for nothing.
    `high_watermark` is the one that was stored.
    """
    if directory is None:
        return None
    if found is None:
        return "there is no log of this topic"
    if found.directory != directory:
        return f"the log is in the directory {found.directory}, not in {directory}"
    if found.has_damage or found.may_lack_flushed:
        return "the log is damaged, or was not flushed"
    if found.end < high_watermark:
        return f"the log ends at {found.end}, before what was committed: {high_watermark}"
    return None


def start_change(record: PartitionRecord, node: int, *, is_lost: bool, was_closed: bool) -> Exclude | Restart | None:
    """Return what a starting broker changes in a record that names it, before it registers.

    It stays in the in-sync set if it has lost nothing, since all that counted was flushed. It does not lead in the
    same epoch again, in which followers may have what it had not flushed.
    """
    if is_lost and node in record.eligible:
        return Exclude()
    return Restart(was_closed) if record.leader == node else None
