"""Free space of a disk, with a reserve that records must not use.

Deletions, retention and a stop need some space. So records are refused before the disk is full (`disk.reserve.bytes`),
with an error that can be retried, until there is space again. It is measured every second; records that fill the disk
faster than that are refused because it is full.
"""

import logging
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_protocol.errors import DiskFull

_log = logging.getLogger(__name__)


DEFAULT_SHARE = 10
"""The default reserve is at most a tenth of the disk, so that a small volume can hold records at all."""


def reserve_bytes(config: BrokerConfig, disk_bytes: int) -> int:
    """Return the reserve on a disk of `disk_bytes`: what was set, or the default if that is a small share of it."""
    reserve = config.disk_reserve_bytes
    return min(reserve, disk_bytes // DEFAULT_SHARE) if reserve == BrokerConfig().disk_reserve_bytes else reserve


class DiskRoom:
    """The free space on the disk of one data directory, as last measured."""

    def __init__(self, path: Path, reserve_bytes: int) -> None:
        self.is_short = False
        """Whether less than the reserve is free, and records are refused."""
        self._path = path
        self.reserve_bytes = reserve_bytes
        self.free_bytes = 0

    def note(self, free_bytes: int) -> None:
        """Note the free space. Records are accepted again once it is an eighth above the reserve."""
        self.free_bytes = free_bytes
        wanted = self.reserve_bytes + (self.reserve_bytes // 8 if self.is_short else 0)
        is_short = free_bytes < wanted
        if is_short and not self.is_short:
            _log.error("%s takes no records: %s", self._path, self)
        elif self.is_short and not is_short:
            _log.warning("%s takes records again: %s", self._path, self)
        self.is_short = is_short

    def refusal(self, what: str) -> DiskFull:
        """Return the error for the append of `what`."""
        return DiskFull(f"{what}: {self._path} takes no records, {self}")

    def __str__(self) -> str:
        return f"{self.free_bytes} bytes are left on its disk, disk.reserve.bytes is {self.reserve_bytes}"
