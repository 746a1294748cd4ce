"""What must be true in the end, whatever happened in between. Pure: a history and the logs in, findings out."""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from faults.history.group_checking import check_group
from faults.history.notes import Notes, WriterNotes, author_of, key_of, value_of

MAX_FINDINGS_OF_A_KIND = 5


@dataclass(slots=True)
class FinalLog:
    """One partition as it is read after all is over: records from `first_offset` on, without gaps."""

    first_offset: int
    values: list[bytes]
    gaps: list[str] = field(default_factory=list)
    """Where batches did not begin where the one before ended, or could not be read."""

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.values)

    def at(self, offset: int) -> bytes | None:
        """The value at `offset`; None where there is none."""
        return self.values[offset - self.first_offset] if self.first_offset <= offset < self.next_offset else None


@dataclass(slots=True)
class StateLog:
    """One partition of a compacted topic: key and value by offset, in the order of reading."""

    records: dict[int, tuple[bytes, bytes]]
    gaps: list[str] = field(default_factory=list)
    """Where batches began before the end of the one before, or could not be read."""


Logs = Mapping[tuple[str, int], FinalLog]
States = Mapping[tuple[str, int], StateLog]


@dataclass(frozen=True, slots=True)
class Final:
    """Everything that is there when all is over."""

    logs: Logs
    states: States
    topics: Sequence[str]
    offline: Sequence[str] = ()
    """Partitions that nobody can read or write."""


def check(notes: Notes, final: Final, group_topic: str = "") -> list[str]:
    """What is wrong; empty when everything is as promised. The groups must have read all of `group_topic`."""
    findings = _Findings()
    _check_gaps(final, findings)
    for key, log in final.logs.items():
        if log.first_offset < notes.given_up.get(key, 0):
            findings.add("given up", f"{key}: begins at {log.first_offset}, not at {notes.given_up[key]} or above")
        may_begin_at = notes.may_begin_at.get(key, 0)
        if log.first_offset > may_begin_at and key[0] not in notes.retained_topics:
            findings.add("start", f"{key}: begins at {log.first_offset}, nobody gave up more than {may_begin_at}")
    for contradiction in notes.contradictions:
        findings.add("contradiction", contradiction)
    for writer in notes.writers:
        if writer.is_keyed:
            _check_keyed_writer(writer, final.states[writer.topic, writer.partition], findings)
        else:
            _check_writer(writer, final.logs[writer.topic, writer.partition], findings)
    _check_strangers(notes, final.logs, findings)
    _check_readers(notes, final, findings)
    _check_topics(notes, final.topics, findings)
    if group_topic:
        ends = {partition: log.next_offset for (topic, partition), log in final.logs.items() if topic == group_topic}
        for name, group in notes.groups.items():
            for kind, text in check_group(group, ends):
                findings.add(kind, f"group {name}: {text}")
    return findings.texts


def check_again(before: Final, after: Final, notes: Notes) -> list[str]:
    """What is not as it was, when everything is read again after a restart. Retention and compaction may go on.

    With a disk that is well again every partition is online after a restart. Where the broker could not say whether a
    topic was created or deleted, as its sync had failed, the restart decides.
    """
    findings = _Findings()
    for name in after.offline:
        findings.add("offline", f"{name} is offline after a restart")
    unknown = {name for told in (notes.created, notes.deleted) for name, is_known in told.items() if not is_known}
    if changed := sorted((set(after.topics) ^ set(before.topics)) - unknown):
        findings.add("reread", f"topics {changed} came or went by a restart")
    _check_gaps(after, findings)
    for key, log in after.logs.items():
        known = before.logs[key]
        if log.first_offset < known.first_offset or log.next_offset != known.next_offset:
            findings.add(
                "reread",
                f"{key}: offsets {known.first_offset} to {known.next_offset - 1} were there, and after a restart "
                f"{log.first_offset} to {log.next_offset - 1}",
            )
        elif log.values != known.values[log.first_offset - known.first_offset :]:
            findings.add("reread", f"{key}: other values after a restart")
    for key, state in after.states.items():
        if not state.records.items() <= before.states[key].records.items():
            findings.add("reread", f"{key}: records after a restart that were not there before")
        if _latest(state).items() != _latest(before.states[key]).items():
            findings.add("reread", f"{key}: some key has another last value after a restart")
    return findings.texts


def _latest(state: StateLog) -> dict[bytes, bytes]:
    return dict(state.records.values())


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


def _check_gaps(final: Final, findings: _Findings) -> None:
    """Everything could be read, and nothing is missing between batches."""
    for key, log in (*final.logs.items(), *final.states.items()):
        for gap in log.gaps:
            findings.add("gap", f"{key}: {gap}")


def _check_writer(writer: WriterNotes, log: FinalLog, findings: _Findings) -> None:
    """Acknowledged records are there, at their offsets; an idempotent writer's are there once and in order.

    Another's are in order as well where they are there for the first time, for it has one batch under way at a time.
    """
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
    elif log.first_offset == 0 and list(dict.fromkeys(numbers)) != sorted(present):
        findings.add("order", f"{writer.name}: records came first in another order than that of sending")


def _check_keyed_writer(writer: WriterNotes, state: StateLog, findings: _Findings) -> None:
    """Acknowledged records are there, or a later one of their key is; in order, once, with the bytes that were sent."""
    numbers: list[int] = []
    latest: dict[bytes, int] = {}
    for offset, (key, value) in state.records.items():
        name, number = author_of(value)
        if name != writer.name or number >= writer.sent or key != key_of(number):
            findings.add("stranger", f"{writer.topic} offset {offset}: nobody sent {value[:40]!r} with key {key!r}")
            continue
        if value != value_of(name, number):
            findings.add("changed", f"{writer.topic} offset {offset}: not the bytes that were sent")
        numbers.append(number)
        latest[key] = number
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        findings.add("order", f"{writer.name}: records are not in the order of sending, or twice there")
    for number, offset in writer.acknowledged.items():
        if latest.get(key_of(number), -1) < number:
            findings.add("lost", f"{writer.name} record {number} was acknowledged at {offset}; no later one of its key")


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


def _check_readers(notes: Notes, final: Final, findings: _Findings) -> None:
    """What a consumer has once read stays there, as it was; of a compacted topic, as long as it stays."""
    for place, checksum in notes.read.items():
        state = final.states.get((place.topic, place.partition))
        if state is not None:
            if place.offset in state.records and zlib.crc32(state.records[place.offset][1]) != checksum:
                findings.add("unread", f"{place} was read, and is another record now")
            continue
        log = final.logs[place.topic, place.partition]
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
