"""Control records in Kafka's words: the end of a transaction, or a marker in Kafka's own metadata log.

The values of those markers are Kafka's messages in version 0, big-endian: an i16 version, then an i64 time
(SNAPSHOT_HEADER), nothing (SNAPSHOT_FOOTER) or an i16 (KRAFT_VERSION); tagged fields may follow.
"""

import struct
from struct import Struct

from warmlog_protocol.batch.control import ControlType, read_control_type, read_end_txn_marker
from warmlog_protocol.errors import CorruptBatch

_SNAPSHOT_HEADER = Struct(">hq")
_SNAPSHOT_FOOTER = Struct(">h")
_KRAFT_VERSION = Struct(">hh")


def control_text(key: bytes | None, value: bytes | None) -> str:
    """Return what follows the metadata in a control record's line. CorruptBatch for an unknown or damaged one."""
    control_type = read_control_type(key)
    if control_type.is_end_txn:
        marker = read_end_txn_marker(key, value)
        return f" endTxnMarker: {marker.control_type.name} coordinatorEpoch: {marker.coordinator_epoch}"
    try:
        return _metadata_mark(control_type, value or b"")
    except struct.error as error:
        raise CorruptBatch(f"control record of type {control_type.name}: {error}") from None


def _metadata_mark(control_type: ControlType, value: bytes) -> str:
    if control_type is ControlType.SNAPSHOT_HEADER:
        version, time_ms = _SNAPSHOT_HEADER.unpack_from(value)
        return f' SnapshotHeader {{"version":{version},"lastContainedLogTimestamp":{time_ms}}}'
    if control_type is ControlType.SNAPSHOT_FOOTER:
        (version,) = _SNAPSHOT_FOOTER.unpack_from(value)
        return f' SnapshotFooter {{"version":{version}}}'
    if control_type is ControlType.KRAFT_VERSION:
        version, kraft_version = _KRAFT_VERSION.unpack_from(value)
        return f' KRaftVersion {{"version":{version},"kRaftVersion":{kraft_version}}}'
    return f" controlType: {control_type.name}({control_type.value})"
