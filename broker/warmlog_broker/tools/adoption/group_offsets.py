"""The offsets that groups have committed in a Kafka, read from its topic `__consumer_offsets`.

A key is a version (int16; 0 and 1 are offsets), then group and topic (each an int16 length and UTF-8) and partition
(int32). A value is a version (int16) and the offset (int64); what follows is not read. A null value removes the key.
What a transaction commits counts from its marker.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

from warmlog_broker.storage.directory.topic_partition import parse_directory_name
from warmlog_protocol.batch import ControlType, iter_batches

TOPIC = "__consumer_offsets"
Key = tuple[str, str, int]
"""Group, topic and partition."""

_SHORT, _INT, _LONG = Struct(">h"), Struct(">i"), Struct(">q")
_OFFSET_KEYS = (0, 1)


def committed_in(kafka_paths: Sequence[Path]) -> dict[Key, int]:
    """Return the last commit of each key in the data directories of a stopped Kafka. CorruptBatch, OSError."""
    found: dict[Key, int] = {}
    for directory in sorted(each for path in kafka_paths for each in path.glob(f"{TOPIC}-*") if _is_in_use(each)):
        for key, value in _commits(directory):
            found.pop(key, None)
            if value is not None:
                found[key] = value
    return dict(sorted(found.items()))


def _is_in_use(directory: Path) -> bool:
    """Return whether this is a partition, and not one that was deleted, is a copy to be, or was found astray."""
    parsed = parse_directory_name(directory.name)
    return parsed is not None and not parsed.mark


def _commits(directory: Path) -> Iterator[tuple[Key, int | None]]:
    """Yield what one partition says, in the order in which it counts."""
    open_ones: dict[int, list[tuple[Key, int | None]]] = {}
    for path in sorted(directory.glob("*.log")):
        for batch in iter_batches(path.read_bytes()):
            producer_id = batch.header.producer_id
            if batch.header.is_control:
                ended = open_ones.pop(producer_id, [])
                yield from ended if batch.control_type is ControlType.COMMIT else []
                continue
            records = [
                (parsed, None if value is None else int(_LONG.unpack_from(value, _SHORT.size)[0]))
                for key, value in zip(batch.keys(), batch.values(), strict=True)
                if key is not None and (parsed := _key(key)) is not None
            ]
            if batch.header.is_transactional:
                open_ones.setdefault(producer_id, []).extend(records)
            else:
                yield from records


def _key(data: bytes) -> Key | None:
    (version,) = _SHORT.unpack_from(data)
    if version not in _OFFSET_KEYS:
        return None
    group, at = _text(data, _SHORT.size)
    topic, at = _text(data, at)
    return group, topic, int(_INT.unpack_from(data, at)[0])


def _text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = _SHORT.unpack_from(data, at)
    start = at + _SHORT.size
    return data[start : start + size].decode(), start + size
