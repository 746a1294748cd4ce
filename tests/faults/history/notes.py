"""What the clients of one run have seen: the history that is checked in the end."""

import hashlib
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from faults.history.members import GroupNotes

MAX_FILLING_BYTES = 600
KEYS = 40


class Place(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int


def value_of(writer: str, number: int) -> bytes:
    """The value of a writer's record: its name, the number, and bytes that only depend on them."""
    head = b"%b:%d:" % (writer.encode(), number)
    filling = hashlib.shake_128(head)
    return head + filling.digest(int.from_bytes(filling.digest(2), "big") % MAX_FILLING_BYTES)


def author_of(value: bytes) -> tuple[str, int]:
    """The writer and the number in a value; ValueError for one that no writer can have written."""
    writer, number, _ = value.split(b":", 2)
    return writer.decode(), int(number)


def key_of(number: int) -> bytes:
    """The key of a keyed writer's record; some keys are written often, others seldom."""
    return b"%d" % (number % KEYS if number % 3 else number % 4)


@dataclass(slots=True)
class WriterNotes:
    """One producer's records, numbered from 0, to one partition."""

    name: str
    topic: str
    partition: int
    is_idempotent: bool
    is_keyed: bool = False
    """Whether it writes to a compacted topic, each record under `key_of` its number."""
    sent: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Number to offset; -1 where the broker did not say."""
    refused: dict[int, str] = field(default_factory=dict)
    """What was given up with an error: it may be in the log, or not."""


@dataclass(slots=True)
class Notes:
    """The whole history."""

    writers: list[WriterNotes] = field(default_factory=list)
    read: dict[Place, int] = field(default_factory=dict)
    """The CRC-32 of each value that some consumer has read."""
    contradictions: list[str] = field(default_factory=list)
    """What a consumer saw that cannot be, as it happened."""
    created: dict[str, bool] = field(default_factory=dict)
    """Topics made during the run; whether that was acknowledged."""
    deleted: dict[str, bool] = field(default_factory=dict)
    """Topics whose deletion was asked for; whether that was acknowledged."""
    given_up: dict[tuple[str, int], int] = field(default_factory=dict)
    """Below which offset a DeleteRecords was acknowledged, by topic and partition."""
    may_begin_at: dict[tuple[str, int], int] = field(default_factory=dict)
    """The highest offset below which records were asked to be given up, acknowledged or not."""
    retained_topics: frozenset[str] = frozenset()
    """Those in which the broker gives up old records by itself."""
    moves: int = 0
    """Moves of partitions to another data directory that were taken on."""
    faults: dict[str, int] = field(default_factory=dict)
    groups: dict[str, GroupNotes] = field(default_factory=dict)
    """By name."""

    def note_read(self, place: Place, value: bytes) -> None:
        """A consumer has read this; whoever reads it again must read the same."""
        checksum = zlib.crc32(value)
        known = self.read.setdefault(place, checksum)
        if known != checksum:
            self.contradictions.append(f"{place} was read with different values")
