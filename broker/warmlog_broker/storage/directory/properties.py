"""`warmlog.properties`: identity and format version of a data directory.

::

    # Written by warmlog.
    format.version=1                                      a newer one is refused
    cluster.id=bb3c5d74-c1c5-4c6b-9b0a-7b6b3b9c3a42       the cluster that the directory belongs to
    directory.id=0d5f9a3e-5f0c-4d63-8a3e-6c1f0a1f2b3c     unique to each data directory

The ids detect a disk that was swapped, copied or taken from another broker. A file without them, as older versions
wrote it, gets them at the next start. Other keys are ignored.
"""

from pathlib import Path
from uuid import UUID

from msgspec import Struct

from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_protocol.errors import WarmlogError

FORMAT_NAME = "warmlog.properties"
FORMAT_VERSION = 1
_VERSION_KEY, _CLUSTER_KEY, _DIRECTORY_KEY = "format.version", "cluster.id", "directory.id"


class DataDirectoryError(WarmlogError):
    """The broker cannot use this data directory; the message says why and what to do."""


class UnsupportedFormat(DataDirectoryError):
    """The directory was written by a newer warmlog, or its format file is malformed."""


class ForeignDirectory(DataDirectoryError):
    """The directory belongs to another cluster, or is configured at another path."""


class DirectoryFormat(Struct, frozen=True):
    """The content of the file. The ids are None if it has none."""

    cluster_id: str | None = None
    directory_id: UUID | None = None


def read_format(directory: Path) -> DirectoryFormat | None:
    """Read the format file of `directory`; None if there is none.

    UnsupportedFormat if it is malformed; OSError from the disk.
    """
    path = directory / FORMAT_NAME
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    version = values.get(_VERSION_KEY, "").strip()
    if not version.isdecimal():
        raise UnsupportedFormat(f"{path}: expected a line {_VERSION_KEY}={FORMAT_VERSION}, found {text!r}")
    if int(version) > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{directory} was written by a newer warmlog: its format version is {version}, this one reads up to "
            f"{FORMAT_VERSION}. Install the newer version again; nothing was changed ({path})"
        )
    directory_id = values.get(_DIRECTORY_KEY)
    try:
        parsed = None if directory_id is None else UUID(directory_id.strip())
    except ValueError:
        raise UnsupportedFormat(f"{path}: expected an id after {_DIRECTORY_KEY}=, found {directory_id!r}") from None
    cluster_id = values.get(_CLUSTER_KEY)
    return DirectoryFormat(None if cluster_id is None else cluster_id.strip(), parsed)


def write_format(directory: Path, form: DirectoryFormat) -> None:
    lines = ["# Written by warmlog.", f"{_VERSION_KEY}={FORMAT_VERSION}"]
    if form.cluster_id is not None:
        lines.append(f"{_CLUSTER_KEY}={form.cluster_id}")
    if form.directory_id is not None:
        lines.append(f"{_DIRECTORY_KEY}={form.directory_id}")
    replace_file(directory / FORMAT_NAME, "".join(f"{line}\n" for line in lines).encode())
