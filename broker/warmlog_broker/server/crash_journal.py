"""`.warmlog_starts`: the starts of a broker that did not end in an orderly way, and how far each got.

The file is in the first data directory. Each line is one event: the CRC-32C of the rest in eight hex digits, a space,
and a JSON object::

    9a0b1c2d {"start": 1763731200000}      a start and its time (ms)
    5a6b7c8d {"checking": "flights-0"}     work on a partition begins: opening or compacting it
    0c1d2e3f {"checked": "flights-0"}      and is over
    7e6d5c4b {"step": "serving"}           the start has reached another of the steps below

An orderly stop removes the file, and a start that ends with a reported error removes its own lines: the starts that are
left are crashes. The file is replaced durably when a start begins; later lines are appended without a sync, as they are
about crashes of the process and not of the machine. Torn and damaged lines are ignored, and a file that cannot be
written does not prevent a start.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crc32c import crc32c

from warmlog_broker.storage.io.durable_files import replace_file, sync_directory

FILE_NAME = ".warmlog_starts"
MAX_KEPT = 20
"""How many earlier starts the file keeps."""

OPENING = "opening partitions"
"""The first step of every start."""
FIRST_SECONDS = "in its first seconds of serving"
SERVING = "serving"
SAFE_MODE = "serving in safe mode"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Start:
    """One start that did not end in an orderly way."""

    begun_ms: int
    step: str = OPENING
    checking: dict[str, None] = field(default_factory=dict)
    """The partitions that were being opened or compacted, in the order in which that began."""


def pack_line(values: dict[str, object]) -> bytes:
    """Encode one line of the file."""
    text = json.dumps(values).encode()
    return b"%08x %b\n" % (crc32c(text), text)


def read_starts(data: bytes) -> list[Start]:
    """Return the starts in `data`, the content of a file, the oldest first."""
    starts: list[Start] = []
    for line in data.splitlines():
        values = _read_line(line)
        if "start" in values:
            starts.append(Start(int(values["start"])))
        elif starts and "step" in values:
            starts[-1].step = values["step"]
        elif starts and "checking" in values:
            starts[-1].checking[values["checking"]] = None
        elif starts and "checked" in values:
            starts[-1].checking.pop(values["checked"], None)
    return starts


def _read_line(line: bytes) -> dict[str, Any]:
    """Return the object in a line; an empty one if the line is damaged."""
    head, _, text = line.partition(b" ")
    if head != b"%08x" % crc32c(text):
        return {}
    found: dict[str, Any] = json.loads(text)
    return found


def _pack_starts(starts: Iterable[Start]) -> bytes:
    lines = []
    for start in starts:
        lines.append(pack_line({"start": start.begun_ms}))
        if start.step != OPENING:
            lines.append(pack_line({"step": start.step}))
        lines += [pack_line({"checking": name}) for name in start.checking]
    return b"".join(lines)


class StartJournal:
    """The file, while a broker starts and runs. Any thread may add lines. Disk errors are logged, not raised."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.earlier: list[Start] = []
        """The crashed starts before this one, once `begin` was called."""
        self._descriptor = -1

    def begin(self, now_ms: int) -> None:
        """Read the earlier starts from the file, and add a new one durably."""
        try:
            self.earlier = read_starts(self.path.read_bytes())[-MAX_KEPT:]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("earlier starts are unknown, as %s cannot be read: %s", self.path, error)
        with _logged("if this start crashes, the next one will not know, as it cannot be recorded"):
            replace_file(self.path, _pack_starts([*self.earlier, Start(now_ms)]))
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def add(self, kind: str, name: str) -> None:
        """Add a line: "checking" or "checked" with a partition's name, or "step" with one of the steps."""
        if self._descriptor < 0:
            return
        try:
            os.write(self._descriptor, pack_line({kind: name}))
        except OSError as error:
            _log.warning("%s cannot be written, so a crash may be misjudged: %s", self.path, error)
            self.close()

    def forget(self, *, is_all: bool) -> None:
        """Remove the lines of this start, which is not a crash, or with `is_all` the file."""
        self.close()
        with _logged("the end of this start cannot be recorded, so it will count as a crash"):
            if self.earlier and not is_all:
                replace_file(self.path, _pack_starts(self.earlier))
            else:
                self.path.unlink(missing_ok=True)
                sync_directory(self.path.parent)

    def close(self) -> None:
        """Add no more lines; may be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def _logged(trouble: str) -> Iterator[None]:
    """Log OSError instead of raising it."""
    try:
        yield
    except OSError as error:
        _log.warning("%s: %s", trouble, error)
