"""What a process uses, as the kernel says."""

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Use(NamedTuple):
    """Resident memory and open descriptors."""

    memory_bytes: int
    descriptors: int

    def __str__(self) -> str:
        return f"{self.memory_bytes / 2**20:.1f} MiB and {self.descriptors} descriptors"


def use_of(pid: int) -> Use:
    """What the process uses now."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return Use(int(found[1]) * 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def sockets_of(pid: int) -> int:
    """How many of its descriptors are sockets."""
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += str(path.readlink()).startswith("socket:")
    return count
