"""`.warmlog_starts`: the starts of a broker that have not ended well, and how far each came.

The file lies in the first data directory. A line for each thing noted: the CRC-32C of the rest in eight hex digits, a
space, and a JSON object with one or two members::

    9a0b1c2d {"start": 1763731200000}                            a start, and when (ms)
    5a6b7c8d {"checking": "flights-0"}                           the log of a partition is opened
    0c1d2e3f {"checked": "flights-0"}                            and that is over
    7e6d5c4b {"step": "serving", "at": 1763731205000}

An orderly stop removes the file; a start that is refused in words takes back its own lines. What is found in it at a
start are therefore crashes. It is replaced as a whole, durably, when a start begins; the lines after that are appended
without a sync, as they tell of crashes of the process and not of the machine. A line that is torn or damaged says
nothing, and a file that cannot be written keeps no broker from starting.
"""

import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_protocol.codec.crc import crc32c

FILE_NAME = ".warmlog_starts"
MAX_KEPT = 20
"""Of how many earlier starts the notes are kept."""
FIRST_STEP = "opening partitions"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StartNote:
    """One start that did not end well."""

    begun_ms: int
    step: str = FIRST_STEP
    step_ms: int = 0
    """When the step was begun."""
    checking: dict[str, None] = field(default_factory=dict)
    """The partitions that were being opened, in the order in which that began."""


def pack_line(values: dict[str, object]) -> bytes:
    """One line of the file."""
    text = json.dumps(values).encode()
    return b"%08x %b\n" % (crc32c(text), text)


def read_notes(data: bytes) -> list[StartNote]:
    """The starts that `data`, the content of a file, tells of, the oldest first."""
    starts: list[StartNote] = []
    for line in data.splitlines():
        values = _read_line(line)
        if "start" in values:
            starts.append(StartNote(int(values["start"]), step_ms=int(values["start"])))
        elif starts and "step" in values:
            starts[-1].step, starts[-1].step_ms = values["step"], int(values["at"])
        elif starts and "checking" in values:
            starts[-1].checking[values["checking"]] = None
        elif starts and "checked" in values:
            starts[-1].checking.pop(values["checked"], None)
    return starts


def _read_line(line: bytes) -> dict[str, Any]:
    """What a line says; nothing when it is damaged."""
    head, _, text = line.partition(b" ")
    if head != b"%08x" % crc32c(text):
        return {}
    found: dict[str, Any] = json.loads(text)
    return found


def _pack_notes(starts: Iterable[StartNote]) -> bytes:
    lines = []
    for start in starts:
        lines.append(pack_line({"start": start.begun_ms}))
        if start.step != FIRST_STEP:
            lines.append(pack_line({"step": start.step, "at": start.step_ms}))
        lines += [pack_line({"checking": name}) for name in start.checking]
    return b"".join(lines)


class StartNotes:
    """The file, while a broker starts and runs. Any thread may add notes. No method fails: notes are only a help."""

    def __init__(self, directory: Path, earlier: Sequence[StartNote]) -> None:
        """Use `begin`."""
        self.path = directory / FILE_NAME
        self.earlier = list(earlier)[-MAX_KEPT:]
        """The starts before this one that did not end well."""
        self._descriptor = -1

    @classmethod
    def begin(cls, directory: Path, now_ms: int) -> "StartNotes":
        """Reads what the file tells of earlier starts, and notes a new one, durably."""
        path = directory / FILE_NAME
        try:
            earlier = read_notes(path.read_bytes())
        except FileNotFoundError:
            earlier = []
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("nothing is known of earlier starts, %s cannot be read: %s", path, error)
            earlier = []
        notes = cls(directory, earlier)
        try:
            replace_file(path, _pack_notes([*notes.earlier, StartNote(now_ms)]))
            notes._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            _log.warning("this start cannot be noted, should it crash: %s", error)
        return notes

    def step(self, name: str, now_ms: int) -> None:
        """The start has come to the step called `name`."""
        self._add({"step": name, "at": now_ms})

    def checking(self, name: str) -> None:
        """The partition called `name` is being opened."""
        self._add({"checking": name})

    def checked(self, name: str) -> None:
        """That is over, whatever came of it."""
        self._add({"checked": name})

    def forget_this_start(self) -> None:
        """It has ended in an orderly way before it served: that is no crash."""
        self.close()
        try:
            if self.earlier:
                replace_file(self.path, _pack_notes(self.earlier))
            else:
                self._remove()
        except OSError as error:
            _log.warning("the end of this start cannot be noted: %s", error)

    def forget_all(self) -> None:
        """The broker has served, and stopped in an orderly way."""
        self.close()
        try:
            self._remove()
        except OSError as error:
            _log.warning("the end of this broker cannot be noted: %s", error)

    def close(self) -> None:
        """Adds no more. Harmless when called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)

    def _add(self, values: dict[str, object]) -> None:
        if self._descriptor < 0:
            return
        try:
            os.write(self._descriptor, pack_line(values))
        except OSError as error:
            _log.warning("%s cannot be written, should the broker crash: %s", self.path, error)
            self.close()
