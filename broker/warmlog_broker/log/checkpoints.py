"""Small text files that are replaced as a whole, with the bytes that Kafka writes.

Offsets of a data directory's partitions (`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`replication-offset-checkpoint`), a line for each::

    0                        version
    2                        lines that follow
    flights 0 14000          topic, partition, offset
    flights 1 13500

An empty file stands for no lines. Leader epochs of one partition (`leader-epoch-checkpoint`) have the same head and
lines `epoch start-offset`; that file is never empty. `partition.metadata` holds the topic's id as URL-safe base64
without padding::

    version: 0
    topic_id: Efo9lYIRT3GmJrmskxPrXQ

Writing is atomic and durable: a temporary file beside it, fsync, rename, fsync of the directory. What cannot be read
is a StorageError that names the file, the line, what was expected and what was found; who asked decides whether to
rebuild the content.
"""

import logging
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID

from warmlog_broker.log.shortage import SyncNotBegun, is_out_of_resources
from warmlog_broker.log.topic_partition import TopicPartition
from warmlog_broker.log.writing import write_all
from warmlog_protocol.errors import StorageError

logger = logging.getLogger(__name__)

VERSION = 0
_METADATA_HEAD = f"version: {VERSION}"
_TOPIC_ID = "topic_id: "


def open_to_sync(path: Path | str, more_flags: int = 0) -> int:
    """A descriptor of `path` for a sync. SyncNotBegun when there is none to be had now, OSError for another reason."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | more_flags)
    except OSError as error:
        if is_out_of_resources(error):
            raise SyncNotBegun(error.errno, error.strerror, str(path)) from error
        raise


def sync_directory(directory: Path | str) -> None:
    """Makes the names in `directory` durable: files created, renamed and removed before this call."""
    descriptor = open_to_sync(directory, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(directory: Path) -> None:
    """Makes `directory` and the ones above it that are missing, durably: a synced file is lost without their names."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def write_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Writes `content` into the file at `path`, which may be half done when OSError is raised."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, content, 0)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Makes `content` what `path` holds, durably; after a crash the file holds the old content or the new one."""
    stage_file(path, content, sync=True)
    place_file(path)
    sync_directory(path.parent)


def stage_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Writes `content` beside the file at `path`, for `place_file`. Without `sync` the caller sees to it in between."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_file(temporary, content, sync=sync)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def place_file(path: Path) -> None:
    """Makes what was staged, and synced, the content of `path`; durable once the directory is synced."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replaces the offsets that `path` holds."""
    replace_file(path, _pack(f"{key.topic} {key.partition} {offset}" for key, offset in offsets.items()))


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """The offsets that `path` holds; none when there is no file. StorageError when it cannot be understood."""
    offsets = {}
    for number, line in _read_lines(path):
        fields = line.split()
        try:
            topic, partition, offset = fields[0], int(fields[1]), int(fields[2])
        except (IndexError, ValueError):
            raise _malformed(path, number, "topic, partition and offset", line) from None
        if len(fields) != 3 or partition < 0 or offset < 0:
            raise _malformed(path, number, "topic, partition and offset", line)
        offsets[TopicPartition(topic, partition)] = offset
    return offsets


def pack_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The content of a leader-epoch-checkpoint with `epochs`, pairs of epoch and start offset."""
    return _pack(f"{epoch} {start_offset}" for epoch, start_offset in epochs)


def read_epochs(path: Path) -> list[tuple[int, int]]:
    """The pairs of epoch and start offset in `path`, both rising. FileNotFoundError when there is no file,
    StorageError when it cannot be understood."""
    epochs: list[tuple[int, int]] = []
    if path.stat().st_size == 0:
        raise StorageError(f"{path}: expected version and count, found an empty file")
    for number, line in _read_lines(path):
        fields = line.split()
        try:
            epoch, start_offset = map(int, fields)
        except ValueError:
            raise _malformed(path, number, "epoch and start offset", line) from None
        last_epoch, last_offset = epochs[-1] if epochs else (-1, -1)
        if epoch <= last_epoch or start_offset <= last_offset:
            raise _malformed(path, number, f"an epoch above {last_epoch} from an offset above {last_offset}", line)
        epochs.append((epoch, start_offset))
    return epochs


def pack_partition_metadata(topic_id: UUID) -> bytes:
    """The content of a partition.metadata file."""
    text = urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return f"{_METADATA_HEAD}\n{_TOPIC_ID}{text}".encode()


def read_partition_metadata(path: Path) -> UUID:
    """The topic id in `path`. FileNotFoundError when there is no file, StorageError when it cannot be understood."""
    lines = path.read_text("utf-8", errors="replace").splitlines()
    if len(lines) != 2 or lines[0] != _METADATA_HEAD or not lines[1].startswith(_TOPIC_ID):
        raise StorageError(f"{path}: expected {_METADATA_HEAD!r} and {_TOPIC_ID!r} with an id, found {lines!r}")
    text = lines[1].removeprefix(_TOPIC_ID).strip()
    try:
        return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        raise StorageError(f"{path}: expected 16 bytes as base64 for the topic id, found {text!r}") from None


def stored_topic_id(path: Path) -> UUID | None:
    """Return the topic id in the partition.metadata at `path`; None, with a warning if damaged, when it is of no use.

    None does not mean that the directory belongs to no topic: a crash may have come before the file was written, or
    the file of a partition in use is damaged. The caller decides by the directory's name and records. OSError from the
    disk.
    """
    try:
        return read_partition_metadata(path)
    except FileNotFoundError:
        return None
    except StorageError as error:
        logger.warning("the topic id is not known: %s", error)
        return None


def _pack(lines: Iterable[str]) -> bytes:
    body = list(lines)
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(body)), *body)).encode()


def _read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines after the head, with their numbers in the file, once version and count were found right."""
    try:
        lines = path.read_bytes().decode().splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise StorageError(f"{path}: expected text, found bytes that are not UTF-8") from None
    if not lines:
        return []
    if lines[0].strip() != str(VERSION):
        raise _malformed(path, 1, f"version {VERSION}", lines[0])
    body = list(enumerate(lines[2:], start=3))
    if len(lines) < 2 or lines[1].strip() != str(len(body)):
        raise _malformed(path, 2, f"{len(body)}, the lines that follow", lines[1] if len(lines) > 1 else "the end")
    return body


def _malformed(path: Path, number: int, expected: str, found: str) -> StorageError:
    return StorageError(f"{path}, line {number}: expected {expected}, found {found!r}")
