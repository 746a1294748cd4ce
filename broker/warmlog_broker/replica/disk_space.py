"""Whether a disk has room for records, beyond the reserve that everything else may use.

Deletions, retention and a stop need some room. So records are refused before the disk is full (`disk.reserve.bytes`),
with an error that can be retried, until there is room again. The room is measured every second; records that come
faster than that meet the full disk, and are refused as well.
"""

import logging
from pathlib import Path

from warmlog_protocol.errors import DiskFull

_log = logging.getLogger(__name__)


class DiskRoom:
    """The room on the disk of one data directory, as it was measured last."""

    def __init__(self, path: Path, reserve_bytes: int) -> None:
        self.is_short = False
        """Whether less than the reserve is left, and nothing is appended."""
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._free_bytes = 0

    def note(self, free_bytes: int) -> None:
        """Note what is free. Records are taken again once that is an eighth more than the reserve."""
        self._free_bytes = free_bytes
        wanted = self._reserve_bytes + (self._reserve_bytes // 8 if self.is_short else 0)
        is_short = free_bytes < wanted
        if is_short and not self.is_short:
            _log.error("%s takes no records: %s", self._path, self)
        elif self.is_short and not is_short:
            _log.warning("%s takes records again: %s", self._path, self)
        self.is_short = is_short

    def refusal(self, what: str) -> DiskFull:
        """Return the error for `what`, which does not fit."""
        return DiskFull(f"{what}: {self._path} takes no records, {self}")

    def __str__(self) -> str:
        return f"{self._free_bytes} bytes are left on its disk, disk.reserve.bytes is {self._reserve_bytes}"
