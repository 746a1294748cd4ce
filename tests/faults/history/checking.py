"""What must be true in the end, whatever happened in between. Pure: a history and the logs in, findings out."""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from faults.history.notes import Notes, WriterNotes, author_of, value_of

MAX_FINDINGS_OF_A_KIND = 5


@dataclass(slots=True)
class FinalLog:
    """One partition as it is read after all is over: records from `first_offset` on, without gaps."""

    first_offset: int
    values: list[bytes]
    gaps: list[str] = field(default_factory=list)
    """Batches that did not begin where the one before ended."""

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.values)

    def at(self, offset: int) -> bytes | None:
        """The value at `offset`; None where there is none."""
        return self.values[offset - self.first_offset] if self.first_offset <= offset < self.next_offset else None


Logs = Mapping[tuple[str, int], FinalLog]


def check(notes: Notes, logs: Logs, topics: Sequence[str]) -> list[str]:
    """What is wrong; empty when everything is as promised. `topics` are those that there are in the end."""
    findings = _Findings()
    for key, log in logs.items():
        for gap in log.gaps:
            findings.add("gap", f"{key}: {gap}")
    for contradiction in notes.contradictions:
        findings.add("contradiction", contradiction)
    for writer in notes.writers:
        _check_writer(writer, logs[writer.topic, writer.partition], findings)
    _check_strangers(notes, logs, findings)
    _check_readers(notes, logs, findings)
    _check_topics(notes, topics, findings)
    return findings.texts


class _Findings:
    """The first few findings of each kind, and how many more there were."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._texts: list[str] = []

    def add(self, kind: str, text: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= MAX_FINDINGS_OF_A_KIND:
            self._texts.append(f"{kind}: {text}")

    @property
    def texts(self) -> list[str]:
        more = [
            f"{kind}: {count - MAX_FINDINGS_OF_A_KIND} more"
            for kind, count in self._counts.items()
            if count > MAX_FINDINGS_OF_A_KIND
        ]
        return self._texts + more


def _check_writer(writer: WriterNotes, log: FinalLog, findings: _Findings) -> None:
    """Acknowledged records are there, at their offsets; an idempotent writer's are there once and in order."""
    found: list[tuple[int, int]] = []
    for index, value in enumerate(log.values):
        author, number = author_of(value)
        if author == writer.name:
            found.append((log.first_offset + index, number))
    numbers = [number for _, number in found]
    present = set(numbers)
    for number, offset in writer.acknowledged.items():
        if offset < 0:
            is_lost = number not in present and log.first_offset == 0
        else:
            is_lost = offset >= log.first_offset and log.at(offset) != value_of(writer.name, number)
        if is_lost:
            findings.add("lost", f"{writer.name} record {number} was acknowledged at {offset} and is not there")
    if writer.is_idempotent:
        if len(present) < len(numbers):
            findings.add("duplicate", f"{writer.name}: {len(numbers) - len(present)} records are there twice")
        if numbers != sorted(numbers):
            findings.add("order", f"{writer.name}: records are not in the order of sending")


def _check_strangers(notes: Notes, logs: Logs, findings: _Findings) -> None:
    """Every record was sent by somebody, to that partition, with those bytes."""
    writers = {writer.name: writer for writer in notes.writers}
    for key, log in logs.items():
        for index, value in enumerate(log.values):
            name, number = author_of(value)
            writer = writers.get(name)
            if writer is None or (writer.topic, writer.partition) != key or number >= writer.sent:
                findings.add("stranger", f"{key} offset {log.first_offset + index}: nobody sent {value[:40]!r} there")
            elif value != value_of(name, number):
                findings.add("changed", f"{key} offset {log.first_offset + index}: not the bytes that were sent")


def _check_readers(notes: Notes, logs: Logs, findings: _Findings) -> None:
    """What a consumer has once read stays there, as it was."""
    for place, checksum in notes.read.items():
        log = logs[place.topic, place.partition]
        if place.offset < log.first_offset:
            continue
        value = log.at(place.offset)
        if value is None or zlib.crc32(value) != checksum:
            findings.add("unread", f"{place} was read, and is {'gone' if value is None else 'another record'} now")


def _check_topics(notes: Notes, topics: Sequence[str], findings: _Findings) -> None:
    """An acknowledged creation stays until the topic is deleted, and an acknowledged deletion stays."""
    for name, is_acknowledged in notes.created.items():
        if is_acknowledged and name not in notes.deleted and name not in topics:
            findings.add("topic", f"{name} was created and is not there")
    for name, is_acknowledged in notes.deleted.items():
        if is_acknowledged and name in topics:
            findings.add("topic", f"{name} was deleted and is there")
