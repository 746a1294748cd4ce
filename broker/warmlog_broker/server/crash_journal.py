"""`.warmlog_starts`: the starts of a broker that have not ended well, and how far each came.

The file is in the first data directory. A line for each thing noted: the CRC-32C of the rest in eight hex digits, a
space, and a JSON object with one or two members::

    9a0b1c2d {"start": 1763731200000}                            a start, and when (ms)
    5a6b7c8d {"checking": "flights-0"}                           work on a partition begins: opening or compacting it
    0c1d2e3f {"checked": "flights-0"}                            and is over
    7e6d5c4b {"step": "serving"}                                 the start has come to another of the steps below

An orderly stop removes the file; a start that is refused in words takes back its own lines. What a start finds in it
are therefore crashes. It is replaced as a whole, durably, when a start begins; the lines after that are appended
without a sync, as they tell of crashes of the process and not of the machine. A line that is torn or damaged says
nothing, and a file that cannot be written keeps no broker from starting.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_protocol.codec.crc import crc32c

FILE_NAME = ".warmlog_starts"
MAX_KEPT = 20
"""Of how many earlier starts the notes are kept."""

OPENING = "opening partitions"
"""The first step of every start."""
FIRST_SECONDS = "in its first seconds of serving"
SERVING = "serving"
SAFE_MODE = "serving in safe mode"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StartNote:
    """One start that did not end well."""

    begun_ms: int
    step: str = OPENING
    checking: dict[str, None] = field(default_factory=dict)
    """The partitions that were being worked on, in the order in which that began."""


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
            starts.append(StartNote(int(values["start"])))
        elif starts and "step" in values:
            starts[-1].step = values["step"]
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
        if start.step != OPENING:
            lines.append(pack_line({"step": start.step}))
        lines += [pack_line({"checking": name}) for name in start.checking]
    return b"".join(lines)


class StartNotes:
    """The file, while a broker starts and runs. Any thread may add notes. No method fails: notes are only a help."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.earlier: list[StartNote] = []
        """The starts before this one that did not end well, from `begin` on."""
        self._descriptor = -1

    def begin(self, now_ms: int) -> None:
        """Read what the file tells of earlier starts, and note a new one, durably."""
        try:
            self.earlier = read_notes(self.path.read_bytes())[-MAX_KEPT:]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("nothing is known of earlier starts, %s cannot be read: %s", self.path, error)
        with _logged("this start cannot be noted, should it crash"):
            replace_file(self.path, _pack_notes([*self.earlier, StartNote(now_ms)]))
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def note(self, kind: str, name: str) -> None:
        """Add a line: "checking" or "checked" with a partition's name, or "step" with one of the steps."""
        if self._descriptor < 0:
            return
        try:
            os.write(self._descriptor, pack_line({kind: name}))
        except OSError as error:
            _log.warning("%s cannot be written, should the broker crash: %s", self.path, error)
            self.close()

    def forget(self, *, is_all: bool) -> None:
        """This start has ended in an orderly way: take back its own lines, or, with `is_all`, remove the file."""
        self.close()
        with _logged("the end of this start cannot be noted"):
            if self.earlier and not is_all:
                replace_file(self.path, _pack_notes(self.earlier))
            else:
                self.path.unlink(missing_ok=True)
                sync_directory(self.path.parent)

    def close(self) -> None:
        """Add no more. Harmless when called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def _logged(trouble: str) -> Iterator[None]:
    """Within, an error of the disk becomes a line in the log."""
    try:
        yield
    except OSError as error:
        _log.warning("%s: %s", trouble, error)
