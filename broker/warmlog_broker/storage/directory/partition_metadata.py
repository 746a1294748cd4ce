"""`partition.metadata`: the id of the topic that a partition directory belongs to.

The id is URL-safe base64 without padding::

    version: 0
    topic_id: Efo9lYIRT3GmJrmskxPrXQ
"""

import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from uuid import UUID

from warmlog_protocol.errors import StorageError

logger = logging.getLogger(__name__)


METADATA_NAME = "partition.metadata"

_METADATA_HEAD = "version: 0"
_TOPIC_ID = "topic_id: "


def pack_partition_metadata(topic_id: UUID) -> bytes:
    text = urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return f"{_METADATA_HEAD}\n{_TOPIC_ID}{text}".encode()


def read_partition_metadata(path: Path) -> UUID:
    """Read the topic id in `path`. FileNotFoundError if there is no file, StorageError if it is malformed."""
    lines = path.read_text("utf-8", errors="replace").splitlines()
    if len(lines) != 2 or lines[0] != _METADATA_HEAD or not lines[1].startswith(_TOPIC_ID):
        raise StorageError(f"{path}: expected {_METADATA_HEAD!r} and {_TOPIC_ID!r} with an id, found {lines!r}")
    text = lines[1].removeprefix(_TOPIC_ID).strip()
    try:
        return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        raise StorageError(f"{path}: expected 16 bytes as base64 for the topic id, found {text!r}") from None


def stored_topic_id(path: Path) -> UUID | None:
    """Return the topic id in the partition.metadata at `path`; None, with a warning if damaged, if there is none.

    None does not mean that the directory belongs to no topic: a crash may have come before the file was written, or the
    file of a partition in use is damaged. The caller decides by the directory's name and records. OSError from the
    disk.
    """
    try:
        return read_partition_metadata(path)
    except FileNotFoundError:
        return None
    except StorageError as error:
        logger.warning("the topic id is unknown: %s", error)
        return None
