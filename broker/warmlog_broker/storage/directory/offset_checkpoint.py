"""Checkpoint files: small text files with a version, a count, and a line for each entry, as Kafka writes them.

Offsets of a data directory's partitions (`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`replication-offset-checkpoint`, `cleaner-offset-checkpoint`), a line for each::

    0                        version
    2                        number of lines
    flights 0 14000          topic, partition, offset
    flights 1 13500

An empty file has no lines. A malformed one is a StorageError with file, line, expected and found; the caller decides
whether to rebuild the content.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_protocol.errors import StorageError

VERSION = 0


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the offsets in `path`, durably."""
    replace_file(path, pack_offsets(offsets))


def pack_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return pack_lines(f"{key.topic} {key.partition} {offset}" for key, offset in offsets.items())


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Read the offsets in `path`; none if there is no file. StorageError if it is malformed."""
    offsets = {}
    for number, line in read_lines(path):
        fields = line.split()
        try:
            topic, partition, offset = fields[0], int(fields[1]), int(fields[2])
        except (IndexError, ValueError):
            raise malformed(path, number, "topic, partition and offset", line) from None
        if len(fields) != 3 or partition < 0 or offset < 0:
            raise malformed(path, number, "topic, partition and offset", line)
        offsets[TopicPartition(topic, partition)] = offset
    return offsets


def pack_lines(lines: Iterable[str]) -> bytes:
    body = list(lines)
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(body)), *body)).encode()


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Check version and count, and return the lines after them with their line numbers."""
    try:
        lines = path.read_bytes().decode().splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise StorageError(f"{path}: expected text, found bytes that are not UTF-8") from None
    if not lines:
        return []
    if lines[0].strip() != str(VERSION):
        raise malformed(path, 1, f"version {VERSION}", lines[0])
    body = list(enumerate(lines[2:], start=3))
    if len(lines) < 2 or lines[1].strip() != str(len(body)):
        raise malformed(path, 2, f"{len(body)}, the number of lines", lines[1] if len(lines) > 1 else "the end")
    return body


def malformed(path: Path, number: int, expected: str, found: str) -> StorageError:
    return StorageError(f"{path}, line {number}: expected {expected}, found {found!r}")
